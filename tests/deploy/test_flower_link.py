"""Links over Flower, with real processes: what gets through, who is let in, and what happens when somebody dies."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

import flower_party
from flower_party import answer, folder, parties
from headwater.deploy.flower import FlowerLink, FlowerUplink
from headwater.deploy.flower.folder import host_port
from headwater.deploy.message import Message, Part, Unanswered
from headwater.errors import ConfigError

slow = pytest.mark.skipif(
    os.environ.get("HEADWATER_SLOW") != "1", reason="takes minutes: set HEADWATER_SLOW=1 to run this test"
)


def until(condition: Callable[[], object], what: str, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.1)


def exchange(link: FlowerLink, to: str, message: Message) -> Message | Unanswered:
    number = link.send(to, message)
    return collect(link, number)[number]


def collect(link: FlowerLink, *numbers: int) -> dict[int, Message | Unanswered]:
    came: dict[int, Message | Unanswered] = {}
    until(lambda: came.update(link.replies(0.2)) or came.keys() >= set(numbers), f"answers to {numbers}")
    assert came.keys() == set(numbers)
    return came


def children(pid: int) -> set[int]:
    """All processes below that one."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parent = dict(zip(map(int, found[::2]), map(int, found[1::2]), strict=True))
    below, more = set(), {pid}
    while more:
        more = {child for child, above in parent.items() if above in more}
        below |= more
    return below


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """One of the programs in flower_party, ended at the latest with the block."""
    started = subprocess.Popen([sys.executable, flower_party.__file__, *words], stdout=subprocess.PIPE, text=True)
    with started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def serving(root: Path, name: str) -> Iterator[FlowerUplink]:
    """A member in a thread of this process."""
    uplink, stop = FlowerUplink(folder(root, name)), threading.Event()
    thread = threading.Thread(target=uplink.serve, args=(answer, stop))
    thread.start()
    try:
        yield uplink
    finally:
        stop.set()
        thread.join()
        uplink.close()


def refused(address: str, ca: Path | None, path: str) -> bool:
    """Whether somebody without a key gets nowhere there."""
    host, port = host_port(address)
    if ca is None:
        asked = http.client.HTTPConnection(host, port, timeout=300)
    else:
        asked = http.client.HTTPSConnection(host, port, timeout=300, context=ssl.create_default_context(cafile=str(ca)))
    try:
        asked.request("POST", path, b"", {"content-type": "application/protobuf"})
        return asked.getresponse().status in (401, 403)
    except (http.client.HTTPException, OSError):
        return True
    finally:
        asked.close()


def test_a_link_lets_in_its_members_and_nobody_else(tmp_path: Path) -> None:
    parties(tmp_path, ("c0",), strangers=("c9",))
    place = folder(tmp_path, "server")
    with ExitStack() as stack:
        uplink = stack.enter_context(serving(tmp_path, "c0"))
        stranger = FlowerUplink(folder(tmp_path, "c9"))
        stack.callback(stranger.close)
        link = FlowerLink(place)
        stack.callback(link.close)

        # The interfaces for people and apps would let anybody admit a key or run code
        closed = ("control/register-node", "control/start-run", "control/list-nodes", "runtime/acquire-task")
        assert place.link is not None
        for path in (*(f"/v1/{name}" for name in closed), "/docs", "/openapi.json", "/v1/fleet/pull-messages"):
            assert refused(place.link.address, place.keys / "ca.crt", path), path
        assert refused(place.link.address, None, "/v1/fleet/pull-messages"), "plain HTTP is answered"

        until(lambda: link.present(), "the member")
        part = Part("float32", (2,), b"\0\1\2\3\4\5\6\7")
        reply = exchange(link, "c0", Message({"do": "echo", "é": [1, None, 0.5]}, (part,)))
        assert isinstance(reply, Message), reply
        assert reply.head["was"] == {"do": "echo", "é": [1, None, 0.5]}
        assert reply.parts == (part,)

        log = tmp_path / "c9/state/logs/supernode.log"
        until(lambda: "Failed to activate SuperNode" in log.read_text(), "the stranger's refusal")
        assert link.present() == {"c0"}
        assert isinstance(exchange(link, "c9", Message({})), Unanswered)

        thin = [kept.process.pid for kept in (link._kept, uplink._kept) if kept.process is not None]
        assert len(thin) == 2
        for pid in thin:
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
            assert not children(pid), "an app of Flower's runs in a process of its own"
    assert not any(map(alive, thin))


def test_a_message_that_grows_when_it_is_put_together_is_measured_first() -> None:
    from flwr.app import Array, ConfigRecord, RecordDict  # takes seconds

    from headwater.deploy.flower import wire

    array = Array("int8", (1,), wire.RAW, os.urandom(1000))
    bomb = array.deflate().replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b", ".join([b"0"] * 5000) + b"]")
    assert wire._whole({array.object_id: bomb} | {name: chunk.deflate() for name, chunk in array.slice_array()}) > 5e6
    for content in ({}, {"head": ConfigRecord({"head": b"[1]"})}, {"head": ConfigRecord({"head": b"{"})}):
        with pytest.raises(Unanswered, match="not a message"):
            wire.from_flower(RecordDict(content))


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    parties(tmp_path, ("c0",))
    with pytest.raises(ConfigError, match=r"\[link\]"):
        FlowerLink(folder(tmp_path, "c0"))
    with pytest.raises(ConfigError, match=r"\[above\]"):
        FlowerUplink(folder(tmp_path, "server"))
    with pytest.raises(ConfigError, match="host:port"):
        host_port("nowhere")


@slow
def test_messages_get_through_whole_and_the_death_of_one_is_not_that_of_others(tmp_path: Path) -> None:
    parties(tmp_path, ("c0", "c1"))
    odd = (
        Part("float32", (0, 3), b""),
        Part("int64", (), (1 << 40).to_bytes(8, "little")),
        Part("int64", (2,), bytes(16)),
        Part("float32", (7 << 18,), os.urandom(7 << 20)),
        Part("float32", (7 << 18,), bytes(7 << 20)),
        Part("int64", (2,), bytes(16)),
        Part("no such thing", (3, -1), b"xyz"),
    )
    with ExitStack() as stack:
        first = stack.enter_context(process("member", str(tmp_path), "c0"))
        stack.enter_context(process("member", str(tmp_path), "c1"))
        link = FlowerLink(folder(tmp_path, "server"), max_bytes=15 << 20)
        stack.callback(link.close)
        until(lambda: link.present() == {"c0", "c1"}, "both members")

        head = {"text": "ß\u2028", "big": 1 << 60, "none": None, "list": [0.1, {"a": []}]}
        both = [link.send(name, Message(head, odd)) for name in ("c0", "c1")]
        for reply in collect(link, *both).values():
            assert isinstance(reply, Message), reply
            assert (reply.head["was"], reply.parts) == (head, odd[::-1])

        reply = exchange(link, "c0", Message({"do": "fail"}))
        assert isinstance(reply, Unanswered)
        assert "there is no such thing" in str(reply)
        for message in (
            Message({"do": "much", "bytes": 16 << 20}),
            Message({}, (Part("int8", (1,), bytes(16 << 20)),)),
        ):
            reply = exchange(link, "c1", message)
            assert isinstance(reply, Unanswered)
            assert "larger than" in str(reply)
        forgotten = link.send("c1", Message({"do": "sleep", "seconds": 0.5}))
        link.forget(forgotten)
        assert isinstance(exchange(link, "c1", Message({})), Message)  # `collect` sees that nothing else came

        lost, kept = link.send("c0", Message({"do": "sleep", "seconds": 300})), link.send("c1", Message({}))
        assert isinstance(collect(link, kept)[kept], Message)
        first.kill()
        reply = collect(link, lost)[lost]
        assert isinstance(reply, Unanswered)
        until(lambda: link.present() == {"c1"}, "the absence of c0")
        assert isinstance(exchange(link, "c1", Message({})), Message)

        again = stack.enter_context(process("member", str(tmp_path), "c0"))
        until(lambda: link.present() == {"c0", "c1"}, "the return of c0")
        reply = exchange(link, "c0", Message({}))
        assert isinstance(reply, Message)
        assert reply.head["pid"] == again.pid != first.pid

        lost = link.send("c1", Message({"do": "sleep", "seconds": 5}))
        superlink = link._kept.process
        assert superlink is not None
        superlink.send_signal(signal.SIGKILL)
        assert isinstance(collect(link, lost)[lost], Unanswered)
        assert isinstance(exchange(link, "c1", Message({})), Unanswered)
        until(lambda: link.present() == {"c0", "c1"}, "members after the link broke down")
        assert isinstance(exchange(link, "c1", Message({})), Message)


@slow
def test_a_link_leaves_nothing_behind_when_its_owner_is_killed_and_works_again(tmp_path: Path) -> None:
    parties(tmp_path, ("c0",))
    with process("member", str(tmp_path), "c0"):
        for _ in range(2):
            with process("owner", str(tmp_path)) as owner:
                assert owner.stdout is not None
                assert owner.stdout.readline() == "all well\n"
                below = children(owner.pid)
                assert below
                owner.kill()
                until(lambda: not any(map(alive, below)), "the end of all that the owner started")  # noqa: B023


@slow
def test_a_link_without_keys_knows_its_members_by_what_they_say(tmp_path: Path) -> None:
    parties(tmp_path, ("c0", "c1"), insecure=True)
    place = folder(tmp_path, "server")
    with serving(tmp_path, "c0"):
        link = FlowerLink(place)
        try:
            until(lambda: link.present(), "the member")
            assert link.present() == {"c0"}
            assert isinstance(exchange(link, "c0", Message({})), Message)
            assert isinstance(exchange(link, "c1", Message({})), Unanswered)
            assert place.link is not None
            assert refused(place.link.address, None, "/v1/control/start-run")
            taken = pytest.raises(ConfigError, match="cannot be opened")
            with pytest.MonkeyPatch.context() as patch, taken:
                patch.setattr("headwater.deploy.flower.link.FREE", 0.0)
                FlowerLink(place)
        finally:
            link.close()
