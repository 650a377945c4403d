"""What is compared: data sets, candidates for the preset, and the papers' methods.

Data sets and sizes were fixed before a result. README.md says which candidates and methods came later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwater.config.plain_tables import merge

Tables = dict[str, Any]
FEATURES = "ag_news_minilm.npz"

# 20 clients in 2 sectors, strong label skew, 10 rounds; the same amount of local training for every method: two epochs
# a round, or one before each of two averages at sectors.
AROUND: Tables = {
    "rounds": 10,
    "eval_every": 10,
    "partition": {"scheme": "dirichlet", "alpha": 0.1, "clients": 20, "sectors": 2},
    "local": {"epochs": 2, "batch": 32},
    "engine": {"name": "inline", "threads": 1},
}
HELD: dict[str, int] = {"fashion_mnist": 10_000, "cifar10": 5_000}  # training images that score a candidate
CHOOSING: dict[str, Tables] = {
    "fashion_mnist": {
        "data": {"name": "fashion_mnist", "fraction": 0.06, "validation": 300, "reference_size": 600},
        "model": {"name": "mlp", "hidden": [64]},
    },
    "cifar10": {
        "data": {"name": "cifar10", "fraction": 0.045, "validation": 200, "reference_size": 400},
        "model": {"name": "cnn", "widths": [16, 32], "hidden": 64, "norm": "group"},
    },
}


def unseen(out: Path) -> dict[str, Tables]:
    """Data that no choice was made with. AG News is read from a file in `out`, see features.py."""
    return {
        "digits": {"data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [64]}},
        "iscx_vpn2016": {
            "data": {"name": "iscx_vpn2016", "fraction": 0.25, "validation": 200, "reference_size": 400},
            "model": {"name": "mlp", "hidden": [64, 64]},
        },
        "ag_news": {
            "data": {"name": str(out / FEATURES), "fraction": 0.5, "validation": 150, "reference_size": 300},
            "model": {"name": "linear"},
        },
    }


# -- methods


def frame(local: str, teaching: Tables | None = None, **options: Any) -> Tables:
    """A frame as tables of a configuration. Trainers inside sectors average there twice, with half the epochs each."""
    made: Tables = {"algorithm": {"name": "frame", "local": local, **options}}
    if local in ("hfedavg", "mtgc"):
        made["algorithm"]["sector_rounds"], made["local"] = 2, {"epochs": 1}
    return made | ({"sector": dict(teaching), "server": dict(teaching)} if teaching else {})


NOBODY = {"ensemble": "none", "consolidate": "none"}
LEADERS = {"ensemble": "sector", "consolidate": "leaders"}
BOTH = {"ensemble": "sector", "consolidate": "leaders+server"}
SERVER = {"ensemble": "clients", "consolidate": "designated"}
MEANS = {"ensemble": "sector_means", "consolidate": "designated", "kept": 3}
GUARD = {"step": "validated"}
LAST = {"restore": "last"}
SURE = {"metric": "accuracy", "weights": "confidence"}  # teachers by their confidence, judged by accuracy, not by loss

SGD = {"local": {"optimizer": "sgd", "lr": 0.05}}

# Single papers first, then two parts together, then more.
CANDIDATES: dict[str, Tables] = {
    "fedavg": frame("fedavg", **NOBODY),
    "fedhead": frame("fedavg", **LEADERS),
    "feddyn": frame("feddyn", **NOBODY),
    "scaffold": frame("scaffold", **NOBODY),
    "mtgc": frame("mtgc", **NOBODY),
    "fedhkd": frame("fedavg", **NOBODY, terms=["knowledge"]),
    "fedavg, leaders, guard": frame("fedavg", **LEADERS, **GUARD),
    "fedavg, leaders and server, guard": frame("fedavg", **BOTH, **GUARD),
    "fedavg, clients teach the server, guard": frame("fedavg", **SERVER, **GUARD),
    "feddyn, leaders": frame("feddyn", **LEADERS),
    "feddyn, leaders, guard": frame("feddyn", **LEADERS, **GUARD),
    "feddyn, leaders, guard, shift": frame("feddyn", **LEADERS, **GUARD, corrections="shift"),
    "feddyn, leaders and server, guard": frame("feddyn", **BOTH, **GUARD),
    "feddyn, clients teach the server, guard": frame("feddyn", **SERVER, **GUARD),
    "scaffold, leaders, guard": frame("scaffold", **LEADERS, **GUARD),
    "scaffold, leaders, guard, renew": frame("scaffold", **LEADERS, **GUARD, corrections="renew"),
    "mtgc, leaders, guard": frame("mtgc", **LEADERS, **GUARD),
    "mtgc, leaders and server, guard": frame("mtgc", **BOTH, **GUARD),
    "mtgc, sector means of 3 rounds, guard": frame("mtgc", **MEANS, **GUARD),
    "fedavg, knowledge, leaders, guard": frame("fedavg", **LEADERS, **GUARD, terms=["knowledge"]),
    "feddyn, knowledge, leaders, guard": frame("feddyn", **LEADERS, **GUARD, terms=["knowledge"]),
    "fedavg, sure leaders, guard": frame("fedavg", SURE, **LEADERS, **GUARD),
    "fedavg, sure clients teach the server, guard": frame("fedavg", SURE, **SERVER, **GUARD),
    "feddyn, sure leaders, guard": frame("feddyn", SURE, **LEADERS, **GUARD),
    "feddyn, sure leaders, guard, shift": frame("feddyn", SURE, **LEADERS, **GUARD, corrections="shift"),
    "feddyn, sure clients teach the server, guard": frame("feddyn", SURE, **SERVER, **GUARD),
    "scaffold, sure leaders, guard": frame("scaffold", SURE, **LEADERS, **GUARD),
    "mtgc, sure leaders, guard": frame("mtgc", SURE, **LEADERS, **GUARD),
    "mtgc, sure leaders and server, guard": frame("mtgc", SURE, **BOTH, **GUARD),
    "feddyn, knowledge, sure leaders, guard": frame("feddyn", SURE, **LEADERS, **GUARD, terms=["knowledge"]),
    # Controls that came later, as those below.
    "fedavg, SGD": frame("fedavg", **NOBODY) | SGD,
    "mtgc, samples": frame("mtgc", **NOBODY, by="samples"),
    "mtgc, samples, leaders, guard": frame("mtgc", **LEADERS, **GUARD, by="samples"),
    # No guard at leaders, only at the server: the average of students that are worse may be better.
    "fedavg, leaders' last epochs, guard": frame("fedavg", LAST, **LEADERS, **GUARD),
    "feddyn, leaders' last epochs, guard": frame("feddyn", LAST, **LEADERS, **GUARD),
}
PAPERS: dict[str, Tables] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "hfedavg": {"algorithm": {"name": "hfedavg", "sector_rounds": 2}, "local": {"epochs": 1}},
    "fedhead": {"algorithm": {"name": "fedhead"}},
    "feddf": {"algorithm": {"name": "feddf"}},
    "fedeed": {"algorithm": {"name": "fedeed", "cohorts": 2}},
    "mtgc": {"algorithm": {"name": "mtgc", "sector_rounds": 2}, "local": {"epochs": 1}},
    "fedhkd": {"algorithm": {"name": "fedhkd"}},
    # Not of the papers: the joined method's own trainer, to tell what its leaders add.
    "feddyn": {"algorithm": {"name": "feddyn"}},
}
# Controls, put here after the results above had been seen. The joined method, FedDyn and MTGC train by SGD, the others
# by Adam unless told otherwise; MTGC weighs clients equally, as its paper does, the others by their samples.
CONTROLS: dict[str, Tables] = {
    f"{name}, SGD": merge(PAPERS[name], SGD) for name in ("fedavg", "hfedavg", "fedhead", "feddf", "fedeed", "fedhkd")
}
CONTROLS["mtgc, samples"] = merge(PAPERS["mtgc"], {"algorithm": {"by": "samples"}})
