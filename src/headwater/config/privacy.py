"""The keys of `[privacy]`: differential privacy and secure aggregation, and the settings that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt

from headwater.config.fields import Section
from headwater.errors import ConfigError
from headwater.secure.setting import SecureSums
from headwater.specs import NoiseAt, NotNegative, Positive, SecureMode


class NoiseConfig(Section):
    """Differential privacy: of whole clients by noise on updates, of single rows by noise on gradients.

    With `clip` above 0 all clients count alike, however many rows they have.

    Args:
        clip: largest L2 norm of the update that a client sends; longer ones are shortened. 0: no bound.
        noise: standard deviation of the noise on the updates, as a multiple of `clip`; 0: none.
        at: who adds it: each client to its own update, or the "sector" or "server" once to a mean of updates.
        quantile: let `clip` follow, from round to round, the norm that this share of the updates stays below, which
            clients report with noise; 0: it stays as it is. With `at` "server" only.
        delta: δ of the (ε, δ) in the result; 0: the smaller of 1e-5 and 1/n, for n clients or, for rows, n training
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


class SecureConfig(Section):
    """Secure aggregation: values that are only summed are seen as a sum.

    Args:
        secure: from whom single values are hidden: "sectors" from sectors' hosts and leaders, "server" from the server,
            "both" from all of them. A method that needs single values there is refused.
        secure_share: share of the members of a sum that must remain until its end; as many together could open a value.
        secure_range: largest absolute value of a parameter. The smaller it is, the finer is the step of sums.
        secure_masks: whether a simulation really masks. Without, results and bytes are the same, and it is faster.
    """

    secure: SecureMode = "none"
    secure_share: Annotated[float, Gt(0.5), Le(1)] = 0.6
    secure_range: Positive = 65536.0
    secure_masks: bool = True


def secure_sums(privacy: Any) -> SecureSums:
    """The settings of a run's sums."""
    noise_at = privacy.at if privacy.noise else ""
    return SecureSums(privacy.secure, privacy.secure_share, privacy.secure_range, privacy.secure_masks, noise_at)


def check_secure(tree: Mapping[str, Any]) -> None:
    """Refuse settings that need the values of single clients where a secure sum hides them: rules of `[robust]`, and a
    clipping bound that adapts.

    Raises:
        ConfigError: with the reason.
    """
    secure = tree["privacy"].get("secure", "none")
    for key, place in (("sector", "sectors"), ("server", "server")):
        rule = tree["robust"].get(key, "none")
        if rule != "none" and secure in (place, "both"):
            raise ConfigError(
                f"robust.{key} = {rule!r} compares single values, which privacy.secure = {secure!r} hides from the "
                f"{place}; remove one of them"
            )
    quantile = tree["privacy"].get("quantile", 0.0)
    if quantile and secure in ("server", "both"):
        raise ConfigError(
            f"privacy.quantile = {quantile:g} has every client report to the server whether its update was within the "
            f"bound, and privacy.secure = {secure!r} hides single clients; set privacy.quantile = 0"
        )
