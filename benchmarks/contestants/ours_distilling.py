"""Headwater's `distill` the way a method calls it: members' models come up to the server, which teaches a student."""

from __future__ import annotations

import sys
from dataclasses import replace

from contestants.serve import Outcome, Pack, State, Work, serve, timed
from headwater.config import Config
from headwater.core.federation import CLIENTS, SERVER, Federation, Session
from headwater.core.ledger import Ledger
from headwater.core.params import Params
from headwater.core.submission import Precompute
from headwater.data.base import Data
from headwater.engines.pool import Pool
from headwater.specs import DistillSpec
from headwater.tasks.average import initial
from headwater.tasks.distill import distill
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import prepare as experiment_of


@task("average")
def trained(site: TaskContext, path: str, arch: str) -> Params:
    """The teacher that lives at this client, which was trained before."""
    pack = Pack.load(path)
    return Params.of(pack.net(f"teacher{site.home[1:]}"), arch, weight=1.0)


def prepare(pack: Pack, path: str = "") -> Work:
    path, about = path or sys.argv[1], pack.about
    few = {name: pack.tensor(name)[:100] for name in ("x_test", "y_test")}
    names = [str(i) for i in range(about["classes"])]
    data = Data(pack.x, pack.y, few["x_test"], few["y_test"], class_names=names)
    ready = experiment_of(Config(**about["config"]), data=data)
    context = ready.context()
    split = replace(context.split, reference=pack.x, reference_labels=None)
    context = replace(context, split=split, server_threads=ready.config.engine.server_threads)
    pool, spec = Pool(2), DistillSpec(**about["config"]["server"])
    arch = ready.model.name
    pool.start(context)
    fed = Federation(
        ready.tree,
        Session(pool, Ledger(), context.seed, precompute=Precompute.of(context)),
        ready.tree.holders,
        purpose="setup",
    )
    start = fed.run(initial, at=SERVER, arch=arch)
    teachers = fed.up(fed.run(trained, at=CLIENTS, path=path, arch=arch), to=SERVER)
    fed.read(start)
    fed.read(teachers)

    def taught(spec: DistillSpec) -> State:
        this = fed.begin(1, ready.tree.holders)  # the same round each time, and so the same batches
        params = this.read(this.run(distill, at=SERVER, start=start, teachers=teachers, spec=spec))
        return params.load_into(pack.net()).state_dict()

    def work(rounds: int) -> Outcome:
        return timed(1, lambda: taught(spec if rounds else replace(spec, epochs=1)))

    work.close = pool.close  # type: ignore[attr-defined]
    return work


if __name__ == "__main__":
    serve(prepare)
