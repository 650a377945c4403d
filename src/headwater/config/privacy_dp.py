"""The keys of differential privacy in `[privacy]`."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Lt

from headwater.config.fields import Section
from headwater.specs import NoiseAt, NotNegative


class NoiseConfig(Section):
    """Differential privacy: of whole clients by noise on updates, of single rows by noise on gradients.

    With `clip` above 0 all clients count alike, however many rows they have.

    Args:
        clip: largest L2 norm of the update that a client sends; longer ones are shortened. 0: no bound.
        noise: standard deviation of the noise on the updates, as a multiple of `clip`; 0: none.
        at: who adds it: each client to its own update, or the "sector" or "server" once to a mean of updates.
        quantile: let `clip` follow, from round to round, the norm that this share of the updates stays below, as told
            with noise; 0: it stays as it is. With `at` "server" only.
        delta: δ of the (ε, δ) that are told; 0: the smaller of 1e-5 and 1/n, for n clients or, for rows, n training
            rows of all clients.
        epsilon_max: the run ends before the round after which ε would be larger; 0: no limit.
        row_clip: largest L2 norm of the gradient of a single row in local training (DP-SGD); 0: no bound.
        row_noise: standard deviation of the noise on the sum of a batch's gradients, as a multiple of `row_clip`.
    """

    clip: NotNegative = 0.0
    noise: NotNegative = 0.0
    at: NoiseAt = "client"
    quantile: Annotated[float, Ge(0), Lt(1)] = 0.0
    delta: Annotated[float, Ge(0), Lt(1)] = 0.0
    epsilon_max: NotNegative = 0.0
    row_clip: NotNegative = 0.0
    row_noise: NotNegative = 0.0
