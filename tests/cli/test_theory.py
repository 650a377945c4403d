"""`headwater theory`: the calculators against numbers by hand, what they refuse, and a run under its bound."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression

Call = Callable[..., Any]
TOPICS = ("communication", "bounds", "mtgc", "fedhkd", "feddf")
# The problem of tests/theory/test_convergence.py, worked out there by hand: B_l 173.125, B_s 31.5, B_g 10.5, γ 16.
BY_HAND = (
    *("--L", 4, "--mu", 2, "--sigma2", 3, "--G2", 5, "--shares", "0.5,0.25,0.25", "--sector-shares", "0.75,0.25"),
    *("--gamma-client", 0.5, "--gamma-sec", 0.25, "--gamma-ref", 1, "--delta", 0.5, "--epsilon", 0.125),
    *("--distance", 2, "--rounds", 10, "--local", 3, "--sector", 2, "--sector-mean", 1.5, "--server-mean", 2),
)


@pytest.fixture
def told(call: Call) -> Callable[..., dict[str, Any]]:
    """What a topic gives as JSON."""

    def facts(*words: object) -> dict[str, Any]:
        found = call("theory", *map(str, words), "--json")
        assert (found.status, found.err) == (0, "")
        made: dict[str, Any] = json.loads(found.out)
        return made

    return facts


def test_no_topic_shows_all_with_their_defaults(call: Call, told: Callable[..., dict[str, Any]]) -> None:
    found = told()
    assert tuple(found) == TOPICS
    for topic in TOPICS:
        assert found[topic] == told(topic)
    shown = call("theory")
    assert shown.status == 0
    assert all(f"headwater theory {topic} --help" in shown.out for topic in TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_input_is_explained(call: Call, topic: str) -> None:
    told = call("theory", topic, "--help")
    assert told.status == 0
    assert "\\[" not in told.out
    options = told.out[told.out.index("Options:") :]
    entries = options.split("\n  --")[1:]
    for entry in entries:
        _, _, explained = entry.partition("  ")
        assert len(explained.split()) >= 2, entry


def test_calculators_import_no_torch() -> None:
    code = (
        "import sys; from headwater.cli.app import main; words = sys.argv[1:]; main(words); "
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, "theory", "--json"], capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"


class TestBounds:
    def test_by_hand(self, told: Callable[..., dict[str, Any]]) -> None:
        found = told("bounds", *BY_HAND)
        assert found["errors"] == pytest.approx({"local": 173.125, "sector": 31.5, "server": 10.5})
        expected = {
            "fedavg": 2 / 46 * (173.125 + 32),
            "fedhead": 2 / 61 * (173.125 + 31.5 + 32),
            "fedhead+": 2 / 81 * (173.125 + 31.5 + 10.5 + 32),
            "feddf": 2 / 66 * (173.125 + 10.5 + 32),
        }
        assert {name: row["bounds"]["10"] for name, row in found["methods"].items()} == pytest.approx(expected)
        assert {row["equation"] for row in found["methods"].values()} == {"(24)", "(6)", "(26)", "(32)"}
        needs = [3 * 31.5 / 173.125, 31.5 * 5 / 183.625, 3 * 10.5 / 173.125]
        assert [row["needs"] for row in found["comparisons"]] == pytest.approx(needs)
        assert [row["holds"] for row in found["comparisons"]] == [True, True, True]

    def test_a_phase_that_is_too_short_loses(self, told: Callable[..., dict[str, Any]]) -> None:
        found = told("bounds", *BY_HAND, "--sector-mean", 0.5, "--server-mean", 0.1)
        assert [row["holds"] for row in found["comparisons"]] == [False, False, False]

    def test_a_sufficient_condition_is_for_phases_of_equal_length(
        self, call: Call, told: Callable[..., dict[str, Any]]
    ) -> None:
        alike = told("bounds", "--server", 5)["comparisons"]
        assert [row["can_hold"] for row in alike] == [True, False, True]
        assert [row["lengths"] for row in alike] == [
            {"n_s": 5, "n_l": 5},
            {"n_s": 5, "n_l": 5, "n_g": 5},
            {"n_l": 5, "n_g": 5},
        ]
        longer = told("bounds", "--server", 9)["comparisons"]  # the means are as before, and so is who wins
        assert [(row["equal"], row["can_hold"]) for row in longer] == [(True, True), (False, False), (False, False)]
        assert [row["holds"] for row in longer] == [row["holds"] for row in alike]
        shown = " ".join(call("theory", "bounds", "--local", 4).out.split())
        assert "the sufficient condition is for n_s = n_l and says nothing here (n_s = 5, n_l = 4)" in shown
        _refused(call("theory", "bounds", "--server", 4), ("--server-mean is 5, more than the 4 steps of --server",))

    def test_rounds_to_a_target_are_the_first_that_reach_it(self, told: Callable[..., dict[str, Any]]) -> None:
        found = told("bounds", *BY_HAND, "--target", 0.5)
        for name, row in found["methods"].items():
            t = row["rounds_to_target"]
            around = {k: told("bounds", *BY_HAND, "--rounds", k)["methods"][name]["bounds"][str(k)] for k in (t - 1, t)}
            assert around[t] <= 0.5 < around[t - 1]

    def test_people_see_who_wins(self, call: Call) -> None:
        told = call("theory", "bounds", *BY_HAND)
        assert "fedhead over fedavg  yes: n̄_s has to be 0.5458 or more and is 1.5" in told.out

    @pytest.mark.parametrize(
        ("words", "names"),
        [
            (("--mu", 5), ("smoothness must be at least convexity", "5.0")),
            (("--delta", 2), ("delta must be from 0 to 1", "2.0")),
            (("--variance", -1), ("variance must be 0 or more", "-1.0")),
            (("--sigma2", "nan"), ("variance must be 0 or more",)),
            (("--shares", "0.5,0.6"), ("--shares", "add up to 1", "0.5,0.6")),
            (("--shares", "half"), ("--shares", "numbers with commas", "half")),
            (("--sector-gap", 1), ("--sector-gap is 1", "cannot be the larger one")),
            (("--sector-mean", 9), ("--sector-mean is 9", "5 steps of --sector")),
            (("--server-mean", -1), ("--server-mean must be 0 or more",)),
            (("--target", 0), ("target must be above 0",)),
            (("--local", 0), ("--local", "0")),
            (("--lokal", 3), ("--lokal",)),
        ],
    )
    def test_mistakes(self, call: Call, words: tuple[object, ...], names: tuple[str, ...]) -> None:
        _refused(call("theory", "bounds", *words), names)


def _refused(told: Any, names: tuple[str, ...]) -> None:
    assert told.status == 2, told
    assert told.out == ""
    assert told.err.startswith("headwater: ")
    assert told.err.count("\n") == 1
    for name in names:
        assert name in told.err, told.err


class TestCommunication:
    def test_the_papers_counts(self, told: Callable[..., dict[str, Any]]) -> None:
        """Round trips on the long link: M·T, N·T, 2M·T, 2M·T."""
        found = told("communication", "--N", 12, "--M", 3, "--T", 7)
        trips = {row["method"]: row["server_sector"]["round_trips"] for row in found["methods"]}
        expected = {"hfedavg": 21, "feddf": 84, "fedavg": 84, "fedhead": 42, "fedhead+": 42}
        assert {name: trips[name] for name in expected} == expected
        assert found["fedhead_beats_feddf"] is True
        assert told("communication", "--N", 6, "--M", 3)["fedhead_beats_feddf"] is False

    def test_fedhead_beside_hierarchical_fedavg_and_feddf(
        self, call: Call, told: Callable[..., dict[str, Any]]
    ) -> None:
        """Hierarchical FedAvg sends half of what FedHEAD sends over the long link, whichever methods are listed."""
        words = ("communication", "fedprox", "--N", 12, "--M", 3, "--T", 7, "--bytes", 1000)
        long = told(*words)["long_link"]
        assert [long[name]["round_trips"] for name in ("fedhead", "hfedavg", "feddf")] == [42, 21, 84]
        assert [long[name]["up_bytes"] for name in ("fedhead", "hfedavg", "feddf")] == [42_000, 21_000, 84_000]
        shown = " ".join(call("theory", *map(str, words)).out.split())
        assert "FedHEAD 2M·T = 42 round trips, 84.0 kB; hierarchical FedAvg M·T = 21 round trips, 42.0 kB;" in shown

    def test_bytes(self, told: Callable[..., dict[str, Any]]) -> None:
        """FedHEAD, sectors of 3 and 1: 2M each way on the long link, N − M inside; a model of 250 numbers."""
        found = told("communication", "fedhead", "--teams", "3,1", "--rounds", 2, "--parameters", 250)
        (row,) = found["methods"]
        assert row["server_sector"]["up_bytes"] == row["server_sector"]["down_bytes"] == 2 * 4 * 1000
        assert row["sector_client"]["up_bytes"] == row["sector_client"]["down_bytes"] == 2 * 2 * 1000

    def test_a_model_is_measured(self, told: Callable[..., dict[str, Any]]) -> None:
        found = told("communication", "fedavg", "--model", "linear", "--data", "digits", "--clients", 2, "--rounds", 1)
        assert found["model"]["parameters"] == 650
        assert found["methods"][0]["server_sector"]["up_bytes"] == 2 * 4 * 650
        assert found["model"]["classes"] == 10

    @pytest.mark.parametrize(
        ("words", "names"),
        [
            (("fedhed",), ("'fedhed'", "did you mean 'fedhead'")),
            (("--sectors", 30), ("--sectors is 30", "20 clients")),
            (("--teams", "3,0"), ("--teams", "1 or more")),
            (("--bytes", 5, "--parameters", 5), ("--parameters and --bytes",)),
            (("--model", "resnet9000"), ("resnet9000",)),
            (("--data", "digit"), ("'digit'", "did you mean 'digits'")),
        ],
    )
    def test_mistakes(self, call: Call, words: tuple[object, ...], names: tuple[str, ...]) -> None:
        _refused(call("theory", "communication", *words), names)


def test_mtgc_by_hand(told: Callable[..., dict[str, Any]]) -> None:
    """F₀ = 2, L = 4, σ² = 9, T = 8, E = 3, H = 6, Ñ = 2: √(72/288), (24/8)^⅔ and 8/8."""
    words = ("--gap", 2, "--L", 4, "--sigma2", 9, "--rounds", 8, "--sector-rounds", 3, "--steps", 6, "--teams", "1,1")
    found = told("mtgc", *words)
    assert (found["noise"], found["drift"], found["start"]) == pytest.approx((0.5, 3 ** (2 / 3), 1.0))
    assert found["largest"] == "drift"
    assert told("mtgc", "--teams", "6,3")["effective_clients"] == pytest.approx(8)


def test_fedhkd_as_in_the_paper(told: Callable[..., dict[str, Any]]) -> None:
    found = told("fedhkd", "--epsilon", 0.5, "--delta", 0.01)["noise"]
    assert found["sigma_min"] == pytest.approx(6.2150, abs=5e-5)
    assert found["sigma"] == found["sigma_min"]
    assert found["least_count"] == 256
    seven = told("fedhkd", "--sigma", 7)["noise"]
    assert seven["variance"] == pytest.approx(0.026917, abs=5e-7)
    assert told("fedhkd", "--epsilon", 2)["noise"]["sigma_min"] is None


def test_fedhkd_rounds_by_hand(told: Callable[..., dict[str, Any]]) -> None:
    """All constants 1, E = 1, η = ½, λ = γ = 0, Δ = 3, ε = 2: 6 / (2·(1 − ¼) − ¼·2) = 6."""
    words = ("--lambda", 0, "--gamma", 0, "--steps", 1, "--lr", 0.5, "--gap", 3)
    assert told("fedhkd", *words, "--target", 2)["rounds"]["rounds"] == pytest.approx(6)
    low = told("fedhkd", *words, "--target", 0.1)["rounds"]
    assert low["rounds"] is None
    assert low["floor"] == pytest.approx(0.5 / 0.75)


def test_feddf_by_hand(told: Callable[..., dict[str, Any]]) -> None:
    assert told("feddf")["total"] == pytest.approx(0.05 + 0.17 + np.sqrt(np.log(80) / 4000))
    assert told("feddf", "--divergences", "2,2", "--joint-errors", "0.3")["says_something"] is False


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("mtgc", "--teams", "2,0"), ("--teams",)),
        (("mtgc", "--gap", -1), ("gap must be 0 or more",)),
        (("fedhkd", "--lr", 5), ("lr must be below 2 / smoothness",)),
        (("fedhkd", "--delta", 1), ("delta must be above 0 and below 1",)),
        (("fedhkd", "--sensitivity", "l3"), ("--sensitivity", "'l3'")),
        (("feddf", "--joint-errors", "1,2,3"), ("--divergences names 2 clients and --joint-errors 3",)),
        (("feddf", "--delta", 0), ("delta must be above 0 and below 1",)),
        (("bound",), ("there is no command 'bound' in headwater theory", "did you mean 'bounds'?")),
    ],
)
def test_mistakes(call: Call, words: tuple[object, ...], names: tuple[str, ...]) -> None:
    _refused(call("theory", *words), names)


DECAY = 0.1
CONVEX = ("--set", "model.name=linear", "--set", "local.optimizer=sgd", "--set", f"local.weight_decay={DECAY}")


@pytest.fixture
def convex(call: Call, small: tuple[str, ...], tmp_path: Path) -> Callable[..., Path]:
    """A finished run of softmax regression with an ℓ2 term."""

    def train(method: str, *sets: str) -> Path:
        given = [word for pair in sets for word in ("--set", pair)]
        words = (method, *small, *CONVEX, "--rounds", 3, *given, "--out", tmp_path / "run")
        assert call("run", *words).status == 0
        return tmp_path / "run"

    return train


class TestRun:
    """`bounds --run`: constants and curve of a finished run."""

    def test_what_is_measured(
        self, convex: Callable[..., Path], told: Callable[..., dict[str, Any]], npz: Path, tmp_path: Path
    ) -> None:
        run = convex("fedavg", "data.validation=0", "data.reference_size=0", "local.batch=1000", "local.epochs=2")
        found = told("bounds", "--run", run, "--out", tmp_path / "o", "--quiet")
        # the optimum by another library, whose ℓ2 term is on n·C times the mean loss
        data = np.load(npz)
        x = np.concatenate([data["x_train"], np.ones((180, 1))], axis=1).astype(float)
        fitted = LogisticRegression(C=1 / (180 * DECAY), fit_intercept=False, tol=1e-10, max_iter=5000)
        fitted.fit(x, data["y_train"])
        best = _loss(fitted.coef_.T, x, data["y_train"])
        assert found["constants"]["optimum"] == pytest.approx(best, abs=1e-8)
        # the last gap from the model that the run itself left
        left = load_file(run / "model.safetensors")
        weights = np.concatenate([left["classifier.weight"].T, left["classifier.bias"][None]]).astype(float)
        assert found["gaps"][-1] == pytest.approx(_loss(weights, x, data["y_train"]) - best, abs=1e-6)
        assert len(found["gaps"]) == 4
        assert 0 <= found["constants"]["sector_gap"] <= found["constants"]["client_gap"]
        assert found["constants"]["convexity"] == DECAY
        assert found["constants"]["variance"] == 0  # whole batches
        assert found["lengths"]["local"] == 2
        assert list(found["methods"]) == ["fedavg"]
        assert not any("another model" in sentence for sentence in found["cautions"])
        assert Path(found["figure"]).read_bytes().startswith(b"\x89PNG")

    def test_a_run_with_all_phases(self, call: Call, convex: Callable[..., Path]) -> None:
        run = convex("fedhead+", "sector.epochs=2", "server.epochs=2")
        told = call("theory", "bounds", "--run", run, "--quiet")
        assert (told.status, told.err) == (0, "")
        for words in ("Γ_sec", "n_s", "fedhead+ over feddf", "caution", "shrink over all rounds", "unknown optimum"):
            assert words in told.out
        assert (run / "theory" / "bounds.png").exists()

    @pytest.mark.parametrize(
        ("method", "setting", "names"),
        [
            ("fedavg", "model.name=mlp", ("'mlp'", "strongly convex", "model.name = 'linear'")),
            ("fedavg", "local.weight_decay=0.0", ("local.weight_decay = 0", "not strongly")),
            ("fedavg", "local.optimizer=adam", ("'adam'", "plain SGD")),
            ("fedprox", "rounds=1", ("no bound for method 'fedprox'",)),
        ],
    )
    def test_refuses_what_the_bounds_do_not_speak_of(
        self, call: Call, convex: Callable[..., Path], method: str, setting: str, names: tuple[str, ...]
    ) -> None:
        run = convex(method, setting)
        _refused(call("theory", "bounds", "--run", run, "--quiet"), names)
        assert not (run / "theory").exists()

    def test_refuses_what_is_no_finished_run(self, call: Call, convex: Callable[..., Path], tmp_path: Path) -> None:
        _refused(call("theory", "bounds", "--run", tmp_path / "none"), ("there is no directory",))
        _refused(call("theory", "bounds", "--run", tmp_path), ("not the directory of a run",))
        run = convex("fedavg")
        (run / "result.json").write_text("{", encoding="utf-8")
        _refused(call("theory", "bounds", "--run", run), ("result.json cannot be read",))
        (run / "result.json").unlink()
        _refused(call("theory", "bounds", "--run", run), ("not finished", "headwater resume"))


def _loss(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    logits = x @ weights
    chosen = logits[np.arange(len(y)), y]
    return float((np.log(np.exp(logits).sum(axis=1)) - chosen).mean() + DECAY / 2 * (weights**2).sum())
