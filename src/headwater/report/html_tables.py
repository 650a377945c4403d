"""The HTML tables of the report: results, accuracy by round, cost by tier, runs, configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tomli_w

from headwater.report import method_table
from headwater.report.grouping import MethodRuns, Series, differing, flat
from headwater.report.numbers import NONE, count, mean, number, percent, size
from headwater.report.runs import DIRECTIONS, TIERS, RunRecord, tree_bytes
from headwater.report.svg import esc

TIER_NAMES = {"server_sector": "Server and sectors", "sector_client": "Sectors and clients"}


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """A table that scrolls in its own box.

    Args:
        caption: name for screen readers.
        heads: header rows, as HTML of their cells.
        rows: cells of each row, as HTML.
        kind: CSS classes of the table.
    """
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    top = "".join(f"<tr>{head}</tr>" for head in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table class="{kind}">'
        f'<caption class="aside">{esc(caption)}</caption><thead>{top}</thead><tbody>{body}</tbody></table></div>'
    )


def th(words: str, *, scope: str = "col", extra: str = "") -> str:
    return f'<th scope="{scope}"{extra}>{esc(words)}</th>'


def td(words: str, *, value: float | None = None, best: bool = False) -> str:
    """A table cell; `value` is the unformatted number, for scripts that read the page."""
    data = "" if value is None else f' data-value="{value!r}"'
    mark = ' class="best"' if best else ""
    star = '<span class="star" title="best in this column" aria-label="best">★</span>' if best else ""
    return f"<td{data}{mark}>{esc(words)}{star}</td>"


def results(found: method_table.MethodTable) -> str:
    """Results by method, the first table of the page."""
    shown = method_table.columns(found)
    best = [method_table.winners(found, column) for column in shown]
    rows = []
    for at, row in enumerate(found.rows):
        cells = [th(row.method, scope="row")]
        for column, wins in list(zip(shown, best, strict=True))[1:]:
            cells.append(td(column.text(row), value=number(getattr(row, column.key)), best=at in wins))
        rows.append(cells)
    notes = "".join(f"<li>{esc(note)}</li>" for note in method_table.notes(found))
    whole = table("Results by method", ["".join(th(column.heading) for column in shown)], rows, kind="results")
    return f'{whole}<ul class="notes">{notes}</ul>'


def by_round(series: Sequence[Series]) -> str:
    """The numbers behind the curves."""
    rounds = sorted({point.round for each in series for point in each.points})
    lookup = [{point.round: point.value for point in each.points} for each in series]
    rows = [
        [th(str(at), scope="row"), *(td(percent(values.get(at)), value=values.get(at)) for values in lookup)]
        for at in rounds
    ]
    heads = ["".join([th("Round"), *(th(each.label) for each in series)])]
    return table("Accuracy by round, mean over seeds", heads, rows)


def cost(groups: Sequence[MethodRuns]) -> str:
    """Bytes by tier and direction, models, round trips and setup: means over the counted seeds."""
    counted = ("up_models", "down_models", "round_trips")
    known = {
        tier: [
            key
            for key in counted
            if any(number(run.ledger(tier).get(key)) is not None for g in groups for run in g.counted)
        ]
        for tier in TIERS
    }
    names = {
        "up_models": "Models up",
        "down_models": "Models down",
        "round_trips": "Round trips",
        "evaluate": "Evaluation",
    }
    top = [th("Method", extra=' rowspan="2"')]
    below = []
    for tier in TIERS:
        top.append(th(TIER_NAMES[tier], scope="colgroup", extra=f' colspan="{2 + len(known[tier])}"'))
        below += [th("Up"), th("Down"), *(th(names[key]) for key in known[tier])]
    others = sorted({key for g in groups for run in g.counted for key in _other_parts(run)})
    top += [th(names.get(key, key.replace("_", " ").capitalize()), extra=' rowspan="2"') for key in others]
    top.append(th("Setup, once", extra=' rowspan="2"'))
    rows = []
    for g in groups:
        cells = [th(g.label, scope="row")]
        for tier in TIERS:
            for direction in DIRECTIONS:
                value = mean(run.sent(tier, direction) for run in g.counted)
                cells.append(td(size(value), value=value))
            for key in known[tier]:
                value = mean(number(run.ledger(tier).get(key)) for run in g.counted)
                cells.append(td(count(value), value=value))
        for other in others:
            value = mean(_other_parts(run).get(other) for run in g.counted)
            cells.append(td(size(value), value=value))
        value = mean(run.setup for run in g.counted)
        cells.append(td(size(value), value=value))
        rows.append(cells)
    return table("Cost by tier and direction", ["".join(top), "".join(below)], rows, kind="cost")


def every_run(groups: Sequence[MethodRuns]) -> str:
    """One row per run, with the hashes of its split and its model."""
    rows = []
    for g in groups:
        for run in g.runs:
            low_high = run.interval
            result = run.result or {}
            rows.append(
                [
                    th(g.label, scope="row"),
                    td(str(run.seed), value=run.seed),
                    td(progress(run)),
                    td(percent(run.accuracy, 2), value=run.accuracy),
                    td(f"{100 * low_high[0]:.2f} to {percent(low_high[1], 2)}" if low_high else NONE),
                    td(_hash(result.get("partition_sha256") or (run.partition or {}).get("sha256"))),
                    td(_hash(result.get("model_sha256"))),
                    f'<td class="path">{esc(run.path)}</td>',
                ]
            )
    names = ("Method", "Seed", "Rounds", "Accuracy", "Interval over test set", "Split", "Model", "Directory")
    return table("Every run", ["".join(map(th, names))], rows, kind="runs")


def configuration(groups: Sequence[MethodRuns]) -> str:
    """A table of the keys in which methods differ, then each configuration as TOML, folded."""
    parts = []
    keys = differing([g.runs for g in groups]) if len(groups) > 1 else []
    many = f"{len(keys)} key{'s' if len(keys) > 1 else ''}"
    if keys:
        configs = [flat(g.runs[0].config) for g in groups]
        rows = [[th(key, scope="row"), *(td(_setting(config.get(key))) for config in configs)] for key in keys]
        heads = ["".join([th("Key"), *(th(g.label) for g in groups)])]
        inner = table("Where the configurations differ", heads, rows, kind="words")
        parts.append(f"<details><summary>Where the configurations differ ({many})</summary>{inner}</details>")
    for g in groups:
        run = g.runs[0]
        seeds = "" if len(g.runs) == 1 else f", seed {run.seed}"
        words, box = esc(tomli_w.dumps(run.config)), 'class="scroll" tabindex="0" role="region"'
        parts.append(
            f"<details><summary>{esc(g.label)}{seeds}</summary>"
            f'<div {box} aria-label="Configuration of {esc(g.label)}"><pre>{words}</pre></div></details>'
        )
    return "".join(parts)


def progress(run: RunRecord) -> str:
    """Finished rounds; for an unfinished run, also the planned ones."""
    if run.finished:
        return str(run.done)
    return f"{run.done} of {run.planned}, unfinished" if run.planned else f"{run.done}, unfinished"


def _other_parts(run: RunRecord) -> dict[str, float]:
    """Bytes of other ledger entries, such as evaluation or the relay of a deployment."""
    whole = (run.result or {}).get("ledger")
    found: dict[str, float] = {}
    for key, value in (whole if isinstance(whole, dict) else {}).items():
        if key in (*TIERS, "setup"):
            continue
        if total := tree_bytes(value):
            found[key] = total
    return found


def _hash(value: Any) -> str:
    return NONE if not value else str(value)[:12]


def _setting(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)
