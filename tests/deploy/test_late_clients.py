"""Clients that come after the run has begun take part from the next round on, as in a simulation of these arrivals."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import chosen
from headwater.algorithms.base import Method, State
from headwater.config import Config
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.membership import Membership, Newcomer
from headwater.deploy import init
from headwater.deploy.agreement import Agreement, deployed_experiment, empty_split
from headwater.deploy.folder import PartyFolder
from headwater.deploy.known_members import RunMembers, read_membership
from headwater.deploy.late_clients import LateClients, begun_membership, cannot_join
from headwater.deploy.observation import Observation
from headwater.deploy.party_log import LogStyle, PartyLog
from headwater.deploy.party_process import PartyProcess, _run_client, _run_sector
from headwater.deploy.payload import Refused
from headwater.deploy.refusals import RefusedLog
from headwater.deploy.revocation import RevocationNotices
from headwater.deploy.sent_log import SentLog
from headwater.deploy.status import Status
from headwater.deploy.transport import Message, Unanswered
from headwater.tasks.local import label_counts
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train
from headwater.training.opening import Arrivals, run_context
from headwater.training.result import Run
from loopback import LoopbackLink, loopback, small

BRIEF = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 3}
TIERS = [(tier, way) for tier in ("server_sector", "sector_client") for way in ("up", "down")]


def sha(run: Run) -> str:
    return str(run.result["model_sha256"])


def simulated(made: Experiment, late: Mapping[str, int]) -> Run:
    """A simulation in which these clients are there from these rounds on."""
    arrivals = Arrivals(sorted(Newcomer(round, c, made.tree.sizes[c]) for c, round in late.items()))
    return train(replace(made, tree=made.tree.with_sizes(dict.fromkeys(late, 0))), arrivals=arrivals)


@pytest.mark.parametrize("method", chosen.methods(["scaffold"], pooled=False))
def test_every_method_takes_in_a_late_client_as_the_simulation_does(method: str, tmp_path: Path) -> None:
    made = small(method, **BRIEF)
    name = made.tree.holders[1]
    expected = simulated(made, {name: 2})
    with loopback(made, tmp_path, late={name: 2}) as federation:
        run = federation.train()
        assert federation.refusals == []
        assert federation.said == []
        assert sha(run) == sha(expected)
        for tier, way in TIERS:
            for purpose in ("train", "setup"):
                moved = (ledger.bytes(tier, way, purpose=purpose) for ledger in (run.ledger, expected.ledger))
                assert len(set(moved)) == 1
        assert run.result["joined"] == [{"round": 2, "client": name, "rows": made.tree.sizes[name]}]
        rounds = {row[0] for row in federation.sent[name]}
        assert rounds <= {0, 2, 3}, "nothing is asked of it before"


@pytest.mark.parametrize("method", ["fedavg", pytest.param("local", marks=pytest.mark.thorough)])
def test_it_counts_as_a_client_that_was_lost_until_then(method: str, tmp_path: Path) -> None:
    """To the bit where a method counts only who answers; `local` gives each client a first model before round 1."""
    made = small(method, **BRIEF | {"rounds": 2})
    name = made.tree.holders[0]

    def lost_in_round_1(to: str, message: Message) -> Message:
        if to == name and {each.partition(".")[0] for each in message.head.get("infos", ())} == {"1"}:
            raise Unanswered("was killed")
        return message

    with loopback(made, tmp_path / "lost", meddle=lost_in_round_1) as federation:
        lost = federation.train()
        assert [line for line in federation.said if "left out" in line]
    with loopback(made, tmp_path / "late", late={name: 2}) as federation:
        assert sha(federation.train()) == sha(lost)


@pytest.mark.thorough
def test_several_come_in_several_rounds_and_a_whole_sector_too(tmp_path: Path) -> None:
    """The host of a sector whose clients all come late gets the global model, not the first one."""
    made = small("mtgc", **BRIEF)
    team = [client for client in made.tree.holders if made.tree.sector_of[client] == "s1"]
    late = dict.fromkeys(team, 2) | {next(c for c in made.tree.holders if c not in team): 3}
    expected = simulated(made, late)
    with loopback(made, tmp_path, late=late) as federation:
        run = federation.train()
        assert federation.said == []
    assert sha(run) == sha(expected)


class TestRestart:
    """The server knows who has joined after a restart, and after a rollback to before that."""

    def stopped(self, made: Experiment, place: Path, late: Mapping[str, int], before: int) -> None:
        def stop(round: int) -> None:
            if round == before:
                raise KeyboardInterrupt

        with loopback(made, place, late=late) as federation, pytest.raises(KeyboardInterrupt):
            federation.train(place / "run", stop)

    @pytest.mark.parametrize("before", [2, pytest.param(3, marks=pytest.mark.thorough)])
    def test_it_carries_on_with_the_same_clients(self, before: int, tmp_path: Path) -> None:
        """Also if it ended before the round in which the client joins, which it had announced already."""
        made = small("fedproto", **BRIEF)
        late = {made.tree.holders[0]: 2}
        self.stopped(made, tmp_path, late, before)
        with loopback(made, tmp_path, late=late) as federation:
            assert sha(federation.train(tmp_path / "run")) == sha(simulated(made, late))

    @pytest.mark.thorough
    def test_after_a_rollback_it_joins_in_the_same_round(self, tmp_path: Path) -> None:
        made = small("scaffold", **BRIEF)
        late = {made.tree.holders[0]: 2}
        self.stopped(made, tmp_path, late, 3)
        (tmp_path / "run/checkpoints/round-000002.json").unlink()  # as `headwater deploy rollback --to 1` does
        with loopback(made, tmp_path, late=late) as federation:
            run = federation.train(tmp_path / "run")
        assert sha(run) == sha(simulated(made, late))
        assert [each["round"] for each in run.result["joined"]] == [2]


AGREED = Agreement(
    Config().merged({"rounds": 5, "deploy": {"max_rows": 100}}),
    (8,),
    2,
    None,
    ("0", "1"),
    {"s0": ("c0", "c1", "c2"), "s1": ("c3",)},
    sha256="",
)
FIRST = {"c0": 10, "c3": 7}


def announced(*joined: Any, **other: Any) -> dict[str, Any]:
    return {"census": FIRST, "joined": list(joined), "round": 1} | other


class TestAnnouncements:
    @pytest.mark.parametrize(
        ("joined", "why"),
        [
            ([[2, "c9", 5]], "no client of this federation"),
            ([[2, "c0", 5]], "takes part already"),
            ([[2, "c1", 5], [3, "c1", 5]], "takes part already"),
            ([[2, "c1", 101]], "not accepted"),
            ([[2, "c1", 0]], "not accepted"),
            ([[2, "c1", True]], "not accepted"),
            ([[0, "c1", 5]], "1 is the earliest"),
            ([[6, "c1", 5]], "in round 6"),
            ([[3, "c1", 5], [2, "c2", 5]], "3 is the earliest"),
            ([["2", "c1", 5]], "does not say"),
            ([[2, "c1"]], "does not say"),
            ([{"round": 2}], "does not say"),
            ("c1", "does not say"),
            (7, "does not say"),
        ],
    )
    def test_what_cannot_be_is_refused(self, joined: Any, why: str) -> None:
        with pytest.raises(Refused, match=why):
            read_membership({"census": FIRST, "joined": joined}, AGREED)

    def test_the_past_is_never_rewritten(self, tmp_path: Path) -> None:
        path = tmp_path / "membership.json"
        members = RunMembers(AGREED, "one", read_membership(announced(), AGREED), path=path)
        assert not members.follow(announced())
        assert members.follow(announced([2, "c1", 5], round=2))
        assert members.now == Membership(FIRST, (Newcomer(2, "c1", 5),))
        for head, why in (
            (announced(round=3), "does not continue"),
            (announced([2, "c1", 6], round=3), "does not continue"),
            (announced([3, "c1", 5], round=3), "does not continue"),
            (announced([2, "c2", 5], [2, "c1", 5], round=3), "does not continue"),
            (announced([2, "c1", 5], [2, "c2", 5], round=3), "which is over"),
            (announced([2, "c1", 5], round=3, census=FIRST | {"c2": 4}), "another census"),
        ):
            with pytest.raises(Refused, match=why):
                members.follow(head)
            again = read_membership(head, AGREED)
            if why != "which is over":  # it is not known after a restart which rounds are
                with pytest.raises(Refused, match=why):
                    RunMembers(AGREED, "one", again, path=path)
        assert RunMembers(AGREED, "two", Membership(FIRST), path=path).now.joined == (), "another run is another list"

    def test_a_repeated_round_may_have_a_newcomer(self) -> None:
        """The server was started again, or went back to a checkpoint."""
        members = RunMembers(AGREED, "one", Membership(FIRST))
        members.follow(announced(round=4))
        assert members.follow(announced([3, "c1", 5], round=3))

    def test_a_client_has_the_rows_that_it_has(self) -> None:
        members = RunMembers(AGREED, "one", Membership(FIRST), known={"c1": 5})
        with pytest.raises(Refused, match="c1 has 6 rows, and it has 5"):
            members.follow(announced([2, "c1", 6]))
        with pytest.raises(Refused, match="c1 has 6 rows, and it has 5"):
            RunMembers(AGREED, "one", Membership(FIRST, (Newcomer(2, "c1", 6),)), known={"c1": 5})


@dataclass(frozen=True)
class Collecting(Method):
    """Asks all clients for something before the first round."""

    def init(self, fed: Federation, model: Located) -> State:
        fed.up(fed.run(label_counts, at=CLIENTS), to=SERVER)
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        return state


def test_a_method_that_asks_everybody_before_round_1_refuses_late_clients(tmp_path: Path) -> None:
    made = small("fedavg", **BRIEF)
    with loopback(made, tmp_path) as federation:
        agreed, name = federation.agreement, made.tree.holders[0]
        members = Membership({client: rows for client, rows in federation.census.items() if client != name})
        assert cannot_join(agreed, members, name, 5) == ""
        own = replace(agreed, config=agreed.config.merged({"algorithm": {"name": f"{__name__}:Collecting"}}))
        assert "Collecting collects something from all clients before round 1" in cannot_join(own, members, name, 5)


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    sets = [f"{key.replace('__', '.')}={value}" for key, value in BRIEF.items()]
    asked = Config.load(None, [*sets, "partition.clients=4", "partition.sectors=2", "algorithm.name=fedavg"])
    init.init(prepare(asked), tmp_path / "federation")
    return tmp_path / "federation"


class Asked:
    """An uplink whose party above sends these messages and is gone."""

    up = True

    def __init__(self, *heads: dict[str, Any]) -> None:
        self.heads, self.replies = heads, list[dict[str, Any]]()

    def serve(self, answer: Callable[[Message], Message], stop: threading.Event) -> None:
        self.replies = [answer(Message(head)).head for head in self.heads]
        stop.set()

    def close(self) -> None: ...


def process_of(path: Path) -> PartyProcess:
    folder = PartyFolder.open(path)
    log, sent = PartyLog(folder, LogStyle(quiet=True)), SentLog(folder)
    return PartyProcess(folder, log, Status(folder), sent, RefusedLog(folder), Observation(log, sent))


class TestParties:
    def test_a_client_that_is_refused_says_why(self, federation: Path) -> None:
        client = process_of(federation / "c0")
        hello = {"do": "hello", **client.folder.federation.stamp}
        above = Asked(hello, hello | {"refused": "the method \n cannot"})
        client.uplink = lambda: above  # type: ignore[method-assign]
        _run_client(client)
        assert above.replies[0]["size"] > 0
        assert above.replies[1] == {}
        assert client.status.fields["late"] == {"c0": "refused"}
        log = next(client.folder.state.glob("logs/*.log")).read_text()
        assert 'c0 came late and has no part in this run; the server says "the method cannot"' in log
        client.close()

    def test_a_host_asks_for_rows_reports_who_waits_and_passes_a_refusal_on(self, federation: Path) -> None:
        host = process_of(federation / "s0")
        team, heard = host.folder.members, dict[str, list[dict[str, Any]]]()

        def answer(name: str) -> Callable[[Message], Message]:
            def answered(message: Message) -> Message:
                heard.setdefault(name, []).append(message.head)
                return Message({"size": 5 if name == team[0] else 1 << 50})

            return answered

        link = LoopbackLink({name: answer(name) for name in team}, lambda to, message: message)
        stamp = host.folder.federation.stamp
        hello = {"do": "hello", **stamp}
        work = {"do": "work", **stamp, "run": "0123456789abcdef", "round": 1, "keep": {}, "steps": [], "deadline": 5.0}
        work |= {"census": {client: 5 for client in host.folder.federation.sector_of if client not in team}}
        above = Asked(hello, work, hello | {"refused": {team[0]: "too late", "c99": "nobody"}})
        host.uplink, host.downlink = (lambda: above), (lambda: link)  # type: ignore[method-assign,assignment,return-value]
        _run_sector(host)
        assert above.replies[0] == {"sizes": {team[0]: 5}}
        assert above.replies[1]["waiting"] == [team[0]], "one whose announcement is refused does not wait"
        assert [head.get("refused") for head in heard[team[0]]] == [None, "too late"]
        assert {head.get("refused") for name in team[1:] for head in heard[name]} == {None}
        log = next(host.folder.state.glob("logs/*.log")).read_text()
        assert log.count("which is refused (deploy.max_rows)") == len(team) - 1, "once each"
        host.close()


class TestServer:
    """The server asks for clients that a host has reported, writes down from when on they take part, and tells."""

    @pytest.fixture
    def process(self, federation: Path) -> Iterator[PartyProcess]:
        made = process_of(federation / "server")
        yield made
        made.close()

    def late(self, process: PartyProcess, rows: int, asked: list[dict[str, Any]]) -> tuple[str, LateClients]:
        agreement = process.folder.federation
        name = next(team[-1] for team in agreement.sectors.values() if len(team) > 1)
        first = {client: 20 for client in agreement.sector_of if client != name}

        def answer(message: Message) -> Message:
            asked.append(message.head)
            return Message({"sizes": first | {name: rows}, "waiting": [name, 7, "nobody"]})

        link = LoopbackLink(dict.fromkeys(agreement.sectors, answer), lambda to, message: message)
        notices = RevocationNotices(process.folder, link, process.log)
        process.links.append(link)
        context = run_context(deployed_experiment(agreement, empty_split(agreement), first))
        party = process.party_run("one", context, Membership(first), {})
        late = LateClients(process, party, notices, frozenset, {"run": "one", "sizes": first}, lambda round: None)
        late.before_round(1)
        assert asked == [], "nobody has come, so nobody is asked"
        notices.send(agreement.sector_of[name], Message({"do": "work"}))
        notices.replies(10.0)
        asked.clear()
        return name, late

    def test_it_takes_the_client_in(self, process: PartyProcess) -> None:
        asked: list[dict[str, Any]] = []
        name, late = self.late(process, 1000, asked)
        late.before_round(2)
        late.before_round(3)
        assert [head["do"] for head in asked] == ["hello"], "once, and of its host only"
        assert late.joined == (Newcomer(2, name, 1000),)
        begun = json.loads((process.folder.state / "begun.json").read_text())
        assert begun_membership(begun).joined == late.joined
        assert process.status.fields["late"] == {name: "from round 2 on"}
        log = next(process.folder.state.glob("logs/*.log")).read_text()
        assert f"{name} came late with 1000 rows and takes part from round 2 on" in log
        assert f"{name} announces 1000 of 1060 rows, more than all others together" in log

    @pytest.mark.parametrize(("method", "rows", "why"), [("fedavg", 0, "no rows"), ("Collecting", 5, "before round 1")])
    def test_it_refuses_with_the_reason_and_tells_the_client(
        self, method: str, rows: int, why: str, process: PartyProcess
    ) -> None:
        asked: list[dict[str, Any]] = []
        name, late = self.late(process, rows, asked)
        if method == "Collecting":
            agreed = process.folder.federation
            own = agreed.config.merged({"algorithm": {"name": f"{__name__}:Collecting"}})
            late._agreement = replace(agreed, config=own)
        late.before_round(2)
        late.before_round(3)
        assert late.joined == ()
        assert why in late.refused[name]
        assert [head.get("refused") for head in asked] == [None, late.refused]
        assert process.status.fields["late"] == {name: "refused"}
        log = next(process.folder.state.glob("logs/*.log")).read_text()
        assert log.count(f"{name} came late and has no part in this run: {late.refused[name]}") == 1
