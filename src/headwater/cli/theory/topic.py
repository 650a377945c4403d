"""How a topic becomes a command, its options, and errors of the calculators as messages to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand

from headwater.cli.options import Json
from headwater.cli.terminal import as_json
from headwater.errors import ConfigError

Facts = dict[str, Any]
Options = SimpleNamespace  # the options of a topic, by name
Option = tuple[Any, Any]  # annotation of a command's parameter, and its default


@dataclass(frozen=True)
class Topic:
    """A topic of `headwater theory`.

    Args:
        facts: works the topic out from its options; its docstring is the help text.
        show: prints what `facts` returned.
        options: by name, without --json, which every topic has.
    """

    facts: Callable[[Options], Facts]
    show: Callable[[Facts], None]
    options: dict[str, Option]

    def by_default(self) -> Facts:
        """The topic if no option is given."""
        return self.facts(Options(**{name: default for name, (_, default) in self.options.items()}))

    def command(self) -> Callable[..., None]:
        """The topic as a function with a parameter for each option, as Typer wants it."""

        def call(json: bool, **values: Any) -> None:
            result = self.facts(Options(**values))
            as_json(result) if json else self.show(result)

        options = self.options | {"json": (Json, False)}
        parameters = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # read by Typer
        call.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
        call.__doc__ = self.facts.__doc__
        return call


def topic(show: Callable[[Facts], None], **options: Option) -> Callable[[Callable[[Options], Facts]], Topic]:
    """Makes a topic of a function from options to facts."""
    return lambda facts: Topic(facts, show, options)


class TopicCommand(TyperCommand):
    """Typer puts a backslash before the bracket of a default, as rich wants it, even where rich is switched off."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")


def number(names: str, default: float | None, help: str) -> Option:
    """An option that takes a number; `names` are separated by spaces."""
    kind = float | None if default is None else float
    return Annotated[kind, typer.Option(*names.split(), metavar="NUMBER", help=help)], default


def whole(names: str, default: int | None, help: str) -> Option:
    """An option that takes a whole number of 1 or more."""
    kind = int | None if default is None else int
    return Annotated[kind, typer.Option(*names.split(), metavar="N", min=1, help=help)], default


def listed(name: str, default: str | None, help: str) -> Option:
    """An option that takes several numbers, see `numbers` and `counts`."""
    kind = str | None if default is None else str
    return Annotated[kind, typer.Option(name, metavar="X,Y,…", help=help, show_default=False)], default


def numbers(text: str, option: str) -> list[float]:
    """The numbers of an option that takes several."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} takes numbers with commas between them, such as 0.5,0.25, got {text!r}") from None


def counts(text: str, option: str) -> list[int]:
    """The whole numbers, each 1 or more, of an option that takes several."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise ConfigError(f"{option} takes whole numbers of 1 or more with commas between them, got {text!r}")
    return values


@contextmanager
def refusing() -> Iterator[None]:
    """Turns a calculator's ValueError into a ConfigError. Its inputs have the names of the options."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def short(value: float) -> str:
    """A number in four figures."""
    return f"{value:.4g}"
