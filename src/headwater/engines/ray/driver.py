"""Workers on a Ray cluster: actors, on this machine or on many; values are objects of Ray's store.

This process holds references and never the values, so a model goes from who made it to who needs it. Where a node
offers a sector's resource, the tasks of that sector are carried out there, and its members' models stay in that node's
store. A worker that dies is replaced and its job repeated. With a node go the values that lay there: whatever is still
needed of them is made once more, which gives the same bits.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headwater.core import serialization
from headwater.core.serialization import Info
from headwater.engines.availability import Presence
from headwater.engines.base import Files, Infos, Ref
from headwater.engines.ray.actor import Actor, Load, Part, versions
from headwater.engines.ray.cluster import Cluster, Node, imported, join, leave
from headwater.engines.ray.store import Outline, info_of, outline, packed, unpacked
from headwater.engines.workers.engine import TRIES, WorkerEngine
from headwater.engines.workers.scheduler import Cell, Kept, Name, Order, names_of
from headwater.engines.workers.shared_memory import parts_of
from headwater.errors import ConfigError, TaskError, said
from headwater.tasks.task import RunContext

DEEP = 40  # orders one upon the other that are repeated at most when a node is lost
QUICK = 0.03  # seconds: of a task that takes less, a worker gets one more while it is busy, and need not wait for it
NOTICE = 10.0  # seconds from missing a value to knowing that its node is gone

Found = TypeVar("Found")


@dataclass(frozen=True)
class Stored:
    """A value in the store of a node, on a shelf with others that were made in the same call.

    Ray lets go of a shelf with the last reference to it.
    """

    shelf: Any
    at: int
    node: str
    outline: Outline | None

    def value(self) -> Any:
        return unpacked(imported().get(self.shelf)[self.at], copy=True)  # what was read stays when the store is gone

    def info(self, part: tuple[Any, ...]) -> Info:
        assert self.outline is not None
        return info_of(self.outline, part)

    def remove(self) -> None: ...


Call = tuple[Order, ...]  # orders that a worker is sent at a time


@dataclass(eq=False)
class Hand:
    """A worker. It carries out its calls one after the other; the first is the one that it is busy with."""

    number: int
    node: Node
    actor: Any
    ready: bool = False
    pid: int = 0
    calls: deque[Call] = field(default_factory=deque)


@dataclass(frozen=True)
class Word:
    """What came of a call: what it gave, or what Ray says went wrong. Without orders it is about being ready."""

    hand: Hand
    run: int
    call: Call
    shelf: Any  # what was made
    nodes: frozenset[str]  # where its inputs were
    outcome: Any  # a future


class Ray(WorkerEngine):
    def __init__(self, workers: int = 0, threads: int = 1, memory: float = 0.0, address: str = "") -> None:
        """`workers`: 0 for as many as there are CPUs; `address`: of a cluster that is there, else one is started."""
        self._workers, self._threads, self._memory, self._address = workers, threads, memory, address
        self._cluster: Cluster | None = None  # there is one from the first `start` to `close`
        self._crew: dict[int, Hand] = {}
        self._dead: set[str] = set()  # nodes
        super().__init__()

    def _forget(self, presence: Presence | None = None) -> None:
        super()._forget(presence)
        self._again: set[Order] = set()  # whose values were lost and are made once more
        self._took: dict[str, float] = {}  # seconds of the last task of a title
        self._sectors: Mapping[str, str] = {}

    # -- what the federation calls, in one thread ---------------------------------------------------------------------

    def start(self, context: RunContext) -> None:
        parts = parts_of(context)
        self._ray = imported()
        if self._cluster is None:
            self._cluster, self._owner, self._closing = join(self._address, self._memory), os.getpid(), False
            self._words: queue.SimpleQueue[Word | None] = queue.SimpleQueue()
            self._listener = threading.Thread(target=self._listen, args=(self._words,), daemon=True)
            self._listener.start()
        with self._changed:
            self._ready.clear()
            self._forget(Presence(context))
            self._run += 1
            self._sectors = context.sector_of
            self._context: Any = self._ray.put(packed(parts))
            self._here = self._ray.get_runtime_context().get_node_id()
            if not self._crew:
                self._staff()
            for hand in self._crew.values():
                self._brief(hand)
        self.done.clear()

    def read(self, ref: Ref) -> Any:
        held = self._settled(self._of(ref))
        return self._at_hand([held], lambda: held.value(ref.part))

    def save(self, names: Iterable[str], directory: Path) -> Files:
        names = list(names)
        held = [each for name in names for each in names_of(self._names[name])]
        real = [x.real if x.cell.there else self._settled(x) for x in held]
        return self._at_hand(real, lambda: super(Ray, self).save(names, directory))

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        infos = super().finish(names)
        self._secure()
        return infos

    def close(self) -> None:
        if self._cluster is None or os.getpid() != self._owner:  # a process forked off this one has no say
            return
        with self._changed:
            self._closing = True
            self._ready.clear()
            crew, self._crew = list(self._crew.values()), {}
        self._words.put(None)
        self._listener.join(10)
        for hand in crew:
            self._ray.kill(hand.actor)  # there is nothing that it could lose
        cluster, self._cluster, self._context = self._cluster, None, None
        self._forget()
        leave(cluster)

    def _at_hand(self, held: Sequence[Name], get: Callable[[], Found]) -> Found:
        """Get values to this process; those that were lost with a node are made once more before."""
        cells = [name.cell for name in held]
        for attempt in range(TRIES + 1):
            with self._changed:
                for cell in cells:
                    if self._is_gone(cell):
                        self._remake(cell)
                self._dispatch()
            if not all(cell.there for cell in cells):
                self._wait(lambda: all(cell.there for cell in cells))
            nodes = {kept.node for cell in cells if isinstance(kept := cell.kept, Stored)}
            try:
                return get()
            except self._ray.exceptions.ObjectLostError as error:
                with self._changed:
                    if attempt == TRIES or not self._any_dead(nodes):
                        raise TaskError(f"a value was lost: {said(error)}; carry on with headwater resume") from error
        raise AssertionError

    def _secure(self) -> None:
        """Fetch what would take many repetitions to make again, were its node lost, and is still needed."""
        with self._changed:
            cells = [each.real.cell for held in self._names.values() for each in names_of(held)]
        for cell in cells:
            if cell.maker is not None and cell.maker.depth >= DEEP and isinstance(kept := cell.kept, Stored):
                try:
                    copy = self._ray.put([self._ray.get(kept.shelf)[kept.at]])
                except self._ray.exceptions.ObjectLostError:
                    continue  # it is made once more when it is needed
                with self._changed:
                    if cell.kept is kept:
                        cell.kept = cell.spare = Stored(copy, 0, self._here, kept.outline)
                        cell.maker = None

    # -- the crew; all but `_listen` with the lock held ---------------------------------------------------------------

    def _staff(self) -> None:
        assert self._cluster is not None
        for node in self._cluster.places(self._workers, self._threads):
            self._hire(len(self._crew), node)

    def _hire(self, number: int, node: Node) -> None:
        assert self._cluster is not None
        kind: Any = self._ray.remote(Actor)
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        made = kind.options(scheduling_strategy=there, **self._cluster.options(self._threads))
        self._crew[number] = Hand(number, node, made.remote(number, self._threads))

    def _brief(self, hand: Hand) -> None:
        """Send a worker the data of the run. What it is busy with comes first, and is nobody's any more."""
        hand.calls.clear()
        hand.ready = False
        self._expect(hand, (), hand.actor.take_up.remote(self._context))

    def _expect(
        self, hand: Hand, call: Call, answer: Any, shelf: Any = None, nodes: frozenset[str] = frozenset()
    ) -> None:
        words, run = self._words, self._run
        answer.future().add_done_callback(lambda outcome: words.put(Word(hand, run, call, shelf, nodes, outcome)))

    def _listen(self, words: queue.SimpleQueue[Word | None]) -> None:
        """The thread that takes what workers say."""
        while (word := words.get()) is not None:
            with self._changed:
                try:
                    if not self._closing and self._crew.get(word.hand.number) is word.hand:
                        self._hear(word)
                        self._dispatch()
                except Exception as error:
                    self._fail(error)
                self._changed.notify_all()

    def _hear(self, word: Word) -> None:
        error = word.outcome.exception()
        if error is not None and not isinstance(error, self._ray.exceptions.RayTaskError):
            self._bury(word.hand, error)
        elif word.run != self._run:  # a run that was given up
            return
        elif not word.call:
            self._greet(word.hand, word.outcome)
        elif error is None:
            word.hand.calls.remove(word.call)
            at = 0
            for order, reply in zip(word.call, word.outcome.result(), strict=True):
                self._take(word.hand, order, reply, word.shelf, at)
                at += len(order.jobs)
        else:
            word.hand.calls.remove(word.call)
            if isinstance(error.cause, self._ray.exceptions.ObjectLostError) and self._any_dead(word.nodes):
                for order in word.call:
                    self._ready.push(order)
            else:
                self._fail(TaskError(f"{word.call[0].title} failed: {said(error.cause or error)}"))

    def _greet(self, hand: Hand, outcome: Any) -> None:
        """A worker is ready, or tells why it is not."""
        hand.pid, found, reply = outcome.result()
        if reply.failure is not None:
            raise ConfigError(
                f"the data of the run cannot be taken up on a node of the Ray cluster: {reply.failure.summary}"
            )
        for name, mine in versions().items():
            if found.get(name) != mine:
                raise ConfigError(
                    f"{name} is {mine} here and {found.get(name)} on a node of the Ray cluster, so results could "
                    f"differ; install the same on every node"
                )
        hand.ready, self._stillborn = True, 0

    def _dispatch(self) -> None:
        """A call for who has none; then one more for those who will be free in a moment.

        The orders of a sector belong to the nodes that offer it, if there are any.
        """
        offered = {sector for hand in self._crew.values() for sector in hand.node.sectors}
        for most in (1, 2):
            for hand in self._crew.values():
                elsewhere = offered - hand.node.sectors
                fits = partial(self._fits, elsewhere) if elsewhere else None
                while hand.ready and len(hand.calls) < most and self._soon(hand):
                    if not (call := self._next(fits)):
                        break
                    self._send(hand, call)

    def _soon(self, hand: Hand) -> bool:
        return not hand.calls or sum(map(self._seconds, hand.calls[0])) < QUICK

    def _seconds(self, order: Order) -> float:
        """That it will take, by the last of its kind; long if nobody knows."""
        return QUICK if order.deaths else self._took.get(order.jobs[0].title, QUICK)

    def _next(self, fits: Callable[[Order], bool] | None) -> Call:
        """The next order; several, if they will be done soon and there are more than enough for everybody."""
        call: list[Order] = []
        seconds, share = 0.0, len(self._ready) // (2 * len(self._crew))
        while (not call or len(call) < share) and (order := self._ready.pop(fits)):
            seconds += self._seconds(order)
            if call and seconds >= QUICK:
                self._ready.push(order)
                break
            if self._whole(order):
                call.append(order)
        return tuple(call)

    def _fits(self, elsewhere: set[str], order: Order) -> bool:
        home = order.jobs[0].home
        return self._sectors.get(home, home) not in elsewhere

    def _whole(self, order: Order) -> bool:
        """Whether all inputs of an order are still there; else it waits until they are made once more."""
        cells = {held.real.cell for held in order.inputs.values()}
        for cell in cells:
            if self._is_gone(cell):
                self._remake(cell)
        away = [cell for cell in cells if not cell.there]
        order.missing = len(away)
        for cell in away:
            cell.waiting.append(lambda: self._one_less(order))
        return not away

    def _send(self, hand: Hand, call: Call) -> None:
        loads: list[Load] = []
        shelves: dict[Any, int] = {}
        nodes: set[str] = set()
        for order in call:
            inputs: dict[str, Part] = {}
            for name, held in order.inputs.items():
                (cell, part), kept = held.real, held.real.cell.kept
                if cell.info is None:
                    inputs[name] = None, 0, part
                    continue
                assert isinstance(kept, Stored), f"{name} is neither lost nor there"  # never a wrong result
                nodes.add(kept.node)
                inputs[name] = shelves.setdefault(kept.shelf, len(shelves)), kept.at, part
            loads.append((order.pickled, inputs))
        answer, shelf = hand.actor.carry_out.options(num_returns=2).remote(loads, *shelves)
        hand.calls.append(call)
        self._expect(hand, call, answer, shelf, frozenset(nodes))

    def _take(self, hand: Hand, order: Order, reply: Any, shelf: Any, first: int) -> None:
        if reply.failure is not None:
            self._fail(order.error(reply.failure))
            return
        self._took[order.jobs[0].title] = reply.done.end - reply.done.start
        inputs = order.inputs
        if hand.node.id != self._here:  # what is here is as safe as this process
            self._remember(order)
        if order not in self._again:
            self._reports.append(reply.done)
        for at, (cell, result) in enumerate(zip(order.cells, reply.results, strict=True), first):
            if not cell.there:  # else only others of its group had to be made once more
                info = result.info
                kept = None if info is None else Stored(shelf, at, hand.node.id, result.outline)
                cell.maker = order if hand.node.id != self._here else None
                cell.spare = kept if order in self._again and not cell.maker else None
                cell.fill(kept, info)
        for used, _ in inputs.values():
            used.release()
        if hand.node.id != self._here:
            order.cells = ()
        self._again.discard(order)

    def _remember(self, order: Order) -> None:
        """See that an order can be carried out once more, as long as anybody might need what it made."""
        order.inputs = {name: held.real for name, held in order.inputs.items()}
        order.made = tuple(weakref.ref(cell) for cell in order.cells)
        order.depth = 1
        for cell, _ in order.inputs.values():
            if cell.maker is not None:
                order.depth = max(order.depth, 1 + cell.maker.depth)
            else:
                cell.spare = cell.kept

    def _take_up(self, path: Path) -> Kept:
        value = packed(serialization.read(path))
        return Stored(self._ray.put([value]), 0, self._here, outline(value))

    # -- losses; with the lock held ----------------------------------------------------------------------------------

    def _bury(self, hand: Hand, error: BaseException) -> None:
        """Another takes the number of a worker that died, if its node is there; its jobs go back to their places."""
        assert self._cluster is not None
        self._ray.kill(hand.actor)  # it may only be out of reach
        del self._crew[hand.number]
        self._count_the_dead()
        if not hand.ready and hand.node.id not in self._dead:
            self._stillborn += 1
        if self._stillborn >= TRIES:
            raise ConfigError(
                f"workers on Ray end before they begin ({_reason(error)}); see that headwater[ray] is installed on "
                "every node, or use --engine pool"
            )
        for at, call in enumerate(hand.calls):
            for order in call:
                if at or hand.node.id in self._dead:
                    self._ready.push(order)
                else:  # from now on it is sent alone, so that it is known which of them it is
                    self._died_over(order, f"because {_reason(error)}")
        if hand.node.id not in self._dead:
            self._hire(hand.number, hand.node)
            self._brief(self._crew[hand.number])
        elif not self._crew:
            self._staff()
            for each in self._crew.values():
                self._brief(each)

    def _count_the_dead(self) -> None:
        self._dead |= {node["NodeID"] for node in self._ray.nodes() if not node["Alive"]}

    def _any_dead(self, nodes: Collection[str]) -> bool:
        """Whether any of these is gone, of which Ray may tell a moment after it misses a value that was there."""
        end = time.monotonic() + NOTICE
        while True:
            self._count_the_dead()
            if not self._dead.isdisjoint(nodes) or time.monotonic() > end:
                return not self._dead.isdisjoint(nodes)
            time.sleep(0.2)

    def _is_gone(self, cell: Cell) -> bool:
        """Whether a value that was there got lost with its node, or was let go of before it was needed once more."""
        if not cell.there or cell.info is None:
            return False
        return not isinstance(cell.kept, Stored) or cell.kept.node in self._dead

    def _remake(self, cell: Cell) -> None:
        """Have the order carried out again that made a value, and before it those that made what it needs."""
        order = cell.maker
        if order is None:
            raise TaskError("a node was lost with a value that cannot be made again; carry on with headwater resume")
        if order in self._again:
            return
        self._again.add(order)
        order.cells = tuple(each() or Cell(0) for each in order.made)
        for each in order.cells:
            if self._is_gone(each):
                each.there = False
        for held in order.inputs.values():
            held.cell.holders += 1
            held.cell.kept = held.cell.kept or held.cell.spare
        if self._whole(order):
            self._ready.push(order)


def _reason(error: BaseException) -> str:
    """Why a worker died, from the many lines that Ray has to say about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if "Error" in line.partition(":")[0]), lines[0] if lines else "")
    return told.rstrip(".") or type(error).__name__
