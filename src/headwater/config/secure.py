"""The keys of `[privacy]` about secure aggregation, and the settings that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Gt, Le

from headwater.config.fields import Section
from headwater.errors import ConfigError
from headwater.secure.setting import SecureSums
from headwater.specs import Positive, SecureMode


class SecureConfig(Section):
    """Secure aggregation: values that are only summed are seen as a sum.

    Args:
        secure: from whom single values are hidden: "sectors" from sectors' hosts and leaders, "server" from the server,
            "both" from all of them. A method that needs single values there is refused.
        secure_share: share of the members of a sum that must remain until its end; so many could open a value together.
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
    """Refuse a rule of `[robust]`, or a bound that is adapted, where there is nothing but a sum.

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
            f"privacy.quantile = {quantile:g} has every client tell the server if its update was within the bound, and "
            f"privacy.secure = {secure!r} hides single clients; set privacy.quantile = 0"
        )
