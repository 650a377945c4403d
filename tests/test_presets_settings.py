"""Settings of FedHEAD's, FedHKD's and MTGC's presets, typed by hand from the papers, and that each can be prepared."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import chosen
from headwater import presets
from headwater.config import Config, spec_from
from headwater.data.base import Data
from headwater.papers.scales import standins
from headwater.specs import LocalSpec
from headwater.training.experiment import prepare

OURS = [name for name in presets.names() if name.split("/")[0] in ("fedhead", "fedhkd", "mtgc", "feddf_as_in_fedhead")]
IMAGES = dict.fromkeys(("cifar10", "cifar100", "svhn"), (3, 32, 32))
GREY = {"digits": (1, 8, 8), "fashion_mnist": (1, 28, 28), "emnist_letters": (1, 28, 28)}
SHAPES: dict[str, tuple[int, ...]] = {**IMAGES, **GREY, "unicauca75": (81,), "ag_news": (128,)}
CLASSES = {"cifar100": 100, "emnist_letters": 26, "unicauca75": 75, "ag_news": 4}


@lru_cache
def blank(name: str, rows: int = 3000) -> Data:
    """Empty samples of the shape and with the classes that the named set has."""
    classes, words = CLASSES.get(name, 10), name == "ag_news"

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.zeros((count, *SHAPES[name]), np.int64 if words else np.float32)
        return x, np.arange(count) % classes

    names = [str(label) for label in range(classes)]
    options: dict[str, Any] = {"tokens": True, "words": 10_000} if words else {}
    return Data(*part(rows), *part(200), name=name, class_names=names, **options)


def pick(values: Any, **wanted: Any) -> dict[str, Any]:
    return {key: values.get(key) for key in wanted}


@pytest.mark.parametrize("name", chosen.first(OURS, OURS[::4]))
def test_each_can_be_prepared(name: str) -> None:
    """On samples of its data's shape: the method takes the net, the stages fit, every client has rows."""
    config = Config.load(name, ["data.reference=holdout", "data.fraction=1.0"])
    made = prepare(config, data=blank(config.data.name))
    assert len(made.tree.clients) == config.partition.clients
    assert len(made.tree.sectors) == config.partition.sectors
    assert made.partition.lengths.sum() > 0
    for stage in ("local", "sector", "server"):
        asked, got = getattr(config, stage), getattr(made.config, stage)
        assert {key: got[key] for key in asked} == asked
    assert {key: made.model.options[key] for key in config.model.options} == config.model.options


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "fraction", "drawn", "classes"),
    [
        ("fedhead/table2", 0.06, 3000, 10),
        ("fedhead/table3", 0.1, 3744, 4),
        ("fedhead/table4", 0.2, 3001, 14),
        ("mtgc/as-published", 0.05, 3000, 10),
    ],
)
def test_a_part_of_the_real_data(real_data: Path, name: str, fraction: float, drawn: int, classes: int) -> None:
    """On its own data, or on what stands in for it, with its own reference set or the stand-in's."""
    config = Config.load(name, data__fraction=fraction, data__dir=str(real_data))
    found = {key: value for key in ("name", "reference") if (value := standins().get(getattr(config.data, key)))}
    made = prepare(config.merged({"data": found}))
    assert made.split.classes == classes
    assert len(made.split.validation) == config.data.validation
    aside = len(made.split.reference) if made.config.data.reference == "holdout" else 0
    assert len(made.split.train) + len(made.split.validation) + aside == drawn
    most = config.data.reference_size  # a fifth of the training data only where it is carved out of that
    assert len(made.split.reference) == min(most, drawn // 5 if made.config.data.reference == "holdout" else most)


class TestFedHead:
    STAGE: ClassVar = {"epochs": 20, "batch": 128, "optimizer": "adam", "lr": 1e-3}
    STOP: ClassVar = {
        "metric": "loss",
        "patience": 5,
        "restore": "last",
        "temperature": 1.0,
        "mix": "probs",
        "weights": "samples",
    }

    @pytest.mark.parametrize("number", range(2, 8))
    def test_all_tables(self, number: int) -> None:
        config = Config.load(f"fedhead/table{number}", ["algorithm.name=fedhead+"])
        assert (config.rounds, config.partition.clients, config.partition.participation) == (50, 20, 1.0)
        assert (config.partition.scheme, config.partition.assign) == ("dirichlet-balanced", "random")
        assert (config.data.validation, config.data.reference_size) == (1000, 5000)
        for stage in (config.local, config.sector, config.server):
            assert pick(stage, **self.STAGE) == self.STAGE
            assert stage["weight_decay"] == 1e-4
        assert pick(config.sector, **self.STOP) == pick(config.server, **self.STOP) == self.STOP

    @pytest.mark.parametrize(
        ("table", "data", "reference", "model", "alpha", "sectors"),
        [
            (2, "cifar10", "cifar100", "resnet8", 0.1, 2),
            (3, "ag_news", "holdout", "bilstm", 0.1, 2),
            (4, "unicauca75", "holdout", "mlp", 0.1, 2),
            (5, "cifar10", "cifar100", "resnet32", 1.0, 2),
            (6, "cifar10", "cifar100", "resnet8", 0.1, 1),
            (7, "cifar10", "cifar100", "resnet8", 0.1, 2),
        ],
    )
    def test_each_table(self, table: int, data: str, reference: str, model: str, alpha: float, sectors: int) -> None:
        config = Config.load(f"fedhead/table{table}")
        assert (config.data.name, config.data.reference, config.model.name) == (data, reference, model)
        assert (config.partition.options["alpha"], config.partition.sectors) == (alpha, sectors)
        if "resnet" in model:
            assert (config.model.options["shortcut"], config.model.options["norm"]) == ("padding", "batch")
        assert config.algorithm["leader"] == ("fixed" if table == 7 else "random")

    def test_traffic_has_four_layers_of_200(self) -> None:
        assert list(Config.load("fedhead/table4").model.options["hidden"]) == [200, 200, 200, 200]

    @pytest.mark.parametrize("number", range(2, 8))
    def test_as_coded(self, number: int) -> None:
        """The program drops remainders of a split by class and lets the rate fall, with one counter for all, instead of
        the weights; for images it also leaves out short batches, for texts the dense layers have no ReLU."""
        config = Config.load(f"fedhead/table{number}-as-coded", ["algorithm.name=fedhead+"])
        assert (config.partition.scheme, config.partition.options["drop_remainders"]) == ("dirichlet", True)
        for stage in (config.local, config.sector, config.server):
            assert (stage["weight_decay"], stage["lr_time_decay"]) == (0.0, 1e-4)
            assert stage["lr_schedule"] == "shared-counter"
        assert config.model.bn == ("torch" if number in (3, 4) else "keras")
        assert config.local.get("drop_last", False) is (number not in (3, 4))
        assert config.model.options.get("activation") == ("linear" if number == 3 else None)
        printed = Config.load(f"fedhead/table{number}")
        assert (config.data.name, config.model.name) == (printed.data.name, printed.model.name)
        clients = (config.partition.clients, config.partition.options["alpha"])
        assert clients == ((60, 1.0) if number == 6 else (20, printed.partition.options["alpha"]))

    def test_other_methods_in_its_tables(self) -> None:
        hkd = Config.load("fedhead/fedhkd").algorithm
        wanted = {"lam": 0.5, "gamma": 0.5, "sigma": 0.0, "nu": 0.25, "temperature": 0.5, "norms": "fedhead"}
        assert pick(hkd, **wanted) == wanted
        assert Config.load("fedhead/fedmd").algorithm["flavour"] == "fedhead"
        df = Config.load("feddf_as_in_fedhead")
        assert (df.method, df.algorithm["drop_worst"], df.algorithm["by"]) == ("feddf", False, "samples")
        assert pick(df.server, **self.STOP) == self.STOP
        assert (df.server["epochs"], df.server["schedule"], df.server["clip"]) == (20, "constant", None)
        assert df.data.reference_size == 5000


class TestFedHkd:
    @pytest.mark.parametrize("name", [name for name in OURS if name.startswith("fedhkd/")])
    def test_all(self, name: str) -> None:
        config = Config.load(name)
        assert (config.rounds, config.partition.clients, config.partition.participation) == (50, 10, 1.0)
        scheme = ("dirichlet-balanced", 10) if name.endswith("-as-coded") else ("client-prior", None)
        assert (config.partition.scheme, config.partition.options.get("min_size")) == scheme
        assert config.data.reference == "unused"
        assert config.partition.local_test == 0.25
        assert config.partition.local_test_source == ("test" if name.endswith("-as-coded") else "train")
        wanted = {"epochs": 5, "batch": 64, "optimizer": "adam", "lr": 1e-3}
        assert pick(config.local, **wanted) == wanted
        if name != "fedhkd/common":
            assert (config.data.name, config.data.fraction) == ("cifar10", 0.1)
            assert (config.model.name, config.model.options["features"]) == ("resnet18", 64)
            assert config.model.options["stem"] == "imagenet"
            assert config.partition.options["alpha"] == (0.2 if "table2" in name else 0.5)

    @pytest.mark.parametrize("table", ["table1", "table2"])
    def test_paper_and_program(self, table: str) -> None:
        paper, code = (Config.load(f"fedhkd/{table}{way}") for way in ("", "-as-coded"))
        common = {"lam": 0.05, "gamma": 0.05, "temperature": 0.5}
        assert pick(paper.algorithm, **common) == pick(code.algorithm, **common) == common
        wanted = {"nu": 0.25, "sigma": 7.0, "zeta": 3.0, "norms": "paper", "noise": "scaled", "pooling": "mean"}
        assert pick(paper.algorithm, **wanted) == wanted
        wanted = {"nu": 0.0, "sigma": 2.0, "norms": "code", "noise": "fixed", "pooling": "last", "by": "uniform"}
        assert pick(code.algorithm, **wanted) == wanted
        assert (paper.local.get("clip"), code.local["clip"], code.algorithm["clip_from"]) == (None, 1.1, 2)
        assert code.local["lr_schedule"] == "constant"
        spec = spec_from("local", LocalSpec, paper.local)
        assert [spec.in_round(number, 50).lr for number in (1, 10, 11, 50)] == [1e-3, 1e-3, 5e-4, 6.25e-5]
        assert paper.algorithm["halve_lr_every"] == code.algorithm["halve_lr_every"] == 0

    @pytest.mark.parametrize(
        ("name", "wanted"),
        [
            ("fedavg", {"name": "fedavg", "keep_local": True, "by": "samples"}),
            ("fedprox", {"name": "fedprox", "mu": 0.5}),
            ("fedprox-as-coded", {"name": "fedprox", "mu": 0.25, "by": "uniform"}),
            ("moon", {"name": "moon", "mu": 1.0, "tau": 0.5}),
            ("fedalign", {"name": "fedalign", "width": 0.25, "mu": 0.45}),
            ("fedmd", {"name": "fedmd", "flavour": "fedhkd", "lam": 0.05, "temperature": 0.5}),
            ("fedmd-as-coded", {"name": "fedmd", "flavour": "fedhkd", "lam": 0.1, "by": "uniform"}),
            ("fedproto", {"name": "fedproto", "lam": 0.05, "share_params": True}),
            ("fedgen", {"gen_hidden": 512, "gen_epochs": 5, "gen_alpha": 10.0, "gen_beta": 10.0, "decay": 0.98}),
        ],
    )
    def test_other_methods_in_its_tables(self, name: str, wanted: dict[str, Any]) -> None:
        assert pick(Config.load(f"fedhkd/{name}").algorithm, **wanted) == wanted

    def test_what_goes_with_them(self) -> None:
        """Half a batch of drawn features; public data as large as a client's training set; three nets for Moon."""
        gen = Config.load("fedhkd/fedgen")
        assert 2 * gen.algorithm["gen_batch"] == gen.local["batch"]
        assert Config.load("fedhkd/fedmd").data.reference_size == 50_000 // 10 // 10 * 3 // 4
        assert Config.load("fedhkd/table1").data.reference_size == 0
        assert Config.load("fedhkd/moon").model.projection == 0

    def test_local_accuracy_is_of_models_before_averaging(self) -> None:
        """Of every method: most keep clients' models only where asked to; the others have them anyway."""
        for name in ("fedavg", "fedprox", "fedprox-as-coded", "moon", "fedalign", "fedgen"):
            assert Config.load(f"fedhkd/{name}").algorithm["keep_local"] is True


class TestMtgc:
    @pytest.mark.parametrize("name", [name for name in OURS if name.startswith("mtgc/")])
    def test_all(self, name: str) -> None:
        config = Config.load(name)
        assert (config.rounds, config.partition.clients, config.partition.sectors) == (100, 100, 10)
        assert (config.partition.scheme, config.partition.assign) == ("two-level", "blocks")
        assert (config.partition.options["alpha"], config.algorithm["sector_rounds"]) == (0.1, 30)
        wanted = {"epochs": 2, "batch": 50, "optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-3, "clip": 10.0}
        assert pick(config.local, **wanted) == wanted

    def test_starts(self) -> None:
        starts = {name: Config.load(f"mtgc/{name}").algorithm["z_init"] for name in ("as-published", "as-coded")}
        assert starts == {"as-published": "gradient", "as-coded": "zero"}

    def test_data_settings(self) -> None:
        names = ("as-published", "clients-unlike", "sectors-unlike")
        settings = [Config.load(f"mtgc/{name}").partition.options["setting"] for name in names]
        assert settings == ["both", "clients", "sectors"]

    def test_ablations(self) -> None:
        names = ("as-published", "z-only", "y-only", "neither")
        made = [Config.load(f"mtgc/{name}").algorithm for name in names]
        assert [(m["use_z"], m["use_y"]) for m in made] == [(True, True), (True, False), (False, True), (False, False)]
        assert {m["z_init"] for m in made} == {"gradient"}

    def test_nets(self) -> None:
        found = {name: Config.load(f"mtgc/{name}") for name in ("common", "cifar10", "cifar100", "emnist-letters")}
        assert {name: (c.data.name, c.model.name) for name, c in found.items()} == {
            "common": ("fashion_mnist", "mlp"),
            "cifar10": ("cifar10", "mtgc_cnn"),
            "cifar100": ("cifar100", "resnet18"),
            "emnist-letters": ("emnist_letters", "mlp"),
        }
        assert [list(found[name].model.options["hidden"]) for name in ("common", "emnist-letters")] == [
            [200, 200],
            [100, 100],
        ]
        assert pick(found["cifar100"].model.options, norm="", groups=2) == {"norm": "group", "groups": 2}

    def test_other_methods_beside_it(self) -> None:
        assert pick(Config.load("mtgc/hfedprox").algorithm, name="", mu=0) == {"name": "hfedprox", "mu": 1e-4}
        wanted = {"name": "hfeddyn", "dyn_alpha": 0.01, "alpha_by": "size"}
        assert pick(Config.load("mtgc/hfeddyn").algorithm, **wanted) == wanted
        assert Config.load("mtgc/hscaffold").method == "hscaffold"


@pytest.mark.parametrize(
    "name", [name for name in presets.names() if name.startswith(("fedd", "fedeed", "mtgc", "fedhead"))]
)
def test_images_of_cifar_are_flipped_and_cropped_where_the_papers_do(name: str) -> None:
    config = Config.load(name)
    expected = "crop-flip" if config.data.name.startswith("cifar") and not name.startswith("fedhead/") else None
    expected = None if name == "feddf_as_in_fedhead" else expected
    assert config.local.get("augment") == expected
    coded = expected and (name == "feddf_code" or name.endswith("as-coded")) and not name.startswith("feddf/fig5")
    assert config.server.get("augment") == ("crop-flip" if coded else None)
