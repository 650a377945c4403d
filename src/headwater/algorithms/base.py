"""What a method is: a frozen dataclass with `init` and `round`, which both take a view and return a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, nothing
from headwater.core.tree import ROOT
from headwater.engines.base import Bundle
from headwater.specs import DistillSpec, Mix, Weights
from headwater.tasks.average import average, initial


@dataclass(frozen=True)
class State:
    """What must survive a round. `model` is at the server: what is evaluated and shipped.

    A state may have more to show: `personal` models at clients, a `team` at the server that predicts together, and
    `also`, further models at the server by name.
    """

    model: Located


@dataclass(frozen=True)
class LocalState(State):
    """With `keep_local`, also clients' models as they were trained: these are then tried on clients' own test rows."""

    personal: Located | None = None


@dataclass(frozen=True)
class PersonalState:
    """Every client has a model of its own; there is no global one."""

    personal: Located  # at clients
    model: None = None


@dataclass(frozen=True)
class Team:
    """Models at the server that predict together, each counting alike unless `weights` says otherwise."""

    members: Mapping[str, Located] | Located  # one by one, or as the mapping that came to the server
    mix: Mix = "probs"
    weights: Weights = "uniform"


def voting(spec: DistillSpec) -> Weights:
    """How teachers count when they are tested together: as they teach, unless that takes more than their answers."""
    return spec.weights if spec.weights in ("samples", "confidence") else "uniform"


class Algorithm(Protocol):
    """The contract of a method file.

    `init` sees everybody and gives the first state; `round` sees this round's participants and gives the next.
    `SUITS` holds the method's own defaults, by section (`model` and the stages), where they differ from the library's;
    a class method `suits(options)` takes its place where they depend on the options.
    A method may further declare `NEEDS = ("features",)`, if a model must have the two parts extractor and classifier,
    `UNLIKE = True`, if clients may have unequal architectures, and `models(spec)`, further architectures of its own. It
    may also have something to say: `cautions(model, participation)` before a run, `remarks(history)` and
    `privacy(rounds, width)` after it.
    """

    SUITS: ClassVar[dict[str, dict[str, Any]]]

    def init(self, fed: Federation, model: Located) -> Any: ...

    def round(self, fed: Federation, state: Any) -> Any: ...


def spread(fed: Federation, x: Located, through: bool = False) -> Located:
    """From the server to every client: straight, or relayed by the sectors."""
    return fed.down(fed.down(x)) if through else fed.down(x, to=CLIENTS)


def gather(
    fed: Federation, x: Located, through: bool = False, task: Callable[..., Any] = average, **options: Any
) -> Located:
    """From the clients to the server, combined there: straight, or at the sectors first.

    The task must be one whose result over parts is that over all, as a mean by weights is.
    """
    if not through:
        return fed.run(task, at=SERVER, models=fed.up(x, to=SERVER), **options)
    return fed.run(task, at=SERVER, models=fed.up(fed.run(task, at=SECTORS, models=fed.up(x), **options)), **options)


def rejoined(before: Located, again: Located) -> Located:
    """What sectors sent to the server, with what some of them sent once more in its place; the others send nothing."""
    old, new = (held for x in (before, again) for held in x.nodes.values())
    assert isinstance(old, Bundle)
    assert isinstance(new, Bundle)
    return Located(before.place, {ROOT: Bundle({**old.refs, **new.refs})})


def kept(fed: Federation, keep: bool, state: State, local: Located) -> Located | None:
    """Clients' models as trained, of those who sat out the last one; nothing unless they are to be kept."""
    before: Located | None = getattr(state, "personal", None)  # a method of one's own may begin without any
    return fed.update(before or nothing(CLIENTS), local) if keep else None


def own_models(fed: Federation, model: Located) -> Located:
    """A starting model at every client, of the client's own architecture."""
    models = {arch: fed.run(initial, at=SERVER, arch=arch) for arch in fed.tree.archs[1:]}
    return fed.down({c: models.get(fed.tree.arch(c), model) for c in fed.clients}, to=CLIENTS)
