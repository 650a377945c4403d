"""`headwater predict` and `headwater export`: use a trained model."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from headwater.cli.options import Options, takes
from headwater.cli.terminal import print_lines, say, status
from headwater.errors import ConfigError, OutputError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from headwater.inference.trained import TrainedModel

Source = Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, or its model.safetensors.")]
Input = Annotated[str, typer.Argument(metavar="INPUT", help="A .csv, .tsv, .parquet or .npz file, image or folder.")]
Member = Annotated[
    str, typer.Option("--member", metavar="NAME", help="One of several models, such as a client's personal one.")
]
Together = Annotated[
    bool, typer.Option("--ensemble", help="All models that the method keeps, voting together, such as FedEED's.")
]
Batch = Annotated[int, typer.Option("--batch", metavar="N", help="Rows of a forward pass.")]
All = Annotated[bool, typer.Option("--all", help="The probability of every class, not only of the most likely one.")]
To = Annotated[str, typer.Option("--to", metavar="onnx|torchscript", help="The format.")]
File = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where it goes; else standard output.")]
Target = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where it goes; else beside the model.")]


@takes("quiet json")
def predict(
    options: Options,
    directory: Source,
    data: Input,
    out: File = None,
    member: Member = "",
    together: Together = False,
    batch: Batch = 256,
    every: All = False,
) -> None:
    """Use a trained model on new data: class and probability by row.

    The data is prepared as in training: columns by name, images by size. Example: headwater predict runs/latest new.csv
    """
    from headwater.inference.trained import load

    if out is not None and out.is_dir():
        raise OutputError(f"{out} is a directory; --out takes the name of a file")
    with status(f"reading {data} …", options.quiet):
        model = _chosen(load(directory), member, together)
        names, rows = model.reader(say).names(data), _rows(model, data, batch, every)
        first = next(rows, None)  # so that a mistake in the data is found before the file is written
    if first is None:
        raise ConfigError(f"{data} has no rows")
    as_json = options.json or (out is not None and out.suffix.lower() == ".json")
    written = io.StringIO()
    with status("predicting …", options.quiet):
        count = _write(_joined(first, rows), names, written, as_json)
    if out is None:
        sys.stdout.write(written.getvalue())
    else:
        from headwater.training.checkpoint import write_whole

        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, written.getvalue())
        say(f"{count} rows are in {out}")


def _chosen(model: TrainedModel, member: str, together: bool) -> TrainedModel:
    if member and together:
        raise ConfigError(f"--ensemble uses all members and --member {member} one of them; give one of the two")
    return model.member(member) if member else model.as_ensemble() if together else model


def _rows(model: TrainedModel, data: str, batch: int, every: bool) -> Iterator[dict[str, Any]]:
    for probabilities in model.probabilities(data, batch, say):
        for row in probabilities:
            best = int(row.argmax())
            answer: dict[str, Any] = {"class": model.class_names[best], "probability": round(float(row[best]), 6)}
            if every:
                answer |= {f"p({name})": round(float(p), 6) for name, p in zip(model.class_names, row, strict=True)}
            yield answer


def _joined(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from rest


def _write(rows: Iterator[dict[str, Any]], names: Sequence[str] | None, file: TextIO, as_json: bool) -> int:
    numbered = (
        {"row": number, **({"file": names[number - 1]} if names else {}), **row} for number, row in enumerate(rows, 1)
    )
    if as_json:
        listed = list(numbered)
        file.write(json.dumps(listed, indent=1) + "\n")
        return len(listed)
    writer: csv.DictWriter[str] | None = None
    count = 0
    for row in numbered:
        if writer is None:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
        count += 1
    return count


@takes("quiet data_dir")
def export(
    options: Options,
    directory: Source,
    to: To,
    out: Target = None,
    member: Member = "",
    together: Together = False,
    batch: Batch = 256,
) -> None:
    """Write a trained model for other runtimes, and check it there on the test set.

    Its input `x` is what the model takes (see model.md for the preparation), its output are the logits.
    Example: headwater export runs/latest --to onnx
    """
    from headwater.inference.export import ENDINGS, compare
    from headwater.inference.export import export as write
    from headwater.inference.trained import load

    if to not in ENDINGS:
        raise ConfigError(f"--to takes {' or '.join(ENDINGS)}, got {to!r}")
    with status(f"reading {directory} …", options.quiet):
        model = _chosen(load(directory), member, together)
    folder = directory if directory.is_dir() else directory.parent
    which = f"-{member}" if member else "-ensemble" if together else ""
    path = out or folder / f"model{which}{ENDINGS.get(to, '')}"
    with status(f"writing {path} …", options.quiet):
        write(model, to, path)
    with status("checking it on the test set …", options.quiet):
        rows, where = _test_rows(model, folder, options)
        found = compare(model, to, path, (rows[at : at + batch] for at in range(0, len(rows), batch)))
    print_lines(
        f"{path}: the same class for {found.same_class} of {found.rows} {where}; probabilities differ by at most "
        f"{found.difference:.1e}"
    )


def _test_rows(model: TrainedModel, folder: Path, options: Options) -> tuple[Tensor, str]:
    """The test set of the run, or artificial inputs if its data is not here."""
    from headwater.cli.directories import CONFIG, stored
    from headwater.config.load import nested
    from headwater.training.experiment import prepare

    if (folder / CONFIG).exists():
        try:
            split = prepare(stored(folder).merged(nested(options.keys()))).split
            return split.test.x, "rows of the test set"
        except UserError as error:
            say(f"the test set is not here ({error}); the file is checked on artificial inputs")
    return model.spec.probe(64), "artificial inputs"
