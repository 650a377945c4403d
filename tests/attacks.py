"""What a hostile host or server asks of a client, for tests: rows by crafted models, releases without noise or many
times, and steps drawn at random from the library's own tasks."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from typing import Any

import torch
from torch import Tensor, nn

from headwater.core.params import Params
from headwater.deploy import steps
from headwater.deploy.payload import PayloadReader, pack
from headwater.deploy.transport import Message
from headwater.engines.jobs import Bundle, Job, Ref
from headwater.tasks.knowledge import Release, knowledge
from headwater.tasks.teacher_outputs import answer
from headwater.training.experiment import Experiment


def peeping_models(made: Experiment) -> dict[str, Params]:
    """Models whose logits are columns of the input."""
    columns, classes = made.split.train.x[0].numel(), made.split.classes
    models = {}
    for first in range(0, columns, classes):
        module = made.model.build()
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer in layers:
                layer.weight.zero_()
                layer.bias.zero_()
            shown = range(first, min(first + classes, columns))
            for at, column in enumerate(shown):  # x is relu(x) minus relu(-x)
                layers[0].weight[2 * at, column], layers[0].weight[2 * at + 1, column] = 1.0, -1.0
                layers[-1].weight[at, 2 * at], layers[-1].weight[at, 2 * at + 1] = 1.0, -1.0
            for layer in layers[1:-1]:
                layer.weight.copy_(torch.eye(*layer.weight.shape))
        models[f"m{first}"] = Params.of(module, made.model.name, made.model.buffers)
    return models


def peep(made: Experiment, client: str, head: dict[str, Any], to: str) -> Message:
    """A message that asks for the logits of these models on the client's rows."""
    models = peeping_models(made)
    members = Bundle({name: Ref(f"1.1.{name}", client) for name in models})
    job = Job("1.2.answer@x", answer, client, client, {"members": members}, (1, "answer", 0, client))
    move = steps.Move(Ref(job.name, client), to, "1.3.x")
    values = {f"1.1.{name}": model for name, model in models.items()}
    return pack(head | {"round": 1, "keep": {client: [*values]}, "steps": [*map(steps.encode, (job, move))]}, values)


def rows_seen(reply: Message, made: Experiment) -> Tensor | None:
    """The client's rows, if the reply shows them."""
    values = PayloadReader(made.models, 1 << 30).unpack(reply)
    if not values:
        return None
    (outputs,) = values.values()
    columns = torch.cat([outputs[f"m{at}"]["inputs"] for at in range(0, 64, 10)], dim=1)
    return columns[:, :64]


def means(
    made: Experiment, client: str, head: dict[str, Any], model: Params, release: Release, nth: int = 0, number: int = 2
) -> Message:
    """A message that asks for class means, with a release of the sender's choice."""
    inputs = {"model": Ref("1.1.m", client), "release": release}
    job = Job(f"1.{number}.knowledge@{client}", knowledge, client, client, inputs, (1, "knowledge", nth, client))
    move = steps.Move(Ref(job.name, client), "server", f"1.{number + 1}.x", ("server_sector", "sector_client"))
    rest = {"round": 1, "keep": {client: ["1.1.m"]}, "steps": [*map(steps.encode, (job, move))]}
    return pack(head | rest, {"1.1.m": model})


def library_tasks() -> list[Any]:
    """All tasks of the library."""
    found = {}
    for package in ("tasks", "algorithms"):
        root = importlib.import_module(f"headwater.{package}")
        for info in pkgutil.iter_modules(root.__path__):
            module = importlib.import_module(f"headwater.{package}.{info.name}")
            for name, thing in vars(module).items():
                if callable(thing) and hasattr(thing, "shows_rows") and thing.__module__ == module.__name__:
                    found[f"{thing.__module__}:{name}"] = thing
    return [found[name] for name in sorted(found)]


def random_steps(made: Experiment, client: str, own: list[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """A few steps: a task of the library with inputs of any kind, or one of the method's own, changed or repeated.

    Args:
        own: encoded steps of the method at this client, to be changed.
    """
    number, sector = draw.randrange(1000, 9999), made.tree.sector_of[client]
    ends = ["server", sector, client, *made.tree.holders]
    if own and draw.random() < 0.4:
        row = dict(draw.choice(own))
        changes = [("key", [1, "x", draw.randrange(50), client]), ("name", f"1.{number}.y"), ("node", sector)]
        changes += [("home", draw.choice(ends)), ("tiers", []), ("inputs", {"$": "dict", "items": []})]
        changed = [change for change in changes if change[0] in row and row[change[0]] != change[1]]
        chosen = dict(draw.sample(changed, draw.randint(1, len(changed))))
        if chosen.keys() == {"name"}:  # under another name it would be the method's own step
            chosen["home"] = "nobody"
        return [row | chosen]
    task = draw.choice(library_tasks())
    names = [name for name in inspect.signature(task).parameters if name not in ("ctx", "spec")]
    held = [Ref(name, client) for name in ("1.1.m", "1.1.n", "0.1.x")]
    kinds: list[Any] = [*held, Bundle({"a": held[0], "b": held[1]}), 0, 1, 0.0, "samples", None, (0, 1)]
    inputs = {name: draw.choice(kinds) for name in names}
    job = Job(f"1.{number}.x", task, client, client, inputs, (1, task.__name__, draw.randrange(3), client))
    move = steps.Move(
        Ref(job.name, client), draw.choice(ends), f"1.{number + 1}.x", draw.choice(((), ("sector_client",)))
    )
    return [steps.encode(job), steps.encode(move)]
