"""`Comparison`: runs side by side, as a DataFrame, as text for papers, and as a display for notebooks."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.report.differences import FOR_RANKS, Difference
from headwater.report.grouping import MethodRuns, group, over_seeds
from headwater.report.method_table import MethodTable, dicts, tabulate
from headwater.report.method_text import best_rows, columns, markdown, notes
from headwater.report.notebook import sparkline, table
from headwater.report.numbers import NBSP
from headwater.report.runs import RunRecord

if TYPE_CHECKING:
    import pandas as pd

    from headwater.training.result import Run

# Of a row, not in the DataFrame; differences are columns of their own there.
HIDDEN = ("finished", "interval", "reached_target", "best", "target", "problem", "baseline", "tuned")
PAIRED = ("difference", "difference_low", "difference_high", "star", "won", "lost", "wilcoxon_p")
OPTIONAL = ("local_accuracy", "ensemble_accuracy", "tuned_runs", "tuned_rounds", "tuned_seconds")
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    NBSP: "~",
    "\u202f": r"\,",
}


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs side by side. Returned by `hw.compare`.

    `str(comparison)` is the table as Markdown text; in a notebook it shows itself with a curve per method.

    Args:
        runs: the runs, by seed and then by method.
        baseline: the method that the others are compared with; None for the first one.

    Example:
        >>> import headwater as hw
        >>> both = hw.compare(["fedavg", "fedprox"], seeds=[0, 1], clients=3, rounds=1, local__epochs=1)
        >>> list(both.table().index)
        ['fedavg', 'fedprox']
    """

    runs: tuple[Run, ...]
    baseline: str | None = None

    def rows(self, target: float | None = None) -> list[dict[str, Any]]:
        """One row per method: mean accuracy over seeds with its interval, and the cost.

        Args:
            target: accuracy; rows then also have the rounds and bytes until it was reached.
        """
        return dicts(self._summary(target))

    def table(self, target: float | None = None, baseline: str | None = None) -> pd.DataFrame:
        """One row per method as a pandas DataFrame with numbers.

        With two or more seeds and methods it has the paired difference in accuracy to the baseline: `difference` with
        its 95 % t interval, and `star` where that does not contain zero. With five or more seeds it also has the
        number of seeds won and lost and the p value of Wilcoxon's signed-rank test.

        Args:
            target: as for `rows`.
            baseline: the method that the others are compared with; None for that of the comparison.

        Returns:
            The table. `to_markdown()` and `to_latex()` of pandas write all digits; those of the comparison write
            mean ± interval.
        """
        import pandas as pd

        summary = self._summary(target, baseline)
        rows = dicts(summary)
        kept = [
            key
            for key in rows[0]
            if key not in (*HIDDEN, *PAIRED) and (key not in OPTIONAL or any(row[key] is not None for row in rows))
        ]
        frame = pd.DataFrame([{key.replace("_", " "): row[key] for key in kept} for row in rows]).set_index("method")
        numbers = [column for column in frame.columns if column != "seeds"]
        frame[numbers] = frame[numbers].astype("float64")  # also a column without any value
        frame.attrs = {"target": summary.target, "difference to": rows[0]["baseline"]}
        for name, values in _paired_columns([row.gap for row in summary.rows]).items():
            frame[name] = values
        return frame

    def to_markdown(self, target: float | None = None) -> str:
        """The table as Markdown: mean ± interval, the best in bold, a star at differences away from zero.

        Args:
            target: as for `rows`.
        """
        heads, cells, strong = self._texts(target)
        cells = [[f"**{c}**" if (i, j) in strong else c for j, c in enumerate(row)] for i, row in enumerate(cells)]
        below = "\n".join(f"{note}  " for note in notes(self._summary(target)))
        return f"{_frame(heads, cells).to_markdown(index=False, disable_numparse=True)}\n\n{below}\n"

    def to_latex(self, target: float | None = None) -> str:
        """The table as LaTeX with the package booktabs, contents as in `to_markdown`.

        Args:
            target: as for `rows`.
        """
        heads, cells, strong = self._texts(target)
        escaped = [
            [f"\\textbf{{{_latex(c)}}}" if (i, j) in strong else _latex(c) for j, c in enumerate(row)]
            for i, row in enumerate(cells)
        ]
        frame = _frame([_latex(head) for head in heads], escaped)
        return str(frame.to_latex(index=False, escape=False, column_format="l" + "r" * (len(heads) - 1)))

    def __str__(self) -> str:
        return markdown(self._summary(None))

    def __repr__(self) -> str:
        labels = [each.label for each in self._groups()]
        seeds = sorted({run.result["seed"] for run in self.runs})
        return f"<Comparison of {', '.join(labels)} over seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}>"

    def _repr_html_(self) -> str:
        heads, cells, strong = self._texts(None)
        curves = {each.label: [point.value for point in over_seeds(each.runs)] for each in self._groups()}
        seen = [value for curve in curves.values() for value in curve]
        ends = (min(seen), max(seen)) if seen else None
        drawn = [sparkline(curve, f"accuracy of {label} by round", ends) for label, curve in curves.items()]
        rows = [[*row, curve] for row, curve in zip(cells, drawn, strict=True)]
        first = self.runs[0].result
        title = f"{len(cells)} method{'s' * (len(cells) > 1)} on {Path(str(first['data'])).name}"
        return table(title, [*heads, "By round"], rows, notes(self._summary(None)), strong)

    def _texts(self, target: float | None) -> tuple[list[str], list[list[str]], set[tuple[int, int]]]:
        """Headings, cells, and the places of the best cells."""
        summary = self._summary(target)
        shown = columns(summary)
        strong = {(row, place) for place, column in enumerate(shown) for row in best_rows(summary, column)}
        heads, cells = [column.heading for column in shown], [[c.text(row) for c in shown] for row in summary.rows]
        return heads, cells, strong

    def _groups(self) -> list[MethodRuns]:
        return list(group([_record(each) for each in self.runs]).groups)

    def _summary(self, target: float | None, baseline: str | None = None) -> MethodTable:
        return tabulate(self._groups(), target, self.baseline if baseline is None else baseline)


def _paired_columns(gaps: list[Difference | None]) -> dict[str, list[Any]]:
    if not any(gaps):
        return {}
    nan = float("nan")
    paired: dict[str, list[Any]] = {
        "difference": [gap.mean if gap else nan for gap in gaps],
        "difference low": [gap.low if gap else nan for gap in gaps],
        "difference high": [gap.high if gap else nan for gap in gaps],
        "star": ["*" if gap and gap.star else "" for gap in gaps],
    }
    if any(gap and gap.seeds >= FOR_RANKS for gap in gaps):
        for name, key in (("won", "wins"), ("lost", "losses"), ("wilcoxon p", "wilcoxon")):
            values = [None if gap is None else getattr(gap, key) for gap in gaps]
            paired[name] = [nan if value is None else float(value) for value in values]
    return paired


def _frame(headings: list[str], cells: list[list[str]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(cells, columns=headings, dtype=object)


def _latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text)


def _record(run: Run) -> RunRecord:
    """A run as reports read it, with or without a directory."""
    facts, path = run.result, run.directory or Path()
    config = tomllib.loads(run.config)
    return RunRecord(path, facts["label"], facts["algorithm"], facts["seed"], config, run.history, facts, run.partition)
