"""An answer of a link that is lost on its way costs a repeated call, and not the request that it carried."""

from __future__ import annotations

import http.client
import importlib.util
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace as Fields
from typing import Any

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

import httpx
from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from flower_party import answer, folder, parties
from headwater.deploy.flower import FlowerDownlink, FlowerUplink
from headwater.deploy.flower.messages import FlowerTask, from_flower, sent, to_flower
from headwater.deploy.transport import Message, RawArray
from process_tree import until

NODES = "/v1/fleet/"
CALLS = ("pull-messages", "pull-object", "confirm-message-received", "push-messages", "push-object")
LONG = 120.0  # seconds; far less than a deadline


class Lossy(ThreadingHTTPServer):
    """A proxy before a link. It carries out every call, and loses the first two answers to one kind that say something.

    Args:
        link: address of the link.

    Attributes:
        call: whose answers are lost.
    """

    daemon_threads = True

    def __init__(self, link: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.link, self.call = link, ""
        self.lost: Counter[str] = Counter()

    def loses(self, call: str, body: bytes) -> bool:
        if call != self.call or self.lost[call] == 2 or (call == "pull-messages" and not body):
            return False
        self.lost[call] += 1
        return True


class Handler(BaseHTTPRequestHandler):
    server: Lossy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        asked = http.client.HTTPConnection(self.server.link, timeout=60)
        try:
            asked.request("POST", self.path, body, dict(self.headers))
            answered = asked.getresponse()
            content = answered.read()
        finally:
            asked.close()
        if self.server.loses(self.path.removeprefix(NODES), content):
            self.close_connection = True
            return
        self.send_response(answered.status)
        for name, value in answered.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None: ...


@contextmanager
def between(link: str) -> Iterator[Lossy]:
    with Lossy(link) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


@pytest.mark.thorough
def test_a_lost_answer_costs_no_request(tmp_path: Path) -> None:
    """On a link without TLS, so that the proxy sees what it loses."""
    parties(tmp_path, ("c0",), insecure=True)
    owner, member = folder(tmp_path, "server"), folder(tmp_path, "c0")
    assert member.above is not None
    asked: list[Any] = []

    def counting(message: Message) -> Message:
        asked.append(message.head.get("number"))
        return answer(message)

    with between(member.above) as proxy:
        uplink = FlowerUplink(replace(member, above=f"127.0.0.1:{proxy.server_port}"))
        link, stop = FlowerDownlink(owner), threading.Event()
        thread = threading.Thread(target=uplink.serve, args=(counting, stop))
        thread.start()
        try:
            until(link.present, "the member", LONG)
            for proxy.call in CALLS:
                asked.clear()
                for number in range(3):
                    part = RawArray("int8", (4,), bytes([number] * 4))
                    sent = link.send("c0", Message({"number": number}, (part,)))
                    came: dict[int, Any] = {}
                    until(lambda came=came: came.update(link.replies(0.2)) or came, f"answer {number}", LONG)
                    assert isinstance(came[sent], Message), (proxy.call, came[sent])
                    assert came[sent].parts == (part,)
                assert proxy.lost[proxy.call] == 2
                assert asked == [0, 1, 2], f"every request is carried out once: {proxy.call}"
        finally:
            stop.set()
            thread.join()
            uplink.close()
            link.close()


class TestRedelivery:
    """Which message a node gets when it asks."""

    class Queue:
        """In place of Flower's handlers: messages that are handed out once."""

        def __init__(self, *ids: str) -> None:
            self.left = [*ids]
            self.confirmed: list[str] = []
            self.replies: list[str] = []
            self.pieces: list[str] = []

        def pull(self, request: Any) -> Any:
            found = [Fields(metadata=Fields(message_id=self.left.pop(0)))] if self.left else []
            return Fields(messages_list=found)

        def confirm(self, request: Any) -> None:
            self.confirmed.append(request.message_object_id)

        def activate(self, request: Any) -> Any:
            return Fields(node_id=request)

        def push(self, request: Any) -> Any:
            self.replies.append(request.messages_list[0].metadata.message_id)
            return len(self.replies)

        def store(self, request: Any) -> Any:
            new = request.object_id not in self.pieces
            self.pieces.append(request.object_id)
            return Fields(stored=new)

    def made(self, *ids: str) -> tuple[Queue, Any]:
        from headwater.deploy.flower.redelivery import Redelivery  # loads Flower, which takes seconds

        queue = self.Queue(*ids)
        return queue, Redelivery(queue.pull, queue.confirm, queue.activate, queue.push, queue.store)

    @staticmethod
    def pulled(link: Any, node: int = 1) -> list[str]:
        answer = link.pull(request=Fields(node=Fields(node_id=node)))
        return [message.metadata.message_id for message in answer.messages_list]

    @staticmethod
    def confirm(link: Any, message: str, node: int = 1) -> None:
        link.confirm(request=Fields(node=Fields(node_id=node), message_object_id=message))

    def test_a_message_is_given_until_it_is_confirmed(self) -> None:
        queue, link = self.made("a", "b")
        assert self.pulled(link) == self.pulled(link) == ["a"]
        self.confirm(link, "a")
        assert self.pulled(link) == ["b"]
        self.confirm(link, "a")  # was under way for long
        assert self.pulled(link) == ["b"]
        self.confirm(link, "b")
        assert self.pulled(link) == []
        assert queue.confirmed == ["a", "a", "b"]

    def test_only_to_its_own_node_and_not_after_a_new_start(self) -> None:
        _, link = self.made("a", "b")
        assert self.pulled(link, 1) == ["a"]
        assert self.pulled(link, 2) == ["b"]
        link.activate(request=1)
        assert self.pulled(link, 1) == []
        assert self.pulled(link, 2) == ["b"]

    def test_a_reply_that_is_announced_again_gets_the_same_answer(self) -> None:
        queue, link = self.made()

        def push(reply: str, node: int = 1) -> int:
            message = Fields(metadata=Fields(message_id=reply))
            return int(link.push(request=Fields(node=Fields(node_id=node), messages_list=[message])))

        def stored(piece: str) -> bool:
            return bool(link.store(request=Fields(node=Fields(node_id=1), session_id="s", object_id=piece)).stored)

        assert [push("a"), push("a"), push("b"), push("b"), push("a", node=2)] == [1, 1, 2, 2, 3]
        assert [stored("x"), stored("x"), stored("y")] == [True, True, True]
        assert queue.pieces == ["x", "y"]
        link.activate(request=1)
        assert push("b") == 4
        assert queue.replies == ["a", "b", "a", "b"]

    def test_not_without_end(self) -> None:
        from headwater.deploy.flower.redelivery import MOST

        _, link = self.made("a", "b")
        assert [self.pulled(link) for _ in range(MOST)] == [["a"]] * MOST
        assert self.pulled(link) == ["b"]


@pytest.mark.parametrize(("closed", "arrives"), [(0, True), (1, True), (2, True), (3, False)])
def test_a_request_that_met_a_closed_connection_is_sent_again(closed: int, arrives: bool) -> None:
    calls: list[str] = []

    def call(request: str) -> str:
        calls.append(request)
        if len(calls) <= closed:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return "done"

    if arrives:
        assert sent(call, "it") == "done"
    else:
        with pytest.raises(httpx.RemoteProtocolError):
            sent(call, "it")
    assert calls == ["it"] * min(closed + 1, 3)


class Closing:
    """In place of a connection to Flower: holds the pieces of one message, and closes at the first call of each kind.

    Args:
        pieces: of the message, by id.
        deaf: whether confirmations never arrive.
    """

    def __init__(self, pieces: dict[str, bytes], deaf: bool) -> None:
        self.pieces, self.deaf = pieces, deaf
        self.calls: Counter[str] = Counter()

    def _call(self, kind: str) -> None:
        self.calls[kind] += 1
        if self.calls[kind] == 1 or (self.deaf and kind == "confirm"):
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        self._call("pull")
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=self.pieces[request.object_id]
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self._call("confirm")


@pytest.mark.parametrize("deaf", [False, True])
def test_an_answer_is_fetched_although_the_connection_was_closed(deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is busy closes idle connections; an answer that has arrived there must not be lost for that."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    wanted = Message({"round": 1}, (RawArray("int8", (5 << 20,), bytes(range(256)) * (20 << 10)),))
    answered = FlowerMessage(to_flower(wanted), 1, MessageType.TRAIN)
    answered.metadata.__dict__["_message_id"] = answered.object_id
    pieces = {name: piece.deflate() for name, piece in get_all_nested_objects(answered).items()}
    task = object.__new__(FlowerTask)  # without its heartbeats, which need a link
    task.client, task.max_bytes = Closing(pieces, deaf), 10 << 20
    task.set_run(1, 1)
    assert from_flower(task.fetch(get_object_tree(answered)).content) == wanted
    assert task.client.calls == {"pull": len(pieces) + 1, "confirm": 3 if deaf else 2}
