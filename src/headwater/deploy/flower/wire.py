"""Messages as Flower carries them. Loaded in Flower's processes only.

A message is a ConfigRecord with the head as JSON, and an ArrayRecord with the parts as bare bytes under their numbers.
Flower cuts arrays into pieces and moves each by itself. Its own way of putting them together again trusts what the
sender says about the pieces, so the sizes are added up first.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

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

from headwater.deploy.message import Message, Part, Unanswered

RAW = "headwater.raw"
SLACK = 1 << 20  # bytes of a message that are not payload
BEAT = 10.0  # seconds between signs of life for a task; Flower gives one up after a minute


def to_flower(message: Message) -> RecordDict:
    """As it is carried."""
    content = RecordDict({"head": ConfigRecord({"head": json.dumps(message.head).encode()})})
    if message.parts:  # each record is moved by itself, also an empty one
        arrays = {f"{n:05}": Array(p.dtype, p.shape, RAW, p.data) for n, p in enumerate(message.parts)}
        content["parts"] = ArrayRecord(arrays)
    return content


def from_flower(content: RecordDict) -> Message:
    """Only the outer form is looked at; what the arrays say of themselves is for who uses them."""
    try:
        text: Any = content.config_records["head"]["head"]
        head = json.loads(text)
        arrays = content.array_records.get("parts", ArrayRecord())
        parts = tuple(Part(str(a.dtype), tuple(map(int, a.shape)), a.data) for _, a in sorted(arrays.items()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unanswered("what came is not a message of Headwater") from error
    if not isinstance(head, dict):
        raise Unanswered("what came is not a message of Headwater")
    return Message(head, parts)


class Headers:
    """Puts something at the head of every request."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self.headers)
        return call_next(context)


class Task:
    """A task of Flower's that has been taken: its messages are fetched and given here, until `end`."""

    def __init__(
        self,
        address: str,
        root: bytes | None,
        token: str,
        component: str,
        max_bytes: int,
        also: Sequence[Any] = (),
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = RuntimeHttpClient.from_server_address(
            address,
            insecure=root is None,
            root_certificates=root,
            interceptors=[RuntimeVersionHttpInterceptor(component), RuntimeTokenHttpInterceptor(token), *also],
        )
        self.max_bytes = max_bytes
        self.run_id, self.node = 0, Node()
        self._gone = gone
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def of(self, run_id: int, node_id: int) -> None:
        """Known once the task's input has been fetched."""
        self.run_id, self.node = run_id, Node(node_id=node_id)

    def push(self, message: FlowerMessage) -> str:
        """Give a message to Flower; its number there, or nothing if it was refused."""
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            given = self.client.PushMessages(
                PushAppMessagesRequest(
                    messages_list=[message_to_proto(remove_content_from_message(message))],
                    message_object_trees=[get_object_tree(message)],
                )
            )
            push_objects(
                get_all_nested_objects(message),
                make_push_object_fn_protobuf(self.client.PushObject, self.node, self.run_id, given.session_id),
                object_ids_to_push=set(given.objects_to_push),
            )
        return str(given.message_ids[0]) if given.message_ids else ""

    def fetch(self, tree: ObjectTree) -> FlowerMessage:
        """A message that Flower holds. Waits for pieces that are still on their way."""
        pull = make_pull_object_fn_protobuf(self.client.PullObject, self.node, self.run_id)
        total, lock = [0], threading.Lock()

        def counted(piece: str) -> bytes:
            data = pull(piece)
            with lock:
                total[0] += len(data)
            if total[0] > self.max_bytes + SLACK:
                raise Unanswered(self._large())
            return data

        try:
            pieces = pull_objects(
                [branch.object_id for branch in iterate_object_tree(tree)],
                counted,
                max_tries_per_object=None,  # Flower itself gives up an upload that stands still for three minutes
                initial_backoff=0.05,
                backoff_cap=1.0,
            )
            if _whole(pieces) > self.max_bytes:
                raise Unanswered(self._large())
            message = inflate_object_from_contents(tree.object_id, pieces)
        except ObjectPullError as error:
            raise Unanswered("the message did not arrive whole") from error
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise Unanswered("what came is not a message of Headwater") from error
        finally:
            self.client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=self.run_id, message_object_id=tree.object_id)
            )
        if not isinstance(message, FlowerMessage):
            raise Unanswered("what came is not a message of Headwater")
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def end(self) -> None:
        self._ended.set()
        self.client.close()

    def _large(self) -> str:
        return f"the message is larger than the {self.max_bytes / 1e6:g} MB that are accepted here"

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                alive = self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success
            except httpx.HTTPStatusError:
                alive = False
            except (httpx.HTTPError, RuntimeError):
                continue  # not reached this time
            if not alive and not self._ended.is_set():
                self._gone()
                return


def _whole(pieces: dict[str, bytes]) -> int:
    """Bytes of all arrays when they are put together. A small array may ask for one piece a million times."""
    total = 0
    for data in pieces.values():
        kind, children, _ = get_object_head_values_from_object_content(data)
        if kind == Array.__qualname__:
            order = json.loads(get_object_body(data, Array))["arraychunk_ids"]
            total += sum(len(pieces[children[int(n)]]) for n in order)
    return total


def refusal(reason: str, to: FlowerMessage) -> FlowerMessage:
    """An answer that is none."""
    return FlowerMessage(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=to)


def secret() -> str:
    """What only this process knows."""
    return secrets.token_hex(32)


def fall(error: BaseException) -> NoReturn:
    """A thread that this process cannot do without has failed: let the party start it again."""
    traceback.print_exception(error)
    print(f"headwater: {type(error).__name__}: {error}", flush=True)
    os._exit(1)


def leave_with(parent: int, leave: Callable[[], None]) -> None:
    """End with the party's process, even where some child of it still holds the other end of the pipe."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        leave()

    threading.Thread(target=watch, daemon=True).start()


_leaving = threading.Lock()


def goodbye(seconds: float) -> None:
    """End as Flower does, but in bounded time. Once: a second request would end the process before it has said so."""
    if not _leaving.acquire(blocking=False):
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(0)
