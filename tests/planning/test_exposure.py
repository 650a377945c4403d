"""What leaves without noise is found for each method, from its own tasks and moves."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.planning.exposure import exposure
from toys import tiny

BARE = "models whose updates have no noise, from clients to the server"
MEANS = "class means, mean predictions and class counts, from clients to the server"
CASES: list[tuple[str, str, dict[str, Any], tuple[str, ...], int]] = [
    ("fedavg", "client", {}, (), 1),
    ("fedavg", "server", {}, (), 1),
    ("fedavg", "sector", {}, (BARE,), 1),
    ("fedavg", "sector", {"through_sectors": True}, (), 1),
    ("fedavgm", "server", {}, (), 1),
    ("feddyn", "server", {}, (), 1),
    ("fednova", "client", {}, (), 1),
    ("fednova", "server", {}, ("results of step_towards, from the server to clients",), 1),
    ("feddf", "client", {}, (), 1),
    ("feddf", "server", {}, ("results of drop_worst, from the server to clients",), 1),
    ("fedeed", "server", {}, (), 1),
    ("scaffold", "client", {}, (), 1),
    ("scaffold", "server", {}, ("control variates, from the server to clients",), 1),
    ("hfedavg", "client", {"sector_rounds": 3}, (), 3),
    ("hfedavg", "sector", {"sector_rounds": 3}, (), 3),
    ("hfedavg", "server", {}, (), 1),
    ("fedgen", "client", {}, ("label counts, from clients to the server",), 1),
    ("fedhead", "client", {}, ("distilled models, from clients to the server",), 1),
]
REFUSED = ("feddf", "fedgen", "fedhead", "fedeed")  # they need single models, or have too few clients in a cohort here


@pytest.mark.parametrize(("method", "at", "options", "leaks", "releases"), CASES)
def test_noise_on_updates(method: str, at: str, options: Any, leaks: tuple[str, ...], releases: int) -> None:
    made = tiny(method, algorithm=options, privacy={"clip": 1.0, "noise": 1.0, "at": at})
    found = exposure(made, "clients")
    assert (found.leaks, found.releases) == (leaks, releases)


@pytest.mark.parametrize(("method", "at", "options"), [case[:3] for case in CASES if case[0] not in REFUSED])
def test_secure_sums_change_no_verdict(method: str, at: str, options: Any) -> None:
    """Keys, shares and masked values tell nothing, and an opened sum tells what the values in it do."""
    noise = {"clip": 1.0, "noise": 1.0, "at": at}
    plain, hidden = (
        exposure(tiny(method, algorithm=options, privacy=noise | {"secure": mode}), "clients")
        for mode in ("none", "both")
    )
    assert hidden == plain


def test_what_a_hidden_sum_tells_is_exposed_where_it_is_opened() -> None:
    found = exposure(
        tiny("fedhkd", algorithm={"nu": 0.0}, privacy={"clip": 1.0, "noise": 1.0, "secure": "both"}), "clients"
    )
    assert MEANS in found.leaks


def test_several_rounds_of_a_sector_are_not_covered_by_noise_at_the_server() -> None:
    made = tiny("hfedavg", algorithm={"sector_rounds": 2}, privacy={"clip": 1.0, "noise": 1.0, "at": "server"})
    assert exposure(made, "clients").leaks == ("models whose updates have no noise, from sectors to clients",)


def test_class_means_and_clients_own_tests_are_not_covered() -> None:
    noise = {"clip": 1.0, "noise": 1.0}
    assert MEANS in exposure(tiny("fedhkd", algorithm={"nu": 0.0}, privacy=noise), "clients").leaks
    own = tiny("fedavg", partition={"local_test": 0.2}, privacy=noise)
    assert exposure(own, "clients").leaks == ("accuracies on clients' own tests, from clients to the server",)


def test_noise_on_gradients_of_rows() -> None:
    noise = {"row_clip": 1.0, "row_noise": 1.0}
    found = exposure(tiny("hfedavg", algorithm={"sector_rounds": 2}, privacy=noise), "rows")
    assert (found.leaks, found.releases) == ((), 2)
    assert (found.steps(16), found.probability(16)) == (2 * 2, 0.5)  # two trainings of one epoch in batches of 8
    scaffold = tiny("scaffold", algorithm={"variates": "gradient"}, privacy=noise)
    assert exposure(scaffold, "rows").leaks == ("control variates, from clients to the server",)
