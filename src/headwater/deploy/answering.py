"""How a client and a sector's host answer the party above, until it says that the run is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.core.membership import Membership
from headwater.deploy.control import Stopped
from headwater.deploy.final_model import RUN
from headwater.deploy.known_members import read_membership
from headwater.deploy.payload import Refused
from headwater.deploy.quoting import public
from headwater.deploy.transport import Message, Uplink
from headwater.deploy.work_messages import Worker
from headwater.errors import said

if TYPE_CHECKING:
    from headwater.deploy.party_process import PartyProcess

HEARTBEAT = 5.0  # seconds between two updates of the status of a waiting party
LEAVE_AFTER = 1.0  # seconds in which the last reply is sent


@dataclass
class Answering:
    """Answers the messages of the party above until it says that the run is over.

    Args:
        hello: answers a `hello` message.
        worker: creates the worker of a run, given who takes part.
        take: takes the final model out of an `end` message.
        on_end: called before the process ends, with why if the run was stopped.
        on_wait: called for every message and at every heartbeat.
        revoked: parties below that were revoked, which every reply names.
        waiting: parties below that have come and take no part in the run yet, which every reply names.
    """

    process: PartyProcess
    hello: Callable[[Mapping[str, Any]], Message]
    worker: Callable[[str, Membership], Worker]
    take: Callable[[Message], None] = lambda message: None
    on_end: Callable[[Stopped | None], None] = lambda stopped: None
    on_wait: Callable[[], None] = lambda: None
    revoked: Callable[[], Collection[str]] = frozenset
    waiting: Callable[[], Collection[str]] = frozenset
    stop: threading.Event = field(default_factory=threading.Event)
    current: tuple[str, Worker | None] = ("", None)  # the run and its worker
    ended: bool = False
    stopped: Stopped | None = None

    def run(self, uplink: Uplink) -> None:
        folder, status = self.process.folder, self.process.status
        status.update(phase="waiting")
        threading.Thread(target=self._heartbeat, daemon=True).start()
        uplink.serve(self.answer, self.stop)
        status.update(phase="stopped" if self.stopped else "finished" if self.ended else "ended")
        why = self.stopped or "the federation has finished"
        again = "; what it has is kept, and it carries on when it is started again" if self.stopped else ""
        self.process.log(f"{why}, and {folder.role} {folder.name} ends{again}")

    def answer(self, message: Message) -> Message:
        head = message.head
        if head.get("federation") != self.process.folder.federation.sha256:
            try:
                self.process.follow(head)
                self.current = "", None  # it goes on by the new agreement
            except Refused as error:
                self.process.fault(f"refused a message: it is of another federation than this folder's ({error})")
                return Message({"failed": f"refused it: {error}"})
        self.on_wait()
        match head.get("do"):
            case "hello":
                return self._with_notices(self.hello(head))
            case "end":
                return self._end(message)
            case "work" if isinstance(run := head.get("run"), str) and RUN.fullmatch(run):
                return self._work(run, message)
        self.process.fault("refused a message: it asks for nothing that is known here")
        return Message({"failed": "refused it: it asks for nothing that is known here"})

    def _work(self, run: str, message: Message) -> Message:
        if self.current[0] != run:
            try:
                self.current = run, self.worker(run, read_membership(message.head, self.process.folder.federation))
            except Refused as error:
                self.process.fault(f"refused a message: {error}")
                return Message({"failed": f"refused it: {error}"})
        worker, round = self.current[1], message.head.get("round")
        assert worker is not None
        number = round if type(round) is int else 0
        self.process.status.update(phase=_phase(message.head), round=number)
        reply = worker.answer(message)
        self.process.record_control(number, "training losses and times")
        self.process.status.update(phase="waiting")
        return self._with_notices(reply)

    def _with_notices(self, reply: Message) -> Message:
        notices = {"revoked": sorted(self.revoked()), "waiting": sorted(self.waiting())}
        return Message(reply.head | {key: names for key, names in notices.items() if names}, reply.parts)

    def _end(self, message: Message) -> Message:
        """Take the final model and leave. Without the model, too."""
        failed = ""
        if not self.ended:
            self.stopped = Stopped(before) if type(before := message.head.get("stopped")) is int else None
        try:
            if self.stopped is None:
                self.take(message)
        except Exception as error:  # whatever is wrong with it, this process ends
            self.process.fault(f"refused the final model: {said(error)}")
            failed = f"refused it: {error}" if isinstance(error, Refused) else f"failed: {public(error)}"
        if not self.ended:
            threading.Thread(target=self._leave).start()
        self.ended = True
        return Message({"failed": failed} if failed else {})

    def _leave(self) -> None:
        """Tell the parties below at once, and end when the reply has had time to be sent."""
        until = time.monotonic() + LEAVE_AFTER
        self.on_end(self.stopped)
        time.sleep(max(0.0, until - time.monotonic()))
        self.stop.set()

    def _heartbeat(self) -> None:
        while not self.stop.wait(HEARTBEAT):
            self.process.status.update()
            self.on_wait()


def _phase(head: Mapping[str, Any]) -> str:
    """What a `work` message asks for, in one word."""
    tasks = [str(row.get("task", "")) for row in head.get("steps", ()) if isinstance(row, dict)]
    for word, phase in (("distill", "distilling"), ("train", "training")):
        if any(word in task.rpartition(":")[2] for task in tasks):
            return phase
    return "working"
