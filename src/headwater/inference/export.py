"""Write a trained model for other runtimes, and check that it computes the same there."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from headwater.errors import ConfigError, MissingExtra, OutputError, said
from headwater.inference.trained import TrainedModel

Format = Literal["onnx", "torchscript"]
ENDINGS: dict[str, str] = {"onnx": ".onnx", "torchscript": ".pt"}
TOLERANCE = 1e-3  # of probabilities: other runtimes sum in another order


@dataclass(frozen=True)
class ExportCheck:
    """How far the exported model agrees with the original.

    Args:
        rows: inputs that both were run on.
        same_class: how many of them get the same class.
        difference: the largest difference of a probability.
    """

    rows: int
    same_class: int
    difference: float


def export(model: TrainedModel, to: str, path: Path) -> Path:
    """Write the model. Its input is `x`, prepared as in training; its output is `logits`.

    Args:
        model: the model.
        to: "onnx" or "torchscript".
        path: the file.

    Raises:
        ConfigError: there is no such format.
        OutputError: the module uses an operation that the format does not support.
    """
    if to not in get_args(Format):
        raise ConfigError(f"a model is exported to {' or '.join(get_args(Format))}, got {to!r}")
    module, probe = model.module, model.spec.probe()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # both exporters are kept by torch, which prefers newer ones
            if to == "torchscript":
                torch.jit.trace(module, probe, check_trace=False).save(str(path))  # type: ignore[no-untyped-call]
            else:
                _onnx(module, probe, path)
    except ImportError as error:
        raise MissingExtra("export to ONNX", "export") from error
    except (RuntimeError, ValueError, TypeError, torch.onnx.errors.OnnxExporterError) as error:
        raise OutputError(
            f"{model.spec.name!r} cannot be exported to {to} ({said(error)}); try another format"
        ) from error
    return path


def _onnx(module: nn.Module, probe: Tensor, path: Path) -> None:
    import onnx  # noqa: F401 (torch needs it, and says so less clearly)

    rows = {"x": {0: "rows"}, "logits": {0: "rows"}}
    named: dict[str, Any] = {"input_names": ["x"], "output_names": ["logits"], "dynamic_axes": rows}
    torch.onnx.export(module, (probe,), str(path), dynamo=False, **named)


def compare(model: TrainedModel, to: str, path: Path, batches: Iterable[Tensor]) -> ExportCheck:
    """Run the original and the exported file on the same inputs.

    Args:
        model: the original.
        to: the format of the file.
        path: the file.
        batches: inputs as the model takes them.

    Raises:
        OutputError: the file cannot be run, or gives other probabilities.
    """
    run, rows, same, worst = _runner(to, path), 0, 0, 0.0
    for x in batches:
        with torch.no_grad():
            ours, theirs = torch.softmax(model.module(x), 1), torch.softmax(run(x), 1)
        rows += len(x)
        same += int((ours.argmax(1) == theirs.argmax(1)).sum())
        worst = max(worst, float((ours - theirs).abs().max()) if len(x) else 0.0)
    if not np.isfinite(worst) or worst > TOLERANCE:
        raise OutputError(
            f"{path} gives other probabilities than the model, by up to {worst:.3g}; do not use it: the model computes "
            f"something that {to} does not keep, such as a shape that depends on the input"
        )
    return ExportCheck(rows, same, worst)


def _runner(to: str, path: Path) -> Any:
    if to == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in `export`
            return torch.jit.load(str(path))  # type: ignore[no-untyped-call]
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("checking an ONNX file", "export") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
