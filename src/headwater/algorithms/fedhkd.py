"""Clients share what they know of each class, a mean representation with noise and a mean soft prediction, beside their
models; it guides everybody's training in the next round.

Chen, Wang, Vikalo: The Best of Both Worlds: Accurate Global and Personalized Models through Federated Learning with
Data-Free Hyper-Knowledge Distillation, ICLR 2023 (FedHKD, FedHKD*).

| | stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|---|
| FedHKD | train from the one model, guided by knowledge | class means → every client | average at the server |
| FedHKD* | train from the one model, guided by soft predictions | the same | the same |

| paper | here | | paper | here |
|---|---|---|---|---|
| λ, γ, T | lam, gamma, temperature | | ν, σ, ζ | nu, sigma, zeta |
| H_j, Q_j | knowledge[j] | | S = 2ζ/N_i^j | per class, of its own count |

Cost a round: FedAvg's models, and for every shared class d + classes numbers each way (d: of a representation); on the
way up a count of 8 bytes goes with each. In the first round there is nothing to send down. With `through_sectors`,
sectors average models and pool knowledge on the way.
Moves a round: server → client model; server → client numbers; client → server model; client → server numbers.

Differences from the paper and from its authors' code:
* `norms`: Euclidean norms, not squared, as printed, or "code": KL divergence averaged over all entries and mean-squared
  error; "fedhead", as FedHEAD's comparison has it: cross-entropy with predictions that are shared at temperature 1, and
  mean-squared error. `pooling`: mean by class counts over those who share, or "last": who comes last overwrites (code).
* `nu`: the code has no threshold (0). `noise`: S·σ, or "fixed": std sigma, one draw for all classes of a client (code,
  with sigma 2). With S·σ a class of one sample is not shared, since a mean of one hides nothing; a class of few gets
  noise far larger than its features, which norms that are not squared keep from taking over.
* `clip_features` to ±zeta is on whenever noise is S·σ (nets' features are unbounded; `model.bn_head` bounds them as the
  text says). `dp_sensitivity="l2"` scales noise for the whole vector (√d). docs/privacy.md says what is covered.
* `by`: models weigh by samples (paper) or alike (code). `halve_lr_every` rounds (text: 10; the code never does it: 0).
* The code clips gradients at 1.1 from round 2 on: `[local] clip`, from round 1 on here.
* Local accuracy is that of the freshly trained models, before averaging.

>>> import headwater as hw
>>> run = hw.run("fedhkd", data="digits", clients=4, rounds=2, local__epochs=1)
>>> run.history[1]["bytes"]["sector_client"]["down"] > run.history[0]["bytes"]["sector_client"]["down"]
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, Count, LocalSpec, NotNegative, Positive
from headwater.tasks.knowledge import Agree, Agreement, Norms, Pull, Release, Sensitivity, knowledge, pool, settled
from headwater.tasks.local import Term, local_train


@plain_dataclass(frozen=True)
class HkdState(State):
    knowledge: Located  # at the server: {class: (representation, soft prediction)}
    personal: Located  # at clients: their models as trained, before averaging


@dataclass(frozen=True, config=STRICT)
class FedHkdStar:
    local: LocalSpec = LOCAL
    lam: NotNegative = 0.05  # λ, on soft predictions
    temperature: Positive = 0.5
    nu: Annotated[float, Ge(0), Le(1)] = 0.25  # ν, the least share of a client's samples for a class to be shared
    sigma: NotNegative = 7.0  # σ, the noise in units of S
    zeta: Positive = 3.0  # ζ, the bound on a coordinate of a representation
    clip_features: bool | None = None  # to ±zeta before the mean; unset: wherever noise relies on it
    norms: Agreement = "paper"
    dp_sensitivity: Sensitivity = "per_coordinate"
    noise: Literal["scaled", "fixed"] = "scaled"
    pooling: Literal["mean", "last"] = "mean"
    by: By = "samples"  # how clients' models weigh in the mean
    halve_lr_every: Count = 0  # rounds; 0: never
    through_sectors: bool = False  # average and pool at sectors on the way

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}
    NEEDS: ClassVar[tuple[str, ...]] = ("features",)

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
        spec = replace(self.local, lr=self.local.lr * 0.5**halved)
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
        found = spent(self.sigma if counts else 0.0, rounds, delta, dimension, self.dp_sensitivity)
        finite = {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(found).items()}
        one_draw = "No finite ε: the noise is one draw for all classes of a client, whatever one sample can change."
        return finite | {"sentence": found.sentence() if counts else one_draw}

    def remarks(self, history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """A sentence if there was never any knowledge to share."""
        at_server = [row.get("distill", {}).get("server", {}) for row in history]
        found = [notes["knowledge_classes"] for notes in at_server if "knowledge_classes" in notes]
        if not found or any(found):
            return ()
        return (
            f"no client shared a class in any round, so this was averaging alone: with algorithm.nu = {self.nu:g} a "
            "class must make up that share of a client's samples; lower it",
        )


@dataclass(frozen=True, config=STRICT)
class FedHkd(FedHkdStar):
    gamma: NotNegative = 0.05  # γ, on representations

    def terms(self, known: Located) -> tuple[Term, ...]:
        norms: Norms = "paper" if self.norms == "paper" else "code"
        pull = (Pull(self.gamma, maybe(known), norms),) if self.gamma else ()
        return (*super().terms(known), *pull)
