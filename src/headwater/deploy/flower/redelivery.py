"""Gives a message to its node again if the node did not get it, and takes a reply again if the node cannot know that it
has arrived.

A SuperLink hands out a message once: if the network fails at that moment, the message is lost, although the node is
soon back, and the party above waits for a reply until its deadline. A node confirms every message that it has received
whole, and asks for the next one only then. So a node that asks again without having confirmed did not get the last one.

A node that announces a reply, or sends a piece of one, and gets no answer does it again. The SuperLink takes neither a
second time: it would not ask for the pieces of the reply, which are still to come, and the node would give it up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from flwr.superlink.servicer.fleet import fleet_handlers

MOST = 20  # times that a message is given out; a node that never confirms it cannot read it


class Given(NamedTuple):
    """An answer with a message that its node has not confirmed yet, and how often it was given."""

    answer: Any
    times: int


class Taken(NamedTuple):
    """A reply that was announced, the answer to that, and to each of its pieces that are here."""

    reply: str
    answer: Any
    pieces: dict[tuple[str, str], Any]


class Redelivery:
    """Stands before the handlers of a SuperLink for calls of nodes.

    Args:
        pull: Flower's handler of a node's request for a message.
        confirm: Flower's handler of a node's word that it has a message.
        activate: Flower's handler of a node that connects.
        push: Flower's handler of a node's announcement of a reply.
        store: Flower's handler of a piece of it.
    """

    def __init__(
        self,
        pull: Callable[..., Any],
        confirm: Callable[..., Any],
        activate: Callable[..., Any],
        push: Callable[..., Any],
        store: Callable[..., Any],
    ) -> None:
        self._pull, self._confirm, self._activate, self._push, self._store = pull, confirm, activate, push, store
        self._lock = threading.Lock()
        self._given: dict[int, Given] = {}  # by node
        self._taken: dict[int, Taken] = {}  # by node: its last reply

    def pull(self, request: Any, **more: Any) -> Any:
        node = request.node.node_id
        with self._lock:
            if (given := self._given.pop(node, None)) is not None and given.times < MOST:
                self._given[node] = Given(given.answer, given.times + 1)
                return given.answer
        answer = self._pull(request=request, **more)
        if answer.messages_list:
            with self._lock:
                self._given[node] = Given(answer, 1)
        return answer

    def confirm(self, request: Any, **more: Any) -> Any:
        answer = self._confirm(request=request, **more)
        node = request.node.node_id
        with self._lock:
            given = self._given.get(node)
            # A word that was under way for long may be about an earlier message.
            if given is not None and given.answer.messages_list[0].metadata.message_id == request.message_object_id:
                del self._given[node]
        return answer

    def activate(self, request: Any, **more: Any) -> Any:
        """A node that was started again gets no message of its earlier life: the party above knows that it is lost."""
        answer = self._activate(request=request, **more)
        with self._lock:
            self._given.pop(answer.node_id, None)
            self._taken.pop(answer.node_id, None)
        return answer

    def push(self, request: Any, **more: Any) -> Any:
        """A reply that was announced before gets the same answer again."""
        node, reply = request.node.node_id, request.messages_list[0].metadata.message_id
        with self._lock:
            taken = self._taken.get(node)
        if taken is None or taken.reply != reply:
            taken = Taken(reply, self._push(request=request, **more), {})
            with self._lock:
                self._taken[node] = taken
        return taken.answer

    def store(self, request: Any, **more: Any) -> Any:
        """A piece that was stored before gets the same answer again."""
        piece = request.session_id, request.object_id
        with self._lock:
            taken = self._taken.get(request.node.node_id)
        if taken is not None and piece in taken.pieces:
            return taken.pieces[piece]
        answer = self._store(request=request, **more)
        if taken is not None and answer.stored:
            taken.pieces[piece] = answer
        return answer


def install() -> None:
    """Put a `Redelivery` before the handlers of the SuperLink that this process starts."""
    handlers = vars(fleet_handlers)
    names = ("pull_messages", "confirm_message_received", "activate_node", "push_messages", "push_object")
    before = Redelivery(*(handlers[name] for name in names))
    own = (before.pull, before.confirm, before.activate, before.push, before.store)
    handlers.update(zip(names, own, strict=True))
