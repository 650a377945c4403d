"""Equal work: the loops that the library is timed against give the library's own model from the same pack.

Batches come in the same order for all, so models differ by rounding alone.
"""

from __future__ import annotations

import cProfile
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwater.config import Config
from headwater.core.params import Params
from headwater.core.tree import ROOT
from headwater.data.base import Data, Examples
from headwater.engines.inline import Inline
from headwater.specs import DistillSpec
from headwater.tasks.distill import distill
from headwater.tasks.task import TaskContext
from headwater.training.experiment import prepare
from headwater.training.loop import train

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MLP = {"name": "mlp", "hidden": [5]}
RESNET = {"name": "resnet8", "norm": "group"}
CNN = {"name": "cnn", "widths": [4, 6], "hidden": 0, "norm": "none"}


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The benchmarks' modules can be imported, and torch has as many threads afterwards as before."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS), prepend=":")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def examples(count: int, seed: int) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, 8, 8, generator=generator)
    return Examples(x, (x.mean((1, 2, 3)) * 40 + 5).long().clamp(0, 9))


def packed(folder: Path, model: dict[str, Any], clients: int = 6, active: int = 3, batch: int = 4) -> Any:
    import packs
    from contestants.serve import Pack

    tree = packs.fedavg(clients=clients, active=active, model=model, rounds=2, batch=batch, lr=0.1)
    path = packs.averaging(folder / "pack.npz", tree, examples(clients * 10, 0), examples(20, 1))
    return Pack.load(path)


def library(pack: Any) -> dict[str, torch.Tensor]:
    data = Data(*(pack.tensor(name) for name in ("x", "y", "x_test", "y_test")), class_names=list("0123456789"))
    return train(prepare(Config(**pack.about["config"]), data=data), engine=Inline()).model.state_dict()


def worked(module: Any, pack: Any) -> dict[str, torch.Tensor]:
    work = module.prepare(pack)
    try:
        return dict(work(pack.about["rounds"]).state)
    finally:
        getattr(work, "close", lambda: None)()


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.thorough
@pytest.mark.parametrize("model", [MLP, RESNET, CNN], ids=["mlp", "resnet8", "cnn"])
def test_the_researchers_loop_does_the_librarys_work(tmp_path: Path, model: dict[str, Any]) -> None:
    from contestants import bare

    pack = packed(tmp_path, model)
    found = worked(bare, pack)
    same(found, library(pack))
    assert any((found[name] - tensor).abs().max() > 1e-3 for name, tensor in pack.state().items())  # it did learn


def test_the_stacked_loops_do_the_librarys_work(tmp_path: Path) -> None:
    from contestants import stacked, stacked_autograd

    pack = packed(tmp_path, MLP)
    same(worked(stacked, pack), library(pack))
    same(worked(stacked_autograd, pack), library(pack))


def test_torchs_vmap_does_the_librarys_work(tmp_path: Path) -> None:
    from contestants import vmapped

    pack = packed(tmp_path, CNN)
    same(worked(vmapped, pack), library(pack))


@pytest.mark.thorough
@pytest.mark.parametrize("model", [RESNET, CNN], ids=["resnet8", "cnn"])
def test_the_tuned_loop_does_the_librarys_work(tmp_path: Path, model: dict[str, Any]) -> None:
    from contestants import tuned

    pack = packed(tmp_path, model, clients=3)
    same(worked(tuned, pack), library(pack))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environment", "module", "arguments"),
    [
        ("jax", "jax_loop", ["scan"]),
        ("jax", "jax_loop", ["scan", "evaluated"]),
        ("jax", "jax_loop", ["vmap"]),
        ("fedjax", "fed_jax", []),
    ],
    ids=["scan", "evaluated", "vmap", "fedjax"],
)
def test_loops_on_jax_do_the_librarys_work(tmp_path: Path, environment: str, module: str, arguments: list[str]) -> None:
    """Where `make bench` has made their environments already."""
    python = BENCHMARKS / ".environments" / environment / "bin" / "python"
    if not (python.parent.parent / ".made").is_file():
        pytest.skip(f"there is no environment of {environment}; `make bench WORKS=W2` makes it")
    pack = packed(tmp_path, MLP, clients=4, active=2, batch=5)
    script = (
        "import sys, numpy; from contestants.serve import Pack; from contestants import " + module + " as own;"
        "pack = Pack.load(sys.argv[1]); state = own.prepare(pack, *sys.argv[3:])(pack.about['rounds']).state;"
        "numpy.savez(sys.argv[2], **{name: tensor.numpy() for name, tensor in state.items()})"
    )
    files = [str(tmp_path / "pack.npz"), str(tmp_path / "found.npz")]
    subprocess.run([str(python), "-c", script, *files, *arguments], check=True, cwd=BENCHMARKS, timeout=300)
    with np.load(files[1]) as found:
        same({name: torch.from_numpy(found[name]) for name in found.files}, library(pack))


def test_the_program_for_flower_trains_as_the_researchers_loop_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client of round 1, by Flower's own message."""
    flwr = pytest.importorskip("flwr.app")
    from contestants import bare, flower
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):  # a message belongs to a run, and there is none here
        monkeypatch.setattr(TaskIdentity, name, 1)

    pack = packed(tmp_path, MLP, clients=2, active=1, batch=5)
    monkeypatch.setenv(flower.PATH, str(tmp_path / "pack.npz"))
    flower.loaded.cache_clear()
    told = flwr.ConfigRecord({"server-round": 1, "place": 0})
    content = flwr.RecordDict({"arrays": flwr.ArrayRecord(pack.net().state_dict()), "config": told})
    message = flwr.Message(content, dst_node_id=1, message_type=flwr.MessageType.TRAIN)
    answer = flower.train(message, None).content["arrays"].to_torch_state_dict()
    same(answer, bare.prepare(pack)(1).state)


def test_headwater_is_measured_as_it_is_by_default_and_at_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contestants import ours, ours_default

    pack, seen = packed(tmp_path, MLP), []

    def watched(ready: Any, **given: Any) -> Any:
        run = train(ready, **given)
        evaluated = [row["round"] for row in run.history if row["accuracy"] is not None]
        left = {path.name for path in given["out"].iterdir()} if given["out"] else set()
        seen.append((ready.config.engine, evaluated, len(ready.split.test), left))
        return run

    monkeypatch.setattr(ours, "JUDGED", 5)
    monkeypatch.setattr(ours, "train", watched)
    found = {module: worked(module, pack) for module in (ours_default, ours)}
    for state in found.values():
        same(state, library(pack))
    default, best = seen
    assert default[:3] == (Config().engine, [1, 2], 20)
    assert default[3] >= {"config.toml", "rounds.jsonl", "timeline.jsonl", "checkpoints", "result.json"}
    assert best[0].workers == 2
    assert best[1:] == ([2], 5, set())


def test_cpu_time_and_memory_are_those_of_all_processes_of_a_contestant() -> None:
    from contestants.usage import Meter, family, held

    burn = "import time\nprint(flush=True)\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    before, meter = family(), Meter()
    # Twice removed, as the workers of a framework may be.
    line = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"]
    child = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        meter.start()
        child.stdout.readline()
        time.sleep(0.2)  # nobody runs
        meter.stop()
        mine = set(family()) - set(before)
        memory = held()
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()
    assert child.pid in mine
    assert len(mine) == 2
    assert 0.25 < meter.cpu < 0.6
    assert meter.seconds > meter.cpu
    assert 0 < memory["pss"] < memory["memory"]


def test_a_claim_may_be_about_cpu_time_and_tables_show_it() -> None:
    import page
    import record

    loop = [{"seconds": 1.0, "cpu_seconds": 2.0, "accuracy": 0.5, "pss": 10}] * 3
    best = [{"seconds": 0.9, "cpu_seconds": 2.2, "accuracy": 0.5}] * 3  # sooner done, but dearer
    answers = {"loop": loop, record.BEST: best}
    assert record.Claim(1.0, ("loop",), who=record.BEST).told(answers).startswith("yes")
    assert record.Claim(1.05, ("loop",), who=record.BEST, what="cpu_seconds").told(answers).startswith("NO")
    plain, judged = (record.rows_of("W7", "a title", answers, "loop", cpu) for cpu in (False, True))
    assert "CPU" not in record.table(plain, "seconds")
    assert re.search(r"best settings .* 1\.10", record.table(judged, "seconds"))
    told = {"machine": "m", "date": "d", "commit": "c", "load": 0.1}
    lines = page.measured([row | told for row in judged]).splitlines()
    assert "| loop | 1 | 1.00 | 50.00 % | 2 | 1.00 | 10 |" in lines
    assert f"| {record.BEST} | 0.9 | 0.90 | 50.00 % | 2.2 | 1.10 |  |" in lines


def test_the_page_has_a_place_for_every_work_and_profile() -> None:
    import bench
    import page
    import where

    assert tuple(bench.WORKS) == page.WORKS
    text = page.PAGE.read_text(encoding="utf-8")
    profiles = {*where.WORKS, where.DEFAULT, *json.loads(where.WHERE.read_text(encoding="utf-8"))}
    for name in (*page.WORKS, *(f"where {each}" for each in profiles)):
        assert text.count(f"<!-- {name} -->\n") == 1, name
    assert text.count("<!-- end -->") == len(page.WORKS) + len(profiles)


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_claims_are_about_contestants_that_take_part(quick: bool) -> None:
    import environments
    from works import w1, w2, w3, w5, w7

    for work in (module.work(quick) for module in (w1, w2, w3, w5, w7)):
        names = [each.name for each in work.contestants]
        assert len(set(names)) == len(names)
        assert {work.reference, *(name for claim in work.claims for name in (claim.who, *claim.than))} <= set(names)
        for each in work.contestants:
            assert (BENCHMARKS / "contestants" / f"{each.module}.py").is_file()
            assert not each.environment or each.environment in environments.PACKAGES


def test_a_profile_counts_for_the_module_that_called(tmp_path: Path) -> None:
    import where

    pack = packed(tmp_path, MLP, clients=20, active=20)
    data = Data(*(pack.tensor(name) for name in ("x", "y", "x_test", "y_test")), class_names=list("0123456789"))
    ready, seen = prepare(Config(**pack.about["config"]), data=data), cProfile.Profile()
    seen.runcall(train, ready, engine=Inline(), out=tmp_path / "run")
    shares = where.shares_of(seen)
    assert sum(shares.values()) == pytest.approx(1)
    assert {kind for kind, _ in where.KINDS} <= shares.keys()  # a module that moved would be missed
    assert shares["matrix products"] > 0
    assert shares.get(where.ELSE, 0.0) < 0.2


@pytest.mark.thorough
def test_the_parts_of_a_fedhead_round_make_up_the_librarys(tmp_path: Path) -> None:
    import distillation
    from contestants import parts
    from contestants.serve import Pack

    tree = distillation.fedhead_plus(clients=4, reference=8, epochs=2)
    for stage in ("local", "sector", "server"):
        tree[stage] = tree[stage] | {"optimizer": "sgd", "lr": 0.01, "batch": 4}
    train_set, test_set = examples(48, 0), examples(20, 1)
    pack = Pack.load(distillation.head_round(tmp_path / "pack.npz", tree, train_set, test_set))
    data = Data(train_set.x, train_set.y, test_set.x, test_set.y, class_names=list("0123456789"))
    run = train(prepare(Config(**tree), data=data), engine=Inline())
    found = worked(parts, pack)
    wanted = {n: t for n, t in run.model.state_dict().items() if t.is_floating_point()}
    same({name: found[name] for name in wanted}, wanted)


@pytest.mark.thorough
def test_asking_teachers_at_every_step_is_the_librarys_distillation(tmp_path: Path) -> None:
    import distillation
    from contestants import recomputing
    from contestants.serve import Pack

    tree = distillation.feddf(clients=3, epochs=2)
    tree["data"]["reference_size"] = 2
    tree["server"] |= {"optimizer": "sgd", "lr": 0.05, "batch": 8}
    own, taught, test_set = examples(24, 2), examples(20, 0), examples(20, 1)
    pack = Pack.load(distillation.teachers(tmp_path / "pack.npz", tree, 3, own, taught, test_set))
    data = Data(taught.x, taught.y, test_set.x, test_set.y, class_names=list("0123456789"))
    context = prepare(Config(**tree), data=data).context()
    context = replace(context, split=replace(context.split, reference=pack.x))
    members = {f"c{i}": Params.of(pack.net(f"teacher{i}"), "resnet8") for i in range(3)}
    student = distill(
        TaskContext(context, ROOT, (1, "distill", 0, ROOT)),
        context.initial("resnet8", 0),
        members,
        DistillSpec(**tree["server"]),
    ).named()
    found = worked(recomputing, pack)
    wanted = {name: tensor for name, tensor in student.items() if tensor.is_floating_point()}
    same({name: found[name] for name in wanted}, wanted)
