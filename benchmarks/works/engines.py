"""FedHEAD on the embedded digits: in this process, and on worker processes that are already up."""

from __future__ import annotations

import os

from works.base import Inside, Work


def work(quick: bool) -> Work:
    from headwater.config import Config
    from headwater.engines.inline import Inline
    from headwater.engines.pool import Pool
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    rounds, cores = 1 if quick else 5, os.cpu_count() or 1
    ready = prepare(Config.load(None, [], rounds=rounds))
    pool = Pool(cores)
    train(prepare(Config.load(None, [], rounds=1)), engine=pool)  # its workers are up from here on

    def inline() -> float:
        return train(ready, engine=Inline()).accuracy

    def pooled() -> float:
        return train(ready, engine=pool).accuracy

    functions = {"inline": inline, f"pool of {cores}": pooled}
    title = f"FedHEAD on digits, {rounds} rounds"
    return Inside(title, [], lambda path: path, "inline", unit="seconds", functions=functions)
