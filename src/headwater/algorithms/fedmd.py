"""FedMD."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from headwater.algorithms.base import Method, MethodInfo, gather, own_models, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By, Params
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.specs import LOCAL, STRICT, AtLeastOne, Count, LocalSpec, NotNegative, Positive
from headwater.tasks.cost import ITSELF, Cost, passes_through, shaped, training_cost
from headwater.tasks.local import Batch, local_train
from headwater.tasks.optimizers import Stepper, batches, samples_read, total_steps
from headwater.tasks.task import TaskContext, task

Public = Examples | Tensor  # with labels if the public set has any


@plain_dataclass(frozen=True)
class MdState:
    personal: Located  # at clients
    public: Located  # at clients: the public set
    consensus: Located  # at the server: mean predictions of the last round, for the flavours with a global model
    model: Located | None = None  # at the server: the global model of these flavours


@dataclass(frozen=True, config=STRICT)
class FedMd(Method):
    """Clients keep models of their own, of any architecture, and learn from each other by agreeing on predictions for
    public data.

    Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation, 2019. The public set D_0 is
    `data.reference`, with labels where its source has them; d_j is drawn anew in each round. Transfer learning is
    `pretrain_epochs`, then `[local]`, before the first round. Communicate, aggregate and distribute are `predict`,
    `mean_of` and the mean that is sent to all; digest is `digest_epochs`, `digest_batch` and `digest_lr`; revisit is
    `[local]`.

    Cost: align · classes numbers each way (logits up, their mean down). The public set goes to every client once,
    before the first round, with its starting model. With `through_sectors`, sectors average predictions and add how
    many clients they stand for. The flavours with one model send it each way too.

    Differences: networks have the data's classes only, the authors' also public ones; public labels serve pre-training
    only, if they number the clients' classes. FedHKD's code calls the divergence with probabilities and a minus sign
    and takes test data as public, FedHEAD's has a second head for public data; none of this is repeated here.

    Args:
        local: local training.
        flavour: "original": as published. "fedhkd": the comparison in FedHKD. Models are averaged; local training adds
            `lam` times the KL divergence to the mean soft predictions (at `temperature`) of the last round's clients on
            public batches. "fedhead": the comparison in FedHEAD. Models are averaged, the start is trained on public
            labels at the server, and clients digest the last consensus before they train.
        align: N_align, public rows per round, at most.
        pretrain_epochs: epochs on public labels; None: 10, "fedhead" 100, "fedhkd" 0, and 0 without labels.
        digest_epochs: epochs on the consensus; None: 1, "fedhead" 3.
        digest_batch: batch size of these.
        digest_lr: learning rate of these, with Adam.
        lam: weight of the divergence, for "fedhkd".
        temperature: of soft predictions, for "fedhkd".
        by: weight of a client's model where models are averaged; predictions always count the same.
        through_sectors: sectors average predictions (and models) first.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedmd", data="digits", clients=4, rounds=1, align=50, pretrain_epochs=1, local__epochs=1)
        >>> run.ledger.bytes("sector_client", "up") == 4 * 50 * 10 * 4
        True
    """

    INFO = MethodInfo(
        name="fedmd",
        family="knowledge",
        summary="personal models agree on predictions for public data",
        stages=("digest the consensus, then train the client's own model", "clients → every client", "none"),
        models="no model (before: 0, N | 0, N and the public set), a·c numbers each way",
        moves={
            "before the first round": "server → client examples; server → client model",
            "a round": "client → server array; server → client array",
        },
        sees={
            "server": "every client's predictions on the public set",
            "host": "the same of its clients",
            "client": "the public set, the mean prediction",
        },
        needs=("reference data", "labels of it", "client state"),
        mixed_architectures=True,
        personal=True,
        public_passes=2.0,
    )

    local: LocalSpec = LOCAL
    flavour: Literal["original", "fedhead", "fedhkd"] = "original"
    align: AtLeastOne = 5000
    pretrain_epochs: Count | None = None
    digest_epochs: Count | None = None
    digest_batch: AtLeastOne = 256
    digest_lr: Positive = 1e-3
    lam: NotNegative = 0.05
    temperature: Positive = 0.5
    by: By = "samples"
    through_sectors: bool = False

    def init(self, fed: Federation, model: Located) -> MdState:
        epochs = self._pretraining(fed)
        spec = replace(self.local, epochs=epochs, steps=None)
        rows = fed.run(public, at=SERVER)
        there = spread(fed, rows, self.through_sectors)
        if self.flavour == "original":
            mine = own_models(fed, model)
            if epochs:
                mine = fed.run(local_train, at=CLIENTS, start=mine, spec=spec, data=there)
            mine = fed.run(local_train, at=CLIENTS, start=mine, spec=self.local)
            return MdState(mine, there, nothing(SERVER))
        if epochs:  # every client would compute the same, so the server computes it once
            model = fed.run(local_train, at=SERVER, start=model, spec=spec, data=rows)
        return MdState(nothing(CLIENTS), there, nothing(SERVER), model)

    def round(self, fed: Federation, state: MdState) -> MdState:
        return self._personal(fed, state) if state.model is None else self._averaged(fed, state, state.model)

    def _personal(self, fed: Federation, state: MdState) -> MdState:
        """One round as in the paper: communicate, aggregate, distribute, digest, revisit."""
        at: dict[str, Any] = {"public": state.public, "rows": Rows(self.align, int(fed.rng("align").integers(2**31)))}
        predictions = fed.run(predict, at=CLIENTS, model=state.personal, **at)
        consensus = gather(fed, predictions, self.through_sectors, task=mean_of)[0]
        target = spread(fed, consensus, self.through_sectors)
        mine = fed.run(digest, at=CLIENTS, start=state.personal, target=target, spec=self._digest, **at)
        mine = fed.run(local_train, at=CLIENTS, start=mine, spec=self.local)
        return replace(state, personal=fed.update(state.personal, mine))

    def _averaged(self, fed: Federation, state: MdState, model: Located) -> MdState:
        """One round with averaged models. The clients' predictions before averaging are the next consensus."""
        at: dict[str, Any] = {"public": state.public, "rows": Rows(self.align)}
        start, target = (spread(fed, x, self.through_sectors) for x in (model, state.consensus))
        hkd = self.flavour == "fedhkd"
        if not hkd:
            start = fed.run(digest, at=CLIENTS, start=start, target=maybe(target), spec=self._digest, **at)
        heed = Heed(self.lam, target=maybe(target), batch=self.local.batch, temperature=self.temperature, **at)
        terms = (heed,) if hkd and self.lam else ()
        mine = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=terms, by=self.by)
        predictions = fed.run(predict, at=CLIENTS, model=mine, temperature=self.temperature if hkd else None, **at)
        consensus = gather(fed, predictions, self.through_sectors, task=mean_of)[0]
        personal = fed.update(state.personal, mine)
        return MdState(personal, state.public, consensus, gather(fed, mine, self.through_sectors))

    @property
    def _digest(self) -> LocalSpec:
        epochs = self.digest_epochs if self.digest_epochs is not None else 3 if self.flavour == "fedhead" else 1
        return LocalSpec(epochs=epochs, batch=self.digest_batch, optimizer="adam", lr=self.digest_lr)

    def _pretraining(self, fed: Federation) -> int:
        """Return the epochs on public labels. Raises ConfigError for settings that cannot work, before training."""
        if self.flavour != "original" and len(fed.tree.archs) > 1:
            raise ConfigError(
                f"algorithm.flavour = {self.flavour!r} averages models, which must be alike; use 'original' or remove "
                "model.also"
            )
        rows, labelled = fed.read(fed.run(about_public, at=SERVER))
        if not rows:
            raise ConfigError("fedmd needs a public set to agree on; set data.reference_size above 0")
        if self.pretrain_epochs and not labelled:
            raise ConfigError(
                f"algorithm.pretrain_epochs = {self.pretrain_epochs} needs public data with labels of the clients' "
                "classes, which data.reference has not; use data.reference = 'holdout' or pretrain_epochs = 0"
            )
        usual = {"original": 10, "fedhead": 100, "fedhkd": 0}[self.flavour] if labelled else 0
        return usual if self.pretrain_epochs is None else self.pretrain_epochs


@task("average", returns=ITSELF)
def about_public(ctx: TaskContext) -> tuple[int, bool]:
    """Number of rows of the public set, and whether they have labels."""
    return len(ctx.inputs), ctx.labels is not None


@task("average", returns=ITSELF, shows_rows=True)
def public(ctx: TaskContext) -> Public:
    """The public set, as a value that can be moved."""
    return ctx.inputs if ctx.labels is None else Examples(ctx.inputs, ctx.labels)


@plain_dataclass(frozen=True)
class Rows:
    """Which rows of the public set are used.

    Args:
        most: how many at most.
        number: seed of the draw; clients with the same number use the same rows.
    """

    most: int
    number: int = 0

    def count(self, public: Public) -> int:
        """How many rows are used."""
        return min(self.most, len(public))

    def of(self, public: Public) -> Tensor:
        """The inputs of these rows."""
        x = public.x if isinstance(public, Examples) else public
        order = np.random.default_rng(self.number).permutation(len(x))[: self.most]
        return x[torch.from_numpy(order).to(x.device)]


@task(
    "distill",
    cost=lambda ctx, model, public, rows, **_: Cost(passes=passes_through([model], rows.count(public))),
    returns=lambda ctx, model, public, rows, **_: shaped(rows.count(public), ctx.classes, dtype=model.vector.dtype),
)
def predict(ctx: TaskContext, model: Params, public: Public, rows: Rows, temperature: float | None = None) -> Tensor:
    """Logits of a model for these rows or, with a temperature, soft predictions."""
    output = ctx.flat_module(model).outputs(rows.of(public))
    return output if temperature is None else torch.softmax(output / temperature, dim=1)


@task("distill", streaming=("models",), cost=Cost(), returns=ITSELF)
def mean_of(ctx: TaskContext, models: Mapping[str, Tensor | tuple[Tensor, int]]) -> tuple[Tensor, int]:
    """The mean of predictions, in which every client counts alike, and the number of clients in it.

    A value in `models` is one client's predictions, or the mean of several with their number.
    """
    result, total = torch.zeros(()), 0
    for part in models.values():
        mean, count = part if isinstance(part, tuple) else (part, 1)
        total += count
        result = torch.lerp(result, mean, count / total) if total > count else mean
    return result, total


@task(
    "distill",
    cost=lambda ctx, start, public, target, rows, spec: (
        Cost() if target is None else training_cost(start, rows.count(public), spec)
    ),
    returns="start",
)
def digest(
    ctx: TaskContext, start: Params, public: Public, target: Tensor | None, rows: Rows, spec: LocalSpec
) -> Params:
    """Train a model towards these logits for these rows, by mean absolute error. Without a target nothing changes."""
    if target is None:
        return start
    x, net = rows.of(public), ctx.flat_module(start)
    stepper = Stepper(net, spec, total_steps(len(x), spec))
    losses: list[Tensor] = []
    for batch in batches(len(x), spec, ctx.rng, ctx.device):
        net.train(len(batch))
        loss = F.l1_loss(net(x[batch]), target[batch])
        losses.append(loss.detach())
        stepper.step(loss)
    if stepper.taken:
        ctx.note(digest_loss=float(np.cumsum(torch.stack(losses).tolist())[-1]) / stepper.taken)
    return net.params(start.weight)


@plain_dataclass(frozen=True)
class Heed:
    """weight · mean KL(target ‖ softmax_T(model)) on a batch of public rows, the next one at every step."""

    weight: float
    public: Any
    target: Any  # soft predictions for the rows, or None
    rows: Rows
    batch: int
    temperature: float = 0.5
    x: Tensor | None = None  # the rows and the batches in turn, set by `begin`
    turns: Iterator[Tensor] | None = None

    def cost(self, ctx: TaskContext, start: Params, rows: int, steps: int) -> Cost:
        """A public batch in addition to each private one."""
        if self.target is None:
            return Cost()
        return Cost(samples=samples_read(self.rows.count(self.public), LocalSpec(steps=steps, batch=self.batch)))

    def begin(self, ctx: TaskContext, start: Params) -> Self:
        if self.target is None:
            return self
        x = self.rows.of(self.public)
        # In random order, so that short trainings do not always see the same rows.
        order: Tensor = ctx.put(torch.from_numpy(ctx.rng.permutation(len(x))))
        return replace(self, x=x, turns=itertools.cycle(torch.split(order, self.batch)))

    def __call__(self, step: Batch) -> Tensor:
        if self.x is None or self.turns is None:
            return step.loss.new_zeros(())
        batch = next(self.turns)
        step.net.train(len(batch))  # a public batch may be smaller than the private one
        prediction = torch.log_softmax(step.net(self.x[batch]) / self.temperature, dim=1)
        return self.weight * F.kl_div(prediction, self.target[batch], reduction="batchmean")
