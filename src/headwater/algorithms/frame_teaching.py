"""Who learns in `Frame`: leaders from the models of their sector, and the server from an ensemble.

Corrections beside a student. Let a be the average of a round and s what teaching made of it. The next round starts from
a + step · (s − a).

* Corrections are updated from averages, never from s. With w_i a client's model, w_m its sector's mean, ḡ mean
  gradients along the paths, H steps, E sector rounds and the rate γ, z_i + (w_i − w_m) / (Hγ) = ḡ_m − ḡ_i and
  y_m + (w_m − a) / (HEγ) = ḡ − ḡ_m hold wherever the round started, as long as all started from the same model. So sums
  of z and of y stay zero. Compared with s, every y would gain (a − s) / (HEγ) in every round, which nothing takes back.
* The optimum x* with its corrections stays a fixed point: there every client stays at x*, so teachers and student are
  one model, and teaching has no gradient. Where teaching moves a by δ at x*, the model comes to rest at a distance in
  proportion to step · δ.
* FedDyn sends a − h / α, where h sums up how far the means have moved. A student that goes back to where its teachers
  are undoes this shift, while h grows on. `corrections = "shift"` teaches a, and sends s − h / α.
* `corrections = "renew"` has variates belong to the model that they are used with: before a round c_i = ∇F_i(s),
  z_i = ∇f_m(s) − ∇F_i(s) and y_m = ∇f(s) − ∇f_m(s).
* `step = "validated"` is the guard: of 0, ¼, ½, ¾ and 1 the best on the server's validation set. 0 is the average, so
  by validation no round ends worse than averaging.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.algorithms.cohorts import (
    Rounds,
    bring_by,
    bundled,
    bundled_rounds,
    counted,
    renewed,
    sampled,
    students_of,
    unbundled,
)
from headwater.algorithms.frame_parts import FrameState, LocalWork, Turn
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.specs import DistillSpec
from headwater.tasks.average import average, tally
from headwater.tasks.between import between
from headwater.tasks.distill import distill
from headwater.tasks.local import label_counts

if TYPE_CHECKING:
    from headwater.algorithms.frame import Frame


def leaders_learn(frame: Frame, turn: Turn, state: FrameState, work: LocalWork) -> FrameState:
    """Sectors teach their leaders, on the leaders' data, and leaders may teach the server."""
    fed, mean, ring = turn.fed, work.means[0], state.ring
    counts, tallies = _counts(frame, fed)
    start = work.received or fed.down(mean)
    judged = {"val": maybe(state.val), "hold": 0.2 if frame.val_source == "leader" else 0.0, "counts": counts}
    students = fed.run(distill, at=SECTORS, start=start, teachers=work.team, spec=frame.sector, **judged)
    taught = fed.up(students)
    model = fed.run(average, at=SERVER, models=taught, by=frame.trainer.at_server)
    model = _step(frame, fed, mean, model, frame.sector)
    if frame.consolidate == "leaders+server":
        teachers, ring = _ringed(ring, taught, frame.kept)
        new = fed.run(distill, at=SERVER, start=model, teachers=teachers, spec=frame.server, counts=tallies)
        model = _step(frame, fed, model, new, frame.server)
    return replace(state, models={0: fed.update(state.models[0], model)}, ring=ring)


def server_learns(frame: Frame, turn: Turn, state: FrameState, work: LocalWork) -> FrameState:
    """The ensemble at the server teaches some of the models, on the reference set."""
    fed, averaged = turn.fed, frame.ensemble.startswith("aggregated")
    models = renewed(fed, state.models, work.means)
    averages = renewed(fed, state.ring[0] if state.ring and frame.ensemble != "sector_means" else {}, work.means)
    ring, counts, teachers = (averages, *state.ring)[: frame.kept], state.counts, nothing(SERVER)
    weighing = None
    if frame.ensemble == "sector_means":
        teachers, ring = _ringed(state.ring, work.sectors, frame.kept)
        weighing = _counts(frame, fed)[1]
    elif frame.ensemble != "none":
        bayesian = frame.ensemble == "bayesian"
        drawn = sampled(fed, turn.models, work.teams, averages, frame.samples, frame.sampler) if bayesian else {}
        teachers = bundled_rounds(ring) if averaged else bundled(drawn | work.teams)
    if frame.server.weights == "labels" and frame.ensemble not in ("none", "sector_means"):
        if averaged:
            counts = counted(fed, counts, turn.cohorts, frame.kept, turn.through)
        else:
            counts = (bring_by(fed, fed.run(label_counts, at=CLIENTS), turn.cohorts),)
        weighing = bundled_rounds(counts) if averaged else bundled(counts[0])
    for k in students_of(frame, fed.round, len(models)):
        taught = fed.run(distill, at=SERVER, start=models[k], teachers=teachers, spec=frame.server, counts=weighing)
        models[k] = fed.update(models[k], _step(frame, fed, models[k], taught, frame.server))
    return replace(state, models=models, ring=ring, counts=counts, teachers=teachers)


def _step(frame: Frame, fed: Federation, mean: Located, student: Located, spec: DistillSpec) -> Located:
    """The model on the way from an average to the student."""
    if frame.step == 1:
        return student
    return fed.run(between, at=SERVER, average=mean, student=student, step=frame.step, metric=spec.metric)


def _counts(frame: Frame, fed: Federation) -> tuple[Located | None, Located | None]:
    """Label counts of clients at their sectors, and of sectors at the server, where they are weights."""
    above = frame.distils("server") and frame.server.weights == "labels"
    here = frame.led and frame.sector.weights == "labels"
    counts = fed.up(fed.run(label_counts, at=CLIENTS)) if here or above else None
    tallies = fed.up(fed.run(tally, at=SECTORS, models=counts)) if counts and above else None
    return counts if here else None, tallies


def _ringed(before: Rounds, now: Located, kept: int) -> tuple[Located, Rounds]:
    """What sectors sent in the last rounds, as one mapping of teachers, and by round."""
    if kept == 1:
        return now, ()
    ring = (dict(enumerate(unbundled(now).values())), *before)[:kept]
    return bundled_rounds(ring), ring
