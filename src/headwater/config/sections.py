"""The sections of a configuration whose keys do not depend on a choice; choices bring further keys (catalog.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt
from pydantic import AfterValidator, ConfigDict

from headwater.config.adversity import AttackConfig, FaultsConfig, LinksConfig, RobustConfig
from headwater.config.fields import Says, Section, Share
from headwater.config.privacy import NoiseConfig, SecureConfig
from headwater.data import well_formed
from headwater.errors import ConfigError
from headwater.specs import AtLeastOne, Count, Positive

ARRAYS = "arrays"  # data.name of a run whose data was given as arrays
CUSTOM = "custom"  # model.name of a run whose model was given as a callable


def _share_or_count(value: float) -> float:
    if value < 0 or (isinstance(value, float) and value >= 1):
        raise ValueError
    return value


def _classes(value: int | tuple[int, ...]) -> int | tuple[int, ...]:
    if not well_formed(value):
        raise ValueError
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*(:\d+)?", value):  # whether there is such a device, torch knows
        raise ValueError
    return value


def network(entry: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of an entry of `model.also`.

    Raises:
        ConfigError: it is a table without a name.
    """
    if isinstance(entry, str):
        return entry, {}
    options = dict(entry)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"a table in model.also needs the name of its network, got {dict(entry)!r}")
    return name, options


class Top(Section):
    """The keys before any section.

    Args:
        seed: decides every random number of a run.
        rounds: number of rounds.
        eval_every: rounds from one evaluation to the next.
    """

    seed: Count = 0
    rounds: AtLeastOne = 20
    eval_every: AtLeastOne = 1


class Chosen(Section):
    """Base class of sections whose choice (a data set, a scheme, a model) has options beside the common keys."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that belong to the choice itself."""
        return dict(self.model_extra or {})


class DataConfig(Chosen):
    """What is learnt from.

    Args:
        name: a data set (`headwater list datasets`), the path of a .npz, .csv, .tsv or .parquet file or of a folder, or
            "package.module:function".
        label: for a table: the column with the label.
        client: for a table: the column that says which client a row belongs to; empty: rows are split by `[partition]`.
        sector: for a table: the column that says which sector a row's client belongs to.
        fraction: share of the training data that is used.
        test_fraction: share of the test set on which models are evaluated.
        validation: size of the server's validation set, as a share of the training data or as a number of samples.
        reference: where the unlabelled reference set comes from: "holdout", carved out of the training data; "unused",
            training data that `fraction` leaves over; "noise"; a data set's name, or a path.
        reference_size: samples in the reference set, at most; of "holdout" no more than a fifth of the training data.
        reference_noise: distribution of `reference = "noise"`.
        reference_classes: use only samples of these classes of the reference set: a number of random classes, or a list
            of class numbers; empty: all.
        reference_fraction: share of the reference set that is used. The clients' data does not depend on it.
        reference_labelled: whether a reference set of your own has labels that number the same classes.
        dir: directory of the data files; empty: `HEADWATER_DATA`, or the cache. Never changes a result.
    """

    name: str = "digits"
    label: str = "label"
    client: str = ""
    sector: str = ""
    fraction: Share = 1.0
    test_fraction: Share = 1.0
    validation: Annotated[
        int | float, AfterValidator(_share_or_count), Says("a share below 1 or a whole number of samples")
    ] = 0.1
    reference: str = "holdout"
    reference_size: Count = 5000
    reference_noise: Literal["uniform", "gaussian"] = "uniform"
    reference_classes: Annotated[
        int | tuple[int, ...],
        AfterValidator(_classes),
        Says("a number of classes or a list of class numbers, each once"),
    ] = ()
    reference_fraction: Share = 1.0
    reference_labelled: bool = False
    dir: str = ""


class PartitionConfig(Chosen):
    """How data is split over clients, and who takes part.

    Args:
        scheme: how rows are split (`headwater list partitions`), or "package.module:Name".
        clients: number of clients.
        sectors: number of sectors.
        assign: how clients are assigned to sectors: at random, so that sectors hold similar labels ("balanced"), in
            blocks of consecutive numbers, or by a list.
        participation: share of clients that take part in a round.
        local_test: share of each client's rows that it keeps for a test of its own.
        local_test_source: "train": these rows; "test": as many rows of the common test set, with the client's labels in
            the same proportions, and it trains on all of its own.
    """

    scheme: str = "dirichlet"
    clients: AtLeastOne = 20
    sectors: AtLeastOne = 2
    assign: Annotated[
        str | tuple[int, ...], Says("'random', 'balanced', 'blocks' or a list with the sector number of each client")
    ] = "random"
    participation: Share = 1.0
    local_test: Annotated[float, Ge(0), Lt(1)] = 0.0
    local_test_source: Literal["train", "test"] = "train"


class ModelConfig(Chosen):
    """What is trained.

    Args:
        name: a network (`headwater list models`), "auto" for one that suits the data, or "package.module:Name".
        buffers: batch-norm statistics when models are averaged: their average, or those of the first model.
        also: further networks (listed or "package.module:Name"), each a name or a table with its name and options, such
            as {name = "shufflenetv2", stem = "small"}; clients get all in turn, if the method allows it.
        projection: width of a two-layer projection before the classifier, as in MOON; 0: none.
        bn_head: batch norm without parameters on the features, which bounds them as FedHKD's paper says.
        freeze: "extractor": only the classifier is trained and travels; the rest is sent once, before round 1.
        adapter: "lora": low-rank adapters of the extractor's layers are trained, and the classifier; needs
            headwater[adapters].
        rank: rank of adapters.
        adapter_alpha: an adapter's output is multiplied by adapter_alpha / rank.
        frozen_sha256: hash of the frozen weights of files; other weights are refused. Empty to accept any. The resolved
            configuration of a run has it.
        bn: constants of batch norm. "torch": a batch changes the running statistics by 0.1, eps 1e-5; "keras": by 0.01,
            eps 1e-3.
        start: a run's directory or a model.safetensors whose weights round 1 begins with (`headwater run --from`);
            empty: new weights, drawn by the seed.
        start_sha256: hash of the model of `start`; another model is refused. Empty to accept any. The resolved
            configuration of a run has it.
    """

    name: str = "auto"
    buffers: Literal["average", "first"] = "average"
    also: Annotated[
        tuple[str | dict[str, Any], ...], Says("a list of networks: names, or tables of name and options")
    ] = ()
    projection: Count | None = None
    bn_head: bool = False
    freeze: Literal["none", "extractor"] = "none"
    adapter: Literal["none", "lora"] = "none"
    rank: AtLeastOne = 8
    adapter_alpha: Positive = 16.0
    frozen_sha256: str = ""
    bn: Literal["torch", "keras"] = "torch"
    start: str = ""
    start_sha256: str = ""


class EngineConfig(Section):
    """Where a run is computed.

    Only `device`, `threads`, `server_threads`, `stack` and `stack_memory` may change last digits of a result;
    `precision` changes more.

    Args:
        name: "inline": in this process; "pool": worker processes; "ray": a Ray cluster; "auto": the likely fastest; or
            "package.module:Name".
        workers: number of workers; 0: as many as there are cores. With "inline", threads for clients trained together.
        threads: threads of every task.
        server_threads: threads of a student at the server, which all other tasks wait for; 0: as `threads`.
        stack: train models of many clients as one: "auto" perceptrons, and on a GPU networks for images; "on" both.
        memory: MB of values that may wait in memory, more are kept on disk; 0: a quarter of the memory.
        address: of the Ray cluster to use, as host:port, or auto; empty: one is started on this machine.
        overlap: begin a round while the one before is still computed, where nothing depends on it.
        device: "cpu"; "cuda", "cuda:N" or "mps" for a GPU; "auto": a GPU where torch finds one, else the CPU.
        precision: of forward passes: "float32", or "bfloat16" for the operations that torch's autocast chooses.
            Weights, optimisers and averages are always float32.
        device_memory: MB of rows that each process keeps on a GPU; 0: a quarter of the memory that it has free.
        stack_memory: MB of a stack of networks for images, by an estimate; it limits how many clients are one.
    """

    name: str = "auto"
    workers: Count = 0
    threads: AtLeastOne = 1
    server_threads: Count = 0
    stack: Literal["auto", "on", "off"] = "auto"
    memory: Annotated[float, Ge(0)] = 0.0
    address: str = ""
    overlap: bool = True
    device: Annotated[str, AfterValidator(_device), Says("'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'")] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    device_memory: Annotated[float, Ge(0)] = 0.0
    stack_memory: Annotated[float, Ge(0)] = 1024.0


class PrivacyConfig(SecureConfig, NoiseConfig):
    """What protects clients and their rows: sums that hide single values, and noise."""


class DeployConfig(Section):
    """A federation between organisations. Never changes a result, as long as all parties answer in time.

    Args:
        server_address: address of the server's link, as sectors reach it.
        sector_addresses: addresses of the sectors' links; empty: on the server's host, from the next port on.
        deadline: seconds that a client has for one exchange.
        quorum: share of a sector's clients, and of the sectors, that must answer for their work to count.
        start: seconds to wait at the start until all parties are connected.
        max_mb: largest message that is accepted, in MB.
        max_norm: largest update that is accepted: the norm of its difference from the model that a client began with;
            0: compared with the other updates of the round.
        max_rows: most rows that a client may announce; 0: any number.
        secret_noise: draw noise from a secret of the party that adds it, so that no other can subtract it; the result
            then differs from the simulation's. With false, noise follows from the seed, which every party has.
    """

    server_address: str = "127.0.0.1:9100"
    sector_addresses: tuple[str, ...] = ()
    deadline: Positive = 600.0
    quorum: Share = 0.5
    start: Positive = 600.0
    max_mb: Positive = 2048.0
    max_norm: Annotated[float, Ge(0)] = 0.0
    max_rows: Count = 0
    secret_noise: bool = True


SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "partition": PartitionConfig,
    "model": ModelConfig,
    "engine": EngineConfig,
    "privacy": PrivacyConfig,
    "robust": RobustConfig,
    "attack": AttackConfig,
    "faults": FaultsConfig,
    "links": LinksConfig,
    "deploy": DeployConfig,
}
