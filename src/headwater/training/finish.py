"""The end of a run: the models that it leaves, and the content of result.json."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from torch import Tensor

from headwater.algorithms.base import outputs
from headwater.core import numerics
from headwater.core.federation import SERVER, Federation, Located
from headwater.core.membership import Newcomer
from headwater.core.params import Params, digest
from headwater.inference.card import FILE as CARD
from headwater.inference.several_models import FILE as MEMBERS
from headwater.inference.trained import KEY as METADATA
from headwater.training.checkpoint import write_whole
from headwater.training.evaluation import Scores, summary_of
from headwater.training.experiment import Experiment
from headwater.training.guessing import guess_note
from headwater.training.model_tensors import Frozen, ModelsBeside, describe_frozen, named, tensors_of
from headwater.training.remarks import method_report
from headwater.training.run_directory import RunDirectory, write_model
from headwater.training.spending import Spending

SEPARATE = (
    "clients were separate parties: accuracy by client was asked for after the last round only, a simulation asks in "
    "every evaluated round, so its ledger.evaluate is larger"
)
BUILT = (
    "every party built the frozen part of the model itself and compared its SHA-256; ledger.setup counts it as one "
    "copy for each sector and each client"
)


def exported(fed: Federation, state: Any) -> dict[str, Params]:
    """The global model under ""; without one, that of each client or member under its name.

    Args:
        fed: the federation of the last round.
        state: the method's state after it.
    """
    shown = outputs(state)
    if shown.model is not None:
        return {"": fed.read(shown.model)}
    if shown.personal is None:
        return {name: fed.read(member) for name, member in named(state.team.members).items()}
    sent = export(fed, state)
    assert sent is not None
    members: dict[str, Params] = fed.read(sent) or {}
    fed.session.settle(fed.round)
    return members


def export(fed: Federation, state: Any) -> Located | None:
    """Send personal models to the server, where there is no global one; None if there is one."""
    shown = outputs(state)
    if shown.model is not None or shown.personal is None:
        return None
    return fed.whole.with_purpose("export").up(shown.personal, to=SERVER)


def result_of(
    experiment: Experiment,
    fed: Federation,
    params: Mapping[str, Params],
    beside: ModelsBeside | None,
    scores: Scores,
    history: list[dict[str, Any]],
    seconds: float,
    device: Mapping[str, Any],
    joined: Sequence[Newcomer] = (),
    stopped: str = "",
    frozen: Frozen | None = None,
    spending: Spending | None = None,
) -> dict[str, Any]:
    """The content of result.json.

    Args:
        experiment: the run.
        fed: the federation of the last round.
        params: what `exported` returned.
        beside: what `left_beside` returned.
        scores: the last evaluation.
        history: one row per round.
        seconds: since the run began.
        device: where it was computed.
        joined: clients that joined after the first round.
        stopped: name of the callback that ended the run early, if one did.
        frozen: architecture → what is frozen in it, by name.
        spending: what the run's noise is worth.
    """
    spending = spending or Spending(experiment)
    config, model = experiment.config, experiment.model
    result = {
        "algorithm": config.method,
        "label": config.method,
        "seed": config.seed,
        "rounds": len(history) if stopped or spending.ended else config.rounds,
        **summary_of(scores, history, config.seed),
        **method_report(experiment, history, spending.report(len(history))),
        "ledger": fed.session.ledger.summary(),
        "seconds": seconds,
        "partition_sha256": experiment.partition.sha256,
        "model_sha256": digest(tensors_of(params, frozen)),
        **({"members_sha256": digest(beside.tensors)} if beside else {}),
        "data": config.data.name,
        "model": model.name,
        "stacking": experiment.stacking.to_dict(),
        "parameters": next((p.layout.size for p in params.values()), 0) or model.count(),
        **({"frozen": describe_frozen(frozen)} if frozen else {}),
        "clients": len(fed.tree.clients),
        "sectors": len(fed.tree.sectors),
        **({"tuned": dict(experiment.tuned)} if experiment.tuned else {}),
        **({"joined": [each._asdict() for each in joined]} if joined else {}),
        "numerics": numerics.about(),
        "device": dict(device),
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("headwater", "torch", "numpy")},
    }
    if config.model.start:
        result["start"] = {"path": config.model.start, "model_sha256": config.model.start_sha256}
    notes = [SEPARATE, *([BUILT] if frozen else [])] if fed.session.losing else []
    if stopped:
        notes.append(f"ended after round {len(history)} of {config.rounds} by the callback {stopped}")
    elif spending.ended:
        notes.append(spending.ended)
    if words := guess_note(experiment, history, final=True):
        notes.append(words)
    return result | ({"notes": notes} if notes else {})


def write_files(
    directory: RunDirectory, tensors: dict[str, Tensor], about: str, beside: ModelsBeside | None, card: str, result: Any
) -> None:
    """Write what a finished run leaves: its models, the model card and, when all else is there, result.json."""
    if beside:
        write_model(directory.path / MEMBERS, beside.tensors, {METADATA: beside.about})
    write_model(directory.path / "model.safetensors", tensors, {METADATA: about})
    write_whole(directory.path / CARD, card)
    directory.write("result.json", result)
