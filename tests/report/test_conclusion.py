"""The conclusion in sentences, by hand where a number is at stake."""

from __future__ import annotations

import pytest

from headwater.report import conclusion
from headwater.report.differences import difference
from headwater.report.grouping import group
from headwater.report.method_table import tabulate
from headwater.report.runs import find


def told(path) -> str:
    groups = group(find(path)).groups
    return " ".join(conclusion.sentences(groups, tabulate(groups))).replace("\xa0", " ")


def with_accuracy(fake, path, method, values, **more):
    for seed, value in enumerate(values):
        fake(method=method, label=method, seed=seed, result={"accuracy": value}, **more).write(
            path / f"{method}-{seed}"
        )


def test_the_difference_is_paired_by_seed(fake, tmp_path):
    """Gaps 0.02, 0.03, 0.04: mean 0.03, s = 0.01, t(0.975, 2) = 4.302653, half width 0.0248414."""
    with_accuracy(fake, tmp_path, "a", [0.50, 0.70, 0.90])
    with_accuracy(fake, tmp_path, "b", [0.52, 0.73, 0.94])
    groups = group(find(tmp_path)).groups
    gap = difference(groups[1], groups[0])
    assert (gap.mean, gap.half, gap.seeds) == (pytest.approx(0.03), pytest.approx(0.0248414, abs=1e-6), 3)
    assert gap.star
    words = told(tmp_path)
    assert "b has the highest accuracy, 73.0 %, 3.0 points above a" in words
    assert "paired over 3 seeds, 95 % interval +0.5 to +5.5 points" in words
    assert "includes zero" not in words


def test_a_difference_within_the_noise_is_called_so(fake, tmp_path):
    with_accuracy(fake, tmp_path, "a", [0.5, 0.9])
    with_accuracy(fake, tmp_path, "b", [0.6, 0.85])
    assert "interval includes zero, so 2 seeds do not show which is better" in told(tmp_path)


def test_no_interval_leaves_the_range_of_an_accuracy(fake, tmp_path):
    with_accuracy(fake, tmp_path, "a", [0.99, 0.80])
    with_accuracy(fake, tmp_path, "b", [0.02, 0.30])
    row = tabulate(group(find(tmp_path)).groups).rows[0]
    assert (row.accuracy_low, row.accuracy_high) == (0.0, 1.0)
    assert "+100.0 points" in told(tmp_path)


def test_one_seed_may_be_chance(fake, tmp_path):
    with_accuracy(fake, tmp_path, "a", [0.5])
    with_accuracy(fake, tmp_path, "b", [0.6])
    assert "10.0 points above a; with one seed, this may be chance" in told(tmp_path)


def test_one_run_its_interval_its_distillation_and_its_cost(fake, tmp_path):
    made = fake(distils=True, at_server=True)
    made.write(tmp_path / "a")
    words, last = told(tmp_path), made.rows()[-1]
    assert f"FedAvg reached an accuracy of {100 * last['accuracy']:.1f} %" in words
    before, after = (100 * last[key] for key in ("student_before", "student_after"))
    assert f"at sectors raised the student from {before:.1f} % to {after:.1f} %" in words
    assert "and at the server raised" in words
    assert "Sent between server and sectors in all: FedAvg 5.69 MB" in words
    assert "To reach" in words


def test_methods_on_other_splits_are_not_ranked_together(fake, tmp_path):
    with_accuracy(fake, tmp_path, "a", [0.5], alpha=0.1)
    with_accuracy(fake, tmp_path, "b", [0.9], alpha=9.0)
    words = told(tmp_path)
    assert "highest" not in words
    assert "With partition.alpha 0.1: a reached" in words
    assert not any(row.best for row in tabulate(group(find(tmp_path)).groups).rows)


def test_nothing_measured(fake, tmp_path):
    fake(stop=1, every=5).write(tmp_path / "a")
    assert told(tmp_path) == "No accuracy has been measured yet."
