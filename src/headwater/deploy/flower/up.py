"""The process of who joins a link: Flower's SuperNode, and beside it the thread that hands messages to the party.

The SuperNode looks for messages every three seconds, for pieces of them that are still on their way every second, and
for answers every half. Those are constants in its code. Here it looks for the next message the sooner the less time has
passed since the last, soon for pieces, and answers wake it.
"""

from __future__ import annotations

import os
import queue
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

from headwater.deploy.flower.frames import Pipe
from headwater.deploy.flower.wire import Task, fall, from_flower, goodbye, leave_with, refusal, secret, to_flower
from headwater.deploy.message import Message, Unanswered

QUICK = 0.1  # the least number of seconds between two looks for a message
CALM = 10.0  # and how many times that a node must have been idle
LOOK = 1.0  # seconds between two looks at the SuperNode when it does not stir
GOODBYE = 4.0  # seconds to take leave of the link


class Pace:
    """Stands in for `time` in the SuperNode's loop. Its short sleeps are waits for the answer that we give."""

    def __init__(self) -> None:
        self.asked, self.answered = threading.Event(), threading.Event()
        self._last = time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds < 1.0:
            self._last = time.monotonic()
            self.asked.set()
            self.answered.wait(seconds)
            self.answered.clear()
        else:
            idle = time.monotonic() - self._last
            time.sleep(min(seconds, max(QUICK, idle / CALM)))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Bridge:
    """Between the SuperNode and the party's process."""

    def __init__(self, pipe: Pipe, facts: dict[str, Any], address: str, key: bytes, pace: Pace) -> None:
        self.pipe, self.facts, self.address, self.pace = pipe, facts, address, pace
        self.answers: queue.SimpleQueue[tuple[dict[str, Any], Message | None]] = queue.SimpleQueue()
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
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            while True:
                self.pace.asked.wait(LOOK)
                self.pace.asked.clear()
                try:
                    while self._one():
                        pass
                except httpx.ConnectError:
                    pass  # not up yet
                except httpx.HTTPError as error:
                    print(f"headwater: a message was lost between the SuperNode and the party ({error})", flush=True)
        except OSError:
            pass  # the party has ended, as `_listen` finds
        except BaseException as error:
            fall(error)

    def _listen(self) -> None:
        try:
            while True:
                self.answers.put(self.pipe.read())
        except EOFError:
            goodbye(GOODBYE)

    def _one(self) -> bool:
        """Take a message if there is one, and bring its answer."""
        given = self.client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if not given.HasField("task"):
            return False
        task = Task(self.address, None, given.token, "flwr-clientapp", self.facts["max_bytes"])
        try:
            start = task.client.PullTaskInput(PullTaskInputRequest())  # the app that comes with it is left alone
            task.of(start.context.run_id, start.context.node_id)
            found = task.client.PullMessages(PullAppMessagesRequest())
            if found.messages_list:
                task.push(self._answer(task, found))
            task.client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))
        finally:
            task.end()
            self.pace.answered.set()
        return True

    def _answer(self, task: Task, found: Any) -> FlowerMessage:
        bare = message_from_proto(found.messages_list[0])
        try:
            message = task.fetch(found.message_object_trees[0])
            if message.metadata.message_type == MessageType.QUERY:
                return FlowerMessage(to_flower(Message({"name": self.facts["name"]})), reply_to=message)
            self.pipe.write({"say": "ask"}, from_flower(message.content))
            frame, answer = self.answers.get()
            if answer is None:
                return refusal(frame["reason"], message)
            return FlowerMessage(to_flower(answer), reply_to=message)
        except Unanswered as error:
            return refusal(str(error), bare)
        except (OSError, httpx.HTTPError):
            raise
        except Exception:  # whatever the link sends
            traceback.print_exc()
            return refusal("what came is not a message of Headwater", bare)


def main() -> None:
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    leave_with(os.getppid(), lambda: goodbye(GOODBYE))
    facts, _ = pipe.read()
    pace, key = Pace(), secret().encode()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inside = vars(flwr.supernode.start_client_internal)
    inside["time"] = pace
    inside["pull_objects"] = partial(inside["pull_objects"], initial_backoff=QUICK, backoff_cap=LOOK)
    reader, writer = os.pipe()  # read once, as a file, by the SuperNode
    os.write(writer, key)
    os.close(writer)
    own = ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    sys.argv = [
        "flower-supernode",
        *facts["words"],
        *own,
        "--superexec-auth-secret-file",
        f"/dev/fd/{reader}",
    ]
    threading.Thread(target=Bridge(pipe, facts, f"127.0.0.1:{port}", key, pace).run, daemon=True).start()
    flower_supernode()


if __name__ == "__main__":
    main()
