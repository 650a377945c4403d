"""Membership and inversion attacks that use public knowledge only: the architecture and the public rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.audit.inversion import Inverted, invert
from headwater.audit.membership_inference import (
    RESAMPLES,
    Floats,
    MembershipRisk,
    MembershipScores,
    class_weights,
    membership,
)
from headwater.audit.views import SeenModel
from headwater.audit.watching import name_of
from headwater.core.params import Params
from headwater.core.rng import derive, stream
from headwater.specs import LocalSpec
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import Stepper, batches, total_steps
from headwater.tasks.task import RunContext

MEMBERSHIP, ANALYTIC, SEARCH = "membership", "analytic", "search"
ATTACKS = (MEMBERSHIP, ANALYTIC, SEARCH)
ROWS = 2000  # most member rows, and most other rows, that a model is evaluated on
REFERENCE = LocalSpec(steps=300, batch=32, optimizer="adam", lr=1e-3)  # training of the reference model
WORST = 1e9  # in place of a loss that is not finite
SLOT = 7  # number of the module that attacks use, so that they overwrite no module of the run


class Attacker:
    """Attacks models with public knowledge only: the architecture and the public rows.

    Args:
        context: context of the run.
        seed: seed of all draws.
        attacks: the attacks to run, some of `ATTACKS`.
        resamples: number of bootstrap resamples for the intervals.
    """

    def __init__(
        self, context: RunContext, seed: int, attacks: Collection[str] = ATTACKS, resamples: int = RESAMPLES
    ) -> None:
        self._context, self.seed, self._attacks, self._resamples = context, seed, attacks, resamples
        self._memberships: dict[Any, tuple[MembershipRisk | None, MembershipRisk | None]] = {}
        self._references: dict[str, Params | None] = {}
        self._inverted: dict[Any, Inverted] = {}
        split = context.split
        order = stream(seed, "probe", "test").permutation(len(split.test))[:ROWS]
        self._test = torch.as_tensor(np.sort(order))

    def suited(self, archs: Collection[str]) -> set[str]:
        """Architectures whose models return one logit per class."""
        x = self._context.split.test.x[:2].to(self._context.device)
        wanted = (len(x), self._context.split.classes)
        return {
            arch for arch in archs if self._net(arch).load(self._context.initial(arch, 0)).outputs(x).shape == wanted
        }

    # -- membership

    def membership(self, seen: Sequence[SeenModel]) -> tuple[MembershipRisk | None, MembershipRisk | None]:
        """Membership inference by the loss, and by the loss minus that of a reference model."""
        if MEMBERSHIP not in self._attacks:
            return None, None
        key = tuple((each.name, each.clients) for each in seen)
        if key not in self._memberships:  # several parties hold the same models
            scores = [self.scores(each) for each in seen]
            calibrated = [other for _, other in scores if other is not None]
            how = (self.seed, self._resamples)
            self._memberships[key] = membership([own for own, _ in scores], *how), membership(calibrated, *how)
        return self._memberships[key]

    def scores(self, seen: SeenModel) -> tuple[MembershipScores, MembershipScores | None]:
        """Scores of both attacks for rows of the model's clients and for rows that nobody trained on."""
        split, rows = self._context.split, self._rows(seen)
        inside = split.train.y[rows].numpy()
        outside = split.test.y[self._test].numpy()
        weights = class_weights(inside, outside)
        own = [self._loss(seen.model, x, y) for x, y in self._sides(rows)]
        plain = MembershipScores(-own[0], -own[1], weights)
        reference = self._reference(seen.model.layout.arch)
        if reference is None:
            return plain, None
        usual = [self._loss(reference, x, y) for x, y in self._sides(rows)]
        return plain, MembershipScores(usual[0] - own[0], usual[1] - own[1], weights)

    def _rows(self, seen: SeenModel) -> Tensor:
        """Rows of the clients whose model it is; a random sample if there are more than `ROWS`."""
        rows = np.concatenate([np.asarray(self._context.rows[client]) for client in seen.clients])
        if len(rows) > ROWS:
            rows = stream(self.seed, "probe", *seen.clients).choice(rows, ROWS, replace=False)
        return torch.as_tensor(rows)

    def _sides(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        split = self._context.split
        return [(split.train.x[rows], split.train.y[rows]), (split.test.x[self._test], split.test.y[self._test])]

    def _loss(self, model: Params, x: Tensor, y: Tensor) -> Floats:
        """Cross-entropy of each row."""
        logits = self._net(model.layout.arch).load(model).outputs(x.to(self._context.device)).cpu().double()
        loss = F.cross_entropy(logits, y, reduction="none").numpy()
        finite: Floats = np.nan_to_num(loss, nan=WORST, posinf=WORST, neginf=-WORST)
        return finite

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
        """Test and public rows with the same number per class, or fewer where there are not enough."""
        split, draw = self._context.split, stream(self.seed, "probe", "alike")
        x, y = torch.cat([split.test.x, self._public[0]]), torch.cat([split.test.y, self._public[1]]).numpy()
        chosen = []
        for label, count in zip(*np.unique(labels.numpy(), return_counts=True), strict=True):
            candidates = np.flatnonzero(y == label)
            chosen.append(draw.choice(candidates, min(int(count), len(candidates)), replace=False))
        return x[torch.as_tensor(np.concatenate(chosen))]
