"""The sections that are the same whatever is chosen; the choices bring further keys of their own (catalog.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict

from headwater.config.fields import Says
from headwater.specs import AtLeastOne, Count, Positive

ARRAYS = "arrays"  # data.name of a run whose data was given as arrays, and so is not to be found by name
CUSTOM = "custom"  # model.name of a run whose model was given as a callable

Share = Annotated[float, Gt(0), Le(1)]


def _share_or_count(value: float) -> float:
    if value < 0 or (isinstance(value, float) and value >= 1):
        raise ValueError
    return value


def _classes(value: int | tuple[int, ...]) -> int | tuple[int, ...]:
    from headwater.data.reference import well_formed

    if not well_formed(value):
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


class DataConfig(Chosen):
    """What is learnt from."""

    name: str = "digits"
    label: str = "label"
    client: str = ""
    sector: str = ""
    fraction: Share = 1.0
    test_fraction: Share = 1.0  # share of the test set that scores are taken on
    validation: Annotated[
        int | float, AfterValidator(_share_or_count), Says("a share below 1 or a whole number of samples")
    ] = 0.1
    reference: str = "holdout"
    reference_size: Count = 5000
    reference_noise: Literal["uniform", "gaussian"] = "uniform"  # how reference = "noise" is drawn
    reference_classes: Annotated[
        int | tuple[int, ...],
        AfterValidator(_classes),
        Says("a number of classes or a list of class numbers, each once"),
    ] = ()  # only samples of these classes of the reference set: so many at random, or the ones listed; empty: of all
    reference_fraction: Share = 1.0  # share of the reference set that is used; the clients' data does not depend on it
    reference_labelled: bool = False  # whether a reference set of one's own has labels that number the same classes
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
    also: tuple[str, ...] = ()  # further listed models; clients have all of them in turn, if the method allows it
    projection: Count | None = None  # width of a two-layer projection before the classifier, as MOON has it; 0: none
    bn_head: bool = False  # batch norm without parameters on the features, which bounds them as FedHKD's paper says


class EngineConfig(Section):
    """Where it is computed. Never changes a result, but for last digits by `threads`, `server_threads` and `stack`."""

    name: Literal["auto", "inline", "pool", "ray"] = "auto"
    workers: Count = 0  # 0: as many as there are cores; on inline, threads of clients that are trained together
    threads: AtLeastOne = 1  # of every task
    server_threads: Count = 0  # of a student at the server, for whom all others wait; 0: as any task
    stack: Literal["auto", "on", "off"] = "auto"  # train small models of many clients as one; "on": also by vmap
    memory: Annotated[float, Ge(0)] = 0.0  # MB of values that wait; more are kept on disk. 0: a quarter of the memory
    address: str = ""  # of the Ray cluster to use, as host:port, or auto; empty: one is started on this machine
    overlap: bool = True  # a round begins while the one before is still being worked on, where nothing depends on it


class PrivacyConfig(Section):
    """Takes no keys yet."""


class FaultsConfig(Section):
    """What goes wrong on purpose."""

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0  # at each task; a lost client stays lost for the round
    bad_update: Literal["drop", "stop"] = "drop"  # a result with NaN or infinity: leave it out, or end the run
    availability: Share = 1.0  # share of the time that a client can begin a task. Never changes a result
    period: Positive = 10.0  # seconds from one coming of a client to the next


class DeployConfig(Section):
    """Between organisations. Never changes a result, as long as everybody answers in time."""

    server_address: str = "127.0.0.1:9100"  # of the server's link, as sectors reach it
    sector_addresses: tuple[str, ...] = ()  # of the sectors' links; empty: on the server's host, from the next port on
    deadline: Positive = 600.0  # seconds that a client has for one exchange
    quorum: Share = 0.5  # of a sector's clients, and of the sectors, that must answer for their work to count
    start: Positive = 600.0  # seconds to wait at the start for everybody to be there
    max_mb: Positive = 2048.0  # the largest message that is accepted
    secret_noise: bool = False  # draw noise from a secret of each client's own: the result is then not the simulation's
