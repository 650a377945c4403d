"""The options that commands share, each defined once, and the function that turns them into a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.config import Config

Source = Annotated[str | None, typer.Argument(metavar="[PRESET or FILE.toml]", show_default=False)]
Based = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="PRESET or FILE.toml", help="What the compared runs share; the defaults if left out."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any configuration key, such as local.lr=0.05; repeatable."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed that everything random follows from.")]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="0,1,2", help="Several seeds, each a run.")]
Rounds = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Rounds to train for.")]
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
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where data sets are; else HEADWATER_DATA, else the cache."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[
    bool, typer.Option("--json", help="Machine output on standard output, everything else on standard error.")
]
Force = Annotated[bool, typer.Option("--force", help="Start anew where the directory holds another run.")]


def direct(
    seed: int | None = None,
    rounds: int | None = None,
    engine: str | None = None,
    workers: int | None = None,
    data_dir: Path | None = None,
    address: str | None = None,
) -> dict[str, Any]:
    """The options that were given, by the configuration key that each stands for."""
    if address is not None and engine not in (None, "ray"):
        raise ConfigError(f"--address is that of a Ray cluster and belongs to --engine ray, not to --engine {engine}")
    given = {
        "seed": seed,
        "rounds": rounds,
        "engine__name": engine if address is None else "ray",
        "engine__address": address,
        "engine__workers": workers,
        "data__dir": None if data_dir is None else str(data_dir.expanduser().resolve()),
    }
    return {key: value for key, value in given.items() if value is not None}


def configure(source: str | None, sets: list[str] | None, **options: Any) -> Config:
    """The configuration that a command line asks for."""
    from headwater.config import Config

    return Config.load(source, sets or [], **direct(**options))


def several(text: str | None, alone: int | None) -> list[int | None]:
    """The seeds of `--seeds`, else the one of `--seed`, else whatever the configuration says (None)."""
    if text is not None and alone is not None:
        raise ConfigError("--seed and --seeds were both given; use --seeds for several runs, --seed for one")
    if text is None:
        return [alone]
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seeds takes whole numbers with commas between them, such as 0,1,2, got {text!r}"
        ) from None
    repeated = [seed for seed in found if found.count(seed) > 1]
    if repeated:
        raise ConfigError(f"--seeds names {repeated[0]} twice; a run that is repeated adds nothing, got {text!r}")
    return [*found]
