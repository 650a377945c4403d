"""Base class of all methods, the states that they keep, and the moves that many of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar

from headwater.algorithms.info import MethodInfo
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, nothing
from headwater.core.tree import ROOT
from headwater.engines.jobs import Bundle
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.specs import DistillSpec, LocalSpec, Mix, Weights
from headwater.tasks.average import average, initial

__all__ = ["Method", "MethodInfo", "State", "Team"]


@dataclass(frozen=True)
class State:
    """What must survive a round. A method that keeps more extends it; every field is a handle or a plain value.

    Three further attributes (fields or properties) are optional and are tested after a round: `personal`, clients' own
    models; `team`, models at the server that predict together; `also`, further models at the server by name.

    Args:
        model: the global model, at the server: what is evaluated and written at the end.
    """

    model: Located


@dataclass(frozen=True)
class LocalState(State):
    """A global model and, with the option `keep_local`, clients' models as trained, for tests on their own rows."""

    personal: Located | None = None


@dataclass(frozen=True)
class PersonalState:
    """Every client has a model of its own; there is no global one."""

    personal: Located  # at clients
    model: None = None


@dataclass(frozen=True)
class Team:
    """Models at the server that predict together.

    Args:
        members: the models, one by one or as the mapping that came to the server.
        mix: what is averaged over members.
        weights: how much each member counts.
    """

    members: Mapping[str, Located] | Located
    mix: Mix = "probs"
    weights: Weights = "uniform"


@dataclass(frozen=True)
class Outputs:
    """What a state has to be tested; None or empty where it has no such thing."""

    model: Located | None
    personal: Located | None
    team: Team | None
    also: Mapping[str, Located]


def outputs(state: Any) -> Outputs:
    """The models of any state. The only place that looks for optional attributes of a state."""
    model, personal, team, also = (getattr(state, name, None) for name in ("model", "personal", "team", "also"))
    return Outputs(model, personal, team, also or {})


class Method(ABC):
    """Base class of all methods: a frozen dataclass whose fields are the method's options.

    A method implements `init` and `round` and describes itself in `INFO`. All other members are hooks with a default.
    Fields named `local` (a `LocalSpec`), `sector` and `server` (a `DistillSpec`) are filled from the sections of these
    names; every other field is a key of `[algorithm]`.

    Example:
        FedAvg in which all clients count the same. In a file `mine.py`, `headwater run mine:Plain` trains it::

            from dataclasses import dataclass

            from headwater.algorithms.base import Method, State
            from headwater.core.federation import CLIENTS, SERVER
            from headwater.specs import LOCAL, LocalSpec
            from headwater.tasks.average import average
            from headwater.tasks.local import local_train

            @dataclass(frozen=True)
            class Plain(Method):
                local: LocalSpec = LOCAL

                def init(self, fed, model):
                    return State(model)

                def round(self, fed, state):
                    start = fed.down(state.model, to=CLIENTS)
                    trained = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, by="uniform")
                    return State(fed.run(average, at=SERVER, models=fed.up(trained, to=SERVER)))
    """

    INFO: ClassVar[MethodInfo]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "INFO" not in vars(cls):  # a variant of a method: the same facts under its own name
            inherited: MethodInfo = getattr(cls, "INFO", MethodInfo(name=""))
            cls.INFO = replace(inherited, name=f"{cls.__module__}:{cls.__qualname__}")

    @abstractmethod
    def init(self, fed: Federation, model: Located) -> Any:
        """The state before the first round.

        Args:
            fed: the federation with all clients that hold data.
            model: the initial model, at the server.
        """

    @abstractmethod
    def round(self, fed: Federation, state: Any) -> Any:
        """The state after a round.

        Args:
            fed: the federation with the clients that take part in this round; `fed.round` counts from 1.
            state: the state before it. Values that stay behind in neither state are freed.
        """

    @classmethod
    def defaults(cls, options: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """Section → settings that suit the method, for these options of it."""
        return cls.INFO.defaults

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        """Further architectures that the method uses, by name; raises ConfigError for a model that it cannot train."""
        return {}

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        """Sentences that a run prints before it begins."""
        return ()

    def remarks(self, history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Sentences about a finished run, from its rows."""
        return ()

    def privacy(self, rounds: int, dimension: int) -> dict[str, Any] | None:
        """The differential privacy that so many rounds spend on representations of this size; None: no guarantee."""
        return None

    def distils(self, stage: str) -> bool:
        """Whether the options let this stage ("sector" or "server") distil at all."""
        return True

    def validates_on_server_data(self, stage: str) -> bool:
        """Whether this stage is judged on the validation set of the server, and so needs one."""
        return True

    def validation_options(self) -> tuple[str, ...]:
        """Options that are switched on and need a validation set."""
        return ()

    def uses_features(self) -> bool:
        """Whether the local loss uses features, so that clients cannot be trained as one."""
        return self.INFO.features

    def reference_models(self) -> int:
        """Models that a client holds during training beside its own: what it is pulled to or corrected by."""
        return 0

    def likely_causes(self) -> dict[str, str]:
        """Phase → settings with their values that make it diverge if they are too large."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        local = [value.lr for value in values.values() if isinstance(value, LocalSpec)]
        train = ({"local.lr": local[0]} if local else {}) | {name: values[name] for name in self.INFO.strengths}
        distil = {f"{name}.lr": v.lr for name, v in values.items() if isinstance(v, DistillSpec)}
        return {
            phase: " and ".join(f"{name} = {value:g}" for name, value in found.items() if value)
            for phase, found in (("train", train), ("distill", distil))
        }


@cache
def as_method(kind: Any) -> type[Method]:
    """The class of a method as generic code uses it: with a default for every hook.

    Args:
        kind: a subclass of `Method`, or any dataclass with `init` and `round`. The latter may describe itself by class
            attributes: `SUITS` or `suits(options)` for defaults, `NEEDS = ("features",)`, `UNLIKE` for
            `mixed_architectures`.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(kind, type) and issubclass(kind, Method) and is_dataclass(kind):
        return kind
    name = f"{getattr(kind, '__module__', '?')}:{getattr(kind, '__qualname__', kind)}"
    if not (isinstance(kind, type) and is_dataclass(kind) and hasattr(kind, "init") and hasattr(kind, "round")):
        raise ConfigError(
            f"{name} is not a method; it must be a frozen dataclass with init(fed, model) and round(fed, state), best "
            "a subclass of headwater.algorithms.base.Method"
        )
    strengths = ("alpha", "dyn_alpha", "gen_alpha", "mu")
    info = MethodInfo(
        name=name,
        summary=(kind.__doc__ or "").partition("\n")[0],
        defaults=getattr(kind, "SUITS", {}),
        mixed_architectures=getattr(kind, "UNLIKE", False),
        features="features" in getattr(kind, "NEEDS", ()),
        strengths=tuple(key for key in strengths if key in {f.name for f in fields(kind)}),
    )
    own: dict[str, Any] = {"INFO": info, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    if hasattr(kind, "suits"):
        own["defaults"] = kind.suits
    return type(kind.__name__, (kind, Method), own)


def voting(spec: DistillSpec) -> Weights:
    """How teachers count when they are tested together: as they teach, unless that takes more than their outputs."""
    return spec.weights if spec.weights in ("samples", "confidence") else "uniform"


def spread(fed: Federation, x: Located, through: bool = False) -> Located:
    """From the server to every client: straight or, with `through`, relayed by the sectors."""
    return fed.down(fed.down(x)) if through else fed.down(x, to=CLIENTS)


def gather(
    fed: Federation, x: Located, through: bool = False, task: Callable[..., Any] = average, **options: Any
) -> Located:
    """From the clients to the server, combined there by a task.

    Args:
        fed: the view of this round.
        x: one value per client.
        through: whether sectors combine their clients' values first. The result over parts must then be the result over
            all, as it is for a weighted mean.
        task: combines the mapping that it gets as `models`.
        options: further inputs of the task.
    """
    if not through:
        return fed.run(task, at=SERVER, models=fed.up(x, to=SERVER), **options)
    return fed.run(task, at=SERVER, models=fed.up(fed.run(task, at=SECTORS, models=fed.up(x), **options)), **options)


def rejoined(before: Located, again: Located) -> Located:
    """What sectors sent to the server; values that some of them sent once more replace their first ones."""
    old, new = (held for x in (before, again) for held in x.nodes.values())
    assert isinstance(old, Bundle)
    assert isinstance(new, Bundle)
    return Located(before.place, {ROOT: Bundle({**old.refs, **new.refs})})


def kept(fed: Federation, keep: bool, state: Any, local: Located) -> Located | None:
    """Clients' models as trained, the last ones of those that sat out this round; None unless `keep`."""
    return fed.update(outputs(state).personal or nothing(CLIENTS), local) if keep else None


def own_models(fed: Federation, model: Located) -> Located:
    """A starting model at every client, of the client's own architecture."""
    models = {arch: fed.run(initial, at=SERVER, arch=arch) for arch in fed.tree.archs[1:]}
    return fed.down({c: models.get(fed.tree.arch(c), model) for c in fed.clients}, to=CLIENTS)
