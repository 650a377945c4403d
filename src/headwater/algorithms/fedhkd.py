"""FedHKD and FedHKD*."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic.dataclasses import dataclass

from headwater.algorithms import SameAs
from headwater.algorithms.base import Method, MethodInfo, State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, AtLeastOne, Count, LocalSpec, NotNegative, Positive
from headwater.tasks.knowledge import Release, Sensitivity, knowledge, pool, settled
from headwater.tasks.local import Term, local_train
from headwater.tasks.terms import Agree, Agreement, Norms, Pull


@plain_dataclass(frozen=True)
class HkdState(State):
    knowledge: Located  # at the server: {class: (representation, soft prediction)}
    personal: Located  # at clients: their models as trained, before averaging


@dataclass(frozen=True, config=STRICT)
class FedHkdStar(Method):
    """FedHKD without the pull on representations: only shared soft predictions guide local training. All that is said
    of `FedHkd` holds here.

    Args:
        local: local training.
        lam: λ, weight of the agreement with soft predictions.
        temperature: T of the soft predictions.
        nu: ν, smallest share of a client's samples for a class to be shared; the code has none (0).
        sigma: σ, noise in units of the sensitivity S = 2ζ / (samples of the class at the client).
        zeta: ζ, bound on a coordinate of a representation.
        clip_features: clip representations to ±zeta before the mean; None: whenever the noise relies on it. Features of
            networks are unbounded; `model.bn_head` bounds them as the text says.
        norms: "paper": Euclidean norms, not squared, as printed. "code": KL divergence averaged over all entries, and
            mean-squared error. "fedhead", as in FedHEAD's comparison: cross-entropy with predictions shared at
            temperature 1, and mean-squared error.
        dp_sensitivity: "per_coordinate", or "l2": noise is scaled for the whole vector (√d).
        noise: "scaled": standard deviation S·σ. "fixed": sigma itself, one draw for all classes of a client, as in the
            code (with sigma 2).
        pooling: mean by class counts over the clients that share a class, or "last": the last client overwrites (code).
        by: weight of a client in the mean of models; the code has "uniform".
        clip_from: the first round in which gradients are clipped at `local.clip`; the code has 2.
        halve_lr_every: rounds after which the learning rate is halved (text: 10); 0: never, as in the code.
        through_sectors: sectors average models and pool knowledge first.
    """

    INFO = MethodInfo(
        name="fedhkd-star",
        family="knowledge",
        summary="FedHKD without the pull on representations",
        stages=(
            "train from the global model, guided by soft predictions",
            "class means of all clients → every client",
            "average at the server",
        ),
        models="N, N | N, N and k·(d + c) numbers each way",
        moves={
            "a round": "server → client model; server → client numbers; client → server model; client → server numbers"
        },
        sees={
            "server": (
                "every client's model; of each shared class a mean representation (clipped and noised at "
                "the client), a mean prediction and a count"
            ),
            "host": "the same of its clients",
            "client": "the global model, pooled knowledge",
        },
        features=True,
        training_cost=1.2,
    )

    local: LocalSpec = LOCAL
    lam: NotNegative = 0.05
    temperature: Positive = 0.5
    nu: Annotated[float, Ge(0), Le(1)] = 0.25
    sigma: NotNegative = 7.0
    zeta: Positive = 3.0
    clip_features: bool | None = None
    norms: Agreement = "paper"
    dp_sensitivity: Sensitivity = "per_coordinate"
    noise: Literal["scaled", "fixed"] = "scaled"
    pooling: Literal["mean", "last"] = "mean"
    by: By = "samples"
    clip_from: AtLeastOne = 1
    halve_lr_every: Count = 0
    through_sectors: bool = False

    def __post_init__(self) -> None:
        if self.clip_features is False and self.sigma and self.noise == "scaled":
            raise ValueError(
                "clip_features = false leaves open how far one sample can move a mean, which noise of S·sigma relies "
                "on; leave it unset, or use sigma = 0 or noise = 'fixed'"
            )

    def init(self, fed: Federation, model: Located) -> HkdState:
        return HkdState(model, nothing(SERVER), nothing(CLIENTS))

    def round(self, fed: Federation, state: HkdState) -> HkdState:
        start, known = (spread(fed, x, self.through_sectors) for x in (state.model, state.knowledge))
        halved = (fed.round - 1) // self.halve_lr_every if self.halve_lr_every else 0
        clip = self.local.clip if fed.round >= self.clip_from else None
        spec = replace(self.local, lr=self.local.lr * 0.5**halved, clip=clip)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=spec, terms=self.terms(known), by=self.by)
        shared = fed.run(knowledge, at=CLIENTS, model=local, release=self.release)
        pooled = gather(fed, shared, self.through_sectors, task=pool, how=self.pooling)
        model = gather(fed, local, self.through_sectors)
        return HkdState(model, fed.run(settled, at=SERVER, known=pooled), fed.update(state.personal, local))

    def terms(self, known: Located) -> tuple[Term, ...]:
        return (Agree(self.lam, maybe(known), self.temperature, self.norms),) if self.lam else ()

    @property
    def release(self) -> Release:
        scaled = self.sigma > 0 and self.noise == "scaled"
        clip = scaled if self.clip_features is None else self.clip_features
        soft = 1.0 if self.norms == "fedhead" else self.temperature
        return Release(self.nu, soft, self.sigma, self.zeta, clip, self.dp_sensitivity, self.noise)

    def privacy(self, rounds: int, dimension: int, delta: float = 0.01) -> dict[str, Any]:
        """What so many rounds cost a sample whose class its client shared in each, for representations of that size.

        Infinite figures, where there is no noise that counts, are None.
        """
        from headwater.theory.privacy import spent

        counts = self.noise == "scaled"
        budget = spent(self.sigma if counts else 0.0, rounds, delta, dimension, self.dp_sensitivity)
        finite = {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(budget).items()}
        one_draw = "No finite ε: the noise is one draw for all classes of a client, whatever one sample can change."
        return finite | {"sentence": budget.sentence() if counts or not rounds else one_draw}

    def same_as(self, counts: Iterable[Sequence[int]]) -> SameAs | None:
        """FedAvg, if no client holds enough of a class to share it."""
        for client in counts:
            if self.release.shares(max(client), sum(client)):
                return None
        return SameAs("fedavg", f"no client holds a class that makes up algorithm.nu = {self.nu:g} of its samples")

    def remarks(self, history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """A sentence if there was never any knowledge to share."""
        at_server = [row.get("distill", {}).get("server", {}) for row in history]
        shared = [notes["knowledge_classes"] for notes in at_server if "knowledge_classes" in notes]
        if not shared or any(shared):
            return ()
        return (
            f"no client shared a class in any round, so this was averaging alone: with algorithm.nu = {self.nu:g} a "
            "class must make up that share of a client's samples; lower it",
        )


@dataclass(frozen=True, config=STRICT)
class FedHkd(FedHkdStar):
    """Clients share knowledge per class next to their models: a mean representation with noise and a mean soft
    prediction. It guides all clients' training in the next round.

    Chen, Wang, Vikalo: The Best of Both Worlds: Accurate Global and Personalized Models through Federated Learning with
    Data-Free Hyper-Knowledge Distillation, ICLR 2023 (FedHKD, FedHKD*). H_j and Q_j of the paper are `knowledge[j]`.

    Cost: for every shared class d + classes numbers each way (d: size of a representation); on the way up a count of 8
    bytes with each. In the first round there is nothing to send down.

    Differences from the paper and from its authors' code:
    * With scaled noise a class of one sample is not shared, since a mean of one hides nothing. A class of few samples
      gets noise far larger than its features; norms that are not squared limit its effect.
    * The code clips gradients at 1.1 from round 2 on: `local.clip = 1.1` with `clip_from = 2`.
    * Local accuracy is that of the freshly trained models, before averaging. docs/privacy.md says what the noise
      covers.

    Args:
        gamma: γ, weight of the pull on representations. The other options are those of `FedHkdStar`.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedhkd", data="digits", clients=4, rounds=2, local__epochs=1)
        >>> run.history[1]["bytes"]["sector_client"]["down"] > run.history[0]["bytes"]["sector_client"]["down"]
        True
    """

    INFO = MethodInfo(
        name="fedhkd",
        family="knowledge",
        summary="class-wise knowledge is shared next to the model, with noise",
        stages=(
            "train from the global model, guided by knowledge",
            "class means of all clients → every client",
            "average at the server",
        ),
        models="N, N | N, N and k·(d + c) numbers each way",
        moves={
            "a round": "server → client model; server → client numbers; client → server model; client → server numbers"
        },
        sees={
            "server": (
                "every client's model; of each shared class a mean representation (clipped and noised at "
                "the client), a mean prediction and a count"
            ),
            "host": "the same of its clients",
            "client": "the global model, pooled knowledge",
        },
        features=True,
        training_cost=1.2,
    )

    gamma: NotNegative = 0.05

    def terms(self, known: Located) -> tuple[Term, ...]:
        norms: Norms = "paper" if self.norms == "paper" else "code"
        pull = (Pull(self.gamma, maybe(known), norms),) if self.gamma else ()
        return (*super().terms(known), *pull)
