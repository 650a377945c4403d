"""Models that are trained in part: what is frozen is sent once, never changes and is in the file of the run."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import headwater as hw
import toys
from headwater.core.ledger import TIERS
from headwater.core.params import Layout, digest, frozen_views, hold
from headwater.errors import ConfigError, MissingExtra
from headwater.models.base import ModelSpec, Net
from headwater.planning.rehearsal import rehearse
from headwater.specs import LocalSpec
from headwater.tasks.frozen_part import FeatureTables, drawn_frozen, frozen_sha256, frozen_size
from headwater.tasks.local import local_train
from headwater.training.loop import train
from loopback import loopback, small

CLIENTS, SECTORS, ROUNDS = 4, 2, 2
FROZEN = 4 * 4 + 4  # the hidden layer of the tiny perceptron
TRAINED = 4 * 3 + 3
KEYS: dict[str, Any] = {"data": "digits", "clients": CLIENTS, "sectors": SECTORS, "rounds": ROUNDS, "seed": 3}
KEYS |= {"local__epochs": 1, "engine": "inline", "data__fraction": 0.2, "model": "mlp", "model__hidden": [10]}


def tiny(method: str = "fedavg", **options: Any) -> Any:
    return toys.tiny(method, net={"freeze": "extractor"}, partition={"clients": CLIENTS, "sectors": SECTORS}, **options)


class TestBytes:
    def test_of_a_frozen_extractor(self) -> None:
        """Before round 1 a copy to each sector and each client; then the classifier alone, each way."""
        made = tiny()
        found, planned = train(made), rehearse(made)
        ledger = found.result["ledger"]
        for tier, ends in zip(TIERS, (SECTORS, CLIENTS), strict=True):
            assert ledger["setup"][tier]["down_bytes"] == 4 * FROZEN * ends
            assert ledger["setup"][tier]["up_bytes"] == 0
            assert ledger[tier]["down_bytes"] == ledger[tier]["up_bytes"] == 4 * TRAINED * CLIENTS * ROUNDS
        assert planned is not None
        assert planned.traffic is not None
        assert planned.traffic.setup == ledger["setup"]
        assert {tier: planned.traffic.total[tier] for tier in TIERS} == {tier: ledger[tier] for tier in TIERS}

    @pytest.mark.thorough
    def test_of_adapters(self) -> None:
        """Rank 2 beside 64 x 10: 2 · (64 + 10) numbers, and the classifier's 110; 4 bytes each, each way."""
        pytest.importorskip("peft")
        found = hw.run("fedavg", model__adapter="lora", model__rank=2, **KEYS)
        moved = 4 * (2 * (64 + 10) + 10 * 10 + 10)
        for tier, ends in zip(TIERS, (SECTORS, CLIENTS), strict=True):
            for way in ("up", "down"):
                assert found.result["ledger"][tier][f"{way}_bytes"] == moved * CLIENTS * ROUNDS
            assert found.result["ledger"]["setup"][tier]["down_bytes"] == 4 * (64 * 10 + 10) * ends
        assert found.result["parameters"] == moved // 4

    def test_nothing_is_sent_before_round_1_if_nothing_is_frozen(self) -> None:
        ledger = train(toys.tiny("fedavg")).result["ledger"]
        assert all(not any(ledger["setup"][tier].values()) for tier in TIERS)

    def test_every_architecture_has_its_own(self) -> None:
        """c0 and c2 train one architecture, c1 and c3 the other: each gets what is frozen in its own."""
        keys = {key: value for key, value in KEYS.items() if key != "model__hidden"} | {"model": "cnn"}
        found = hw.run("feddf", model__also=["mlp"], model__freeze="extractor", server__epochs=1, **keys)
        sizes = {name: frozen_size(spec) for name, spec in found.specs.items()}
        assert sizes["mlp"] == 4 * (64 * 200 + 200 + 200 * 200 + 200)
        assert found.result["frozen"]["cnn"]["bytes"] == sizes["cnn"]
        assert found.result["ledger"]["setup"]["sector_client"]["down_bytes"] == 2 * sizes["cnn"] + 2 * sizes["mlp"]


class TestWhatIsFrozen:
    @pytest.mark.parametrize("method", ["fedavg", "fedhead"])
    def test_never_changes_and_is_in_the_file(self, method: str, tmp_path: Path) -> None:
        stages = {"sector__epochs": 1} if method == "fedhead" else {}
        found = hw.run(method, model__freeze="extractor", out=tmp_path / "run", **KEYS, **stages)
        state = load_file(tmp_path / "run" / "model.safetensors")
        assert set(state) == set(found.spec.build().state_dict())
        drawn = drawn_frozen(found.spec, found.spec.name, 3)
        assert set(drawn) == {name for name in state if name.startswith("features.")}
        assert all(torch.equal(state[name], tensor) for name, tensor in drawn.items())
        assert found.result["model_sha256"] == digest(state)
        assert found.result["frozen"]["mlp"]["sha256"] == digest(drawn)
        assert not set(found.params[""].named()) & set(drawn), "no move has it"

    def test_is_the_same_for_every_draw_of_a_team(self) -> None:
        found = hw.run("fed-ensemble", model__freeze="extractor", cohorts=2, **KEYS)
        first, second = (found.trained.member(name).module.state_dict() for name in found.params)
        assert torch.equal(first["features.1.weight"], second["features.1.weight"])
        assert not torch.equal(first["classifier.weight"], second["classifier.weight"])

    def test_includes_statistics_of_a_part_that_is_never_trained(self) -> None:
        spec = ModelSpec("cnn", (1, 8, 8), 3, freeze="extractor")
        layout = Layout.of(spec.build(), "cnn")
        assert [name for name, _ in layout.trainable] == ["classifier.weight", "classifier.bias"]
        assert not layout.floats
        assert not layout.counters
        assert "features.1.running_mean" in dict(layout.frozen)
        assert "features.1.num_batches_tracked" in dict(layout.frozen)
        assert Layout.of(spec.outline(), "cnn") == layout

    def test_has_no_statistics_that_training_changes(self) -> None:
        """Frozen weights of batch norm in training mode: its statistics move, and travel."""
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        for part in net[:2]:
            part.requires_grad_(False)
        layout = Layout.of(net, "any")
        assert [name for name, _ in layout.floats] == ["1.running_mean", "1.running_var"]
        assert set(dict(layout.frozen)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
        assert net[1].training
        hold(net[:2])
        assert not Layout.of(net, "any").floats
        assert set(frozen_views(net)) >= {"1.running_mean", "1.num_batches_tracked"}

    def test_is_what_the_model_had_that_the_run_starts_from(self, tmp_path: Path) -> None:
        first = hw.run("fedavg", out=tmp_path / "first", **KEYS)
        second = hw.run("fedavg", model__freeze="extractor", start=tmp_path / "first", **KEYS | {"seed": 9})
        before, after = first.trained.tensors, second.trained.tensors
        assert torch.equal(before["features.1.weight"], after["features.1.weight"])
        assert not torch.equal(before["classifier.weight"], after["classifier.weight"])


class StopAfterOne(hw.Callback):
    def round_end(self, row: dict[str, Any]) -> None:
        if row["round"] == 1:
            raise hw.StopRun


class TestRuns:
    def test_resumed_are_exact(self, tmp_path: Path) -> None:
        whole = hw.run("fedavg", model__freeze="extractor", **KEYS)
        out = tmp_path / "run"
        hw.run("fedavg", model__freeze="extractor", out=out, callbacks=[StopAfterOne()], **KEYS)
        assert not (out / "result.json").exists()
        again = hw.run("fedavg", model__freeze="extractor", out=out, **KEYS)
        assert again.result["model_sha256"] == whole.result["model_sha256"]
        assert again.result["ledger"] == whole.result["ledger"]

    def test_can_be_loaded(self, tmp_path: Path) -> None:
        run = hw.run("fedavg", model__freeze="extractor", out=tmp_path / "run", **KEYS)
        x = torch.linspace(0, 1, 5 * 64).view(5, 1, 8, 8)
        loaded = hw.load(tmp_path / "run")
        assert torch.equal(loaded.module(x), run.model(x))
        assert (loaded.predict(x.numpy()) == run.predict(x.numpy())).all()

    def test_of_parties_have_the_bits_of_the_simulation(self, tmp_path: Path) -> None:
        made = small("fedhead", model__freeze="extractor", model__name="mlp", data__fraction=0.15)
        whole = train(made)
        with loopback(made, tmp_path) as federation:
            found = federation.train()
            assert found.result["model_sha256"] == whole.result["model_sha256"]
            for tier in TIERS:
                assert found.result["ledger"][tier] == whole.result["ledger"][tier]
            assert found.result["ledger"]["setup"] == whole.result["ledger"]["setup"]
            assert any("built the frozen part" in note for note in found.result["notes"])

    def test_refuse_other_frozen_weights(self) -> None:
        """The resolved configuration has the hash, which does not depend on the seed."""
        first, second = (tiny(seed=seed).config.model.frozen_sha256 for seed in (0, 1))
        assert first == second == frozen_sha256({"mlp": tiny().model})
        with pytest.raises(
            ConfigError, match=r"is not the one that this run was configured with .*begins with 'aaaaaaaaaaaa'"
        ):
            toys.tiny("fedavg", net={"freeze": "extractor", "frozen_sha256": "a" * 64})
        with pytest.raises(ConfigError, match="now nothing is frozen"):
            toys.tiny("fedavg", net={"frozen_sha256": "a" * 64})
        with pytest.raises(ConfigError) as caught:
            toys.tiny("fedavg", net={"frozen_sha256": "a\nb"})
        assert "\n" not in str(caught.value)


class Counting(nn.Module):
    """An extractor that counts its calls."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 5), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        return torch.tanh(self.drop(self.layer(x)))


def counting() -> nn.Module:
    return Net(Counting(), nn.Linear(5, 3))


def held() -> nn.Module:
    net = counting()
    hold(net.get_submodule("features").modules())
    return net


class TestFeatures:
    SPEC = LocalSpec(epochs=3, batch=4, lr=0.1, momentum=0.9)
    ROWS = (toys.blobs(12, 0, dtype=torch.float32), toys.blobs(9, 1, dtype=torch.float32))

    def around(self, freeze: str = "none", make: Any = counting) -> Any:
        around = toys.context(self.ROWS, make, classes=3)
        around.models[toys.ARCH] = ModelSpec(toys.ARCH, (3,), 3, builder=make, freeze=freeze)
        return around

    def test_are_computed_once_a_client(self) -> None:
        around = self.around("extractor")
        start = around.initial(toys.ARCH, 0)
        Counting.calls = 0
        for _ in range(3):
            for home in ("c0", "c1"):
                local_train(toys.ctx(around, home), start, self.SPEC)
        assert Counting.calls == 2

    def test_give_the_numbers_of_a_pass_for_each_step(self) -> None:
        """The same net, frozen by hand, is called for each step."""
        kept, called = self.around("extractor"), self.around(make=held)
        start = kept.initial(toys.ARCH, 0)
        assert torch.equal(start.vector, called.initial(toys.ARCH, 0).vector)
        Counting.calls = 0
        one, other = (local_train(toys.ctx(around), start, self.SPEC) for around in (kept, called))
        assert Counting.calls == 1 + 3 * 3
        assert toys.gap(one, other) < 1e-6
        assert toys.gap(one, start) > 1e-3

    def test_that_were_not_used_for_longest_go_first(self) -> None:
        tables, made = FeatureTables(room=2 * 4 * 8), list[int]()

        def table(row: int) -> Tensor:
            def make() -> Tensor:
                made.append(row)
                return torch.full((8,), float(row))

            return tables.of(torch.tensor([[row]]), make)

        for row in (0, 1, 0, 2, 0, 1):
            assert table(row)[0] == row
        assert made == [0, 1, 2, 1]


class TestRefuses:
    def test_both_ways_at_once(self) -> None:
        with pytest.raises(ConfigError, match="set one of them"):
            toys.tiny("fedavg", net={"freeze": "extractor", "adapter": "lora"})

    def test_a_net_without_parts(self) -> None:
        def softmaxed() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))

        with pytest.raises(ConfigError, match=r"model\.freeze needs a model in two parts"):
            toys.tiny("fedavg", model=softmaxed, net={"freeze": "extractor"})

    @pytest.mark.thorough
    def test_adapters_where_there_is_nothing_to_adapt(self) -> None:
        pytest.importorskip("peft")
        with pytest.raises(ConfigError, match="adds to linear layers and convolutions of the extractor"):
            toys.tiny("fedavg", net={"name": "mlp", "hidden": [], "adapter": "lora"})

    def test_matching_of_frozen_neurons(self) -> None:
        with pytest.raises(ConfigError, match="fedma moves neurons of every layer, and this model has frozen layers"):
            tiny("fedma")

    def test_adapters_without_their_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def without(name: str, *rest: Any) -> Any:
            if name == "peft":
                raise ImportError("No module named 'peft'")
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(MissingExtra, match=r"pip install 'headwater\[adapters\]'"):
            ModelSpec("mlp", (4,), 3, adapter="lora").outline()


def test_a_module_of_ones_own_is_split_at_its_last_layer() -> None:
    def chain() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))

    made = toys.tiny("fedavg", model=chain, net={"freeze": "extractor"})
    assert made.model.head == "4"
    found = train(made)
    assert [name for name, _ in found.params[""].layout.trainable] == ["4.weight", "4.bias"]
    assert torch.equal(found.trained.tensors["1.running_mean"], torch.zeros(5))
    assert found.params[""].nbytes == 4 * (5 * 3 + 3)
