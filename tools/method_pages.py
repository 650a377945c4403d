"""Write the documentation page of a method from its file: docstring, `INFO`, source of `round`, planned cost.

The pages exist on the documentation site only (`make docs`); nothing here is edited by hand. What a page lacks belongs
into the docstring of the method's class.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import docs_tables
from docs_tables import ROOT
from headwater import presets
from headwater.algorithms import ALGORITHMS, FAMILIES, MethodInfo
from headwater.config import Config, catalog
from headwater.data.base import Data
from headwater.data.loading import open_data
from headwater.planning.planned_traffic import PlannedTraffic
from headwater.planning.rehearsal import rehearse
from headwater.theory.communication import FORMULAS
from headwater.training.experiment import prepare
from method_source import Doc, base_of, capital, doc_of, linked, listing, page_of
from proof_tables import table

PARTIES = {"server": "the server", "host": "a sector's host", "leader": "a leader", "client": "a client"}
TIERS = {"server_sector": "server – sectors", "sector_client": "sectors – clients"}
RESULTS = "experiments/fashion_mnist_methods"  # one table with every method
ROUNDS = 3  # the first often differs from the others


def pages() -> dict[str, str]:
    """Every method's page by its path."""
    data = open_data(Config().data)
    return {page_of(name): page(name, data) for name in ALGORITHMS}


# -- tables


@cache
def option_tables() -> dict[str, list[list[str]]]:
    """The rows of every method's own keys: key, accepted, default, meaning. From the configuration reference."""
    section = docs_tables.configuration().partition("\n## `[algorithm]`\n")[2].partition("\n## ")[0]
    found: dict[str, list[list[str]]] = {}
    for part in section.split("\n### ")[1:]:
        heading, _, text = part.partition("\n")
        rows = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
        found |= dict.fromkeys(re.findall(r'`"([^"]+)"`', heading), rows)
    return found


def options(name: str) -> str:
    """The keys of `[algorithm]` with the symbol that the paper has for them."""
    rows = []
    for key, accepted, default, told in option_tables().get(name, []):
        symbol, meaning = symbol_of(told)
        rows.append((key, symbol, accepted, default, meaning))
    if not rows:
        return "The method has no keys of its own."
    return table(("key", "symbol", "accepted", "default", "meaning"), rows)


def symbol_of(meaning: str) -> tuple[str, str]:
    """`μ, strength of the pull` as symbol and meaning. An English word is no symbol."""
    symbol, comma, rest = meaning.partition(", ")
    known = comma and re.fullmatch(r"\S{1,7}|κ2 \(E in MTGC\)", symbol) and not re.fullmatch(r"[\"a-z]+", symbol)
    return (symbol, rest) if known else ("", meaning)


def defaults(info: MethodInfo) -> str:
    settings = [
        f"`{section}.{key} = {value!r}`" for section, keys in info.defaults.items() for key, value in keys.items()
    ]
    return f"Where nothing is set, the method uses {', '.join(settings)}.".replace("'", '"') if settings else ""


def stage_links(kind: type) -> str:
    stages = [f"[`[{stage}]`](../configuration.md#{stage})" for stage in catalog.stage_fields(kind)]
    return f"Settings of its stages: {', '.join(stages)}." if stages else ""


def planned(name: str, data: Data) -> tuple[PlannedTraffic, int, int]:
    """What the first rounds of a run with default settings send, and how many clients hold data in how many sectors."""
    experiment = prepare(Config(algorithm={"name": name}, rounds=ROUNDS), data=data)
    rehearsal = rehearse(experiment)
    if rehearsal is None or rehearsal.traffic is None:
        raise RuntimeError(f"{name} cannot be rehearsed with its default settings")
    return rehearsal.traffic, len(experiment.tree.holders), len(experiment.tree.sectors)


def cost(name: str, info: MethodInfo, doc: Doc, data: Data) -> Iterator[str]:
    yield (
        f"Models per round, up and down between server and sectors | up and down inside sectors: **{info.models}**, "
        "for N active clients and M sectors that have any."
    )
    if doc.cost:
        yield doc.cost
    traffic, clients, sectors = planned(name, data)
    rows = []
    for tier, label in TIERS.items():
        for when, counts in (
            ("before round 1", traffic.setup[tier]),
            ("round 1", traffic.rounds[0][tier]),
            ("a later round", traffic.rounds[-1][tier]),
        ):
            numbers = ("up_bytes", "down_bytes", "up_models", "down_models", "round_trips")
            rows.append((label, when, *(f"{counts[key]:,}".replace(",", "\u00a0") for key in numbers)))
    yield (
        f"With default settings, as `headwater plan {name}` counts it by making the method's moves without training "
        f"(built-in digits, {clients} of 20 clients hold data, {sectors} sectors):"
    )
    yield table(("link", "when", "bytes up", "bytes down", "models up", "models down", "round trips"), rows)
    yield (
        "The closed form of this cost is in `headwater.theory.communication`; the tests hold it against the ledger."
        if name in FORMULAS
        else "There is no closed form of this cost in `headwater.theory`; `plan` counts it for any setting."
    )


def sees(info: MethodInfo) -> Iterator[str]:
    rows = [(label, capital(info.sees[party])) for party, label in PARTIES.items() if party in info.sees]
    yield table(("party", "sees"), rows)
    moves = [(capital(when), what) for when, what in info.moves.items()]
    if moves:
        yield table(("when", "what is sent"), moves)
    yield (
        "*This method cannot be deployed, because clients' rows leave them.*"
        if info.pooled
        else "[Who sees what](../trust.md) in a deployed federation, for all methods."
    )


def needs(info: MethodInfo) -> str:
    facts = [f"needs {', '.join(info.needs)}"] if info.needs else []
    facts += ["clients may have different networks (`model.also`)"] if info.mixed_architectures else []
    facts += ["the network must have a feature extractor and a classifier"] if info.features else []
    facts += ["every client keeps a model of its own"] if info.personal else []
    return f"{capital('; '.join(facts))}." if facts else ""


def results(name: str) -> Iterator[str]:
    """The method's row of the committed comparison of all methods, between baselines."""
    path = ROOT / RESULTS / "table.md"
    head, _, *rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    by_name = {cells(row)[0]: cells(row) for row in rows}
    if name in by_name:
        chosen = list(dict.fromkeys([name, "fedavg", "centralized", "local"]))
        yield f"[One skewed split of Fashion-MNIST](../../{RESULTS}), 3 seeds, mean ± half the 95 % interval:"
        yield table(cells(head), ([f"**{one}**" if one == name else one, *by_name[one][1:]] for one in chosen))
    else:
        yield "No result of this method is committed."
    further = [
        f"[{folder.name}](../../experiments/{folder.name})"
        for folder in sorted((ROOT / "experiments").iterdir())
        if folder.name != Path(RESULTS).name and mentions(folder, name)
    ]
    if further:
        yield f"It also takes part in {', '.join(further)}."


def mentions(folder: Path, name: str) -> bool:
    """Whether a table of an experiment has a row of this method."""
    rows = [line for file in folder.glob("*.md") for line in file.read_text(encoding="utf-8").splitlines()]
    first = {cells(row)[0].strip("*`").lower() for row in rows if row.startswith("|")}
    return name in first


def cells(row: str) -> list[str]:
    """The cells of a row of a Markdown table, without the escapes that `table` adds."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row.strip()[1:-1])]


def preset_names(name: str) -> Sequence[str]:
    """Presets that name this method themselves."""
    found = []
    for preset in presets.names():
        tree: Mapping[str, Any] = tomllib.loads(presets.text(preset))
        if tree.get("algorithm", {}).get("name") == name and not preset.endswith("common"):
            found.append(f"`{preset}`")
    return found


# -- the page


def page(name: str, data: Data) -> str:
    """The Markdown page of a method."""
    kind, info = ALGORITHMS.load(name), ALGORITHMS[name].info
    doc = doc_of(kind)
    if name != (base := base_of(kind)):
        basis = doc_of(ALGORITHMS.load(base))
        doc = Doc(doc.idea, *(getattr(doc, part) or getattr(basis, part) for part in ("source", "cost", "differences")))
    source = Path(inspect.getfile(kind)).relative_to(ROOT).as_posix()
    main, helpers = listing(kind)
    local, teachers, merging = info.stages
    parts = [
        f"# `{name}`",
        f"*{capital(info.summary)}.*",
        doc.idea,
        needs(info),
        f"```sh\nheadwater run {name}\n```",
        f'In Python: `hw.run("{name}")` or `hw.run(hw.{kind.__name__}(...))`. '
        f"Family: {info.family} ({FAMILIES[info.family]}).",
        "## Where it comes from",
        doc.source or "Not from a paper.",
        "## A round",
        table(
            ("stage", "what happens"),
            (("local training", local), ("who teaches", teachers), ("consolidation", merging)),
        ),
        f"The source of `round`, from [`{source}`](../../{source}); [the verbs](../places.md) `up`, `down`, `hand` and "
        "`run` are those of every method.",
        f"```python\n{main.strip()}\n```",
    ]
    if helpers:
        indented = textwrap.indent(f"```python\n{helpers.strip()}\n```", "    ")
        opened = "???+" if len(main) < len(helpers) else "???"
        parts.append(f'{opened} note "What it calls in the same file"\n\n{indented}')
    parts += ["## Options", "Keys of `[algorithm]`:", options(name), stage_links(kind), defaults(info)]
    if made := preset_names(name):
        parts.append(f"Presets with published settings: {', '.join(made)}.")
    parts += ["## Cost", *cost(name, info, doc, data), "## What each party sees", *sees(info)]
    parts += ["## Differences from paper and code", doc.differences or "None known.", "## Our results", *results(name)]
    prose = (part if "```" in part else linked(part, name) for part in parts if part)
    return "\n\n".join(prose) + "\n"
