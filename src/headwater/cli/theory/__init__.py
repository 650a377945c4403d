"""`headwater theory`: the papers' bounds and conditions as a calculator, one topic each."""

from __future__ import annotations

import typer

from headwater.cli.options import Json, command_group
from headwater.cli.terminal import as_json, console
from headwater.cli.theory import bounds, communication, rates
from headwater.cli.theory.topic import TopicCommand

app = command_group(
    "theory", "The papers' bounds and conditions as a calculator. Without a topic, all of them with their defaults."
)
TOPICS = {
    "communication": communication.communication,
    "bounds": bounds.bounds,
    "mtgc": rates.mtgc,
    "fedhkd": rates.fedhkd,
    "feddf": rates.feddf,
}
for _name, _topic in TOPICS.items():
    app.command(_name, cls=TopicCommand)(_topic.command())


@app.callback(invoke_without_command=True)
def _group(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is not None:
        return
    results = {name: topic.by_default() for name, topic in TOPICS.items()}
    if json:
        as_json(results)
        return
    for name, topic in TOPICS.items():
        topic.show(results[name])
        console().print(f"Other values: headwater theory {name} --help\n")
