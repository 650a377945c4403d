"""Command-line options that several commands share, each defined once.

A command lists the shared options that it takes with `@takes` and receives their values as one `Options` object.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.config import Config

Result = TypeVar("Result")

Source = Annotated[str | None, typer.Argument(metavar="[PRESET or FILE.toml]", show_default=False)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any configuration key, such as local.lr=0.05; repeatable."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed that everything random follows from.")]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="0,1,2", help="Several seeds, each a run.")]
Rounds = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Rounds to train for.")]
Target = Annotated[
    float | None,
    typer.Option(
        "--target", metavar="ACCURACY", help="Count rounds and bytes to this accuracy; else the highest that all reach."
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="NAME", help="Show differences to this one, paired by seed; else to the first."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where results go.")]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="inline|pool|ray", help="Where tasks are computed; results do not depend on it."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="The Ray cluster of --engine ray, or auto for the one of this machine; without it, one is started here.",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", help="Processes of the engine; 0 for as many as cores.")
]
RunsAtOnce = Annotated[
    int | None, typer.Option("--workers", metavar="N", help="Runs at once; 0 for as many as there are cores.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="auto|cpu|cuda|cuda:N|mps", help="Computes on a GPU; auto: if there is one."),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where data sets are; else HEADWATER_DATA, else the cache."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[
    bool, typer.Option("--json", help="Machine output on standard output, everything else on standard error.")
]
Force = Annotated[bool, typer.Option("--force", help="Start anew where the directory holds another run.")]


@dataclass(frozen=True)
class Options:
    """Values of the shared options; those that a command does not take keep their defaults."""

    sets: Sets = None
    seed: Seed = None
    seeds: Seeds = None
    rounds: Rounds = None
    out: Out = None
    engine: Engine = None
    address: Address = None
    workers: Workers = None
    device: Device = None
    data_dir: DataDir = None
    quiet: Quiet = False
    json: Json = False
    force: Force = False

    def keys(self) -> dict[str, Any]:
        """Configuration keys of the options that were given, with `__` between section and key."""
        if self.address is not None and self.engine not in (None, "ray"):
            raise ConfigError(
                f"--address is that of a Ray cluster and belongs to --engine ray, not to --engine {self.engine}"
            )
        keys = {
            "seed": self.seed,
            "rounds": self.rounds,
            "engine__name": self.engine if self.address is None else "ray",
            "engine__address": self.address,
            "engine__workers": self.workers,
            "engine__device": self.device,
            "data__dir": None if self.data_dir is None else str(self.data_dir.expanduser().resolve()),
        }
        return {key: value for key, value in keys.items() if value is not None}

    def config(self, source: str | None) -> Config:
        """The configuration of a preset or file with these options applied."""
        from headwater.config import Config

        return Config.load(source, self.sets or [], **self.keys())

    def all_seeds(self) -> list[int | None]:
        """The seeds of `--seeds`, else the one of `--seed`, else None: the seed of the configuration."""
        if self.seeds is None:
            return [self.seed]
        if self.seed is not None:
            raise ConfigError("--seed and --seeds were both given; use --seeds for several runs, --seed for one")
        try:
            seeds = [int(part) for part in self.seeds.split(",")]
        except ValueError:
            raise ConfigError(
                f"--seeds takes whole numbers with commas between them, such as 0,1,2, got {self.seeds!r}"
            ) from None
        repeated = [seed for seed in seeds if seeds.count(seed) > 1]
        if repeated:
            raise ConfigError(
                f"--seeds names {repeated[0]} twice; a run that is repeated adds nothing, got {self.seeds!r}"
            )
        return [*seeds]


def command_group(name: str, help: str, **settings: Any) -> typer.Typer:
    """A group of commands."""
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(name=name, help=help, rich_markup_mode=None, context_settings=names, **settings)


def takes(names: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Adds shared options to a command, whose parameter `options` receives their values.

    Args:
        names: fields of `Options`, separated by spaces, in the order of the help text. A parameter of the command
            may be named among them to take that place; its other parameters come first.
    """
    listed = names.split()

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        own = dict(inspect.signature(command, eval_str=True).parameters)
        del own["options"]
        hints, kind = get_type_hints(Options, include_extras=True), inspect.Parameter.KEYWORD_ONLY
        shared = {
            name: inspect.Parameter(name, kind, default=getattr(Options, name), annotation=hints[name])
            for name in listed
            if name not in own
        }
        order = [*(name for name in own if name not in listed), *listed]
        parameters = [(own | shared)[name].replace(kind=kind) for name in order]

        @functools.wraps(command)
        def call(**values: Any) -> Result:
            options = Options(**{name: values.pop(name) for name in shared})
            return command(options=options, **values)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by Typer
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate
