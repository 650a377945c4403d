"""`headwater theory`: the papers' bounds and conditions as a calculator, a topic each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from headwater.cli.options import Json
from headwater.cli.show import as_json
from headwater.cli.show import out as console
from headwater.cli.theory import bounds, communication, fedhkd, rates
from headwater.cli.theory.inputs import Topic

app = typer.Typer(
    name="theory",
    help="The papers' bounds and conditions as a calculator. Without a topic, all of them with their defaults.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# What each topic works out, and how it is shown.
TOPICS: dict[str, tuple[Callable[..., None], Callable[..., dict[str, Any]], Callable[[dict[str, Any]], None]]] = {
    "communication": (communication.communication, communication.facts, communication.show),
    "bounds": (bounds.bounds, bounds.facts, bounds.show),
    "mtgc": (rates.mtgc, rates.mtgc_facts, rates.mtgc_show),
    "fedhkd": (fedhkd.fedhkd, fedhkd.facts, fedhkd.show),
    "feddf": (rates.feddf, rates.feddf_facts, rates.feddf_show),
}
for _name, _parts in TOPICS.items():
    app.command(_name, cls=Topic)(_parts[0])


@app.callback(invoke_without_command=True)
def _group(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is not None:
        return
    found = {topic: facts(**_defaults(command, facts)) for topic, (command, facts, _) in TOPICS.items()}
    if json:
        as_json(found)
        return
    for topic, (_, _, show) in TOPICS.items():
        show(found[topic])
        console().print(f"Other values: headwater theory {topic} --help\n")


def _defaults(command: Callable[..., None], facts: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """The values that a topic's options have when none is given."""
    options = inspect.signature(command).parameters
    return {name: options[name].default for name in inspect.signature(facts).parameters}
