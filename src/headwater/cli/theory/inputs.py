"""What the topics share: numbers as options, and errors of the calculators as messages to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click
import typer
from typer.core import TyperCommand

from headwater.cli.terminal import as_json
from headwater.errors import ConfigError


class Topic(TyperCommand):
    """Typer puts a backslash before the bracket of a default, as rich wants it, even where rich is switched off."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")


def number(*names: str, help: str) -> Any:
    return typer.Option(*names, metavar="NUMBER", help=help)


def whole(*names: str, help: str, least: int = 1) -> Any:
    return typer.Option(*names, metavar="N", min=least, help=help)


def listed(*names: str, help: str) -> Any:
    return typer.Option(*names, metavar="X,Y,…", help=help, show_default=False)


def numbers(text: str, option: str) -> list[float]:
    """The numbers of an option that takes several."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} takes numbers with commas between them, such as 0.5,0.25, got {text!r}") from None


def counts(text: str, option: str) -> list[int]:
    """The whole numbers, each 1 or more, of an option that takes several."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ConfigError(f"{option} takes whole numbers of 1 or more with commas between them, got {text!r}")
    return found


@contextmanager
def refusing() -> Iterator[None]:
    """Turns a calculator's ValueError, which names its input as the option is named, into a ConfigError."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


Facts = dict[str, Any]
Options = SimpleNamespace  # the options of a topic, by the names of the command's arguments


def tell(arguments: dict[str, Any], facts: Callable[[Options], Facts], show: Callable[[Facts], None]) -> None:
    """Work out a topic and show it, or print it as JSON.

    Args:
        arguments: the command's own arguments by name.
        facts: works out the topic from its options.
        show: prints what `facts` returned.
    """
    result = facts(Options(**arguments))
    if arguments["json"]:
        as_json(result)
    else:
        show(result)


def short(value: float) -> str:
    """A number in four figures."""
    return f"{value:.4g}"
