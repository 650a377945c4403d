"""FedMD."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.algorithms.base import Method, MethodInfo, gather, own_models, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By, Params
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.models.parts import classifier_of, need_parts
from headwater.specs import LOCAL, STRICT, AtLeastOne, Count, LocalSpec, NotNegative, Positive
from headwater.tasks.average import initial
from headwater.tasks.consensus import (
    Public,
    Rows,
    digest,
    digest_with_head,
    mean_of,
    predict,
    predict_with_head,
    pretrain_with_head,
)
from headwater.tasks.cost import ITSELF, Cost
from headwater.tasks.local import Batch, local_train
from headwater.tasks.optimizers import samples_read
from headwater.tasks.task import TaskContext, task

HEAD = "public head"


@plain_dataclass(frozen=True)
class MdState:
    personal: Located  # at clients
    public: Located  # at clients: the public set
    consensus: Located  # at the server: mean predictions of the last round, for the flavours with a global model
    model: Located | None = None  # at the server: the global model of these flavours
    head: Located | None = None  # at the server: its second head, with `public_classes`


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
    and takes test data as public, which is not repeated here. FedHEAD's has a second head for public data, which
    `public_classes` adds: public labels of the source's own classes then train it, and clients agree on its
    predictions, by cross-entropy and with means by samples. The head is sent with the model each way.

    Args:
        local: local training.
        flavour: "original": as published. "fedhkd": the comparison in FedHKD. Models are averaged; local training adds
            `lam` times the KL divergence to the mean soft predictions (at `temperature`) of the last round's clients on
            public batches. "fedhead": the comparison in FedHEAD. Models are averaged, the start is trained on public
            labels at the server, and clients digest the last consensus before they train.
        public_classes: for "fedhead": classes of the public set's own labels, of which the second head has as many
            outputs; 0 for no such head.
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
    public_classes: Count = 0
    align: AtLeastOne = 5000
    pretrain_epochs: Count | None = None
    digest_epochs: Count | None = None
    digest_batch: AtLeastOne = 256
    digest_lr: Positive = 1e-3
    lam: NotNegative = 0.05
    temperature: Positive = 0.5
    by: By = "samples"
    through_sectors: bool = False

    def __post_init__(self) -> None:
        if self.public_classes and self.flavour != "fedhead":
            raise ValueError(
                f"public_classes = {self.public_classes} adds the second head of flavour = 'fedhead', and flavour is "
                f"{self.flavour!r}; remove it"
            )

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        if not self.public_classes:
            return {}
        need_parts(spec, "algorithm.public_classes")
        head = classifier_of(spec.outline(), spec.head)
        if not isinstance(head, nn.Linear):
            raise ConfigError(f"algorithm.public_classes adds a head beside a linear one, which {spec.name!r} has not")
        make = partial(nn.Linear, head.in_features, self.public_classes, dtype=head.weight.dtype)
        return {HEAD: ModelSpec(HEAD, (head.in_features,), max(2, self.public_classes), builder=make)}

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
        if self.public_classes:
            head = fed.run(initial, at=SERVER, arch=HEAD)
            if epochs:
                both = fed.run(pretrain_with_head, at=SERVER, start=model, head=head, spec=spec)
                model, head = both["model"], both["head"]
            return MdState(nothing(CLIENTS), there, nothing(SERVER), model, head)
        if epochs:  # every client would compute the same, so the server computes it once
            model = fed.run(local_train, at=SERVER, start=model, spec=spec, data=rows)
        return MdState(nothing(CLIENTS), there, nothing(SERVER), model)

    def round(self, fed: Federation, state: MdState) -> MdState:
        if state.model is None:
            return self._personal(fed, state)
        if state.head is not None:
            return self._two_heads(fed, state, state.model, state.head)
        return self._averaged(fed, state, state.model)

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

    def _two_heads(self, fed: Federation, state: MdState, model: Located, head: Located) -> MdState:
        """One round in which clients agree on the predictions of the second head; both heads are averaged."""
        at: dict[str, Any] = {"public": state.public, "rows": Rows(self.align)}
        start, top, target = (spread(fed, x, self.through_sectors) for x in (model, head, state.consensus))
        given = {"target": maybe(target), "spec": self._digest, "by": self.by, **at}
        both = fed.run(digest_with_head, at=CLIENTS, start=start, head=top, **given)
        mine = fed.run(local_train, at=CLIENTS, start=both["model"], spec=self.local, by=self.by)
        predictions = fed.run(predict_with_head, at=CLIENTS, model=mine, head=both["head"], **at)
        consensus = gather(fed, predictions, self.through_sectors, task=mean_of)[0]
        mean, head = (gather(fed, x, self.through_sectors) for x in (mine, both["head"]))
        return MdState(fed.update(state.personal, mine), state.public, consensus, mean, head)

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
        rows, labelled, own = fed.read(fed.run(about_public, at=SERVER))
        if not rows:
            raise ConfigError("fedmd needs a public set to agree on; set data.reference_size above 0")
        if own > self.public_classes > 0:
            raise ConfigError(
                f"algorithm.public_classes = {self.public_classes}, but data.reference has {own} classes; use {own}"
            )
        labelled = own > 0 if self.public_classes else labelled
        if self.pretrain_epochs and not labelled:
            raise ConfigError(
                f"algorithm.pretrain_epochs = {self.pretrain_epochs} needs public data with labels of the clients' "
                "classes, which data.reference has not; use data.reference = 'holdout' or pretrain_epochs = 0"
            )
        usual = {"original": 10, "fedhead": 100, "fedhkd": 0}[self.flavour] if labelled else 0
        return usual if self.pretrain_epochs is None else self.pretrain_epochs


@task("average", returns=ITSELF)
def about_public(ctx: TaskContext) -> tuple[int, bool, int]:
    """Number of rows of the public set, whether they have labels of the clients' classes, and classes of their own."""
    own = ctx.own_labels
    return len(ctx.inputs), ctx.labels is not None, 0 if own is None or not len(own) else int(own.max()) + 1


@task("average", returns=ITSELF, shows_rows=True)
def public(ctx: TaskContext) -> Public:
    """The public set, as a value that can be moved."""
    return ctx.inputs if ctx.labels is None else Examples(ctx.inputs, ctx.labels)


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
