"""The sections that are the same whatever is chosen; the choices bring further keys of their own (catalog.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict

from headwater.config.fields import Says
from headwater.specs import AtLeastOne, Count

ARRAYS = "arrays"  # data.name of a run whose data was given as arrays, and so is not to be found by name
CUSTOM = "custom"  # model.name of a run whose model was given as a callable

Share = Annotated[float, Gt(0), Le(1)]


def _share_or_count(value: float) -> float:
    if value < 0 or (isinstance(value, float) and value >= 1):
        raise ValueError
    return value


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Top(Section):
    """The keys that stand before any section."""

    seed: Count = 0
    rounds: AtLeastOne = 20
    eval_every: AtLeastOne = 1  # rounds from one evaluation to the next


class Chosen(Section):
    """A section whose choice (a scheme, a model) has options beside the common keys."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that belong to the choice itself."""
        return dict(self.model_extra or {})


class DataConfig(Section):
    """What is learnt from."""

    name: str = "digits"
    label: str = "label"
    client: str = ""
    sector: str = ""
    fraction: Share = 1.0
    validation: Annotated[
        int | float, AfterValidator(_share_or_count), Says("a share below 1 or a whole number of samples")
    ] = 0.1
    reference: str = "holdout"
    reference_size: Count = 5000
    dir: str = ""  # where files are; empty: HEADWATER_DATA or the cache. Never changes a result


class PartitionConfig(Chosen):
    """Who holds what, and who takes part."""

    scheme: str = "dirichlet"
    clients: AtLeastOne = 20
    sectors: AtLeastOne = 2
    assign: Annotated[
        str | tuple[int, ...], Says("'random', 'balanced', 'blocks' or a list with the sector number of each client")
    ] = "random"
    participation: Share = 1.0
    local_test: Annotated[float, Ge(0), Lt(1)] = 0.0


class ModelConfig(Chosen):
    """What is trained."""

    name: str = "auto"
    buffers: Literal["average", "first"] = "average"  # batch-norm statistics when models are averaged


class EngineConfig(Section):
    """Where it is computed. Never changes a result."""

    name: Literal["auto", "inline", "pool", "ray"] = "auto"
    workers: Count = 0  # 0: as many as there are cores
    threads: AtLeastOne = 1  # of every task


class PrivacyConfig(Section):
    """Takes no keys yet."""


class FaultsConfig(Section):
    """What goes wrong on purpose."""

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0  # at each task; a lost client stays lost for the round
