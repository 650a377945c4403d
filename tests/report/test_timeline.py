"""The time line: what is drawn of it, and what is said about it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from headwater.report import page_sections, style, timeline
from headwater.report.grouping import group
from headwater.report.runs import read


def row(at, phase, start, end, worker=0, node="c0"):
    task = {"train": "local_train", "distill": "distill", "evaluate": "evaluate"}.get(phase, "average")
    return {
        "round": at,
        "task": task,
        "phase": phase,
        "node": node,
        "start": start,
        "end": end,
        "worker": worker,
    }


#: Two rounds on two workers; of the second round's three trainings, two begin while the first is being distilled.
PAIR = [
    row(0, "average", 0.0, 0.1, node="server"),
    row(1, "train", 1.0, 2.0),
    row(1, "train", 1.0, 2.5, 1, "c1"),
    row(1, "distill", 2.5, 5.0, 1, "server"),
    row(1, "evaluate", 5.0, 5.2, 1, "server"),
    row(2, "train", 2.5, 3.5),
    row(2, "train", 3.5, 4.5, 0, "c2"),
    row(2, "train", 5.0, 6.0, 0, "c1"),
    row(2, "distill", 6.0, 8.0, 0, "server"),
]


def written(fake, folder, rows, cut=""):
    path = fake(rounds=2).write(folder)
    (path / "timeline.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows) + cut, encoding="utf-8")
    return path


def card(path):
    return next(iter(page_sections.timelines(group([read(path)]).groups)), None)


def test_clients_that_were_trained_as_one_are_one_bar():
    (span,) = timeline.spans_of([row(1, "train", 0.0, 1.0) | {"nodes": 13}])
    assert span.node == "c0 +12"
    assert "local_train at c0 +12, round 1" in span.text


def test_trainings_that_began_early_are_counted():
    spans = timeline.spans_of(PAIR)
    assert timeline.early(spans) == (2, 3)
    assert timeline.early([span for span in spans if span.phase != "distill"]) == (0, 0)
    late = [each | {"start": 5.0, "end": 6.0} if each["round"] == 2 else each for each in PAIR]
    assert timeline.early(timeline.spans_of(late)) == (0, 3)


def test_what_is_before_the_first_round_or_not_whole_is_left_out():
    odd = [{"round": 1}, row(1, "train", 3.0, 2.0), row(1, "train", None, 2.0), row(1, "train", float("nan"), 1.0)]
    assert timeline.spans_of(odd) == []
    assert len(timeline.spans_of(PAIR + odd)) == len(PAIR) - 1


def test_a_long_run_is_shown_by_whole_first_rounds():
    spans = timeline.spans_of([row(at, "train", at, at + 1) for at in range(1, 9) for _ in range(10)])
    assert {span.round for span in timeline.first_rounds(spans, 35)} == {1, 2, 3}
    assert len(timeline.first_rounds(spans, 35)) == 30
    assert {span.round for span in timeline.first_rounds(spans, 5)} == {1, 2}  # two at least
    assert len(timeline.first_rounds(spans)) == 80


def test_a_bar_for_every_task_in_its_place(fake, tmp_path):
    found = card(written(fake, tmp_path / "a", PAIR))
    bars = [row for row in found.spec["data"]["values"] if row["kind"] != "round"]
    assert len(bars) == 8
    taught = next(bar for bar in bars if bar["what"].startswith("distill at server, round 1"))
    trained = next(bar for bar in bars if bar["what"].startswith("local_train at c0, round 2"))
    assert (taught["kind"], trained["kind"]) == ("distilling", "training")
    assert taught["start"] == trained["start"] == 1.5
    assert (taught["lane"], trained["lane"]) == ("worker 1", "worker 0")
    assert taught["end"] - taught["start"] == pytest.approx(2.5 * (trained["end"] - trained["start"]))
    assert "2 of 3 local trainings started before the previous round was distilled" in found.description
    assert "busy for 73" in found.description  # 10.2 of 14 worker seconds


def test_one_worker_or_no_file_is_not_shown(fake, tmp_path):
    assert card(fake(rounds=2).write(tmp_path / "none")) is None
    alone = [each | {"worker": 0} for each in PAIR]
    assert card(written(fake, tmp_path / "alone", alone)) is None
    assert card(written(fake, tmp_path / "empty", [])) is None


def test_a_line_cut_short_does_no_harm(fake, tmp_path):
    whole = card(written(fake, tmp_path / "whole", PAIR))
    assert card(written(fake, tmp_path / "cut", PAIR, cut='{"round": 2, "ta')) == whole


def test_the_file_shows_every_phase_in_its_colour(tmp_path):
    def colours(rows):
        with Image.open(timeline.figure(rows, tmp_path / "line.png")) as picture:
            pixels = np.asarray(picture.convert("RGB"), dtype=np.uint32)
        packed = np.unique(pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2])
        return {f"#{value:06x}" for value in packed}

    assert set(style.LIGHT.colours[:3]) <= colours(PAIR)
    assert style.LIGHT.colours[1] not in colours([each for each in PAIR if each["phase"] != "distill"])
    assert not set(style.LIGHT.colours) & colours([])
