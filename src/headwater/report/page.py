"""The report as one self-contained HTML file.

Style, script, charts and the Vega library that draws them are inside the file, and its content security policy forbids
loading anything else. Without JavaScript the page has its text and tables, but no charts. The same runs give the same
bytes: the page contains no date.
"""

from __future__ import annotations

import base64
import functools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import tomli_w

from headwater.report import charts, conclusion, link_speeds, page_sections, style, sweep_charts
from headwater.report.client_data import TreeNode, tree
from headwater.report.grouping import Grouping, MethodRuns, group, problem, split_of
from headwater.report.method_table import tabulate
from headwater.report.method_text import notes
from headwater.report.runs import RunRecord

FOLDER = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src {script}; img-src data:{more}"
FEW = 6  # up to so many confusion matrices, timelines and curves of distillation are unfolded
MARK = markupsafe.Markup(  # the logo: three streams that join
    '<svg width="18" height="18" viewBox="0 0 20 20" aria-hidden="true">'
    '<path d="M3 2c0 6 7 5 7 11M17 2c0 6-7 5-7 11M10 2v16"/></svg>'
)


def render(
    runs: Sequence[RunRecord],
    *,
    target: float | None = None,
    baseline: str | None = None,
    keys: Sequence[str] | None = None,
    live: str | None = None,
    nonce: str = "",
) -> str:
    """The HTML page of runs.

    Args:
        runs: the runs.
        target: accuracy to count rounds and bytes to; None for the highest that all methods reach.
        baseline: the method that others are compared with; None for the first one.
        keys: the keys of a sweep; None to find them in the configurations.
        live: state of the files if the page is served and renews itself; None for a file.
        nonce: that a served page's scripts carry.
    """
    grouping = group(runs)
    groups = grouping.groups
    table = tabulate(groups, target, baseline)
    teaching, taught = page_sections.teaching(groups)
    swept = sweep_charts.keys_of(groups) if keys is None else [*keys]
    figures = {
        "sweep": sweep_charts.figures(groups, table, swept),
        "spread": [found] if (found := page_sections.spread(groups)) else [],
        "teaching": teaching + page_sections.led(groups),
        "confusion": page_sections.confusions(groups),
        "timeline": page_sections.timelines(groups),
    }
    points = charts.points(groups)
    links = link_speeds.start(groups)
    names = list(dict.fromkeys(row["name"] for row in points))
    rounds = max((row["round"] for row in points), default=0)
    measured = [y for y in charts.Y_AXES if any(y in row for row in points)]
    specs = {f"{y}-{x}": charts.curves(names, x, y, rounds) for y in measured for x in charts.X_AXES}
    specs |= {figure.ident: figure.spec for part in figures.values() for figure in part}
    fields = list(dict.fromkeys(key for row in points for key in row))
    whole = template("page.html").render(
        title=title(groups),
        facts=_facts(groups),
        notices=_notices(grouping, live is not None),
        sentences=conclusion.sentences(groups, table),
        results=page_sections.results(table),
        notes=notes(table),
        curves=[(y, charts.Y_AXES[y][0], page_sections.curve_words(groups, y)) for y in measured],
        legend=[(name, *_sample(names.index(name))) for name in names],
        rounds=rounds,
        links=links,
        figures=figures,
        few=FEW,
        trees=_trees(groups),
        taught=taught,
        cost=page_sections.cost(groups),
        runs=page_sections.every_run(groups),
        settings=page_sections.settings(groups),
        configurations=[_configuration(each) for each in groups],
        versions=_versions(runs),
        live=live,
        nonce=nonce,
        policy=None if nonce else POLICY.format(script="'unsafe-inline'", more=""),
        themes=style.variables(),
        vega=_library(),
        mark=MARK,
        data={
            "fields": fields,
            "points": [[_short(row.get(key)) for key in fields] for row in points],
            "charts": specs,
            "links": {name: links[name] for name in link_speeds.INPUTS},
            "config": charts.CONFIG,
        },
    )
    return whole.lstrip() + "\n"


def title(groups: Sequence[MethodRuns]) -> str:
    """The heading of the page: the method or the number of methods, and the data."""
    data = _common(groups, "data", "name")
    where = f" on {Path(data).stem if '/' in data else data}" if data and data != "varies" else ""
    methods = list(dict.fromkeys(each.runs[0].algorithm for each in groups))
    if len(groups) == 1:
        return f"{groups[0].label}{where}"
    return f"{len(groups)} settings of {methods[0]}{where}" if len(methods) == 1 else f"{len(groups)} methods{where}"


def live_policy(nonce: str) -> str:
    """The content security policy of a served page, whose scripts carry the nonce."""
    return POLICY.format(
        script=f"'nonce-{nonce}'", more="; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def esc(value: object) -> str:
    """Escape text for HTML; control characters become a replacement character."""
    return str(markupsafe.escape(clean(str(value))))


def clean(value: Any) -> Any:
    """Text without control characters, which HTML does not allow; other values as they are."""
    bad = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]"
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return re.sub(bad, "\ufffd", value)
    return value


@functools.cache
def template(name: str) -> jinja2.Template:
    """A template of this folder; everything in it is escaped unless marked otherwise."""
    loader = jinja2.FileSystemLoader(FOLDER)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, finalize=clean, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(name)


@functools.cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, compressed; `tools/vega_bundle.py` writes this file."""
    return base64.b64encode((FOLDER / "vega.js.gz").read_bytes()).decode()


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else int(value) if isinstance(value, bool) else value


def _sample(slot: int) -> tuple[int, str]:
    colour, dash = style.look(slot)
    return colour, " ".join(map(str, dash)) or "none"


def _facts(groups: Sequence[MethodRuns]) -> dict[str, str]:
    alpha, scheme = _common(groups, "partition", "alpha"), _common(groups, "partition", "scheme")
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
        "Privacy": _privacy(groups),
    }
    return {key: value for key, value in facts.items() if value}


def _privacy(groups: Sequence[MethodRuns]) -> str:
    """What runs say of the privacy that they spent, once for all that say the same; empty if none says anything."""
    sentences: dict[str, list[str]] = {}
    for each in groups:
        for run in each.runs:
            spent = (run.result or {}).get("privacy")
            if isinstance(spent, dict) and isinstance(spent.get("sentence"), str):
                sentences.setdefault(spent["sentence"], []).append(each.label)
    if len(groups) == 1:
        return " ".join(sentences)
    return " ".join(f"{', '.join(dict.fromkeys(who))}: {words}" for words, who in sentences.items())


def _notices(grouping: Grouping, live: bool) -> list[str]:
    found = []
    unfinished = [(each.label, run) for each in grouping.groups for run in each.runs if not run.finished]
    if unfinished:
        listed = "; ".join(f"{name}, seed {run.seed}: {page_sections.progress(run)}" for name, run in unfinished[:6])
        more = f"; and {len(unfinished) - 6} more" if len(unfinished) > 6 else ""
        noun = "This run has" if len(unfinished) == 1 else f"{len(unfinished)} runs have"
        way = "" if live else " Continue with: headwater resume DIR"
        found.append(f"{noun} not finished ({listed}{more}).{way}")
    found += [run.damage for each in grouping.groups for run in each.runs if run.damage]
    sentences: dict[str, list[str]] = {}  # what runs say of themselves, once for all methods and seeds that say it
    for each in grouping.groups:
        for run in each.runs:
            for words in (run.result or {}).get("notes", ()):
                sentences.setdefault(str(words), []).append(f"{each.label}, seed {run.seed}")
    found += [f"{'; '.join(who[:4])}{' and more' if who[4:] else ''}: {words}." for words, who in sentences.items()]
    if grouping.dropped:
        paths = ", ".join(map(str, grouping.dropped[:4]))
        found.append(f"{len(grouping.dropped)} directories repeat a seed of the same configuration: {paths}")
        found[-1] += ". They were left out."
    if len({problem(each.runs[0]) for each in grouping.groups}) > 1:
        found.append("Not all runs have the same data and split; the best is marked among those that have.")
    return found


def _trees(groups: Sequence[MethodRuns]) -> list[tuple[str, TreeNode]]:
    """A tree per split used by the first run of a method; usually all methods share one."""
    found: dict[str, tuple[str, TreeNode]] = {}
    for each in groups:
        run = each.runs[0]
        sha = split_of(run) or str(run.path)
        if sha not in found and (root := tree(run)) is not None:
            found[sha] = (f"{each.label}, seed {run.seed}" if len(groups) > 1 else f"seed {run.seed}", root)
    return [*found.values()]


def _configuration(each: MethodRuns) -> tuple[str, str, str]:
    """Name, command to repeat the run, and the configuration as TOML."""
    run = each.runs[0]
    name = each.label if len(each.runs) == 1 else f"{each.label}, seed {run.seed}"
    known = run.path != Path()
    file = str(run.path / "config.toml") if known else "config.toml"
    again = f"{run.path}-again" if known else "again"
    return name, f"headwater run {shlex.quote(file)} --out {shlex.quote(again)}", tomli_w.dumps(run.config)


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


def _versions(runs: Sequence[RunRecord]) -> str:
    found: dict[str, set[str]] = {}
    for run in runs:
        versions = (run.result or {}).get("versions")
        for name, version in (versions if isinstance(versions, dict) else {}).items():
            found.setdefault(str(name), set()).add(str(version))
    return ", ".join(f"{name} {' / '.join(sorted(each))}" for name, each in sorted(found.items()))
