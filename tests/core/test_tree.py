from __future__ import annotations

from collections import Counter

import pytest

from headwater.core.federation import Federation
from headwater.core.ledger import Ledger
from headwater.core.sampling import choose, participants
from headwater.core.session import Session
from headwater.core.tree import CLIENTS, SECTORS, SERVER, Tree
from headwater.errors import ConfigError

TREE = Tree.of([5, 0, 9, 5, 1, 20], [0, 1, 1, 0, 1, 0])


def view(tree: Tree = TREE, clients: tuple[str, ...] | None = None, round: int = 1) -> Federation:
    session = Session(None, Ledger(), seed=0)  # type: ignore[arg-type]  # no engine: only who is in the view is asked
    return Federation(tree, session, tree.holders if clients is None else clients, round=round)


def test_order_is_by_sector_then_size_then_number() -> None:
    assert TREE.clients == ("c5", "c0", "c3", "c2", "c4", "c1")


def test_sizes_and_shares_add_up() -> None:
    assert TREE.sizes == {"server": 40, "s0": 30, "s1": 10} | {"c5": 20, "c0": 5, "c3": 5, "c2": 9, "c4": 1, "c1": 0}
    assert sum(TREE.sizes[c] for c in TREE.clients) == TREE.sizes["server"]
    assert TREE.sizes["s0"] == sum(TREE.sizes[c] for c in TREE.team("s0"))


def test_an_empty_client_stays_in_the_tree_and_never_in_a_view() -> None:
    assert "c1" in TREE.clients
    assert "c1" not in TREE.holders
    assert "c1" not in view().whole.clients
    assert all(choose("random", view(round=r))["s1"] != "c1" for r in range(50))


def test_places_have_heights() -> None:
    assert SERVER.height > SECTORS.height > CLIENTS.height


def test_lengths_must_agree() -> None:
    with pytest.raises(ConfigError, match="3 clients were given 2 sector numbers"):
        Tree.of([1, 2, 3], [0, 1])


def test_fixed_leader_is_the_largest_active_client() -> None:
    assert choose("fixed", view()) == {"s0": "c5", "s1": "c2"}
    assert choose("fixed", view(clients=("c0", "c4"))) == {"s0": "c0", "s1": "c4"}


def test_rotating_leaders_take_turns() -> None:
    seen = [choose("rotating", view(round=r))["s0"] for r in range(1, 7)]
    assert seen == ["c5", "c0", "c3"] * 2


def test_random_leaders_are_drawn_anew_each_round_and_belong_to_their_sector() -> None:
    draws = [choose("random", view(round=r)) for r in range(1, 200)]
    assert all(TREE.sector_of[client] == sector for draw in draws for sector, client in draw.items())
    often = Counter(draw["s0"] for draw in draws)
    assert set(often) == {"c5", "c0", "c3"}
    assert often["c5"] > often["c0"]


def test_participation_counts_and_repeats() -> None:
    tree = Tree.of([3] * 10, [0] * 5 + [1] * 5)
    drawn = [participants(tree, 0.25, seed=0, round=r) for r in range(30)]
    assert all(len(d) == 3 for d in drawn)  # 2.5 goes up
    assert drawn[4] == participants(tree, 0.25, seed=0, round=4)
    assert len(set(drawn)) > 10
    assert participants(tree, 0.01, seed=0, round=1)  # at least one
    assert participants(tree, 1.0, seed=0, round=1) == tree.holders
    order = {c: i for i, c in enumerate(tree.clients)}
    assert all([order[c] for c in d] == sorted(order[c] for c in d) for d in drawn)
