"""What `test_pretend.py` runs in a process of its own, with a device that is only pretended: prints JSON by case."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import headwater as hw
import pretend
import toys
from headwater.core.params import Params
from headwater.errors import OutputError
from headwater.specs import LocalSpec
from headwater.tasks.local import Batch, local_train
from headwater.training.experiment import prepare
from headwater.training.loop import Event, train
from headwater.training.result import Run

DATA = toys.tiny_data()
HERE = {"device": pretend.NAME}


def images() -> hw.Data:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 3, 8, 8)).astype("float32"), np.arange(50) % 3
    return hw.Data(x[:36], y[:36], x[36:], y[36:], class_names=["a", "b", "c"])


# Settings by which a case differs from the method's own: paths that the defaults do not take.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam, clipped": ("fedavg", {"local": {"optimizer": "adam", "clip": 0.5}, "engine": {"stack": "off"}}),
    "momentum, stacked": ("fedavg", {"local": {"optimizer": "sgd", "momentum": 0.9}, "engine": {"stack": "on"}}),
    "one bit": ("fedavg", {"local": {"low_bit": "straight-through"}}),
    "own tests": ("fedavg", {"partition": {"local_test": 0.3}}),
    "few rows stay": ("fedhead", {"engine": {"device_memory": 0.0005}}),
    "batch norm, augmented": (
        "fedavg",
        {
            "arrays": "images",
            "model": {"name": "resnet8"},
            "local": {"augment": "crop-flip", "batch": 16},
            "engine": {"stack": "off"},  # stacks are compared below
        },
    ),
    "learned weights": ("feddf", {"server": {"weights": "learned"}}),
    "learned weights of logits": ("feddf", {"server": {"weights": "learned", "mix": "logits"}}),
    "confidence": ("feddf", {"server": {"weights": "confidence", "mix": "losses"}}),
    "label counts": ("feddf", {"server": {"weights": "labels", "mix": "probs"}}),
    "averaged weights": ("feddf", {"server": {"swa_from": 1, "swa_every": 1, "labelled": 0.5, "restore": "last"}}),
    "swag": ("feddf", {"algorithm": {"swag": 2, "drop_worst": True}}),
    "unit deltas": ("fedbe", {"algorithm": {"sampler": "gaussian-as-coded"}}),
    "mixtures": ("fedbe", {"algorithm": {"sampler": "dirichlet"}}),
    "noise": ("fedhkd", {"algorithm": {"sigma": 1.0}}),
    "public soft labels": ("fedmd", {"algorithm": {"flavour": "fedhkd"}}),
    "filters": ("fedma", {"arrays": "images", "model": {"name": "cnn", "norm": "none"}, "local": {"batch": 16}}),
    "fedgen": ("fedgen", {"algorithm": {"gen_epochs": 3}}),
}


def both(name: str) -> dict[str, Any]:
    """A case, or a method with small settings, on the CPU and on the device."""
    method, changed = CASES.get(name, (name, {}))
    options = {"arrays": DATA, **changed}
    engine = options.pop("engine", {})
    of = of_images if options["arrays"] == "images" else toys.tiny
    made = [of(method, engine=engine | here, **options) for here in ({}, HERE)]
    before = dict(pretend.crossings)
    mine, theirs = (train(each) for each in made)
    return {
        "hashes": [each.result["model_sha256"] for each in (mine, theirs)],
        "rows": [rows_of(mine), rows_of(theirs)],
        "device": [each.result["device"]["type"] for each in (mine, theirs)],
        "crossed": pretend.crossings["there"] - before["there"],
    }


def of_images(
    method: str, engine: dict[str, Any], model: dict[str, Any], local: dict[str, Any], arrays: str = "", **more: Any
) -> Any:
    config = hw.Config(
        rounds=1,
        data={"name": "arrays"},
        partition={"clients": 2, "sectors": 1, "scheme": "iid"},
        engine={"name": "inline"} | engine,
        model=model,
        local={"epochs": 1} | local,
        algorithm={"name": method},
        **more,
    )
    return prepare(config, data=images())


# Networks for images, which are stacked on a device without being told to.
STACKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "stacked: cnn": ("fedavg", {"name": "cnn", "widths": [4]}, {}),
    "stacked: no norm": ("fedprox", {"name": "cnn", "widths": [4], "norm": "none"}, {}),
    "stacked: group norm": ("scaffold", {"name": "cnn", "widths": [4], "norm": "group"}, {"momentum": 0.0}),
    "stacked: feddyn": ("feddyn", {"name": "cnn", "widths": [4]}, {"augment": "crop-flip"}),
    "stacked: resnet8": ("fedavg", {"name": "resnet8"}, {"optimizer": "adam", "lr": 0.001}),
    "stacked: fedhead": ("fedhead", {"name": "resnet8", "shortcut": "padding"}, {}),
}


def stacked(name: str) -> dict[str, Any]:
    """Stacked on the device, where that is the default, and on the CPU, where it is asked for; and a loop."""
    method, model, local = STACKS[name]
    local = {"batch": 8, "optimizer": "sgd", "lr": 0.05} | local
    ways = (HERE, {"stack": "on"}, HERE | {"stack": "off"}, {})
    made = [of_images(method, engine, model, local) for engine in ways]
    runs = [train(each) for each in made[:3]]
    here, _, loop = ({name: model.vector for name, model in run.params.items()} for run in runs)
    return {
        "hashes": [run.result["model_sha256"] for run in runs],
        "ways": [each.stacking.way for each in made],
        "gap": max(float((here[name] - loop[name]).abs().max()) for name in here),
        "loss": [run.history[0].get("loss") for run in runs],
    }


def stacked_workers() -> dict[str, Any]:
    """Stacks on the device in one process and in worker processes."""
    method, model, local = STACKS["stacked: cnn"]
    with sitecustomized():
        engines = [HERE | {"name": name, "workers": 2} for name in ("inline", "pool")]
        runs = [train(of_images(method, engine, model, local | {"batch": 8})) for engine in engines]
    return {"hashes": [run.result["model_sha256"] for run in runs], "way": runs[0].result["stacking"]["way"]}


def rows_of(run: Run) -> str:
    return json.dumps([{k: v for k, v in row.items() if "seconds" not in k} for row in run.history], sort_keys=True)


def resumed() -> dict[str, Any]:
    """A run on the device that stops and carries on; on the CPU it is refused until that is allowed."""

    def stop(event: Event) -> None:
        if event.kind == "round":
            raise KeyboardInterrupt

    whole = train(toys.tiny("fedhead", arrays=DATA, engine=HERE))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with suppress(KeyboardInterrupt):
            train(toys.tiny("fedhead", arrays=DATA, engine=HERE), out=out, watch=stop)
        refused = ""
        try:
            train(toys.tiny("fedhead", arrays=DATA), out=out)
        except OutputError as error:
            refused = str(error)
        again = train(toys.tiny("fedhead", arrays=DATA, engine=HERE), out=out)
        rows = DATA.take(np.arange(5)).x.numpy()
        predicted = [each.predict_proba(rows).tolist() for each in (hw.load(out), whole)]
    hashes = [whole.result["model_sha256"], again.result["model_sha256"]]
    return {"hashes": hashes, "refused": refused.replace(str(out), "DIR"), "predicted": predicted}


@contextmanager
def sitecustomized() -> Iterator[None]:
    """Worker processes, each of which has to pretend the device first."""
    with tempfile.TemporaryDirectory() as folder:
        here = str(Path(pretend.__file__).parent)
        (Path(folder) / "sitecustomize.py").write_text(f"import sys\nsys.path.insert(0, {here!r})\nimport pretend\n")
        sys.path.insert(0, folder)  # which workers inherit
        try:
            yield
        finally:
            sys.path.remove(folder)


def shared() -> dict[str, Any]:
    """Worker processes that compute on the device."""
    with sitecustomized():
        runs = [toys.tiny_run("fedhead", engine={"name": name, "workers": 2} | HERE) for name in ("inline", "pool")]
    return {"hashes": [run.result["model_sha256"] for run in runs]}


def waits() -> dict[str, int]:
    """How often a local training waits for the device, by its number of steps."""
    found = {}
    for steps in (3, 30):
        experiment = toys.tiny("fedavg", arrays=DATA, engine={"stack": "off"}, local={"steps": steps, "epochs": None})
        context = toys.run_context(experiment, torch.device(pretend.NAME))
        start = context.put(context.initial("mlp", 0))
        spec = LocalSpec(steps=steps, batch=8, optimizer="adam", clip=1.0)
        ctx = toys.ctx(context, next(iter(experiment.tree.holders)))
        assert ctx.data is not None
        before = pretend.crossings["back"]
        trained = local_train(ctx, start, spec)
        found[str(steps)] = pretend.crossings["back"] - before
        assert isinstance(trained.vector, pretend.Pretended)
    return found


class Forgetful:
    """A loss term that makes a tensor on the host and forgets to bring it to the device."""

    def __call__(self, step: Batch) -> Tensor:
        return (step.output * torch.ones(step.output.shape[1])).sum()


def forgotten() -> dict[str, str]:
    """What happens to a tensor that stays on the CPU: fine there, and noticed on the device."""
    said = {}
    for name in ("cpu", pretend.NAME):
        context = toys.run_context(toys.tiny("fedavg", arrays=DATA), torch.device(name))
        start = context.put(context.initial("mlp", 0))
        ctx = toys.ctx(context, next(iter(context.rows)))
        try:
            model = local_train(ctx, start, LocalSpec(epochs=1, batch=8, lr=0.1), terms=(Forgetful(),))
            said[name] = type(model).__name__ if isinstance(model, Params) else ""
        except pretend.Forgotten as error:
            said[name] = str(error)
    return said


OWN: dict[str, Callable[[], dict[str, Any]]] = {
    "resumed": resumed,
    "shared": shared,
    "stacked workers": stacked_workers,
    **{name: partial(stacked, name) for name in STACKS},
    "waits": waits,
    "forgotten": forgotten,
}

if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps({case: OWN[case]() if case in OWN else both(case)}), flush=True)
