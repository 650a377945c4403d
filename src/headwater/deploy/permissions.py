"""What a party carries out for the party above it: only the steps that the agreed method makes at its place.

Every party rehearses the method from the agreed configuration (`rehearsed_rounds`) and derives the steps of its own
place (`permitted_steps`). A message with any other step is refused as a whole, before anything in it is carried out:
another task, another plain input, a value of another origin, another destination, or a step more often than the method
makes it.

A round may be repeated, since a server that was started again carries on at its last checkpoint. With the same inputs
a step gives the same result again. With others, as after other losses, it is repeated a few times only. What a task
releases with noise is drawn once a round, and sent again as it was.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.core import records
from headwater.core.membership import Membership
from headwater.deploy.agreement import Agreement
from headwater.deploy.payload import Refused
from headwater.deploy.permitted_steps import (
    ARRIVES,
    FROM_ABOVE,
    NTH,
    Origin,
    PartyPlace,
    PermittedSteps,
    aged,
    keys_of,
    shape_of,
)
from headwater.deploy.rehearsed_rounds import RehearsedRound, RehearsedRun
from headwater.deploy.step_record import Mark, StepRecord, content_digests
from headwater.deploy.steps import Choice, Move, Step
from headwater.deploy.transport import Message
from headwater.engines.jobs import LOST, Job, Ref
from headwater.errors import said
from headwater.tasks.privacy import draws_noise, privacy_of

REPEATS = 2  # how often a step of a round may be repeated with other inputs
CACHED = 4  # rounds whose permits are kept
SLACK = 1 << 20  # bytes of a reply besides the expected ones
SHARE = 1.25  # and this share of those, since what a task returns may be a little larger than it declares
LOST_MARK = Mark(Origin("lost"), -1, "lost")  # of values that no party has


@dataclass
class Approval:
    """A message that passed all checks.

    Args:
        marks: of the values that it brings or makes.
        uses: shape and digest of the inputs of each job, by name.
        releases: name under which the result of a job with noise is kept, by name of the job.
        ours: names of values that came although they were made here, and are ignored.
    """

    marks: dict[str, Mark] = field(default_factory=dict)
    uses: dict[str, tuple[str, str]] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)


class Permissions:
    """What one party may be asked in one run.

    Args:
        agreement: the agreed configuration.
        name: of this party.
        members: number of rows by client, and who joined later, as the server announced it for this run.
        record: what this party remembers.
    """

    def __init__(self, agreement: Agreement, name: str, members: Membership, record: StepRecord) -> None:
        self.place, self.privacy = PartyPlace(name, agreement.sectors), privacy_of(agreement.config.privacy)
        self.record = record
        self._rehearsed, self._members = RehearsedRun(agreement, members, self.place.sector), members
        self._rounds: dict[int, PermittedSteps] = {}
        self._origins: dict[str, frozenset[Origin]] = {}
        self._next = 0
        self._attempt: tuple[int, str] = (-1, "")
        self._counts: Counter[str] = Counter()  # of permits that were used in this attempt
        self._names: set[str] = set()  # of jobs in this attempt
        self._kept: set[str] = set()  # names of values that are kept after the present message

    @property
    def asked_by(self) -> str:
        return self.place.above

    def of_round(self, number: int) -> PermittedSteps:
        """The permits of a round.

        Raises:
            Refused: the run has no such round.
        """
        if not 0 <= number <= self._rehearsed.rounds + 1:
            raise Refused(f"the run has {self._rehearsed.rounds} rounds and no round {number}")
        until = max([number, *(each.round for each in self._members.joined if number == 0)])
        if number in self._rounds and until < self._next:
            return self._rounds[number]
        if number and number < self._next:  # an earlier round again, as after a restart of the server
            self._forget()
        while self._next <= until:
            rehearsed = self._rehearsed.round(self._next)
            if rehearsed.entry is not None:  # clients that come late are asked for steps of round 0
                self._rounds[0].add(self._permit(rehearsed.entry))
            self._rounds[self._next] = self._permit(rehearsed)
            if self._next > CACHED:
                self._rounds.pop(self._next - CACHED, None)
            self._next += 1
        return self._rounds[number]

    def _permit(self, rehearsed: RehearsedRound) -> PermittedSteps:
        found = PermittedSteps(self.place, rehearsed, self._origins)
        every = self._origins | found.origins
        self._origins = {name: every[name] for name in rehearsed.kept if name in every}
        return found

    def follow(self, members: Membership) -> None:
        """Take in clients that have joined since."""
        more = members.joined[len(self._members.joined) :]
        self._members = members
        self._rehearsed.follow(members)
        if any(each.round < self._next for each in more):
            self._forget()

    def _forget(self) -> None:
        self._next, self._origins, self._rounds = 0, {}, {}

    def reply_limit(self, round: int, names: Iterable[str]) -> int | None:
        """The largest payload of a reply with these values; None if only training can tell."""
        expected = self.of_round(round).reply_bytes(names)
        return None if expected is None else int(SHARE * expected) + SLACK

    def approve(
        self, message: Message, round: int, steps: Sequence[Step], values: Mapping[str, Any], held: Collection[str]
    ) -> Approval:
        """Check a message with all its steps.

        Args:
            steps: of the message, decoded.
            values: of the message, by name.
            held: names of the values that are here.

        Raises:
            Refused: it asks for something that the method does not do here.
        """
        attempt = (round, str(message.head.get("attempt", "")))
        counts, names = (self._counts, self._names) if attempt == self._attempt else (Counter[str](), set[str]())
        check = _Check(self, round, held, Counter(counts), set(names), content_digests(message))
        approval = check.run(steps, values)
        self._attempt, self._counts, self._names = attempt, check.counts, check.names
        return approval

    def begin(self, approval: Approval, round: int, kept: Iterable[str]) -> None:
        """Record an approved message before it is carried out.

        Args:
            kept: names of earlier values that are kept.
        """
        for shape, digest in approval.uses.values():
            self.record.use(round, shape, digest)
        self.record.marks |= approval.marks
        self._kept = {*kept, *approval.marks}

    def finish(self) -> None:
        """Write down where the values of this party come from, before a reply says that they are here."""
        self.record.keep(self._kept)

    def chosen(self, step: Choice, ref: Ref) -> None:
        """Record which value a choice stands for."""
        if step.name in self.record.marks:  # the server chooses, too, and is asked by nobody
            mark = self.record.marks.get(ref.name, LOST_MARK)
            self.record.marks[step.name] = mark._replace(origin=mark.origin.of_part(ref.part))


class _Check:
    """The check of one message. It changes nothing outside itself."""

    def __init__(
        self,
        owner: Permissions,
        round: int,
        held: Collection[str],
        counts: Counter[str],
        names: set[str],
        digests: Mapping[str, str],
    ) -> None:
        self._permitted, self._record, self._place = owner.of_round(round), owner.record, owner.place
        self._round, self._held, self._digests, self._privacy = round, held, digests, owner.privacy
        self.counts, self.names = counts, names
        self._fresh: defaultdict[str, set[str]] = defaultdict(set)  # digests of this message by shape
        self._found = Approval()

    def run(self, steps: Sequence[Step], values: Mapping[str, Any]) -> Approval:
        found = self._found
        needed = {ref.name for step in steps for ref in step.refs()} | {s.name for s in steps if isinstance(s, Move)}
        for name in values:
            if name not in needed:
                raise Refused(f"the value {name!r:.80} comes without a step that takes it")
            mark = self._record.marks.get(name)
            if values[name] is LOST:  # also a value of ours, if our reply was lost: it counts for nobody
                found.marks[name] = LOST_MARK
            elif mark is not None and mark.origin.maker != FROM_ABOVE.maker and name in self._held:
                found.ours.add(name)  # sent back by a party that was started again; ours is as good, and known
            else:
                found.marks[name] = Mark(FROM_ABOVE, self._round, self._digests.get(name, "lost"))
        for step in steps:
            if isinstance(step, Move) and step.name in values:
                if step.name in found.ours or not self._place.is_here(step.home):
                    raise Refused(f"{step.name!r:.80} is not for {self._place.name} to receive")
                self._count(ARRIVES, f"bringing {step.name!r:.80}")
            else:
                self._check(step)
        return found

    def _check(self, step: Step) -> None:
        what = named(step)
        try:
            shape = shape_of(step)
        except TypeError as error:
            raise Refused(f"{what} is no step: {said(error)}") from error
        marks = {slot: self._mark(ref) for slot, ref in shape.slots.items()}
        taken = {
            slot: aged(mark.origin.of_part(shape.slots[slot].part), mark.round == self._round)
            for slot, mark in marks.items()
        }
        lost = {slot for slot, mark in marks.items() if mark.origin.maker == LOST_MARK.origin.maker}
        if (
            isinstance(step, Move)
            and lost
            and any(key.startswith(f"{shape.key} of ") for key in self._permitted.permits)
        ):
            self._found.marks[step.name] = LOST_MARK  # nothing is sent
            return
        (key,) = keys_of(step, shape, {slot: [origin] for slot, origin in taken.items()})
        permit = self._permitted.permits.get(key)
        if permit is None:
            raise Refused(f"{what} is not a step of the method at {self._place.name} in round {self._round}")
        for slot, origin in taken.items():
            if slot not in lost and origin not in permit.origins.get(slot, ()):
                raise Refused(f"{what} takes a value of {origin[0].told(origin[1])}, which the method does not give it")
        self._count(key, what)
        if isinstance(step, Job):
            self._check_job(step, key, permit.nth, [f"{slot}={mark.digest}" for slot, mark in marks.items()])
        elif isinstance(step, Choice):
            slot = "old" if "new" in lost else "new"
            self._found.marks[step.name] = marks[slot]._replace(origin=taken[slot][0])
        elif self._place.is_here(step.home):
            self._found.marks[step.name] = marks["0"]._replace(origin=taken["0"][0])

    def _check_job(self, job: Job, shape: str, nth: int, inputs: list[str]) -> None:
        """A job draws from the random stream that the method gives it, and from few others in one round."""
        number, title = job.key[NTH] if len(job.key) > NTH else None, named(job)
        if job.key[0] != self._round or type(number) is not int or not 0 <= number <= nth:
            raise Refused(f"{title} has the random stream {job.key!r:.80}, which is not the method's")
        if job.name in self.names:
            raise Refused(f"{title} was asked for before in this attempt of round {self._round}")
        self.names.add(job.name)
        digest = hashlib.sha256(json.dumps([shape, list(job.key), sorted(inputs)]).encode()).hexdigest()
        used = self._record.used(self._round, shape) | self._fresh[shape] | {digest}
        most = self._permitted.permits[shape].count * (1 + REPEATS)
        if len(used) > most:
            raise Refused(
                f"{title} was carried out in round {self._round} with {most} different inputs, and is not with more"
            )
        self._fresh[shape].add(digest)
        self._found.uses[job.name] = shape, digest
        self._found.marks[job.name] = Mark(Origin(records.address(job.task), job.node), self._round, digest)
        if draws_noise(job.task, self._privacy):
            self._found.releases[job.name] = f"{self._round} {shape} {self.counts[shape]}"

    def _count(self, key: str, what: str) -> None:
        permit = self._permitted.permits.get(key)
        most = permit.count if permit else 0
        self.counts[key] += 1
        if self.counts[key] > most:
            raise Refused(f"{what} is asked for more often than the method does it in round {self._round} ({most})")

    def _mark(self, ref: Ref) -> Mark:
        mark = self._found.marks.get(ref.name)
        if mark is None and (mark := self._record.marks.get(ref.name)) is None:
            if ref.name in self._held:
                raise Refused(f"nothing is known of where {ref.name!r:.80} comes from")
            return LOST_MARK
        return mark


def named(step: Step) -> str:
    """A step in a sentence. Names in it come from another party, so they are cut."""
    if isinstance(step, Job):
        return f"{step.title} for {step.node!r:.40}"
    if isinstance(step, Choice):
        return f"the choice {step.name!r:.80}"
    return f"sending {step.ref.name!r:.80} to {step.home!r:.40}"
