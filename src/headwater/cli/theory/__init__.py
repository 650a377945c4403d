"""`headwater theory`: the papers' bounds and conditions as a calculator, one topic each."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import typer

from headwater.cli.options import Json
from headwater.cli.terminal import as_json, console
from headwater.cli.theory import bounds, communication, rates
from headwater.cli.theory.inputs import Facts, Options, Topic

app = typer.Typer(
    name="theory",
    help="The papers' bounds and conditions as a calculator. Without a topic, all of them with their defaults.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# What each topic works out, and how it is shown.
TOPICS: dict[str, tuple[Callable[..., None], Callable[[Options], Facts], Callable[[Facts], None]]] = {
    "communication": (communication.communication, communication.facts, communication.show),
    "bounds": (bounds.bounds, bounds.facts, bounds.show),
    "mtgc": (rates.mtgc, rates.mtgc_facts, rates.mtgc_show),
    "fedhkd": (rates.fedhkd, rates.fedhkd_facts, rates.fedhkd_show),
    "feddf": (rates.feddf, rates.feddf_facts, rates.feddf_show),
}
for _name, _parts in TOPICS.items():
    app.command(_name, cls=Topic)(_parts[0])


@app.callback(invoke_without_command=True)
def _group(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is not None:
        return
    results = {topic: facts(_defaults(command)) for topic, (command, facts, _) in TOPICS.items()}
    if json:
        as_json(results)
        return
    for topic, (_, _, show) in TOPICS.items():
        show(results[topic])
        console().print(f"Other values: headwater theory {topic} --help\n")


def _defaults(command: Callable[..., None]) -> Options:
    """The options of a topic if none is given."""
    return Options(**{name: option.default for name, option in inspect.signature(command).parameters.items()})
