"""Links over Flower with real processes: messages, admission of members, and killed processes."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

import flower_party
from flower_party import collect, exchange, folder, parties, serving, until
from headwater.deploy.flower import FlowerDownlink, FlowerUplink
from headwater.deploy.transport import Message, RawArray, Unanswered
from headwater.errors import ConfigError
from process_tree import alive, descendants

slow = pytest.mark.skipif(
    os.environ.get("HEADWATER_SLOW") != "1", reason="takes minutes: set HEADWATER_SLOW=1 to run this test"
)


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """One of the programs of flower_party, killed at the end of the block."""
    started = subprocess.Popen([sys.executable, flower_party.__file__, *words], stdout=subprocess.PIPE, text=True)
    with started:
        try:
            yield started
        finally:
            started.kill()


def refused(address: str, ca: Path | None, path: str) -> bool:
    """Whether a call without a key is refused."""
    host, _, port = address.rpartition(":")
    if ca is None:
        asked = http.client.HTTPConnection(host, int(port), timeout=300)
    else:
        asked = http.client.HTTPSConnection(
            host, int(port), timeout=300, context=ssl.create_default_context(cafile=str(ca))
        )
    try:
        asked.request("POST", path, b"", {"content-type": "application/protobuf"})
        return asked.getresponse().status in (401, 403)
    except (http.client.HTTPException, OSError):
        return True
    finally:
        asked.close()


@pytest.mark.thorough
def test_a_link_admits_its_members_only(tmp_path: Path) -> None:
    parties(tmp_path, ("c0",), strangers=("c9",))
    place = folder(tmp_path, "server")
    with ExitStack() as stack:
        uplink = stack.enter_context(serving(tmp_path, "c0"))
        stranger = FlowerUplink(folder(tmp_path, "c9"))
        stack.callback(stranger.close)
        link = FlowerDownlink(place)
        stack.callback(link.close)

        # Through the interfaces for users and apps anybody could admit a key or run code
        closed = ("control/register-node", "control/start-run", "control/list-nodes", "runtime/acquire-task")
        assert place.link is not None
        for path in (*(f"/v1/{name}" for name in closed), "/docs", "/openapi.json", "/v1/fleet/pull-messages"):
            assert refused(place.link.address, place.keys / "ca.crt", path), path
        assert refused(place.link.address, None, "/v1/fleet/pull-messages"), "plain HTTP is answered"

        until(lambda: link.present(), "the member")
        part = RawArray("float32", (2,), b"\0\1\2\3\4\5\6\7")
        reply = exchange(link, "c0", Message({"do": "echo", "é": [1, None, 0.5]}, (part,)))
        assert isinstance(reply, Message), reply
        assert reply.head["was"] == {"do": "echo", "é": [1, None, 0.5]}
        assert reply.parts == (part,)

        log = tmp_path / "server/state/logs/superlink.log"
        until(lambda: 'activate-node HTTP/1.1" 401' in log.read_text(), "the stranger's refusal")
        assert link.present() == {"c0"}
        assert isinstance(exchange(link, "c9", Message({})), Unanswered)

        thin = [run.process for run in (link._process, uplink._process) if run.process is not None]
        assert len(thin) == 2
        for child in thin:
            assert "libtorch" not in Path(f"/proc/{child.pid}/maps").read_text()
            assert not descendants(child.pid), "an app of Flower's runs in a process of its own"
    assert all(child.returncode is not None for child in thin)


def test_the_size_of_a_message_is_measured_before_it_is_assembled() -> None:
    from flwr.app import Array, ConfigRecord, RecordDict  # takes seconds

    from headwater.deploy.flower import messages

    array = Array("int8", (1,), messages.RAW, os.urandom(1000))
    bomb = array.deflate().replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b", ".join([b"0"] * 5000) + b"]")
    assert (
        messages._assembled_size(
            {array.object_id: bomb} | {name: chunk.deflate() for name, chunk in array.slice_array()}
        )
        > 5e6
    )
    for content in ({}, {"head": ConfigRecord({"head": b"[1]"})}, {"head": ConfigRecord({"head": b"{"})}):
        with pytest.raises(Unanswered, match="not a message"):
            messages.from_flower(RecordDict(content))


def test_a_small_payload_is_in_one_record_with_the_head_and_must_fill_it() -> None:
    from flwr.app import ConfigRecord, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    from headwater.deploy.flower import messages

    parts = (RawArray("float32", (0, 3), b""), RawArray("int64", (), bytes(8)), RawArray("odd", (3, -1), b"xyz"))
    content = messages.to_flower(Message({"a": 1}, parts))
    assert messages.from_flower(content) == Message({"a": 1}, parts)
    assert len(get_all_nested_objects(content)) == 2  # each is four requests on its way
    large = Message({}, (RawArray("int8", (messages.SMALL + 1,), bytes(messages.SMALL + 1)),))
    assert messages.from_flower(messages.to_flower(large)) == large
    wrong: list[tuple[bytes, Any]] = [(b'[["int8", [3], 2]]', b"xyz"), (b'[["int8", [3], 4]]', b"xyz"), (b"[]", b"x")]
    wrong += [(b'[["int8", [1], 5], ["int8", [1], -2]]', b"xyz"), (b'[["int8", [3], 3.0]]', b"xyz"), (b"[[3]]", b"xyz")]
    wrong += [(b'[["int8", [3], 3]]', "xyz"), (b'[["int8", 3, 3]]', b"xyz"), (b"{", b"")]
    for form, data in wrong:
        with pytest.raises(Unanswered, match="not a message"):
            messages.from_flower(RecordDict({"head": ConfigRecord({"head": b"{}", "form": form, "data": data})}))


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    parties(tmp_path, ("c0",))
    with pytest.raises(ConfigError, match=r"\[link\]"):
        FlowerDownlink(folder(tmp_path, "c0"))
    with pytest.raises(ConfigError, match=r"\[above\]"):
        FlowerUplink(folder(tmp_path, "server"))
    with pytest.raises(ConfigError, match=r"above\.address must be a host and a port"):
        FlowerUplink(replace(folder(tmp_path, "c0"), above="nowhere"))


@slow
def test_messages_arrive_unchanged_and_a_killed_member_does_not_affect_others(tmp_path: Path) -> None:
    parties(tmp_path, ("c0", "c1"))
    odd = (
        RawArray("float32", (0, 3), b""),
        RawArray("int64", (), (1 << 40).to_bytes(8, "little")),
        RawArray("int64", (2,), bytes(16)),
        RawArray("float32", (7 << 18,), os.urandom(7 << 20)),
        RawArray("float32", (7 << 18,), bytes(7 << 20)),
        RawArray("int64", (2,), bytes(16)),
        RawArray("no such thing", (3, -1), b"xyz"),
    )
    with ExitStack() as stack:
        first = stack.enter_context(process("member", str(tmp_path), "c0"))
        stack.enter_context(process("member", str(tmp_path), "c1"))
        link = FlowerDownlink(folder(tmp_path, "server"), max_bytes=15 << 20)
        stack.callback(link.close)
        until(lambda: link.present() == {"c0", "c1"}, "both members")

        head = {"text": "ß\u2028", "big": 1 << 60, "none": None, "list": [0.1, {"a": []}]}
        both = [link.send(name, Message(head, odd)) for name in ("c0", "c1")]
        for reply in collect(link, *both).values():
            assert isinstance(reply, Message), reply
            assert (reply.head["was"], reply.parts) == (head, odd[::-1])

        reply = exchange(link, "c0", Message({"do": "fail"}))
        assert isinstance(reply, Unanswered)
        assert str(reply) == 'it says "ValueError; its own log says why"'
        for message in (
            Message({"do": "much", "bytes": 16 << 20}),
            Message({"do": "much", "bytes": 5 << 19}, most=4 << 19),
            Message({}, (RawArray("int8", (1,), bytes(16 << 20)),)),
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
        superlink = link._process.process
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
                below = descendants(owner.pid)
                assert below
                owner.kill()
                until(lambda: not any(map(alive, below)), "the end of all that the owner started")  # noqa: B023


@slow
def test_an_insecure_link_asks_its_members_for_their_names(tmp_path: Path) -> None:
    parties(tmp_path, ("c0", "c1"), insecure=True)
    place = folder(tmp_path, "server")
    with serving(tmp_path, "c0"):
        link = FlowerDownlink(place)
        try:
            until(lambda: link.present(), "the member")
            assert link.present() == {"c0"}
            assert isinstance(exchange(link, "c0", Message({})), Message)
            assert isinstance(exchange(link, "c1", Message({})), Unanswered)
            assert place.link is not None
            assert refused(place.link.address, None, "/v1/control/start-run")
        finally:
            link.close()
