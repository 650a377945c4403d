"""Loss terms that need only the model that is trained and the one that was received."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headwater.core.params import Params
from headwater.tasks.local import Batch


@dataclass(frozen=True)
class Proximal:
    """(mu / 2) · ‖w − start‖², FedProx's pull towards the model that was received."""

    mu: float

    @property
    def quadratic(self) -> tuple[float, Tensor | None]:
        """Strength m and direction d of a term (m / 2) · ‖w − start‖² + ⟨d, w⟩, by which clients are stacked."""
        return self.mu, None

    def __call__(self, step: Batch) -> Tensor:
        return 0.5 * self.mu * (step.net.weights() - step.start.trainable).square().sum()


@dataclass(frozen=True)
class Dynamic:
    """−⟨gradient, w⟩ + (alpha / 2) · ‖w − start‖², FedDyn's regulariser; no gradient yet counts as zero."""

    alpha: float
    gradient: Params | None = None

    @property
    def quadratic(self) -> tuple[float, Tensor | None]:
        return self.alpha, None if self.gradient is None else -self.gradient.trainable

    def __call__(self, step: Batch) -> Tensor:
        pull = Proximal(self.alpha)(step)
        return pull if self.gradient is None else pull - self.gradient.trainable @ step.net.weights()
