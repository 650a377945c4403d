"""The page as text: whole, escaped and without a wish from the network. What a browser makes of it: test_browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from headwater.errors import OutputError
from headwater.report import export, page, page_sections, write
from headwater.report.grouping import group
from headwater.report.method_table import tabulate
from headwater.report.runs import find, read

VOID = {"meta", "link", "br", "input"}


class Outline(HTMLParser):
    """Checks that elements are closed in order, and collects what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.idents: list[str] = []
        self.asked: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        assert len(found) == len(attributes), f"an attribute of {tag} is repeated"
        self.seen.append((tag, found))
        self.idents += [found["id"]] if "id" in found else []
        self.asked += [found[name] for name in ("src", "href", "action", "data") if found.get(name)]
        assert not any(name.startswith("on") for name in found)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_asks_for_nothing(comparison, tmp_path):
    text = page.render(find(comparison(tmp_path)))
    outline = Outline(text)
    assert len(outline.idents) == len(set(outline.idents))
    assert outline.asked == ["data:,"]
    assert not re.search(r"url\(|@import|https?://", text)
    assert "script-src &#39;unsafe-inline&#39;; img-src data:" in text
    assert "unsafe-eval" not in text
    charts = [found for _, found in outline.seen if "chart" in (found.get("class") or "").split()]
    assert len(charts) >= 8
    assert all(found["role"] == "img" and len(found["aria-label"]) > 30 for found in charts)
    specs = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])["charts"]
    assert {found["data-chart"] for found in charts if "data-chart" in found} <= set(specs)


def test_the_same_runs_give_the_same_bytes(comparison, tmp_path):
    runs = comparison(tmp_path / "runs")
    first, second = write([runs], tmp_path / "a.html"), write([runs], tmp_path / "b.html")
    assert first.read_bytes() == second.read_bytes()


def test_user_strings_stay_text(fake, tmp_path):
    evil = "</script><img src=x onerror=alert(1)>\"'&"
    made = fake(method=evil, label=evil, classes=(evil, "<b>", "&amp;"), distils=True, algorithm={"note": evil})
    text = page.render([read(made.write(tmp_path / "<i>run"))])
    outline = Outline(text)
    assert not {"img", "b"} & {tag for tag, _ in outline.seen}
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "&amp;amp;" in text


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 1},
        {"clients": 1, "sectors": 1},
        {"clients": 100, "sectors": 5},
        {"every": 3},
        {"stop": 2},
        {"stop": 2, "every": 5},
        {"model_bytes": 0},
        {"classes": [f"class {at}" for at in range(100)]},
        {
            "result": {
                "ledger": None,
                "confusion": None,
                "client_accuracy": None,
                "accuracy_ci95": None,
                "versions": None,
            }
        },
        {"result": {"ledger": {"setup": 5, "relay": {"up_bytes": 1, "down_bytes": 2}}, "seconds": {"train": 1.5}}},
    ],
)
def test_every_kind_of_run_has_a_page(fake, tmp_path, change):
    run = read(fake(**change).write(tmp_path / "a"))
    text = page.render([run])
    Outline(text)
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(nan|inf|None)\b", outside)
    assert ("not finished" in text) == ("stop" in change)
    bare = replace(run, rows=[], result=None, partition=None)
    assert "No accuracy has been measured yet" in page.render([bare])


def test_notices(fake, tmp_path):
    fake(method="a", seed=0).write(tmp_path / "a0")
    fake(method="a", seed=0).write(tmp_path / "a0-copy")
    fake(method="b", seed=0, clients=10, alpha=0.3).write(tmp_path / "b0")
    text = page.render(find(tmp_path))
    assert "repeat a seed" in text
    assert "same data and split" not in text
    fake(method="c", seed=0, alpha=9.0).write(tmp_path / "c0")
    fake(method="c", seed=1, alpha=9.0, stop=3).write(tmp_path / "c1")
    text = page.render(find(tmp_path))
    assert "Not all runs have the same data and split" in text
    assert "seed 1: 3 of 8, unfinished" in text
    assert "headwater resume DIR" in text
    assert text.count("Split of ") == 1


def test_titles(fake, comparison, tmp_path):
    assert "<h1>FedAvg on digits</h1>" in page.render([read(fake().write(tmp_path / "one"))])
    assert "<h1>4 methods on digits</h1>" in page.render(find(comparison(tmp_path / "four")))


def test_cost_of_every_tier_and_direction(fake, tmp_path):
    made = fake(distils=True, trips=2, result={})
    table = page_sections.cost(group([read(made.write(tmp_path / "a"))]).groups)
    near, far = 8 * 10 * made.model_bytes, 8 * 2 * 2 * made.model_bytes
    values = [cell.value for cell in table.rows[0][1:]]
    assert values == [far, far, 32, 32, 32, near, near, 80, 80, 80, 3 * 115_200]
    assert table.heads[1] == "Server – sectors, up"


def test_the_command_repeats_the_run_and_the_configuration_is_there(fake, tmp_path):
    text = page.render([read(fake().write(tmp_path / "my run"))])
    file, again = (str(tmp_path / name) for name in ("my run/config.toml", "my run-again"))
    assert f"headwater run &#39;{file}&#39; --out &#39;{again}&#39;" in text
    assert "alpha = 0.3" in text


def test_differences_to_the_baseline_are_in_the_results(comparison, tmp_path):
    groups = group(find(comparison(tmp_path))).groups
    for baseline, base in ((None, 0), ("feddf", 1), ("FedHEAD", 2)):  # by name or by label
        found = tabulate(groups, baseline=baseline)
        table = page_sections.results(found)
        column = list(table.heads).index(f"Difference to {found.rows[base].method}")
        for at, row in enumerate(table.rows):
            if at != base:
                assert row[column].value == pytest.approx(found.rows[at].accuracy - found.rows[base].accuracy)
        assert table.rows[base][column].text == "–"
    assert "A difference is paired by seed" in page.render(find(tmp_path))


class TestFiles:
    def test_export_writes_all_kinds(self, comparison, tmp_path):
        files = export([comparison(tmp_path / "runs")], tmp_path / "new" / "out", target=0.5)
        assert [file.name for file in files] == ["report.html", "summary.csv", "summary.md", "curves.png", "split.png"]
        assert all(file.stat().st_size > 100 for file in files)
        assert sorted(each.name for each in (tmp_path / "new" / "out").iterdir()) == sorted(file.name for file in files)
        assert "Rounds to 50.0\u00a0%" in files[0].read_text(encoding="utf-8")
        assert "Rounds to 50.0\u00a0%" in files[2].read_text(encoding="utf-8")

    def test_write_into_a_directory_or_a_file(self, fake, tmp_path):
        run = fake().write(tmp_path / "run")
        assert write(run, tmp_path) == tmp_path / "report.html"
        assert write([str(run)], str(tmp_path / "x" / "mine.html")) == tmp_path / "x" / "mine.html"

    def test_a_place_that_cannot_be_written_is_named(self, fake, tmp_path):
        run = fake().write(tmp_path / "run")
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match=r"file.*cannot be written.*--out"):
            write(run, tmp_path / "file" / "report.html")


def test_negative_counts_of_a_damaged_confusion_matrix_are_left_out(fake, tmp_path):
    path = fake(method="fedavg", label="FedAvg").write(tmp_path / "run")
    result = json.loads((path / "result.json").read_text())
    classes = len(result["confusion"])
    result["confusion"] = [[-5.0] * (classes - 1) + [2.0] for _ in range(classes)]
    (path / "result.json").write_text(json.dumps(result))
    assert "confusion-0" in page.render([read(path)])
