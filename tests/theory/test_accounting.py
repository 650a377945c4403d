"""What noise is worth, as another library says for the same mechanism composed by hand."""

from __future__ import annotations

import math
import sys

import pytest

import chosen
from headwater.errors import ConfigError
from headwater.theory import accounting
from headwater.theory.privacy import gaussian_epsilon

dp_accounting = pytest.importorskip("dp_accounting")


@pytest.mark.parametrize(
    ("noise", "releases", "delta"),
    [(1.0, 20, 1e-5), chosen.further(1.0, 1, 1e-5), chosen.further(4.0, 100, 1e-6)],
)
def test_releases_are_those_of_both_accountants(noise: float, releases: int, delta: float) -> None:
    from dp_accounting import pld, rdp

    own = accounting.releases_epsilon(noise, releases, delta)
    exact, bound = pld.PLDAccountant(), rdp.RdpAccountant()
    for account in (exact, bound):
        account.compose(dp_accounting.GaussianDpEvent(noise), releases)
    assert own == pytest.approx(exact.get_epsilon(delta), rel=1e-4)
    assert own <= bound.get_epsilon(delta) <= 1.25 * own


def test_steps_are_those_of_the_library() -> None:
    from dp_accounting import pld

    noise, share, steps, delta = 1.1, 0.05, 60, 1e-5
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    account = pld.PLDAccountant(value_discretization_interval=1e-3)
    for _ in range(steps // 20):
        account.compose(dp_accounting.SelfComposedDpEvent(event, 20))
    own = accounting.sampled_steps_epsilon(noise, share, steps, delta)
    assert own == pytest.approx(account.get_epsilon(delta), rel=1e-3)
    assert own <= accounting.sampled_steps_bound(noise, share, steps, delta) <= 1.25 * own
    # A sample of all rows is no sample.
    assert accounting.sampled_steps_epsilon(noise, 1.0, 60, delta) == gaussian_epsilon(noise / math.sqrt(60), delta)
    assert accounting.sampled_steps_epsilon(0.0, share, steps, delta) == math.inf
    assert accounting.sampled_steps_epsilon(noise, share, 0, delta) == 0.0


def test_delta_follows_from_the_number_of_members() -> None:
    assert accounting.delta_of(0.0, 20) == 1e-5
    assert accounting.delta_of(0.0, 400_000) == 2.5e-6
    assert accounting.delta_of(1e-3, 20) == 1e-3


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"install headwater\[privacy\]"):
        accounting.accountant()
