"""A number for the leak: a run is repeated, and the models that each kind of party held in its last round are attacked.

Nothing here knows methods: who held what comes from the moves and jobs of the run (`Watching`). A probe is a lower
bound by simple attacks. A small number proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.audit.inversion import Inverted, Likeness, invert
from headwater.audit.membership import RESAMPLES, Membership, Rate, Scores, class_weights, membership
from headwater.audit.views import SUBJECTS, SeenModel, seen_models
from headwater.audit.watching import Watching, name_of
from headwater.core.params import Params
from headwater.core.rng import derive, stream
from headwater.core.sampling import participants
from headwater.core.statistics import mean_interval
from headwater.specs import LocalSpec
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import Stepper, batches, total_steps
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment
from headwater.training.loop import Event, train
from headwater.training.spending import Spending

ROLES = ("server", "sector", "leader", "client")
CLIENTS = 8  # whose own models are attacked
INVERTED = 4  # models of a kind that are inverted, since each takes a search
MEMBERSHIP, ANALYTIC, SEARCH = "membership", "analytic", "search"
ATTACKS = (MEMBERSHIP, ANALYTIC, SEARCH)
ROWS = 2000  # most rows of either kind that a model is asked about
REFERENCE = LocalSpec(steps=300, batch=32, optimizer="adam", lr=1e-3)  # training of the reference model
WORST = 1e9  # in place of a loss that is not finite
NUMBERS = ("similarity", "control", "baseline")
SLOT = 7  # of a module of its own, so that nothing of the run is overwritten


@dataclass(frozen=True)
class Resemblance:
    """How much reconstructed inputs resemble rows of clients, beside public rows that know nothing of them.

    Args:
        similarity: of guesses and clients' rows, mean over models; 1 is a row itself.
        control: of the same guesses and rows that nobody trained on.
        baseline: of clients' rows and as many public rows in place of guesses.
        gain: similarity less control, with its 95 % interval over models; without one for a single model.
        models: how many were inverted.
    """

    similarity: float
    control: float
    baseline: float
    gain: Rate
    models: int


@dataclass(frozen=True)
class Finding:
    """What simple attacks learn from one kind of model that one kind of party held.

    Args:
        role: of the party: server, sector, leader or client.
        subject: whose models: of one "client", of a "sector", or of "several" sectors.
        purpose: what they were sent for, as in the ledger.
        part: their place in what was sent; empty if nothing else was in it.
        models: how many of them.
        started: of how many the party also held the model that training began with.
        loss: membership by the loss.
        calibrated: membership by the loss less that of a reference model.
        analytic: inversion by the first linear layer.
        searched: inversion by search.
    """

    role: str
    subject: str
    purpose: str
    part: str
    models: int
    started: int
    loss: Membership | None
    calibrated: Membership | None
    analytic: Resemblance | None
    searched: Resemblance | None


@dataclass(frozen=True)
class Probe:
    """The findings of one run.

    Args:
        findings: by party, then by whose models.
        without: parties that held no model with rows of others.
        round: the round that was looked at.
        clients: clients whose own models were attacked.
        model_sha256: of the repeated run's model, which is that of the first run if nothing has changed since.
        accuracy: of the repeated run.
    """

    findings: tuple[Finding, ...]
    without: tuple[str, ...]
    round: int
    clients: tuple[str, ...]
    model_sha256: str
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def probe(
    experiment: Experiment,
    *,
    clients: int = CLIENTS,
    inverted: int = INVERTED,
    attacks: Collection[str] = ATTACKS,
    resamples: int = RESAMPLES,
    watch: Callable[[Event], None] | None = None,
) -> Probe:
    """Run an experiment and attack what each kind of party held in the last round.

    Args:
        experiment: what `prepare` returned.
        clients: how many clients' own models are attacked.
        inverted: how many models of a kind are inverted.
        attacks: which of `ATTACKS` are made; the search comes with the analytic one.
        resamples: by which intervals of membership are found; 0 leaves them out.
        watch: called with every event of the run.
    """
    config = experiment.config
    last = Spending(experiment).last
    active = participants(experiment.tree, config.partition.participation, config.seed, last)
    drawn = stream(config.seed, "probe").permutation(len(active))[:clients]
    chosen = tuple(active[int(at)] for at in sorted(drawn))
    engine = Watching([last - 1, last], chosen, config.engine.threads)
    try:
        run = train(experiment, engine=engine, watch=watch)
        engine.finished()
        attacker = Attacker(engine.context, config.seed, attacks, resamples)
        seen = seen_models(engine, experiment.tree.sector_of, last, attacker.suited(experiment.tree.archs))
        findings = tuple(_findings(seen, attacker, inverted))
        present = {sighting.role for sighting in engine.sightings} | {"server", "sector", "client"}
    finally:
        engine.close()
    without = tuple(role for role in ROLES if role in present and role not in {each.role for each in findings})
    return Probe(findings, without, last, chosen, run.result["model_sha256"], run.accuracy)


def _findings(seen: Sequence[SeenModel], attacker: Attacker, inverted: int) -> list[Finding]:
    kinds: dict[tuple[str, str, str, str], list[SeenModel]] = {}
    for each in seen:
        part = ".".join(map(str, each.part))
        kinds.setdefault((each.role, each.subject, each.purpose, part), []).append(each)
    found = []
    for kind in sorted(kinds, key=lambda kind: (ROLES.index(kind[0]), SUBJECTS.index(kind[1]), *kind[2:])):
        models = kinds[kind]
        started = [each for each in models if each.start is not None]
        pictures = [attacker.inverted(each) for each in started[:inverted]]
        found.append(
            Finding(
                *kind,
                len(models),
                len(started),
                *attacker.membership(models),
                _resemblance([picture.analytic for picture in pictures]),
                _resemblance([picture.searched for picture in pictures]),
            )
        )
    return found


def _resemblance(found: Sequence[Likeness | None]) -> Resemblance | None:
    likes = [each for each in found if each is not None]
    if not likes:
        return None
    gain, half = mean_interval([each.similarity - each.control for each in likes])
    ends = (None, None) if half is None else (gain - half, gain + half)
    means = [float(np.mean([getattr(each, name) for each in likes])) for name in NUMBERS]
    return Resemblance(*means, Rate(gain, *ends), len(likes))


class Attacker:
    """Attacks models with what everybody has: the architecture and the public rows.

    Args:
        context: of the run.
        seed: of all draws.
        attacks: which of `ATTACKS` are made.
        resamples: by which intervals are found.
    """

    def __init__(
        self, context: RunContext, seed: int, attacks: Collection[str] = ATTACKS, resamples: int = RESAMPLES
    ) -> None:
        self._context, self.seed, self._attacks, self._resamples = context, seed, attacks, resamples
        self._memberships: dict[Any, tuple[Membership | None, Membership | None]] = {}
        self._references: dict[str, Params | None] = {}
        self._inverted: dict[Any, Inverted] = {}
        split = context.split
        order = stream(seed, "probe", "test").permutation(len(split.test))[:ROWS]
        self._test = torch.as_tensor(np.sort(order))

    def suited(self, archs: Collection[str]) -> set[str]:
        """Architectures whose models give a number for each class."""
        x = self._context.split.test.x[:2].to(self._context.device)
        wanted = (len(x), self._context.split.classes)
        return {
            arch for arch in archs if self._net(arch).load(self._context.initial(arch, 0)).outputs(x).shape == wanted
        }

    # -- membership

    def membership(self, seen: Sequence[SeenModel]) -> tuple[Membership | None, Membership | None]:
        """By the loss, and by the loss less that of a reference model."""
        if MEMBERSHIP not in self._attacks:
            return None, None
        key = tuple((each.name, each.clients) for each in seen)
        if key not in self._memberships:  # several parties hold the same models
            scores = [self.scores(each) for each in seen]
            calibrated = [other for _, other in scores if other is not None]
            how = (self.seed, self._resamples)
            self._memberships[key] = membership([own for own, _ in scores], *how), membership(calibrated, *how)
        return self._memberships[key]

    def scores(self, seen: SeenModel) -> tuple[Scores, Scores | None]:
        """What both attacks say about rows of the model's clients and about rows that nobody trained on."""
        split, rows = self._context.split, self._rows(seen)
        inside = split.train.y[rows].numpy()
        outside = split.test.y[self._test].numpy()
        weights = class_weights(inside, outside)
        own = [self._loss(seen.model, x, y) for x, y in self._sides(rows)]
        plain = Scores(-own[0], -own[1], weights)
        reference = self._reference(seen.model.layout.arch)
        if reference is None:
            return plain, None
        known = [self._loss(reference, x, y) for x, y in self._sides(rows)]
        return plain, Scores(known[0] - own[0], known[1] - own[1], weights)

    def _rows(self, seen: SeenModel) -> Tensor:
        """Rows of the clients whose model it is; a draw of them if they are many."""
        rows = np.concatenate([np.asarray(self._context.rows[client]) for client in seen.clients])
        if len(rows) > ROWS:
            rows = stream(self.seed, "probe", *seen.clients).choice(rows, ROWS, replace=False)
        return torch.as_tensor(rows)

    def _sides(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        split = self._context.split
        return [(split.train.x[rows], split.train.y[rows]), (split.test.x[self._test], split.test.y[self._test])]

    def _loss(self, model: Params, x: Tensor, y: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Cross-entropy of each row."""
        logits = self._net(model.layout.arch).load(model).outputs(x.to(self._context.device)).cpu().double()
        loss = F.cross_entropy(logits, y, reduction="none").numpy()
        return np.nan_to_num(loss, nan=WORST, posinf=WORST, neginf=-WORST)

    def _net(self, arch: str) -> FlatModule:
        return self._context.flat_module(arch, SLOT)

    @cached_property
    def _public(self) -> tuple[Tensor, Tensor]:
        """Public rows with labels."""
        split = self._context.split
        x, y = [split.validation.x], [split.validation.y]
        if split.reference_labels is not None:
            x, y = [*x, split.reference], [*y, split.reference_labels]
        return torch.cat(x), torch.cat(y)

    def _reference(self, arch: str) -> Params | None:
        """A model that was trained on public rows; None if there are too few."""
        if arch not in self._references:
            self._references[arch] = self._trained(arch) if len(self._public[1]) >= REFERENCE.batch else None
        return self._references[arch]

    def _trained(self, arch: str) -> Params:
        net, (x, y) = self._net(arch).load(self._context.initial(arch, 1)), self._public
        x, y = x.to(self._context.device), y.to(self._context.device)
        draw, steps = (
            stream(self.seed, "probe", "reference", arch),
            Stepper(net, REFERENCE, total_steps(len(y), REFERENCE)),
        )
        with torch.random.fork_rng(devices=[]):  # for dropout
            torch.default_generator.manual_seed(derive(self.seed, "probe", arch))
            for batch in batches(len(y), REFERENCE, draw, self._context.device):
                net.train(len(batch))
                steps.step(F.cross_entropy(net(x[batch]), y[batch]))
        return net.params(1.0)

    # -- inversion

    def inverted(self, seen: SeenModel) -> Inverted:
        """Both inversions of the update from the model that training began with."""
        split, start = self._context.split, seen.start
        assert start is not None
        public = split.validation.x if len(split.validation) else split.reference
        if split.words is not None or len(public) < 2 or not {ANALYTIC, SEARCH} & {*self._attacks}:
            return Inverted(None, None)  # token numbers have no gradient
        key = (seen.name, name_of(start), seen.clients)
        if key not in self._inverted:
            rows = self._rows(seen)
            sides = (split.train.x[rows], self._alike(split.train.y[rows]), public)
            net, search = self._net(start.layout.arch), SEARCH in self._attacks
            self._inverted[key] = invert(net, start, seen.model, sides, split.classes, search, self.seed)
        return self._inverted[key]

    def _alike(self, labels: Tensor) -> Tensor:
        """As many rows of the same classes that no client has, as far as there are so many."""
        split, draw = self._context.split, stream(self.seed, "probe", "alike")
        x, y = torch.cat([split.test.x, self._public[0]]), torch.cat([split.test.y, self._public[1]]).numpy()
        found = []
        for label, count in zip(*np.unique(labels.numpy(), return_counts=True), strict=True):
            there = np.flatnonzero(y == label)
            found.append(draw.choice(there, min(int(count), len(there)), replace=False))
        return x[torch.as_tensor(np.concatenate(found))]
