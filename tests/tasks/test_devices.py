"""Which device is used, what stays there, and how values come and go. `test_pretend.py` trains on a second device."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import toys
from headwater.config import Config
from headwater.core.params import ModelRows
from headwater.data.base import Examples
from headwater.engines.execution import _task_errors
from headwater.engines.jobs import Job
from headwater.engines.ray.cluster import gpu_shares
from headwater.errors import ConfigError
from headwater.tasks import devices
from headwater.tasks.device_memory import RowCache, moved, on_host
from headwater.tasks.devices import CPU
from headwater.tasks.local import local_train
from headwater.training.run_directory import RunDirectory

MB = 2**20


class TestWhich:
    def test_the_cpu_is_always_there(self) -> None:
        assert devices.find("cpu") == CPU
        assert devices.meant("cpu") == (CPU, True)

    def test_a_name_that_torch_does_not_know(self) -> None:
        with pytest.raises(ConfigError, match=r"must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', got 'toaster'"):
            devices.find("toaster")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_device_that_is_absent(self) -> None:
        with pytest.raises(ConfigError, match=r"engine.device = 'cuda:1': torch .* finds no such device"):
            devices.find("cuda:1")
        assert devices.meant("cuda:1") == (torch.device("cuda", 1), False)
        assert devices.find("auto") == CPU or torch.backends.mps.is_available()

    def test_one_with_too_high_a_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "_count", {"cuda": 2, "mps": 0}.__getitem__)
        assert devices.find("auto") == torch.device("cuda")
        assert devices.find("cuda:1") == torch.device("cuda", 1)
        with pytest.raises(ConfigError, match="this machine has 2, numbered from 0"):
            devices.find("cuda:2")
        numbers = [devices.of_worker(torch.device("cuda"), number).index for number in range(4)]
        assert numbers == [0, 1, 0, 1]
        assert devices.of_worker(torch.device("cuda:1"), 0).index == 1

    @pytest.mark.parametrize("value", ["", "GPU", "cuda:", "cuda 0"])
    def test_the_configuration_refuses_what_is_no_name(self, value: str) -> None:
        with pytest.raises(ConfigError, match=r"engine.device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'"):
            Config(engine={"device": value})

    def test_ray_workers_share_the_gpus_of_their_node(self) -> None:
        assert gpu_shares(["a", "a", "a", "b"], {"a": 2.0, "b": 1.0}) == {"a": 1 / 2, "b": 1.0}
        with pytest.raises(ConfigError, match="a node of the Ray cluster has none"):
            gpu_shares(["a", "b"], {"a": 1.0})


class TestRows:
    def test_the_least_recently_used_go_first(self) -> None:
        rows, made = RowCache(CPU, 3 * MB), list[str]()

        def get(name: str) -> None:
            rows.get(name, lambda: (made.append(name), Examples(torch.zeros(MB // 8, 2), torch.zeros(0)))[1])

        for name in "abcabdac":
            get(name)
        assert made == ["a", "b", "c", "d", "c"]  # d replaced c, and c then b
        assert rows.bytes == 3 * MB

    def test_what_exceeds_the_budget_does_not_stay(self) -> None:
        rows = RowCache(CPU, MB)
        assert len(rows.get("a", lambda: Examples(torch.zeros(MB, 1), torch.zeros(MB)))) == MB
        assert rows.bytes == 0

    def test_a_large_input_stays_as_long_as_the_host_has_it(self) -> None:
        rows, table = RowCache(torch.device("meta"), 8 * MB), torch.zeros(MB // 4, 2)
        assert rows.put({"public": table, "small": torch.zeros(2, 2)})["public"] is rows.put(table)
        assert rows.bytes == table.nbytes
        del table
        gc.collect()
        assert rows.bytes == 0


@dataclass(frozen=True)
class Record:
    name: str
    tensor: torch.Tensor


class TestValues:
    def test_every_tensor_of_a_value_is_moved(self) -> None:
        model, record = toys.params(nn.Linear(2, 2)), Record("a", torch.ones(2))
        value = {"model": model, "parts": (record, [torch.ones(1)]), "rows": toys.points((1.0, 0)), "plain": (1, "a")}
        found = moved(value, lambda tensor: tensor + 1)
        assert torch.equal(found["model"].vector, model.vector + 1)
        assert found["model"].layout is model.layout
        assert found["parts"][0].tensor.tolist() == [2.0, 2.0]
        assert found["parts"][0].name == "a"
        assert found["parts"][1][0].tolist() == [2.0]
        assert found["rows"].y.tolist() == [1]
        assert found["plain"] == (1, "a")
        assert record.tensor.tolist() == [1.0, 1.0]

    def test_what_has_no_tensor_stays_the_same_object(self) -> None:
        spec = toys.tiny("fedavg").method.local  # type: ignore[attr-defined]
        assert moved(spec, lambda tensor: tensor + 1) is spec

    def test_rows_of_a_matrix_come_back_in_the_order_of_homes(self) -> None:
        model, matrix = toys.params(nn.Linear(2, 2)), torch.arange(24.0).view(3, 8)[:, :6]
        models = ModelRows([replace(model, vector=matrix[at]) for at in (2, 0, 1)], matrix)
        back = on_host(models)
        assert isinstance(back, ModelRows)
        assert [m.vector[0].item() for m in back] == [16.0, 0.0, 8.0]
        assert back.matrix.stride() == (16, 1)  # each begins a cache line
        assert back[0].vector.data_ptr() == back.matrix[2].data_ptr()


def test_no_memory_left_is_one_sentence() -> None:
    job = Job("n", local_train, "c3", "c3", {}, ())
    with pytest.raises(ConfigError, match=r"local_train at c3 needs more memory .* lower batch .* engine.workers"):  # noqa: SIM117
        with _task_errors(job):
            raise torch.OutOfMemoryError("CUDA out of memory")


class TestPrecision:
    def test_bfloat16_is_for_forward_passes_alone(self) -> None:
        full, half = (toys.tiny_run("fedavg", engine={"precision": each}) for each in ("float32", "bfloat16"))
        a, b = full.params[""].vector, half.params[""].vector
        assert b.dtype == torch.float32
        assert not torch.equal(a, b)
        assert torch.allclose(a, b, atol=0.02)
        assert half.result["device"] == {"type": "cpu", "precision": "bfloat16"}
        assert half.result["stacking"]["why"] == "engine.precision is bfloat16"


def test_a_run_that_was_allowed_to_change_its_device_says_so(tmp_path: Path) -> None:
    found = RunDirectory(tmp_path / "run", toys.tiny("fedavg").config)
    found.check_device("cpu", begun=False)
    found.allow_device("cuda")
    found.check_device("cuda", begun=True)
    assert devices.about(CPU, "float32", found.devices)["before"] == ["cpu"]
    found.check_device("cpu", begun=False)  # nothing was finished: it begins anew
    assert found.devices == ("cpu",)
