"""Clients that join a simulated run after it has begun: first values, means over all clients, and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.core.federation import CLIENTS, SECTORS, SERVER, Located, nothing
from headwater.core.membership import Membership, Newcomer, with_newcomers
from headwater.engines.jobs import Ref
from headwater.errors import ConfigError
from headwater.training.experiment import Experiment
from headwater.training.loop import train
from headwater.training.opening import Arrivals, admit
from toys import Lab, lab_of, tiny

SIZES = ([18, 14, 12, 10, 8], [0, 0, 1, 1, 1])
LATE = "c1"


def made(method: str, **sections: Any) -> tuple[Experiment, Experiment]:
    """An experiment, and the same without the late client."""
    whole = tiny(method, sizes=SIZES, rounds=3, **sections)
    return whole, replace(whole, tree=whole.tree.with_sizes({LATE: 0}))


@contextmanager
def after_two_rounds(method: str, **sections: Any) -> Iterator[tuple[Lab, Any]]:
    """A run of two rounds without the late client, and its state when that joins with the third."""
    _, fewer = made(method, **sections)
    with lab_of(fewer) as lab:
        lab.round(1).round(2)
        joined = [Newcomer(3, LATE, SIZES[0][1])]
        lab.fed, state, _ = admit(fewer, lab.fed, lab.state, nothing(CLIENTS), joined, 3)
        yield lab, state


def held(lab: Lab, value: Located) -> dict[str, torch.Tensor]:
    """The vectors of all clients that have such a value."""
    whole = lab.fed.whole
    found = whole.read(whole.up(value, to=SERVER)) or {}
    return {client: model.vector for client, model in found.items()}


class TestMeansOverAllClients:
    """A newcomer has added nothing to them yet."""

    @pytest.mark.parametrize("by", ["uniform", "samples"])
    def test_scaffolds_variate_stays_the_mean_of_the_clients_variates(self, by: str) -> None:
        with after_two_rounds("scaffold", algorithm={"by": by}) as (lab, state):
            own, sizes = held(lab, state.own), lab.fed.tree.sizes
            assert LATE not in own
            weight = {client: sizes[client] if by == "samples" else 1 for client in lab.fed.tree.holders}
            mean = sum(vector * weight[client] for client, vector in own.items()) / sum(weight.values())
            common = lab.fed.read(state.common).vector
            assert float(common.abs().max()) > 0
            torch.testing.assert_close(common, mean, rtol=1e-4, atol=1e-6)

    def test_feddyns_h_stays_the_mean_of_what_clients_have_added(self) -> None:
        with after_two_rounds("feddyn", algorithm={"alpha_by": "equal"}) as (lab, state):
            before, after = (lab.fed.read(each.h).vector for each in (lab.state, state))
            torch.testing.assert_close(after, before * 4 / 5, rtol=1e-5, atol=1e-7)

    def test_hfeddyns_h_changes_in_its_sector_only(self) -> None:
        with after_two_rounds("hfeddyn") as (lab, state):
            whole = lab.fed.whole
            before, after = (whole.read(whole.up(each.h)) for each in (lab.state, state))
            torch.testing.assert_close(after["s0"].vector, before["s0"].vector / 2, rtol=1e-5, atol=1e-7)
            assert torch.equal(after["s1"].vector, before["s1"].vector)

    def test_hfeddyns_h_of_a_frame_changes_in_its_sector_only(self) -> None:
        options = {"local": "hfeddyn", "ensemble": "none", "consolidate": "none"}
        with after_two_rounds("frame", algorithm=options) as (lab, state):
            whole = lab.fed.whole
            before, after = (whole.read(whole.up(each.memory["h"][0])) for each in (lab.state, state))
            torch.testing.assert_close(after["s0"].vector, before["s0"].vector / 2, rtol=1e-5, atol=1e-7)
            assert torch.equal(after["s1"].vector, before["s1"].vector)

    @pytest.mark.parametrize(("local", "name"), [("scaffold", "common"), ("feddyn", "h")])
    def test_those_of_a_frame_too(self, local: str, name: str) -> None:
        with after_two_rounds("frame", algorithm={"local": local, "cohorts": 1}) as (lab, state):
            before, after = (lab.fed.read(each.memory[name][0]).vector for each in (lab.state, state))
            torch.testing.assert_close(after, before * 4 / 5, rtol=1e-5, atol=1e-7)


class TestFirstValues:
    @pytest.mark.parametrize("method", ["local", "fedproto", "fedmd"])
    def test_a_newcomer_has_what_it_would_have_had_from_the_start(self, method: str) -> None:
        whole, _ = made(method)
        with lab_of(whole) as lab, after_two_rounds(method) as (late, state):
            expected, found = held(lab, lab.state.personal)[LATE], held(late, state.personal)
            assert torch.equal(found[LATE], expected)
            assert set(found) == set(late.fed.tree.holders)

    @pytest.mark.parametrize("method", ["mtgc", "frame"])
    def test_a_new_sector_gets_the_present_model(self, method: str) -> None:
        options = {"local": "mtgc", "ensemble": "none", "consolidate": "none"} if method == "frame" else {}
        whole = tiny(method, sizes=SIZES, rounds=3, algorithm=options)
        late = {"c0": 18, "c1": 14}
        fewer = replace(whole, tree=whole.tree.with_sizes(dict.fromkeys(late, 0)))
        with lab_of(fewer) as lab:
            lab.round(1)
            joined = [Newcomer(2, client, rows) for client, rows in late.items()]
            fed, state, _ = admit(fewer, lab.fed, lab.state, nothing(CLIENTS), joined, 2)
            start = state.memory["start"][0] if method == "frame" else state.start
            starts = fed.whole.read(fed.whole.up(start))
            assert all(torch.equal(start.vector, lab.vector) for start in starts.values())
            assert set(starts) == {"s0", "s1"}

    def test_only_values_at_new_places_are_added(self) -> None:
        old = {
            "a": Located(CLIENTS, {"c0": Ref("x", "c0")}),
            "b": Located(SERVER, {"server": Ref("y", "server")}),
            "n": 1,
        }
        new = {"a": Located(CLIENTS, {"c0": Ref("q", "c0"), "c1": Ref("z", "c1")}), "b": nothing(SERVER), "n": 2}
        found = with_newcomers((old, (nothing(SECTORS),)), (new, ()))
        assert found == (
            {**old, "a": Located(CLIENTS, {"c0": Ref("x", "c0"), "c1": Ref("z", "c1")})},
            (nothing(SECTORS),),
        )


class TestRuns:
    def test_the_late_client_is_not_drawn_and_not_weighed_before(self) -> None:
        whole, fewer = made("fedavg", partition={"participation": 0.5})
        run = train(fewer, arrivals=Arrivals([Newcomer(3, LATE, SIZES[0][1])]))
        alone = train(replace(fewer, config=fewer.config.merged({"rounds": 2})))
        assert [row["bytes"] for row in run.history[:2]] == [row["bytes"] for row in alone.history]
        assert run.result["joined"] == [{"round": 3, "client": LATE, "rows": SIZES[0][1]}]
        assert "joined" not in train(whole).result

    def test_a_resumed_run_goes_on_with_those_who_have_joined(self, tmp_path: Path) -> None:
        _, fewer = made("scaffold")
        joined = [Newcomer(2, LATE, SIZES[0][1])]

        class Stopping(Arrivals):
            def before_round(self, round: int) -> None:
                if round == 3:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(fewer, out=tmp_path / "run", arrivals=Stopping(joined))
        resumed = train(fewer, out=tmp_path / "run", arrivals=Arrivals(joined))
        whole = train(fewer, arrivals=Arrivals(joined))
        assert resumed.result["model_sha256"] == whole.result["model_sha256"]
        assert resumed.result["ledger"] == whole.result["ledger"]


def test_a_tree_with_other_sizes_has_another_order() -> None:
    tree = tiny("fedavg", sizes=SIZES).tree
    changed = tree.with_sizes({"c0": 1, "c2": 0})
    assert list(changed.holders) == ["c1", "c0", "c3", "c4"]
    assert changed.sizes["s1"] == 18
    assert changed.with_sizes({"c0": 18, "c2": 12}) == tree
    with pytest.raises(ConfigError, match="no client 'c9'"):
        tree.with_sizes({"c9": 1})


def test_a_membership_grows() -> None:
    members = Membership({"c0": 5}).with_joined(Newcomer(2, "c1", 7))
    assert members.rows == {"c0": 5, "c1": 7}
    assert members.first == {"c0": 5}
