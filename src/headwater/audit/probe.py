"""Measures what models leak: repeats a run, and attacks the models that each kind of party held in its last round.

This works for any method: who held what is taken from the moves and jobs of the run (`Watching`). The attacks are
simple, so a probe is a lower bound: a small number proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headwater.audit.attacker import ATTACKS, Attacker
from headwater.audit.inversion import Likeness
from headwater.audit.membership_inference import RESAMPLES, Estimate, MembershipRisk
from headwater.audit.views import SUBJECTS, SeenModel, seen_models
from headwater.audit.watching import Watching
from headwater.core.rng import stream
from headwater.core.sampling import participants
from headwater.core.statistics import mean_interval
from headwater.training.experiment import Experiment
from headwater.training.loop import Event, train
from headwater.training.spending import Spending

ROLES = ("server", "sector", "leader", "client")
CLIENTS = 8  # whose own models are attacked
INVERTED = 4  # models of a kind that are inverted, since each takes a search


@dataclass(frozen=True)
class Resemblance:
    """How much reconstructed inputs resemble rows of clients, with two controls.

    Args:
        similarity: of guesses to clients' rows, mean over models; 1 is a row itself.
        control: of the same guesses to rows that nobody trained on.
        baseline: of as many public rows to clients' rows.
        gain: similarity minus control, with its 95 % interval over models; without one for a single model.
        models: how many were inverted.
    """

    similarity: float
    control: float
    baseline: float
    gain: Estimate
    models: int


@dataclass(frozen=True)
class Finding:
    """What simple attacks learn from one kind of model that one kind of party held.

    Args:
        role: of the party: server, sector, leader or client.
        subject: whose models: of one "client", of a "sector", or of "several" sectors.
        purpose: what they were sent for, as in the ledger.
        part: their place in what was sent; empty if nothing else was in it.
        models: how many of them.
        started: of how many the party also held the model that training began with.
        loss: membership by the loss.
        calibrated: membership by the loss minus that of a reference model.
        analytic: inversion by the first linear layer.
        searched: inversion by search.
    """

    role: str
    subject: str
    purpose: str
    part: str
    models: int
    started: int
    loss: MembershipRisk | None
    calibrated: MembershipRisk | None
    analytic: Resemblance | None
    searched: Resemblance | None


@dataclass(frozen=True)
class Probe:
    """The findings of one run.

    Args:
        findings: by party, then by whose models.
        without: parties that held no model trained on rows of others.
        round: the round that was looked at.
        clients: clients whose own models were attacked.
        model_sha256: of the repeated run's model, which is that of the first run if nothing has changed since.
        accuracy: of the repeated run.
    """

    findings: tuple[Finding, ...]
    without: tuple[str, ...]
    round: int
    clients: tuple[str, ...]
    model_sha256: str
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def probe(
    experiment: Experiment,
    *,
    clients: int = CLIENTS,
    inverted: int = INVERTED,
    attacks: Collection[str] = ATTACKS,
    resamples: int = RESAMPLES,
    watch: Callable[[Event], None] | None = None,
) -> Probe:
    """Run an experiment and attack what each kind of party held in the last round.

    Args:
        experiment: what `prepare` returned.
        clients: how many clients' own models are attacked.
        inverted: how many models of a kind are inverted.
        attacks: the attacks to run, some of `ATTACKS`; the search comes with the analytic one.
        resamples: number of bootstrap resamples for intervals of membership; 0 leaves them out.
        watch: called with every event of the run.
    """
    config = experiment.config
    last = Spending(experiment).last
    active = participants(experiment.tree, config.partition.participation, config.seed, last)
    drawn = stream(config.seed, "probe").permutation(len(active))[:clients]
    chosen = tuple(active[int(at)] for at in sorted(drawn))
    engine = Watching([last - 1, last], chosen, config.engine.threads)
    try:
        run = train(experiment, engine=engine, watch=watch)
        engine.finished()
        attacker = Attacker(engine.context, config.seed, attacks, resamples)
        seen = seen_models(engine, experiment.tree.sector_of, last, attacker.suited(experiment.tree.archs))
        findings = tuple(_findings(seen, attacker, inverted))
        present = {sighting.role for sighting in engine.sightings} | {"server", "sector", "client"}
    finally:
        engine.close()
    without = tuple(role for role in ROLES if role in present and role not in {each.role for each in findings})
    return Probe(findings, without, last, chosen, run.result["model_sha256"], run.accuracy)


def _findings(seen: Sequence[SeenModel], attacker: Attacker, inverted: int) -> list[Finding]:
    kinds: dict[tuple[str, str, str, str], list[SeenModel]] = {}
    for each in seen:
        part = ".".join(map(str, each.part))
        kinds.setdefault((each.role, each.subject, each.purpose, part), []).append(each)
    findings = []
    for kind in sorted(kinds, key=lambda kind: (ROLES.index(kind[0]), SUBJECTS.index(kind[1]), *kind[2:])):
        models = kinds[kind]
        started = [each for each in models if each.start is not None]
        inversions = [attacker.inverted(each) for each in started[:inverted]]
        findings.append(
            Finding(
                *kind,
                len(models),
                len(started),
                *attacker.membership(models),
                _resemblance([each.analytic for each in inversions]),
                _resemblance([each.searched for each in inversions]),
            )
        )
    return findings


def _resemblance(found: Sequence[Likeness | None]) -> Resemblance | None:
    likes = [each for each in found if each is not None]
    if not likes:
        return None
    gain, half = mean_interval([each.similarity - each.control for each in likes])
    ends = (None, None) if half is None else (gain - half, gain + half)
    like, control, chance = (
        mean_interval([getattr(each, name) for each in likes])[0] for name in ("similarity", "control", "baseline")
    )
    return Resemblance(like, control, chance, Estimate(gain, *ends), len(likes))
