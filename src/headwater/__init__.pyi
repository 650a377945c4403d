# Written by `python tools/docs_tables.py`; do not edit.
from headwater import callbacks as callbacks
from headwater.algorithms import MethodInfo
from headwater.algorithms.base import Method, State
from headwater.algorithms.centralized import Centralized
from headwater.algorithms.fed_ensemble import FedEnsemble
from headwater.algorithms.fedalign import FedAlign
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedavgm import FedAvgM
from headwater.algorithms.fedbe import FedBe
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.feddyn import FedDyn
from headwater.algorithms.fedeed import FedEed
from headwater.algorithms.fedgen import FedGen
from headwater.algorithms.fedhead import FedHead, FedHeadPlus
from headwater.algorithms.fedhkd import FedHkd, FedHkdStar
from headwater.algorithms.fedma import FedMa
from headwater.algorithms.fedmd import FedMd
from headwater.algorithms.fednova import FedNova
from headwater.algorithms.fedproto import FedProto
from headwater.algorithms.fedprox import FedProx
from headwater.algorithms.frame import Frame
from headwater.algorithms.hfedavg import HFedAvg
from headwater.algorithms.hfeddyn import HFedDyn
from headwater.algorithms.hfedprox import HFedProx
from headwater.algorithms.hscaffold import HScaffold
from headwater.algorithms.local import Local
from headwater.algorithms.moon import Moon
from headwater.algorithms.mtgc import Mtgc
from headwater.algorithms.scaffold import Scaffold
from headwater.api import Comparison, compare, partition, plan, run
from headwater.api.partition_view import PartitionView
from headwater.callbacks import Callback, StopRun
from headwater.config import Config
from headwater.data.base import Data
from headwater.errors import (
    CallbackError,
    ConfigError,
    DataError,
    Diverged,
    HeadwaterError,
    MissingExtra,
    OutputError,
    PlaceError,
    TaskError,
    UserError,
)
from headwater.inference.trained import TrainedModel, load
from headwater.planning import Plan
from headwater.specs import DistillSpec, LocalSpec
from headwater.training.result import Run

__version__: str

__all__ = [
    "Callback",
    "CallbackError",
    "Centralized",
    "Comparison",
    "Config",
    "ConfigError",
    "Data",
    "DataError",
    "DistillSpec",
    "Diverged",
    "FedAlign",
    "FedAvg",
    "FedAvgM",
    "FedBe",
    "FedDf",
    "FedDyn",
    "FedEed",
    "FedEnsemble",
    "FedGen",
    "FedHead",
    "FedHeadPlus",
    "FedHkd",
    "FedHkdStar",
    "FedMa",
    "FedMd",
    "FedNova",
    "FedProto",
    "FedProx",
    "Frame",
    "HFedAvg",
    "HFedDyn",
    "HFedProx",
    "HScaffold",
    "HeadwaterError",
    "Local",
    "LocalSpec",
    "Method",
    "MethodInfo",
    "MissingExtra",
    "Moon",
    "Mtgc",
    "OutputError",
    "PartitionView",
    "PlaceError",
    "Plan",
    "Run",
    "Scaffold",
    "State",
    "StopRun",
    "TaskError",
    "TrainedModel",
    "UserError",
    "__version__",
    "callbacks",
    "compare",
    "load",
    "partition",
    "plan",
    "run",
]
