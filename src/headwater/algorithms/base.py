"""Base class of all methods, and the moves that many of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self

from headwater.algorithms import MethodInfo, SameAs
from headwater.algorithms.state import LocalState, Outputs, PersonalState, State, Team, outputs
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, nothing
from headwater.core.membership import with_newcomers
from headwater.core.tree import ROOT, Place
from headwater.engines.jobs import Bundle
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.specs import LEARNING_RATE, CheckedArguments, Descent, DistillSpec, LocalSpec, Weights
from headwater.tasks.average import average, initial
from headwater.tasks.packing import pack, unpack

__all__ = ["LocalState", "Method", "MethodInfo", "Outputs", "PersonalState", "State", "Team", "outputs"]

OUT_OF_THE_ORDINARY = 10  # times the usual learning rate


class Method(metaclass=CheckedArguments):
    """Base class of all methods: a frozen dataclass whose fields are the method's options.

    A method implements `init` and `round` and describes itself in `INFO`. All other members are hooks with a default.
    Fields named `local` (a `LocalSpec`), `sector` and `server` (a `DistillSpec`) are filled from the sections of these
    names; every other field is a key of `[algorithm]`. A run fills what the configuration leaves open in these sections
    to suit the data and the method: the optimiser too, which is Adam unless `INFO.defaults` or the user says otherwise.
    `total_steps(fed.sizes[client], self.local)` of `headwater.tasks.optimizers` is a client's number of local steps.

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
            state: the state before it. Values that the returned state does not hold are freed.
        """

    def in_round(self, number: int, rounds: int) -> Self:
        """The method with the learning rates of a round, as `lr_schedule` of its stages has them.

        Args:
            number: number of the round, from 1.
            rounds: rounds of the run.
        """
        stages = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        now = {name: stage.in_round(number, rounds) for name, stage in stages.items() if isinstance(stage, Descent)}
        changed = {name: stage for name, stage in now.items() if stage is not stages[name]}
        return replace(self, **changed) if changed else self  # type: ignore[type-var]

    def admit(self, fed: Federation, state: Any, first: Any) -> Any:
        """The state when clients join a run that has begun. Override it where values count all clients.

        Args:
            fed: the federation with these clients only, at round 0; `fed.tree` has all clients.
            state: the state before the round that they join with.
            first: what `init` gave in this view. By default its values at clients and new sectors are added.

        Raises:
            ConfigError: the method cannot take in clients.
        """
        return with_newcomers(state, first)

    @classmethod
    def defaults(cls, options: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return the method's default settings by configuration section, given its options."""
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

    def same_as(self, counts: Iterable[Sequence[int]]) -> SameAs | None:
        """The other method that gives the same result as this one on a split; None if there is none.

        Args:
            counts: of the rows that each client trains on, how many there are of each class.
        """
        return None

    def privacy(self, rounds: int, dimension: int) -> dict[str, Any] | None:
        """Return the privacy that a client spends on representations of size `dimension`; None: no guarantee.

        Args:
            rounds: in which it shared some.
            dimension: of a representation.
        """
        return None

    def distils(self, stage: str) -> bool:
        """Whether this stage ("sector" or "server") distils, given the options."""
        return True

    def validates_on_server_data(self, stage: str) -> bool:
        """Whether this stage is evaluated on the server's validation set, which must then exist."""
        return True

    def validation_options(self) -> tuple[str, ...]:
        """Options that are switched on and need a validation set."""
        return ()

    def uses_features(self) -> bool:
        """Whether the local loss uses features. Clients can then not be trained as one batched computation."""
        return self.INFO.features

    def reference_models(self) -> int:
        """Return how many further models a client holds during training, such as a proximal centre or a correction."""
        return 0

    def likely_causes(self) -> dict[str, str]:
        """Return, for each phase, the settings (with values) that make it diverge if they are too large.

        Teachers whose weights are finite and huge make a student diverge whatever its own learning rate is, so the
        clients' rate is named for both phases if it is the one that is out of the ordinary.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        local = [value for value in values.values() if isinstance(value, LocalSpec)]
        students = {f"{name}.lr": value for name, value in values.items() if isinstance(value, DistillSpec)}
        rates = {"local.lr": local[0].lr} if local else {}
        train = rates | {name: values[name] for name in self.INFO.strengths}
        distil = {key: spec.lr for key, spec in students.items()}
        usual = [spec.lr / LEARNING_RATE[spec.optimizer] for spec in (*local[:1], *students.values())]
        if local and students and usual[0] > OUT_OF_THE_ORDINARY * max(1.0, *usual[1:]):
            distil = rates
        return {
            phase: " and ".join(f"{name} = {value:g}" for name, value in settings.items() if value)
            for phase, settings in (("train", train), ("distill", distil))
        }


@cache
def as_method(kind: Any) -> type[Method]:
    """Return the class of a method, completed with a default for every hook.

    Args:
        kind: a subclass of `Method`, or any dataclass with `init` and `round`. The latter may describe itself by class
            attributes: `SUITS` or `suits(options)` for defaults, `NEEDS = ("features",)`, `UNLIKE` for
            `mixed_architectures`.

    Raises:
        ConfigError: `kind` is neither.
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
    """Return the weights of teachers that are tested as an ensemble.

    They are the weights of the distillation if sample counts and outputs determine these, else uniform.
    """
    return spec.weights if spec.weights in ("samples", "confidence") else "uniform"


def spread(fed: Federation, x: Located, through: bool = False) -> Located:
    """Send a value from the server to every client, directly or, with `through`, relayed by the sectors."""
    return fed.down(fed.down(x)) if through else fed.down(x, to=CLIENTS)


def up_models(fed: Federation, local: Located, spec: LocalSpec, to: Place = SERVER) -> Located:
    """Send the clients' trained models up as a mapping. One-bit models are packed on the way."""
    if spec.low_bit == "none":
        return fed.up(local, to=to)
    return fed.run(unpack, at=to, models=fed.up(fed.run(pack, at=CLIENTS, model=local), to=to))


def gather_trained(fed: Federation, local: Located, through: bool, spec: LocalSpec) -> Located:
    """Send the clients' trained models to the server and average them: the usual end of a round.

    It is `gather` by `average`, and packs one-bit models on their way from the clients.

    Args:
        fed: the view of this round.
        local: one trained model per client.
        through: whether sectors average their clients' models first.
        spec: how they were trained.
    """
    if not through:
        return fed.run(average, at=SERVER, models=up_models(fed, local, spec))
    means = fed.run(average, at=SECTORS, models=up_models(fed, local, spec, SECTORS))
    return fed.run(average, at=SERVER, models=fed.up(means))


def gather(
    fed: Federation, x: Located, through: bool = False, task: Callable[..., Any] = average, **options: Any
) -> Located:
    """Send the clients' values to the server, and combine them there by a task; see also `gather_trained`.

    Args:
        fed: the view of this round.
        x: one value per client.
        through: whether sectors combine their clients' values first. The task must then give the same result in two
            steps as in one, as a weighted mean does.
        task: combines the mapping that it gets as `models`.
        options: further inputs of the task.
    """
    if not through:
        return fed.run(task, at=SERVER, models=fed.up(x, to=SERVER), **options)
    return fed.run(task, at=SERVER, models=fed.up(fed.run(task, at=SECTORS, models=fed.up(x), **options)), **options)


def rejoined(before: Located, again: Located) -> Located:
    """Merge two sets of values that sectors sent to the server. A sector's second value replaces its first."""
    old, new = (refs for x in (before, again) for refs in x.nodes.values())
    assert isinstance(old, Bundle)
    assert isinstance(new, Bundle)
    return Located(before.place, {ROOT: Bundle({**old.refs, **new.refs})})


def kept(fed: Federation, keep: bool, state: Any, local: Located) -> Located | None:
    """Return the most recently trained model of every client; None unless `keep`."""
    return fed.update(outputs(state).personal or nothing(CLIENTS), local) if keep else None


def own_models(fed: Federation, model: Located) -> Located:
    """A starting model at every client, of the client's own architecture."""
    models = {arch: fed.run(initial, at=SERVER, arch=arch) for arch in fed.tree.archs[1:]}
    return fed.down({c: models.get(fed.tree.arch(c), model) for c in fed.clients}, to=CLIENTS)
