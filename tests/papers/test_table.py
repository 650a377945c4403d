"""Tables as files: what they say, and the sentence when they say it wrongly."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from headwater import papers
from headwater.errors import ConfigError
from headwater.papers import scales
from headwater.papers.measures import COUNTS, LAST, WITH_NUMBER
from headwater.papers.table import PaperTable, load, parse

GOOD = """# Two methods on digits
preset = "demo"
unit = "%"
seeds = [0, 1]

[[row]]
name = "A"
set = { algorithm = { name = "fedavg" } }
[[row]]
name = "B"
[[column]]
name = "near"
[[column]]
name = "far"
metric = "rounds_to:80"
unit = "rounds"
rows = ["A"]
[printed]
A = [50.5, nan]
[[order]]
better = "A"
than = ["B"]
[scale.smoke]
samples = 300
"""


def read(text: str) -> PaperTable:
    return parse(text, "mine.toml", scales.names())


def test_a_table_says_what_its_file_says() -> None:
    table = read(GOOD)
    assert table.title == "Two methods on digits"
    assert (table.seeds, table.metric, table.picture) == ((0, 1), "accuracy", "")
    assert table.printed == {("A", "near"): 50.5}  # nan is no number
    far = table.columns[1]
    assert [table.has(row, far) for row in table.rows] == [True, False]
    assert (table.unit_of(table.columns[0]), table.unit_of(far)) == ("%", "rounds")
    assert (table.measure(far).name, table.measure(far).number) == ("rounds_to", 80.0)
    assert table.scale["smoke"].samples == 300


WRONG = [
    ('preset = "demo"', "", "preset is needed and must be text"),
    ("seeds = [0, 1]", "seeds = [0, 0]", "seeds must be whole numbers, each once"),
    ("seeds = [0, 1]", "seed = [0, 1]", "a table has no key 'seed'; did you mean 'seeds'?"),
    ('unit = "%"', 'picture = "curve"', "picture must be one of"),
    ('name = "B"', 'name = "A"', "two rows are called 'A'"),
    ('name = "B"', 'nome = "B"', "did you mean 'name'?"),
    ('metric = "rounds_to:80"', 'metric = "accurcy"', "there is no metric 'accurcy'; did you mean 'accuracy'?"),
    ('metric = "rounds_to:80"', 'metric = "rounds_to"', "there is no metric 'rounds_to'"),
    ('metric = "rounds_to:80"', 'metric = "rounds_to:0"', "there is no metric 'rounds_to:0'"),
    ('rows = ["A"]', 'rows = ["C"]', "column 'far': rows names 'C' (there are: A, B)"),
    ("A = [50.5, nan]", "A = [50.5]", "a number for each of the 2 columns, nan where there is none, got 1 values"),
    ("A = [50.5, nan]", 'A = [50.5, "x"]', "printed.A must be a number for each"),
    ("A = [50.5, nan]", "C = [1, 2]", "printed names 'C'"),
    ('than = ["B"]', 'than = ["A"]', "order 1 must name others"),
    ('than = ["B"]', 'than = ["near"]', "order 1: better and than names 'near'"),
    ('than = ["B"]', 'than = ["B"]\nrows = ["A"]', "order 1 compares rows"),
    ("[scale.smoke]", "[scale.smok]", "scale names 'smok'; did you mean 'smoke'?"),
    ("samples = 300", 'samples = "many"', "scale.smoke: samples must be a whole number"),
    (
        "samples = 300",
        'metric = { "rounds_to:80" = "accuracy" }',
        "scale.smoke: metric puts accuracy in place of rounds_to:80, which is a measure of another kind",
    ),
    ("samples = 300", 'metric = { "rounds_too:80" = "rounds_to:20" }', "there is no metric 'rounds_too:80'"),
    ('[[column]]\nname = "near"', "", "1 columns"),
    ("[[row]]", "[[row]", "is not valid TOML"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), WRONG, ids=[new or "gone" for _, new, _ in WRONG])
def test_a_wrong_file_is_refused_in_a_sentence_that_names_it(old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as error:
        read(GOOD.replace(old, new))
    assert "mine.toml" in str(error.value)
    assert sentence in str(error.value)


def test_a_table_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs at least one \[\[row\]\]"):
        read('preset = "demo"\n')


def test_the_documented_table_is_one() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "papers.md").read_text(encoding="utf-8")
    table = read(page.partition("```toml\n")[2].partition("```")[0])
    assert [row.name for row in table.rows] == ["FedAvg", "FedDF"]
    assert table.printed == {("FedAvg", "alpha 0.1"): 40.45}
    for metric in (*LAST, *COUNTS, *WITH_NUMBER):
        assert f"`{metric}" in page


class TestNames:
    def test_a_paper_stands_for_its_tables(self) -> None:
        tables = papers.meant("fedhead")
        assert tables == papers.meant("fedhead/")
        assert "fedhead/table2" in tables
        assert tables.index("fedhead/table2") < tables.index("fedhead/table7")
        assert all(name.startswith("fedhead/") for name in tables)

    def test_tables_are_in_the_order_of_their_numbers(self) -> None:
        numbers = [int(name.partition("fig")[2]) for name in papers.meant("feddf") if "fig" in name]
        assert numbers == sorted(numbers)
        assert max(numbers) >= 10  # where the order of letters would be another

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("fedhaed", "there is no paper or table called 'fedhaed'; did you mean 'fedhead'?"),
            ("fedhead/tabel2", "fedhead has no table 'fedhead/tabel2'; did you mean 'fedhead/table2'?"),
            ("nowhere/mine.toml", "there is no file nowhere/mine.toml"),
        ],
    )
    def test_an_unknown_name_gets_the_nearest(self, name: str, sentence: str) -> None:
        with pytest.raises(ConfigError) as error:
            papers.meant(name)
        assert sentence in str(error.value)

    def test_a_file_is_taken_by_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "t.toml").write_text(GOOD)
        path = str(tmp_path / "t.toml")
        assert papers.meant(path) == [path]
        assert load(path, scales.names()).rows[1].name == "B"


@pytest.mark.parametrize("name", papers.names())
def test_every_table_that_comes_along_can_be_read(name: str) -> None:
    table = load(name, scales.names())
    assert len(table.title) > 10
    assert all(math.isfinite(value) for value in table.printed.values())
    for claim in table.order:  # what a paper claims must be true of what it prints
        by_row = claim.better in [row.name for row in table.rows]
        places = claim.columns or [column.name for column in table.columns] if by_row else claim.rows
        for place in places:
            column = next(each for each in table.columns if each.name == (place if by_row else claim.better))
            sign = -1 if table.measure(column).lower_is_better else 1
            pairs = [(claim.better, other) for other in claim.than]
            for one, other in pairs:
                keys = [(one, place), (other, place)] if by_row else [(place, one), (place, other)]
                if table.measure(column).name not in ("accuracy", "best_accuracy", "local_accuracy", "rounds_to"):
                    continue
                if all(key in table.printed for key in keys):
                    assert sign * table.printed[keys[0]] >= sign * table.printed[keys[1]], (claim, place, other)
