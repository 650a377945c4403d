"""The privacy that a run spent is on the report page, as the run says it."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from headwater.report import page
from headwater.report.runs import find, read
from headwater.training.loop import train
from toys import tiny


def noisy(path: Path, noise: float, method: str = "fedavg") -> dict[str, Any]:
    """Train with noise at clients; what the run says of its privacy."""
    made = tiny(method, privacy={"clip": 1.0, "noise": noise, "at": "client"})
    spent: dict[str, Any] = train(made, out=path).result["privacy"]
    return spent


def fact(text: str) -> str:
    """What the page says under Privacy."""
    return html.unescape(text.split("<dt>Privacy</dt>")[1].split("<dd>")[1].split("</dd>")[0])


def test_the_page_of_a_run_with_noise_shows_its_epsilon(tmp_path: Path) -> None:
    spent = noisy(tmp_path / "run", 4.0)
    epsilon = spent["clients"]["epsilon"]
    assert 0 < epsilon < 10
    shown = fact(page.render([read(tmp_path / "run")]))
    assert shown == spent["sentence"]
    assert f"ε = {epsilon:.4g} at δ = " in shown


def test_runs_that_spent_differently_are_told_apart(tmp_path: Path) -> None:
    sentences = {
        "fedavg": noisy(tmp_path / "fedavg", 4.0)["sentence"],
        "fedprox": noisy(tmp_path / "fedprox", 2.0, "fedprox")["sentence"],
    }
    shown = fact(page.render(find(tmp_path)))
    assert len(set(sentences.values())) == 2
    for label, sentence in sentences.items():
        assert f"{label}: {sentence}" in shown


def test_a_run_without_noise_says_nothing(tmp_path: Path) -> None:
    train(tiny("fedavg"), out=tmp_path / "run")
    assert "<dt>Privacy</dt>" not in page.render([read(tmp_path / "run")])
