"""What a hostile host or server gets from honest parties over real links: real processes, certificates and keys."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

from attacks import means, peep, rows_seen
from federation import Federation
from flower_party import answer, folder, parties
from headwater.config import Config
from headwater.deploy.flower import FlowerDownlink, FlowerUplink
from headwater.deploy.folder import PartyFolder
from headwater.deploy.sent_log import summary
from headwater.deploy.transport import Message, Unanswered
from headwater.tasks.knowledge import Release
from headwater.training.experiment import prepare
from process_tree import until

pytestmark = pytest.mark.thorough
SMALL = ("data.fraction=0.15", "partition.alpha=1.0", "partition.clients=2", "partition.sectors=1", "model.name=mlp")
LONG = 600.0  # seconds, on a busy machine
ASKED = 8  # times for a release; tests/deploy/test_permissions.py asks 40 times, without links


def exchange(link: FlowerDownlink, to: str, message: Message) -> Message | Unanswered:
    number, came = link.send(to, message), dict[int, Message | Unanswered]()
    until(lambda: came.update(link.replies(0.2)) or number in came, f"an answer of {to}", LONG)
    return came[number]


class Hostile:
    """A host or server in this process, with the keys of the real one."""

    def __init__(self, federation: Federation, name: str, asked: Config) -> None:
        self.federation, self.made = federation, prepare(asked)
        place = federation.found[name].path
        self.link = FlowerDownlink(PartyFolder.open(place))
        sha256 = hashlib.sha256((place / "federation.json").read_bytes()).hexdigest()
        self.head: dict[str, Any] = {"do": "hello", "federation": sha256, "run": "0123456789abcdef"}

    def begin(self, *clients: str, through: str = "") -> None:
        """Wait for the clients, and ask for their numbers of rows."""
        waited = {through} if through else set(clients)
        until(lambda: waited <= self.link.present(), f"{waited} to join", LONG)
        census: dict[str, int] = {}

        def everybody_said() -> bool:
            for name in waited:
                reply = exchange(self.link, name, Message(self.head))
                assert isinstance(reply, Message)
                census.update(reply.head["sizes"] if through else {name: reply.head["size"]})
            return set(clients) <= census.keys()

        until(everybody_said, "the clients' numbers of rows", LONG)
        self.head |= {"do": "work", "census": census, "attempt": "a", "deadline": 60.0}

    def ask(self, to: str, message: Message) -> Message:
        reply = exchange(self.link, to, message)
        assert isinstance(reply, Message), reply
        return reply


@contextmanager
def hostile(place: Path, name: str, honest: tuple[str, ...], *sets: str) -> Iterator[Hostile]:
    asked = Config.load(None, [*SMALL, *sets])
    with Federation.init(place, asked) as federation:
        federation.start(*honest)
        enemy = Hostile(federation, name, asked)
        try:
            yield enemy
        finally:
            enemy.link.close()


def test_a_host_gets_no_rows_by_crafted_models(tmp_path: Path) -> None:
    with hostile(tmp_path, "s0", ("c0",), "algorithm.name=fedavg") as enemy:
        enemy.begin("c0")
        reply = enemy.ask("c0", peep(enemy.made, "c0", enemy.head, "server"))
        assert rows_seen(reply, enemy.made) is None
        assert "refused" in reply.head["failed"]
        (refused,) = summary(enemy.federation.found["c0"])["refused"]
        assert (refused["by"], refused["count"]) == ("s0", 1)
        assert "answer" in refused["why"]


def test_a_server_gets_no_rows_through_an_honest_host(tmp_path: Path) -> None:
    with hostile(tmp_path, "server", ("s0", "c0", "c1"), "algorithm.name=fedavg") as enemy:
        enemy.begin("c0", "c1", through="s0")
        reply = enemy.ask("s0", peep(enemy.made, "c0", enemy.head, "server"))
        assert rows_seen(reply, enemy.made) is None
        (refused,) = summary(enemy.federation.found["s0"])["refused"]
        assert refused["by"] == "server"
        assert not summary(enemy.federation.found["c0"])["payload"]


def test_a_host_gets_no_class_means_without_noise_and_no_second_draw(tmp_path: Path) -> None:
    with hostile(tmp_path, "s0", ("c0",), "algorithm.name=fedhkd", "algorithm.sigma=1.0") as enemy:
        enemy.begin("c0")
        model = enemy.made.context().initial(enemy.made.model.name, 0)
        bare = Release(0.0, 1.0, 0.0, 1.0, False, 1.0, "scaled")
        for number in range(ASKED):
            release = bare if number == 0 else enemy.made.method.release  # type: ignore[attr-defined]
            head = enemy.head | {"attempt": str(number)}
            reply = enemy.ask("c0", means(enemy.made, "c0", head, model, release, nth=number, number=2 + 2 * number))
            assert not reply.parts
        assert sum(row["count"] for row in summary(enemy.federation.found["c0"])["refused"]) == ASKED


def test_a_reply_beyond_the_expected_bytes_is_not_fetched(tmp_path: Path) -> None:
    parties(tmp_path, ("c0",))
    with ExitStack() as stack:
        uplink, stop = FlowerUplink(folder(tmp_path, "c0")), threading.Event()
        stack.callback(uplink.close)
        link = FlowerDownlink(folder(tmp_path, "server"))
        stack.callback(link.close)
        thread = threading.Thread(target=uplink.serve, args=(answer, stop))
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        until(lambda: link.present(), "the member to join", LONG)
        fits = exchange(link, "c0", Message({"do": "much", "bytes": 1 << 18}, most=1 << 20))
        assert isinstance(fits, Message)
        much = exchange(link, "c0", Message({"do": "much", "bytes": 24 << 20}, most=1 << 20))
        assert isinstance(much, Unanswered)
        assert "larger than the 1.049 MB" in str(much)
