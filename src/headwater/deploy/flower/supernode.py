"""The child process of a party that joins a link: Flower's SuperNode, and a thread that passes messages to the party.

By default the SuperNode polls for messages every 3 seconds, for missing pieces of them every second, and for replies
every half second; these are constants in its code. Here the interval between polls for messages grows with the time
since the last message. It polls for pieces every 0.1 to 1 second, and a reply is passed on at once.

Frames to the party: `{"say": "ask"}` with a request. Frames from it: `{}` with the reply, or `{"reason": …}`.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import sys
import threading
import time
import traceback
from functools import partial
from typing import Any

import flwr.supernode.start_client_internal
import httpx
from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.common.constant import SubStatus
from flwr.common.serde import message_from_proto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.cli import flower_supernode

from headwater.deploy.flower.child_process import Frame, Pipe, fail, leave_within, pipe_to_party
from headwater.deploy.flower.messages import NOT_OURS, FlowerTask, from_flower, refusal, sent, to_flower
from headwater.deploy.transport import Message, Unanswered

SHORTEST_POLL = 0.1  # seconds between two polls for a message
IDLE_SHARE = 10.0  # a node polls again after the time since its last message, divided by this
LONGEST_POLL = 1.0  # seconds between two polls of the SuperNode for a task
LEAVE_SECONDS = 4.0  # to disconnect from the link


class PollingClock:
    """Replaces `time` in the SuperNode's loop. Its sleeps of under a second are waits for the reply of this party."""

    def __init__(self) -> None:
        self.request_arrived, self.replied = threading.Event(), threading.Event()
        self._last = time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds < 1.0:
            self._last = time.monotonic()
            self.request_arrived.set()
            self.replied.wait(seconds)
            self.replied.clear()
        else:
            idle = time.monotonic() - self._last
            time.sleep(min(seconds, max(SHORTEST_POLL, idle / IDLE_SHARE)))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class SuperNodeBridge:
    """Passes requests from the SuperNode to the party's process, and replies back, one at a time."""

    def __init__(self, pipe: Pipe, settings: dict[str, Any], address: str, key: bytes, clock: PollingClock) -> None:
        self.pipe, self.settings, self.address, self.clock = pipe, settings, address, clock
        self.replies: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self.client = RuntimeHttpClient.from_server_address(
            address,
            insecure=True,  # within this process
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor("SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=key, protected_methods=["/flwr.proto.Runtime/AcquireTask"]),
            ],
        )

    def run(self) -> None:
        threading.Thread(target=self._read_replies, daemon=True).start()
        try:
            while True:
                self.clock.request_arrived.wait(LONGEST_POLL)
                self.clock.request_arrived.clear()
                try:
                    while self._pass_one():
                        pass
                except httpx.ConnectError:
                    pass  # the SuperNode does not listen yet
                except httpx.HTTPError as error:
                    print(f"headwater: a message was lost between the SuperNode and the party ({error})", flush=True)
        except OSError:
            pass  # the party has ended, which `_read_replies` notices
        except BaseException as error:
            fail(error)

    def _read_replies(self) -> None:
        try:
            while True:
                self.replies.put(self.pipe.read())
        except EOFError:
            leave_within(LEAVE_SECONDS)

    def _pass_one(self) -> bool:
        """Pass on one request and its reply. Returns whether there was a request."""
        acquired = self.client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if not acquired.HasField("task"):
            return False
        task = FlowerTask(self.address, None, acquired.token, "flwr-clientapp", self.settings["max_bytes"])
        try:
            start = task.client.PullTaskInput(PullTaskInputRequest())  # the app in it is ignored
            task.set_run(start.context.run_id, start.context.node_id)
            pulled = task.client.PullMessages(PullAppMessagesRequest())
            if pulled.messages_list:
                task.push(self._reply(task, pulled))
            sent(task.client.PushTaskOutput, PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))
        finally:
            task.end()
            self.clock.replied.set()
        return True

    def _reply(self, task: FlowerTask, pulled: Any) -> FlowerMessage:
        bare = message_from_proto(pulled.messages_list[0])
        try:
            message = task.fetch(pulled.message_object_trees[0])
            if message.metadata.message_type == MessageType.QUERY:
                return FlowerMessage(to_flower(Message({"name": self.settings["name"]})), reply_to=message)
            self.pipe.write({"say": "ask"}, from_flower(message.content))
            frame, reply = self.replies.get()
            if reply is None:
                return refusal(frame["reason"], message)
            return FlowerMessage(to_flower(reply), reply_to=message)
        except Unanswered as error:
            return refusal(str(error), bare)
        except (OSError, httpx.HTTPError):
            raise
        except Exception:  # malformed input of any kind
            traceback.print_exc()
            return refusal(NOT_OURS, bare)


def main() -> None:
    pipe, settings = pipe_to_party(lambda: leave_within(LEAVE_SECONDS))
    clock, key = PollingClock(), secrets.token_hex(32).encode()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module = vars(flwr.supernode.start_client_internal)
    module["time"] = clock
    module["pull_objects"] = partial(module["pull_objects"], initial_backoff=SHORTEST_POLL, backoff_cap=LONGEST_POLL)
    reader, writer = os.pipe()  # the SuperNode reads the secret from it once, as from a file
    os.write(writer, key)
    os.close(writer)
    own = ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    own += ["--superexec-auth-secret-file", f"/dev/fd/{reader}"]
    sys.argv = ["flower-supernode", *settings["words"], *own]
    threading.Thread(target=SuperNodeBridge(pipe, settings, f"127.0.0.1:{port}", key, clock).run, daemon=True).start()
    flower_supernode()


if __name__ == "__main__":
    main()
