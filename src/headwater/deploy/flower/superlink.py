"""The child process of a party that runs a link: Flower's SuperLink, and threads that pass messages to its members.

Frames from the party: `number`, `to`, `most` (bytes of the reply) and a request; `{"forget": number}`;
`{"revoke": member}`. Frames to the party, by `say`: `ready` once, `present` with the names of connected members,
`visitor` with the key of a node that was refused, `reply` with a reply, `unanswered` with a reason.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import AcquireTaskRequest, GetNodesRequest, PullAppMessagesRequest, PullTaskInputRequest
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli import flower_superlink

from headwater.deploy.flower import connections, guard, redelivery
from headwater.deploy.flower.child_process import Pipe, fail, pipe_to_party
from headwater.deploy.flower.connections import MemberKeys
from headwater.deploy.flower.messages import APP, NOT_OURS, FlowerTask, HeaderInterceptor, from_flower, sent, to_flower
from headwater.deploy.flower.visitors import VisitorBook
from headwater.deploy.flower.waiting import wait_for
from headwater.deploy.quoting import quoted
from headwater.deploy.transport import Message, Unanswered

POLL = 1.0  # seconds between two polls of the SuperLink without news
START = 600.0  # seconds after which a SuperLink that is not up is started anew; a busy machine takes minutes


class NodeSession(NamedTuple):
    """A node from one of its starts to its end. A node that is restarted keeps its id."""

    node: int
    since: str


class SuperLinkBridge:
    """Passes requests from the party's process to the SuperLink, and replies back."""

    def __init__(
        self,
        pipe: Pipe,
        settings: dict[str, Any],
        key: str,
        news: threading.Event,
        admitted: threading.Event,
        keys: MemberKeys | None,
        visitors: VisitorBook,
    ) -> None:
        self.pipe, self.settings, self.news, self.admitted, self.keys = pipe, settings, news, admitted, keys
        self.key = HeaderInterceptor({guard.KEY: key})
        self.root = Path(settings["ca"]).read_bytes() if settings["ca"] else None
        self.members: tuple[str, ...] = tuple(settings["members"])
        self.pool = ThreadPoolExecutor(8 + len(self.members))
        self.lock = threading.Lock()
        self.open: dict[str, tuple[int, NodeSession]] = {}  # by Flower's message id: our number, receiver
        self.most: dict[
            int, int | None
        ] = {}  # by our number: largest payload of the reply; None for the link's own limit
        self.present: dict[str, NodeSession] = {}  # by name
        self.names: dict[int, str] = {}  # by node without a key: the name that it reports itself
        self.asked: dict[str, int] = {}  # by Flower's message id: node that was asked for its name
        self.visitors = visitors
        self.task: FlowerTask

    def run(self) -> None:
        try:
            self._start()
            self.admitted.set()
            self.pipe.write({"say": "ready"})
            threading.Thread(target=self._read_requests, daemon=True).start()
            while True:
                self._poll()
                for visitor in self.visitors.report():
                    self.pipe.write({"say": "visitor", **visitor})
                self.news.wait(POLL)
                self.news.clear()
        except BaseException as error:
            fail(error)

    # -- start

    def _start(self) -> None:
        control = self._client(ControlHttpClient, "flwr")
        wait_for(lambda: control.ListNodes(ListNodesRequest()), START, httpx.TransportError)
        guard.check(self.settings["dial"], self.settings["ca"])
        if self.keys is not None:
            guard.admit(control, self.keys)
        fab, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
        self.task = self._acquire(control.StartRun(StartRunRequest(fab=Fab(content=fab))).run_id)

    def _acquire(self, run_id: int) -> FlowerTask:
        """The task of the run, which for Flower is its ServerApp."""
        runtime = self._client(RuntimeHttpClient, "SuperExec")
        end = time.monotonic() + START
        while time.monotonic() < end:
            acquired = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if acquired.HasField("task") and acquired.task.run_id == run_id:
                runtime.close()
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("the SuperLink does not start the run")
        task = FlowerTask(
            self.settings["dial"],
            self.root,
            acquired.token,
            "flwr-serverapp",
            self.settings["max_bytes"],
            [self.key],
            lambda: fail(RuntimeError("the SuperLink has given up the run")),
        )
        start = task.client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = start.task_id, run_id
        TaskIdentity.node_id = start.context.node_id
        task.set_run(run_id, start.context.node_id)
        return task

    def _client(self, kind: Any, component: str) -> Any:
        return kind.from_server_address(
            self.settings["dial"],
            insecure=self.root is None,
            root_certificates=self.root,
            interceptors=[RuntimeVersionHttpInterceptor(component), self.key],
        )

    # -- requests

    def _read_requests(self) -> None:
        try:
            while True:
                frame, message = self.pipe.read()
                if message is not None:
                    self.most[frame["number"]] = frame["most"]
                    self.pool.submit(self._send, frame["number"], frame["to"], message)
                elif "revoke" in frame:
                    self._revoke(frame["revoke"])
                else:
                    self._forget(frame["forget"])
        except EOFError:
            os._exit(0)  # the party has ended
        except BaseException as error:
            fail(error)

    def _send(self, number: int, to: str, message: Message) -> None:
        try:
            node = self.present.get(to)
            if node is None:
                return self._unanswered(number, f"{to} is not there")
            message_id = self.task.push(FlowerMessage(to_flower(message), node.node, MessageType.TRAIN))
            if not message_id:
                return self._unanswered(number, f"{to} is not there")
            with self.lock:
                self.open[message_id] = number, node
            self.news.set()  # the reply may have arrived before
        except (httpx.HTTPError, Unanswered) as error:
            self._unanswered(number, f"the message did not get to the link ({error})")
        except BaseException as error:
            fail(error)

    def _forget(self, number: int) -> None:
        self.most.pop(number, None)
        with self.lock:
            self.open = {message_id: entry for message_id, entry in self.open.items() if entry[0] != number}

    def _revoke(self, name: str) -> None:
        """Answer no call of a member any more; what it was asked for will not come."""
        self.members = tuple(member for member in self.members if member != name)
        if self.keys is not None:
            self.keys.revoke(name)
        self.visitors.revoke(name)
        node = self.present.pop(name, None)
        with self.lock:
            lost = [key for key, (_, to) in self.open.items() if to == node]
            numbers = [self.open.pop(key)[0] for key in lost]
        for number in numbers:
            self._unanswered(number, "it was revoked")

    # -- replies and presence

    def _poll(self) -> None:
        self._update_present()
        with self.lock:
            waiting = [*self.open, *self.asked]
        if not waiting:
            return
        pulled = sent(self.task.client.PullMessages, PullAppMessagesRequest(message_ids=waiting))
        for head, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            message_id = head.metadata.reply_to_message_id
            with self.lock:
                (number, _), node = self.open.pop(message_id, (None, None)), self.asked.pop(message_id, None)
            self.pool.submit(self._receive, tree, number, node)

    def _receive(self, tree: Any, number: int | None, node: int | None) -> None:
        reason = NOT_OURS
        try:
            message = self.task.fetch(tree, None if number is None else self.most.pop(number, None))
            if message.has_error():
                raise Unanswered(_reason(message))
            reply = from_flower(message.content)
            if node is not None and (name := reply.head.get("name")) in self.members:
                self.names[node] = name
                self.news.set()
            if number is not None:
                self.pipe.write({"say": "reply", "number": number}, reply)
            return
        except OSError:
            os._exit(0)
        except Unanswered as error:
            reason = str(error)
        except httpx.HTTPError as error:
            reason = f"the answer could not be fetched from the link ({error})"
        except Exception:  # malformed replies of one member must not end the link
            traceback.print_exc()
        if number is not None:
            self._unanswered(number, reason)

    def _update_present(self) -> None:
        """Find out which members are connected, and which were restarted and so lost their requests."""
        try:
            nodes = sent(self.task.client.GetNodes, GetNodesRequest()).nodes
        except httpx.TimeoutException:
            return  # the next poll will do
        online = [node for node in nodes if node.status == NodeStatus.ONLINE]
        online.sort(key=lambda node: node.last_activated_at)
        names = self._names_of(online)
        present = {
            name: NodeSession(node.node_id, node.last_activated_at)
            for node in online
            if (name := names.get(node.node_id)) in self.members
        }
        if present.keys() != self.present.keys():
            self.pipe.write({"say": "present", "names": sorted(present)})
        self.present = present
        since = {node.node_id: node.last_activated_at for node in online}
        with self.lock:
            lost = [key for key, (_, to) in self.open.items() if since.get(to.node, to.since) != to.since]
            numbers = [self.open.pop(key)[0] for key in lost]
        for number in numbers:
            self._unanswered(number, "it was started again meanwhile")

    def _names_of(self, online: list[NodeInfo]) -> dict[int, str]:
        """Names by node: those of their keys or, without keys, what the nodes report when asked."""
        if self.root is not None:
            return {node.node_id: node.name for node in online}
        for node in online:
            if node.node_id not in self.names and node.node_id not in self.asked.values():
                question = FlowerMessage(to_flower(Message({})), node.node_id, MessageType.QUERY)
                if message_id := self.task.push(question):
                    self.asked[message_id] = node.node_id
        return self.names

    def _unanswered(self, number: int, reason: str) -> None:
        self.most.pop(number, None)
        self.pipe.write({"say": "unanswered", "number": number, "reason": reason})


def _reason(message: FlowerMessage) -> str:
    if message.error.code == ErrorCode.NODE_UNAVAILABLE:
        return "it is not there any more"
    return f"it says {quoted(message.error.reason)}" if (message.error.reason or "").strip() else "it gave no reason"


def main() -> None:
    pipe, settings = pipe_to_party(lambda: os._exit(0))
    key, news, admitted = secrets.token_hex(32), threading.Event(), threading.Event()
    members = MemberKeys(settings["members"]) if settings["ca"] else None
    visitors = VisitorBook(settings["members"] if settings["ca"] else {})
    connections.install(len(settings["members"]))
    guard.install(key, news, admitted, members, visitors)
    visitors.install()
    redelivery.install()
    sys.argv = ["flower-superlink", *settings["words"]]
    bridge = SuperLinkBridge(pipe, settings, key, news, admitted, members, visitors)
    threading.Thread(target=bridge.run, daemon=True).start()
    flower_superlink()


if __name__ == "__main__":
    main()
