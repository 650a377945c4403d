"""Which methods can have which `privacy.secure`, found out before a run: a verdict for every listed method."""

from __future__ import annotations

import re

import pytest

from headwater.algorithms import ALGORITHMS
from headwater.errors import ConfigError
from headwater.training.opening import check_needs
from toys import tiny

MODES = ("sectors", "server", "both")
SERVER, LEADERS = "the server", "the leaders of sectors"
OWN_MODELS = "this method has no global model"
SUMS: dict[str, tuple[str, str]] = {}  # sums are enough everywhere
OPTIONS = {"fed-ensemble": {"cohorts": 2}, "fedeed": {"cohorts": 2}}  # so that no cohort has a single client


def needed(place: str, task: str, *modes: str) -> dict[str, tuple[str, str]]:
    """By mode, where which task needs single values."""
    return dict.fromkeys(modes, (place, task))


# By method, the modes that are refused: the place and the task, or the reason. All other modes are accepted.
VERDICTS: dict[str, dict[str, tuple[str, str]]] = {
    "centralized": needed(SERVER, "pooled", "server", "both"),
    "fed-ensemble": SUMS,
    "fedalign": SUMS,
    "fedavg": SUMS,
    "fedavgm": SUMS,
    "fedbe": needed(SERVER, "sample_models", "server", "both"),
    "feddf": needed(SERVER, "drop_worst", "server", "both"),
    "feddyn": SUMS,
    "fedeed": SUMS,
    "fedgen": needed(SERVER, "teach_generator", "server", "both"),
    "fedhead": needed(LEADERS, "distill", "sectors", "both"),
    "fedhead+": needed(LEADERS, "distill", "sectors", "both") | needed(SERVER, "distill", "server"),
    "fedhkd": SUMS,
    "fedhkd-star": SUMS,
    "fedma": needed(SERVER, "match_layer", "server", "both"),
    "fedmd": needed(SERVER, OWN_MODELS, "server", "both"),
    "fednova": SUMS,
    "fedprox": SUMS,
    "fedproto": needed(SERVER, OWN_MODELS, "server", "both"),
    "frame": needed(SERVER, "distill", "server", "both"),
    "hfedavg": SUMS,
    "hfeddyn": SUMS,
    "hfedprox": SUMS,
    "hscaffold": SUMS,
    "local": needed(SERVER, OWN_MODELS, "server", "both"),
    "moon": SUMS,
    "mtgc": SUMS,
    "scaffold": SUMS,
}


def test_every_listed_method_has_a_verdict() -> None:
    new, gone = (sorted(a - b) for a, b in ((set(ALGORITHMS), set(VERDICTS)), (set(VERDICTS), set(ALGORITHMS))))
    assert not new, f"say in VERDICTS of this file which privacy.secure these methods can have: {', '.join(new)}"
    assert not gone, f"VERDICTS of this file has methods that are not listed: {', '.join(gone)}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", sorted(VERDICTS))
def test_a_mode_is_accepted_or_refused_with_reason_and_place(method: str, mode: str) -> None:
    sections = {"privacy": {"secure": mode}, "partition": {"clients": 12, "sectors": 2}}
    made = tiny(method, algorithm=OPTIONS.get(method, {}), **sections)
    if mode not in VERDICTS[method]:
        check_needs(made)
        return
    place, what = VERDICTS[method][mode]
    hides = f"privacy.secure = '{mode}' hides single {'models' if what is OWN_MODELS else 'values'} from {place}, but "
    with pytest.raises(ConfigError) as refused:
        check_needs(made)
    why = what if what is OWN_MODELS else f"{what} needs them there: "
    assert re.match(re.escape(hides + why), str(refused.value))
    assert re.search("; use a method (with|or an option)", str(refused.value))
