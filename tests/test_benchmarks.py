"""Equal work: the loops that the library is timed against give the library's own model from the same pack.

Batches come in the same order for all, so models differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.config import Config
from headwater.data.base import Data, Examples
from headwater.engines.inline import Inline
from headwater.experiment import prepare
from headwater.params import Params
from headwater.specs import DistillSpec
from headwater.stages.consolidate import distill
from headwater.stages.site import Site
from headwater.topology.tree import ROOT
from headwater.training import train

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MLP = {"name": "mlp", "hidden": [5]}
RESNET = {"name": "resnet8", "norm": "group"}


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


def packed(folder: Path, model: dict[str, Any], clients: int = 6, active: int = 3) -> Any:
    import packs
    from contestants.serve import Pack

    tree = packs.fedavg(clients=clients, active=active, model=model, rounds=2, batch=4, lr=0.1)
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


@pytest.mark.parametrize("model", [MLP, RESNET], ids=["mlp", "resnet8"])
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


def test_the_tuned_loop_does_the_librarys_work(tmp_path: Path) -> None:
    from contestants import tuned

    pack = packed(tmp_path, RESNET, clients=3)
    same(worked(tuned, pack), library(pack))


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
        Site(context, ROOT, (1, "distill", 0, ROOT)),
        context.initial("resnet8", 0),
        members,
        DistillSpec(**tree["server"]),
    ).named()
    found = worked(recomputing, pack)
    wanted = {name: tensor for name, tensor in student.items() if tensor.is_floating_point()}
    same({name: found[name] for name in wanted}, wanted)
