"""What only a cluster of several nodes can get wrong: places, lost workers, lost nodes and a lost driver.

Not collected by itself: test_ray.py runs it in a network of its own, where the nodes listen to nobody else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from ray.cluster_utils import Cluster

import toys
from headwater.engines.jobs import Job, Ref
from headwater.engines.ray import cluster as ray_cluster
from headwater.engines.ray import recovery
from headwater.engines.ray.driver import Ray
from headwater.engines.ray.recovery import Recovery
from headwater.engines.workers.scheduler import ValueSlot
from headwater.errors import ConfigError, TaskError
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment
from headwater.training.loop import train

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test by its name
PATIENCE = 600  # seconds; processes start slowly on a busy machine
HEADWATER = [sys.executable, "-c", "import sys; from headwater.cli.app import main; sys.exit(main())"]
QUICKLY = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 300, "health_check_failure_threshold": 3}


@task("train")
def mortal(ctx: TaskContext, marks: str, deaths: int) -> float:
    """Kills the worker that carries it out, so many times; leaves a mark each time."""
    folder = Path(marks)
    if len(list(folder.iterdir())) < deaths:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return float(ctx.rng.random())


@task("train")
def where(ctx: TaskContext) -> dict[str, Any]:
    return {"threads": torch.get_num_threads(), "omp": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}


def job(name: str, function: Callable[..., Any], **inputs: Any) -> Job:
    return Job(name, function, "c0", "c0", inputs, (1, name, 0, "c0"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with a CPU each: the first takes the tasks of sector s0, the second those of s1."""
    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "resources": {"headwater_s0": 1},
            "include_dashboard": False,
            "_system_config": QUICKLY,
        },
    )
    made.add_node(num_cpus=1, resources={"headwater_s1": 1})
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def ray(cluster: Cluster) -> Iterator[Ray]:
    made = Ray(address=cluster.address)
    yield made
    made.close()


def until(so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def five(method: str, **settings: Any) -> Experiment:
    """Five clients in two sectors, for some rounds; models too large to travel inside a message."""
    return toys.tiny(
        method,
        arrays=toys.tiny_data(150),
        sizes=((9, 25, 14, 8, 13), (0, 1, 0, 1, 0)),
        model=wide,
        rounds=6,
        engine={"stack": "off"},
        **settings,
    )


def wide() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 6_000), torch.nn.ReLU(), torch.nn.Linear(6_000, 3))


@pytest.mark.parametrize("method", ["fedhead", "mtgc"])
def test_tasks_of_a_sector_are_carried_out_on_its_node(ray: Ray, method: str) -> None:
    made = five(method)
    run = train(made, engine=ray)
    assert run.result["model_sha256"] == train(made).result["model_sha256"]
    nodes = {worker.number: worker.node for worker in ray._workers.values()}
    assert [sorted(node.sectors) for node in nodes.values()] == [["s0"], ["s1"]]
    of = dict(made.tree.sector_of) | {sector: sector for sector in made.tree.sectors}
    places = {(of[span["node"]], span["worker"]) for span in run.spans if span["node"] != "server"}
    assert places == {(sector, number) for number, node in nodes.items() for sector in node.sectors}


def test_a_worker_that_dies_is_replaced_and_its_job_repeated(ray: Ray, tmp_path: Path) -> None:
    context = five("fedhead").context()
    found = []
    for deaths in (0, 1):
        ray.start(context)
        ray.submit(job("x", mortal, marks=str(tmp_path), deaths=deaths))
        ray.submit(job("y", where))
        found.append(ray.read(Ref("x", "c0")))
    assert found[0] == found[1]
    assert len(list(tmp_path.iterdir())) == 1
    told = ray.read(Ref("y", "c0"))
    assert sorted(done.name for done in ray.done) == ["x", "y"]
    assert (told["threads"], told["omp"]) == (1, "1")
    ray.start(context)
    ray.submit(job("x", mortal, marks=str(tmp_path), deaths=99))
    with pytest.raises(TaskError, match=r"mortal at c0 \(home c0\) failed: a worker process died over it 3 times"):
        ray.read(Ref("x", "c0"))


def killing(what: Callable[[], None], after: int) -> tuple[Callable[[Any], None], list[int]]:
    """Watches a run and does that when so many of its tasks are done."""
    done: list[int] = []

    def watch(event: Any) -> None:
        if event.kind == "task":
            done.append(event.round)
            if len(done) == after:
                what()

    return watch, done


def test_workers_killed_in_the_middle_of_a_run_change_nothing(ray: Ray) -> None:
    made = five("mtgc")
    ray.start(made.context())
    until(lambda: all(worker.ready for worker in ray._workers.values()), "workers")
    pids = [worker.pid for worker in ray._workers.values()]
    watch, done = killing(lambda: [os.kill(pid, signal.SIGKILL) for pid in pids] and None, after=90)
    assert train(made, engine=ray, watch=watch).result["model_sha256"] == train(made).result["model_sha256"]
    assert len(done) > 90
    assert not set(pids) & {worker.pid for worker in ray._workers.values()}


def test_a_cluster_without_a_free_cpu_is_refused(ray: Ray, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "PATIENCE", 0.0)
    late = Ray(address=cluster.address)
    with pytest.raises(ConfigError, match=r"has no node with 1 free CPU; wait until others are done"):
        late.start(five("fedhead").context())
    late.close()
    ray.start(five("fedhead").context())
    ray.submit(job("y", where))
    assert ray.read(Ref("y", "c0"))["threads"] == 1  # who was there before is none the worse


def test_a_run_whose_driver_was_killed_is_carried_on(ray: Ray, cluster: Cluster, tmp_path: Path) -> None:
    ray.close()  # its CPUs are needed
    small = ["--set", "data.fraction=0.3", "--set", "partition.clients=6", "--set", "local.epochs=1", "--rounds", "25"]
    words = [*HEADWATER, "run", "mtgc", *small, "--address", cluster.address, "--out", str(tmp_path / "a"), "--quiet"]
    process = subprocess.Popen(words)
    try:
        until(lambda: any(tmp_path.glob("a/checkpoints/round-*.json")), "a checkpoint")
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "a" / "result.json").exists()
    subprocess.run([*HEADWATER, "resume", str(tmp_path / "a"), "--quiet"], check=True, timeout=PATIENCE)
    subprocess.run(
        [*HEADWATER, "run", "mtgc", *small, "--engine", "inline", "--out", str(tmp_path / "b"), "--quiet"],
        check=True,
        timeout=PATIENCE,
    )
    found = [json.loads((tmp_path / name / "result.json").read_text())["model_sha256"] for name in "ab"]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("method", "share"),
    [("mtgc", 0.6), ("scaffold", 0.9), ("fedhead+", 0.4), ("fedmd", 0.2), ("fedeed", 0.5), ("fedhkd", 0.7)],
)
def test_a_node_killed_in_the_middle_of_a_run_changes_nothing(
    method: str, share: float, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = five(method)
    count, tasks = killing(lambda: None, after=0)
    expected = train(made, watch=count)
    others = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    second = others[0] if others else cluster.add_node(num_cpus=1, resources={"headwater_s1": 1})
    watch, done = killing(lambda: cluster.remove_node(second, allow_graceful=False), after=round(share * len(tasks)))
    engine = Ray(address=cluster.address)
    again: list[ValueSlot] = []
    recompute = Recovery.recompute
    monkeypatch.setattr(Recovery, "recompute", lambda self, slot: (again.append(slot), recompute(self, slot))[1])
    if method == "mtgc":  # a round or two, so that some of it is fetched before and some is not
        monkeypatch.setattr(recovery, "MAX_DEPTH", 12)
    try:
        found = train(made, engine=engine, watch=watch)
        assert len(engine._workers) == 1
    finally:
        engine.close()
    assert found.result["model_sha256"] == expected.result["model_sha256"]
    assert [row["accuracy"] for row in found.history] == [row["accuracy"] for row in expected.history]
    assert len(done) == len(tasks)
    assert again or method in ("fedhead+", "fedeed")  # all that these keep is at the server, on the first node


@pytest.mark.parametrize("title", ["advertise_keys", "share_seeds", "agree_on_members", "add_masked"])
def test_a_node_killed_between_the_steps_of_a_secure_sum_changes_nothing(title: str, cluster: Cluster) -> None:
    """Its clients take these steps again: with the keys that they advertised, and the shares that others hold."""
    made = five("hfedavg", privacy={"secure": "both"})
    expected = train(made)
    steps = [at for at, span in enumerate(expected.spans, 1) if (span["task"], span["round"]) == (title, 2)]
    others = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    second = others[0] if others else cluster.add_node(num_cpus=1, resources={"headwater_s1": 1})
    watch, done = killing(lambda: cluster.remove_node(second, allow_graceful=False), after=steps[-1])
    engine = Ray(address=cluster.address)
    try:
        found = train(made, engine=engine, watch=watch)
        assert len(engine._workers) == 1
    finally:
        engine.close()
    assert found.result["model_sha256"] == expected.result["model_sha256"]
    assert len(done) > steps[-1]
