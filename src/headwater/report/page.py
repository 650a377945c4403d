"""The report as one self-contained HTML file.

Style, script and charts are inside the file, and its content security policy forbids loading anything else. The page is
complete without JavaScript, which adds values under the pointer and switches in the legends. The same runs give the
same bytes: the page contains no date.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.report import breakdown, charts, html_tables, style, timeline
from headwater.report.client_data import client_accuracy, split_card
from headwater.report.grouping import Grouping, MethodRuns, accuracy, group
from headwater.report.method_table import MethodTable, tabulate
from headwater.report.runs import RunRecord
from headwater.report.svg import esc

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
MARK = (  # the logo: three streams that join
    '<svg width="18" height="18" viewBox="0 0 20 20" aria-hidden="true">'
    '<path d="M3 2c0 6 7 5 7 11M17 2c0 6-7 5-7 11M10 2v16"/></svg>'
)
FEW_METHODS = 2  # up to so many are shown in full; of more, only the best is unfolded


def render(runs: Sequence[RunRecord], *, target: float | None = None, refresh: int | None = None) -> str:
    """The HTML page of runs.

    Args:
        runs: the runs.
        target: accuracy to count rounds and bytes to; None for the highest that all methods reach.
        refresh: seconds after which the browser reloads the page, for a run in progress; None for never.
    """
    grouping = group(runs)
    groups = grouping.groups
    table = tabulate(groups, target)
    heading = title(groups)
    body = "".join(
        [
            f'<header><p class="brand">{MARK}Headwater</p><h1>{esc(heading)}</h1>',
            f"{_facts(groups)}{_notices(grouping)}</header>",
            "<main>",
            _section("Results", f'<div class="card">{html_tables.results(table)}</div>'),
            _curves(groups),
            _clients(groups),
            _methods(groups, table),
            _section("Cost", f'<div class="card">{html_tables.cost(groups)}{_cost_note(groups)}</div>'),
            _section("Configuration", f'<div class="card folds">{html_tables.configuration(groups)}</div>'),
            _section("Runs", f'<div class="card">{html_tables.every_run(groups)}</div>'),
            "</main>",
            f"<footer><p>{_versions(runs)}</p></footer>",
        ]
    )
    again = f'<meta http-equiv="refresh" content="{int(refresh)}">' if refresh else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">{again}'
        f'<link rel="icon" href="data:,"><title>{esc(heading)} · Headwater</title>'
        f"<style>{style.variables()}{style.curve_rules()}{_asset('page.css')}</style></head>"
        f"<body>{body}<script>{_asset('page.js')}</script></body></html>\n"
    )


def title(groups: Sequence[MethodRuns]) -> str:
    """The heading of the page: the method or the number of methods, and the data."""
    data = _common(groups, "data", "name")
    where = f" on {data}" if data and data != "varies" else ""
    return f"{groups[0].label}{where}" if len(groups) == 1 else f"{len(groups)} methods{where}"


def _facts(groups: Sequence[MethodRuns]) -> str:
    alpha = _common(groups, "partition", "alpha")
    scheme = _common(groups, "partition", "scheme")
    seeds = sorted({run.seed for each in groups for run in each.runs})
    listed = ", ".join(map(str, seeds)) if len(seeds) <= 6 else f"{len(seeds)} ({seeds[0]} to {seeds[-1]})"
    facts = {
        "Data": _common(groups, "data", "name"),
        "Split": f"{scheme}, α {alpha}" if scheme and alpha else scheme,
        "Clients": _common(groups, "partition", "clients"),
        "Sectors": _common(groups, "partition", "sectors"),
        "Model": _common(groups, "model", "name"),
        "Rounds": _common(groups, "rounds"),
        "Seeds" if len(seeds) > 1 else "Seed": listed,
    }
    items = "".join(f"<div><dt>{esc(key)}</dt><dd>{esc(value)}</dd></div>" for key, value in facts.items() if value)
    return f'<dl class="facts">{items}</dl>'


def _notices(grouping: Grouping) -> str:
    notices = []
    open_runs = [(each.label, run) for each in grouping.groups for run in each.runs if not run.finished]
    if open_runs:
        listed = "; ".join(f"{label}, seed {run.seed}: {html_tables.progress(run)}" for label, run in open_runs[:6])
        more = f"; and {len(open_runs) - 6} more" if len(open_runs) > 6 else ""
        noun = "This run has" if len(open_runs) == 1 else f"{len(open_runs)} runs have"
        notices.append(f"{noun} not finished ({listed}{more}). Continue with: headwater resume DIR")
    notices += [run.damage for each in grouping.groups for run in each.runs if run.damage]
    if grouping.dropped:
        paths = ", ".join(map(str, grouping.dropped[:4]))
        notices.append(
            f"{len(grouping.dropped)} directories repeat a seed of the same configuration and were left out: {paths}"
        )
    if _other_splits(grouping.groups):
        notices.append("Not all methods were run on the same split of the data; compare their numbers with care.")
    items = "".join(f"<li>{esc(words)}</li>" for words in notices)
    return f'<ul class="notices" role="status">{items}</ul>' if notices else ""


def _other_splits(groups: Sequence[MethodRuns]) -> bool:
    """Whether two runs with the same seed used different splits."""
    seen: dict[int, set[str]] = {}
    for each in groups:
        for run in each.runs:
            if sha := _sha(run):
                seen.setdefault(run.seed, set()).add(sha)
    return any(len(shas) > 1 for shas in seen.values())


def _curves(groups: Sequence[MethodRuns]) -> str:
    found = accuracy(groups)
    if not found:
        return _section("Curves", '<div class="card"><p class="empty">No accuracy has been measured yet.</p></div>')
    numbers = f'<details class="card"><summary>Values by round</summary>{html_tables.by_round(found)}</details>'
    return _section("Curves", f'<div class="pair">{charts.by_round(found)}{charts.by_bytes(found)}</div>{numbers}')


def _clients(groups: Sequence[MethodRuns]) -> str:
    """The split, then the accuracy by client of each method."""
    x = breakdown.client_axis(groups)
    shown = [each for each in groups if client_accuracy(each.runs[0])]
    pictures = _splits(groups, tall=len(shown) > 1)
    # Beside a split there is room for one or two cards; a card that would be alone in its row takes the whole row.
    taken = 0 if not pictures or 'class="card span"' in pictures[0] else min(len(shown), 2)
    alone = (len(shown) - taken) % 2 == 1 and len(shown) > taken
    spreads = [
        breakdown.clients_card(
            each, f"clients-{at}", x, few=len(shown) == 1, kind="span" if alone and each is shown[-1] else ""
        )
        for at, each in enumerate(groups)
        if x is not None
    ]
    if not any(pictures + spreads):
        return ""
    inner = f'<div class="pair">{"".join(pictures[:1] + spreads)}</div>'
    if len(pictures) > 1:
        inner += f'<details class="card"><summary>Other splits ({len(pictures) - 1})</summary>'
        inner += f'<div class="pair">{"".join(pictures[1:])}</div></details>'
    return _section("Clients", inner)


def _splits(groups: Sequence[MethodRuns], *, tall: bool) -> list[str]:
    """A figure per split used by the first run of a method; usually all methods share one."""
    pictures: dict[str, str] = {}
    several = _other_splits(groups)
    for each in groups:
        run = each.runs[0]
        sha = _sha(run) or str(run.path)
        if run.partition and sha not in pictures:
            which = f" with {each.label}" if several else ""
            seed = f", seed {run.seed}" if len(each.runs) > 1 else ""
            ident = f"split-{len(pictures)}"
            pictures[sha] = split_card(
                run, ident, f"Samples by client and class{which}{seed}", tall=tall and not pictures
            )
    return [picture for picture in pictures.values() if picture]


def _methods(groups: Sequence[MethodRuns], table: MethodTable) -> str:
    """Distillation, confusion matrix and timeline of each method; folded if there are many."""
    parts = []
    for at, (each, row) in enumerate(zip(groups, table.rows, strict=True)):
        inner = charts.distillation(each, str(at)) + breakdown.confusion_card(each, f"confusion-{at}")
        inner += timeline.card_of(each, f"timeline-{at}")
        if not inner:
            continue
        if len(groups) <= FEW_METHODS:
            heading = f"<h3>{esc(each.label)}</h3>" if len(groups) > 1 else ""
            parts.append(f'{heading}<div class="pair">{inner}</div>')
        else:
            opened = " open" if row.best else ""
            folded = f'<summary>{esc(each.label)}</summary><div class="pair">{inner}</div>'
            parts.append(f'<details class="method"{opened}>{folded}</details>')
    return _section("Details by method" if len(groups) > 1 else "Details", "".join(parts)) if parts else ""


def _cost_note(groups: Sequence[MethodRuns]) -> str:
    over = "Means over seeds. " if any(len(each.counted) > 1 for each in groups) else ""
    apart = (
        " Bytes of evaluation are counted separately."
        if any(run.ledger("evaluate") for each in groups for run in each.counted)
        else ""
    )
    return f'<p class="note">{over}Up is towards the server. The setup is sent once, before round 1.{apart}</p>'


def _section(heading: str, inner: str) -> str:
    return f"<section><h2>{esc(heading)}</h2>{inner}</section>"


def _common(groups: Sequence[MethodRuns], *keys: str) -> str:
    """A configuration value as text, "varies" if runs differ in it, empty if it is not set."""
    values = []
    for each in groups:
        for run in each.runs:
            value: Any = run.config
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            values.append(value)
    texts = {str(value) for value in values}
    return "varies" if len(texts) > 1 else "" if values[0] is None else str(values[0])


def _sha(run: RunRecord) -> str:
    return str((run.result or {}).get("partition_sha256") or (run.partition or {}).get("sha256") or "")


def _versions(runs: Sequence[RunRecord]) -> str:
    found: dict[str, set[str]] = {}
    for run in runs:
        versions = (run.result or {}).get("versions")
        for name, version in (versions if isinstance(versions, dict) else {}).items():
            found.setdefault(str(name), set()).add(str(version))
    words = ", ".join(f"{name} {' / '.join(sorted(each))}" for name, each in sorted(found.items()))
    return f"Written by headwater report. {esc(words)}"


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
