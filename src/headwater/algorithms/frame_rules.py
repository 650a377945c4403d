"""The slots of `Frame`, what fills them, and the rules for what goes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from headwater.algorithms import ALGORITHMS
from headwater.algorithms.cohorts import deal_out
from headwater.algorithms.frame_parts import Averaging, Corrected, Regularised
from headwater.algorithms.frame_terms import names_of
from headwater.algorithms.frame_tree import Nested, NestedDynamic, TwoTier
from headwater.core.federation import Federation
from headwater.core.sampling import Cohorts, turns
from headwater.errors import ConfigError
from headwater.tasks.corrections import check_path, check_steps

if TYPE_CHECKING:
    from headwater.algorithms.frame import Frame

Local = Literal[
    "fedavg", "fedprox", "scaffold", "feddyn", "moon", "hfedavg", "hfedprox", "hscaffold", "hfeddyn", "mtgc"
]
Ensemble = Literal[
    "none", "clients", "bayesian", "aggregated", "clients_multi", "aggregated_temporal", "sector", "sector_means"
]
Consolidate = Literal["none", "basic", "warm-up", "designated", "leaders", "leaders+server"]
Corrections = Literal["keep", "shift", "renew"]
TREE = ("hfedavg", "hfedprox", "hscaffold", "hfeddyn", "mtgc")
VARIATES = ("scaffold", "hscaffold", "mtgc")


def dealt(frame: Frame, fed: Federation) -> Cohorts:
    """Which clients train which model in this round."""
    if frame.schedule == "blocks":
        return turns(fed.clients, frame.cohorts, fed.session.seed, fed.round)
    return deal_out(fed, frame.cohorts, frame.remainder)


def trainer_of(frame: Frame) -> Averaging:
    spec, rounds = frame.training, frame.sector_rounds
    renew, lasting = frame.corrections == "renew", frame.consolidate == "none"
    trainer: Averaging
    match frame.local:
        case "scaffold":
            trainer = Corrected(spec, shared=frame.shared_variates, renew=renew)
        case "feddyn":
            trainer = Regularised(spec, alpha=frame.dyn_alpha, late=frame.corrections == "shift")
        case "hscaffold" | "mtgc":
            trainer = TwoTier(spec, y=frame.local == "mtgc", lasting=lasting, renew=renew, rounds=rounds)
        case "hfeddyn":
            trainer = NestedDynamic(spec, alpha=frame.dyn_alpha, rounds=rounds)
        case "hfedavg" | "hfedprox":
            trainer = Nested(spec, rounds=rounds)
        case _:
            trainer = Averaging(spec)
    return replace(trainer, by=frame.by) if frame.by else trainer


def defaults_of(local: str, terms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The defaults of the trainer's own method, and the projection of a contrast. Teachers count as clients do."""
    own = {section: dict(table) for section, table in ALGORITHMS[local].info.defaults.items()}
    if "contrast" in terms:
        own["model"] = {**ALGORITHMS["moon"].info.defaults["model"], **own.get("model", {})}
    alike = local in (*VARIATES, "feddyn", "hfeddyn")
    return own | ({stage: {"weights": "uniform"} for stage in ("sector", "server")} if alike else {})


def check_architectures(frame: Frame, fed: Federation) -> None:
    """Raise ConfigError where clients have unequal architectures, and the slots need equal ones."""
    if len(fed.tree.archs) == 1:
        return
    if frame.led or frame.schedule == "blocks":
        raise ConfigError("model.also: neither leaders nor schedule = 'blocks' can work with unequal architectures")
    if frame.local in TREE or frame.ensemble == "sector_means" or "knowledge" in frame.terms:
        raise ConfigError(
            "model.also: neither trainers inside sectors nor sector means nor knowledge can work with unequal "
            "architectures; remove it, or choose other slots"
        )


def refusal(frame: Frame) -> str:
    """The sentence that says why the slots do not go together; empty if they do."""
    return _refused_slots(frame) or _refused_options(frame)


def _refused_slots(frame: Frame) -> str:
    ensemble, consolidate, cohorts, kept = frame.ensemble, frame.consolidate, frame.cohorts, frame.kept
    led = consolidate.startswith("leaders")
    if led != (ensemble == "sector"):
        return (
            f"consolidate = {consolidate!r} with ensemble = {ensemble!r}: sectors teach their leaders and nobody else; "
            "use 'sector' together with 'leaders' or 'leaders+server', and neither without the other"
        )
    if led and cohorts > 1:
        return f"consolidate = {consolidate!r} has one model, got cohorts = {cohorts}; set cohorts = 1"
    averages = ("none", "aggregated", "aggregated_temporal", "sector_means")
    if frame.through_sectors and ensemble not in averages:
        return f"through_sectors needs averages as teachers, not ensemble = {ensemble!r}; use 'aggregated' with it"
    if frame.local in TREE and (ensemble not in (*averages, "sector") or cohorts > 1):
        return (
            f"local = {frame.local!r} keeps one model and the clients' models inside their sectors, got ensemble = "
            f"{ensemble!r} and cohorts = {cohorts}; use ensemble = 'none', 'sector', 'sector_means' or "
            "'aggregated_temporal', and cohorts = 1"
        )
    if ensemble == "none" and consolidate != "none":
        return f"consolidate = {consolidate!r} needs teachers; choose an ensemble, or consolidate = 'none'"
    if ensemble in ("clients", "bayesian", "sector_means") and cohorts > 1:
        return f"ensemble = {ensemble!r} goes with one cohort, got {cohorts}; set cohorts = 1, or use 'clients_multi'"
    if ensemble == "clients_multi" and cohorts == 1:
        return "ensemble = 'clients_multi' needs several cohorts; set cohorts to 2 or more, or use 'clients'"
    if kept > 1 and ensemble not in ("aggregated_temporal", "sector_means") and consolidate != "leaders+server":
        return (
            f"kept = {kept} has no effect with ensemble = {ensemble!r}; use 'aggregated_temporal', 'sector_means' or "
            "consolidate = 'leaders+server', or kept = 1"
        )
    if ensemble.startswith("aggregated") and cohorts == kept == 1:
        return (
            f"ensemble = {ensemble!r} with cohorts = 1 and kept = 1 has one member, the student itself; "
            "set cohorts or kept above 1"
        )
    return ""


def _refused_options(frame: Frame) -> str:
    ensemble, consolidate, local = frame.ensemble, frame.consolidate, frame.local
    led = consolidate.startswith("leaders")
    if local in ("feddyn", "hfeddyn") and frame.by == "samples":
        return f"local = {local!r} counts clients alike; leave by unset, or by = 'uniform'"
    for stage, used in (("sector", led), ("server", consolidate not in ("none", "leaders"))):
        if trainer_of(frame).alike and used and getattr(frame, stage).weights == "samples":
            return f"{stage}.weights = 'samples' with clients that count alike; use {stage}.weights = 'uniform'"
    uncounted = ensemble == "bayesian" or (ensemble in ("sector", "sector_means") and frame.kept > 1)
    if frame.server.weights == "labels" and uncounted:
        return (
            f"server.weights = 'labels' needs label counts at the server, which ensemble = {ensemble!r} does not send"
            + (f" with kept = {frame.kept}" if frame.kept > 1 else "")
        )
    if frame.sector_rounds > 1 and local not in TREE:
        return f"sector_rounds = {frame.sector_rounds} needs a trainer of the tree ({', '.join(TREE)}), got {local!r}"
    if (names := names_of(frame)) and len(set(names)) < len(names):
        return f"terms = {list(frame.terms)} with local = {local!r} has a term twice; name each once"
    if frame.corrections == "shift" and (local != "feddyn" or consolidate == "none"):
        return (
            f"corrections = 'shift' moves the student by FedDyn's −h / alpha, which local = {local!r} with consolidate "
            f"= {consolidate!r} has no use for; use 'keep'"
        )
    if frame.corrections == "renew" and local not in VARIATES:
        return f"corrections = 'renew' takes variates anew ({', '.join(VARIATES)}), got local = {local!r}; use 'keep'"
    if frame.step != 1 and consolidate == "none":
        return f"step = {frame.step!r} has no effect with consolidate = 'none'; leave it at 1"
    return ""


def check_training(frame: Frame) -> None:
    """Raise ValueError for local training whose path does not tell the gradient that a correction is made of."""
    if frame.local not in VARIATES or (frame.corrections == "renew" and frame.sector_rounds == 1):
        return
    check_path(frame.training, f"local = {frame.local!r}")
    if frame.local != "scaffold":
        check_steps(frame.training, f"local = {frame.local!r}")
