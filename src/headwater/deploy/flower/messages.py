"""Messages in Flower's format, and the tasks through which Flower hands them over. Loaded in child processes only.

A message is a ConfigRecord with the head as JSON. Flower transfers every record and every array in requests of its own,
four times on the way from one party to another, so a small payload is in the same record: a description of the arrays
as JSON, and all their bytes. The arrays of a larger one are in an ArrayRecord, under their numbers. Flower cuts them
into pieces; when it assembles them it trusts what the sender says about the pieces, so their sizes are added up here
first.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.error import Error
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest, SendTaskHeartbeatRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient

from headwater.core.records import parse_json
from headwater.deploy.transport import Message, RawArray, Unanswered

RAW = "headwater.raw"
SMALL = 4 << 20  # bytes of a payload that is in one record with the head
SLACK = 1 << 20  # bytes of a message that are not payload
HEARTBEAT = 10.0  # seconds between heartbeats of a task; Flower gives up a task after a minute without
TRIES = 3  # of a request whose connection was closed
NOT_OURS = "what came is not a message of Headwater"
APP = """
[build-system]
requires = []
build-backend = "hatchling.build"

[project]
name = "headwater-link"
version = "1.0.0"
description = "Carries messages. It is never run: the parties have the code already."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "headwater"

[tool.flwr.app.components]
serverapp = "headwater.deploy.flower:none"
clientapp = "headwater.deploy.flower:none"

[tool.flwr.app.config]
"""


def to_flower(message: Message) -> RecordDict:
    record: dict[str, Any] = {"head": json.dumps(message.head).encode()}
    content = RecordDict()
    if message.parts and message.payload <= SMALL:
        record["form"] = json.dumps([[part.dtype, part.shape, len(part.data)] for part in message.parts]).encode()
        record["data"] = b"".join(part.data for part in message.parts)
    elif message.parts:
        arrays = {f"{n:05}": Array(p.dtype, p.shape, RAW, p.data) for n, p in enumerate(message.parts)}
        content["parts"] = ArrayRecord(arrays)
    content["head"] = ConfigRecord(record)
    return content


def from_flower(content: RecordDict) -> Message:
    """Read a message. Only its form is checked here; `headwater.deploy.payload` checks the arrays.

    Raises:
        Unanswered: if it is not a message of Headwater.
    """
    try:
        record: Any = content.config_records["head"]
        head = parse_json(record["head"])
        arrays = content.array_records.get("parts", ArrayRecord())
        parts = [RawArray(str(a.dtype), tuple(map(int, a.shape)), a.data) for _, a in sorted(arrays.items())]
        parts += _small_parts(parse_json(record["form"]), record["data"]) if "form" in record else []
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unanswered(NOT_OURS) from error
    if not isinstance(head, dict):
        raise Unanswered(NOT_OURS)
    return Message(head, tuple(parts))


def _small_parts(form: list[tuple[str, list[int], int]], data: bytes) -> list[RawArray]:
    """The arrays whose bytes follow each other in `data`; ValueError if they do not fill it."""
    sizes = [size for _, _, size in form]
    if not isinstance(data, bytes) or min(sizes, default=0) < 0 or sum(sizes) != len(data):
        raise ValueError("these are not the bytes of these arrays")
    ends = list(accumulate(sizes))
    return [
        RawArray(str(dtype), tuple(map(int, shape)), data[end - size : end])
        for (dtype, shape, size), end in zip(form, ends, strict=True)
    ]


def sent(call: Callable[[Any], Any], request: Any) -> Any:
    """Send a request, again if an idle connection was closed at that moment: nothing was read of it then."""
    for _ in range(TRIES - 1):
        with suppress(httpx.RemoteProtocolError):
            return call(request)
    return call(request)


class HeaderInterceptor:
    """Adds HTTP headers to every request."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self.headers)
        return call_next(context)


class FlowerTask:
    """A task that was acquired from Flower: sends and fetches its messages and sends its heartbeats, until `end`.

    Args:
        address: of the SuperLink or SuperNode.
        root: CA certificate of the address; None without TLS.
        token: of the task.
        component: name of the app that Flower expects to run the task.
        max_bytes: largest payload of a message.
        interceptors: of requests, besides Flower's own.
        on_lost: called if Flower has given up the task.
    """

    def __init__(
        self,
        address: str,
        root: bytes | None,
        token: str,
        component: str,
        max_bytes: int,
        interceptors: Sequence[Any] = (),
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = RuntimeHttpClient.from_server_address(
            address,
            insecure=root is None,
            root_certificates=root,
            interceptors=[RuntimeVersionHttpInterceptor(component), RuntimeTokenHttpInterceptor(token), *interceptors],
        )
        self.max_bytes = max_bytes
        self.run_id, self.node = 0, Node()
        self._on_lost = on_lost
        self._ended = threading.Event()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def set_run(self, run_id: int, node_id: int) -> None:
        """Set run and node, which are known once the task's input has been fetched."""
        self.run_id, self.node = run_id, Node(node_id=node_id)

    def push(self, message: FlowerMessage) -> str:
        """Send a message. Returns Flower's id of it, or an empty string if it was refused."""
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            request = PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
            )
            response = sent(self.client.PushMessages, request)
            piece = partial(sent, self.client.PushObject)  # sending the same piece twice changes nothing
            push_objects(
                get_all_nested_objects(message),
                make_push_object_fn_protobuf(piece, self.node, self.run_id, response.session_id),
                object_ids_to_push=set(response.objects_to_push),
            )
        return str(response.message_ids[0]) if response.message_ids else ""

    def fetch(self, tree: ObjectTree, most: int | None = None) -> FlowerMessage:
        """Fetch a message. Waits for pieces that have not arrived yet.

        Args:
            tree: the pieces.
            most: largest payload of this message, if less is expected than any message may have.

        Raises:
            Unanswered: if it is too large, incomplete or no message of Headwater.
        """
        pull = make_pull_object_fn_protobuf(partial(sent, self.client.PullObject), self.node, self.run_id)
        total, lock = [0], threading.Lock()
        most = self.max_bytes if most is None else min(most, self.max_bytes)

        def counted(piece: str) -> bytes:
            data = pull(piece)
            with lock:
                total[0] += len(data)
            if total[0] > most + SLACK:  # the rest is not fetched
                raise Unanswered(_too_large(most))
            return data

        try:
            pieces = pull_objects(
                [branch.object_id for branch in iterate_object_tree(tree)],
                counted,
                max_tries_per_object=None,  # Flower itself gives up an upload that makes no progress for three minutes
                initial_backoff=0.05,
                backoff_cap=1.0,
            )
            if _assembled_size(pieces) > most:
                raise Unanswered(_too_large(most))
            message = inflate_object_from_contents(tree.object_id, pieces)
        except ObjectPullError as error:
            raise Unanswered("the message did not arrive whole") from error
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise Unanswered(NOT_OURS) from error
        finally:
            # The message is here; one that is not confirmed is kept a while longer at the link.
            with suppress(httpx.HTTPError):
                sent(
                    self.client.ConfirmMessageReceived,
                    ConfirmMessageReceivedRequest(node=self.node, run_id=self.run_id, message_object_id=tree.object_id),
                )
        if not isinstance(message, FlowerMessage):
            raise Unanswered(NOT_OURS)
        if _small_size(message) > most:
            raise Unanswered(_too_large(most))
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def end(self) -> None:
        self._ended.set()
        self.client.close()

    def _heartbeat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            try:
                alive = self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success
            except httpx.HTTPStatusError:
                alive = False
            except (httpx.HTTPError, RuntimeError):
                continue  # not reached, which the next heartbeat may be
            if not alive and not self._ended.is_set():
                self._on_lost()
                return


def _too_large(most: int) -> str:
    return f"the message is larger than the {most / 1e6:.4g} MB that are accepted here"


def _assembled_size(pieces: dict[str, bytes]) -> int:
    """Bytes of all arrays after assembly. A small array may name one piece a million times."""
    total = 0
    for data in pieces.values():
        kind, children, _ = get_object_head_values_from_object_content(data)
        if kind == Array.__qualname__:
            order = parse_json(get_object_body(data, Array))["arraychunk_ids"]
            total += sum(len(pieces[children[int(n)]]) for n in order)
    return total


def _small_size(message: FlowerMessage) -> int:
    """Bytes of a payload that is in one record with the head."""
    records = message.content.config_records.values() if message.has_content() else ()
    return sum(len(data) for record in records if isinstance(data := record.get("data"), bytes))


def refusal(reason: str, to: FlowerMessage) -> FlowerMessage:
    """A reply that only says why there is none."""
    return FlowerMessage(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=to)
