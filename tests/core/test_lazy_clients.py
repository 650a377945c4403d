"""A tree that is a few arrays says the same as one that is written out, and costs nothing but its arrays."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.federation import Federation
from headwater.core.ledger import Ledger
from headwater.core.rng import stream
from headwater.core.sampling import choose, participants, round_half_up
from headwater.core.session import Session
from headwater.core.tree import CLIENTS, ROOT, Tree
from headwater.errors import PlaceError

MILLION = 1_000_000


@dataclass
class Plain:
    """The tree in dicts and tuples."""

    sizes: list[int]
    numbers: list[int]

    def __post_init__(self) -> None:
        order = sorted(range(len(self.sizes)), key=lambda i: (self.numbers[i], -self.sizes[i], i))
        self.sectors = tuple(f"s{number}" for number in sorted(set(self.numbers)))
        self.sector_of = {f"c{i}": f"s{self.numbers[i]}" for i in order}
        self.client_sizes = {f"c{i}": self.sizes[i] for i in order}
        self.clients = tuple(self.sector_of)
        self.holders = tuple(c for c in self.clients if self.client_sizes[c])

    def team(self, sector: str) -> tuple[str, ...]:
        return tuple(c for c in self.clients if self.sector_of[c] == sector)

    def drawn(self, share: float, seed: int, round: int) -> tuple[str, ...]:
        count = max(1, round_half_up(share * len(self.holders)))
        found = stream(seed, "participation", round).choice(len(self.holders), size=count, replace=False)
        return tuple(self.holders[i] for i in sorted(found))


def view(tree: Tree, clients: Any = None) -> Federation:
    session = Session(None, Ledger(), seed=0)  # type: ignore[arg-type]  # no engine: only who is in the view is asked
    return Federation(tree, session, tree.holders if clients is None else clients, round=1)


trees = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=30)


@given(trees)
@settings(max_examples=150)
def test_it_says_what_a_tree_in_dicts_says(clients: list[tuple[int, int]]) -> None:
    sizes, numbers = [size for size, _ in clients], [number for _, number in clients]
    tree, plain = Tree.of(sizes, numbers), Plain(sizes, numbers)
    assert tree.sectors == plain.sectors
    assert tree.clients == plain.clients == tuple(tree.clients)
    assert [tree.clients[at] for at in range(-1, len(sizes))] == [plain.clients[at] for at in range(-1, len(sizes))]
    assert tree.clients[1:3] == plain.clients[1:3]
    assert tree.holders == plain.holders == tuple(tree.holders)
    for found, expected in ((tree.sector_of, plain.sector_of), (tree.client_sizes, plain.client_sizes)):
        assert list(found.items()) == list(expected.items())
        assert list(found.values()) == list(expected.values())
        assert found == expected
    above = {ROOT: sum(sizes)} | {s: sum(plain.client_sizes[c] for c in plain.team(s)) for s in plain.sectors}
    assert list(tree.sizes.items()) == list((above | plain.client_sizes).items())
    for sector in plain.sectors:
        assert tree.team(sector) == plain.team(sector)
        assert tuple(tree.teams.get(sector, ())) == tuple(c for c in plain.team(sector) if plain.client_sizes[c])


@given(trees, st.integers(0, 50))
@settings(max_examples=80)
def test_a_view_of_everybody_is_as_one_of_all_its_clients_by_name(clients: list[tuple[int, int]], seed: int) -> None:
    tree = Tree.of([size for size, _ in clients], [number for _, number in clients])
    lazy, written = view(tree).whole, view(tree, tuple(tree.holders))
    assert lazy.sectors == written.sectors
    assert {sector: tuple(team) for sector, team in lazy.teams.items()} == {
        sector: tuple(team) for sector, team in written.teams.items()
    }
    assert list(lazy.sizes.items()) == list(written.sizes.items())
    few = [name for name in reversed(tree.clients) if stream(seed, name).random() < 0.4]
    assert tuple(lazy.among(few).clients) == tuple(c for c in tree.holders if c in few)
    assert list(lazy.among(tree.holders).clients) == list(tree.holders)
    for rule in ("random", "fixed", "rotating"):
        assert choose(rule, lazy) == choose(rule, written)


@given(trees.filter(lambda clients: any(size for size, _ in clients)), st.floats(0.01, 1), st.integers(1, 9))
@settings(max_examples=80)
def test_the_draw_is_the_one_from_a_written_list(clients: list[tuple[int, int]], share: float, number: int) -> None:
    sizes, numbers = [size for size, _ in clients], [number for _, number in clients]
    drawn = participants(Tree.of(sizes, numbers), share, 7, number)
    assert drawn == Plain(sizes, numbers).drawn(share, 7, number)


@pytest.mark.parametrize(
    "name", ["c5", "c-1", "c01", "c 1", "c", "s0", "server", "C1", "c1 ", "c1_0", "c१", "", 1, None]
)
def test_what_is_no_client_is_not_in_the_tree(name: Any) -> None:
    tree = Tree.of([1, 0, 3, 1, 1], [0, 0, 1, 1, 1])
    assert name not in tree.clients
    assert name not in tree.sector_of
    assert name not in tree.holders
    with pytest.raises(KeyError):
        tree.client_sizes[name]
    if isinstance(name, str):
        assert tree.in_order(["c2", name, "c0", "c2"]) == ("c0", "c2")
        with pytest.raises(PlaceError, match="there is no client"):
            view(tree).among(["c0", name])


def test_a_client_of_another_sector_or_without_data_is_not_in_a_team() -> None:
    tree = Tree.of([1, 0, 3], [0, 0, 1])
    assert "c1" in tree.team("s0")
    assert "c2" not in tree.team("s0")
    assert "c1" not in tree.teams["s0"]
    assert "c1" not in tree.holder_sizes


def test_equal_trees_are_equal_also_after_a_journey() -> None:
    tree = Tree.of([3, 1, 4, 1], [0, 1, 0, 1], ("a", "b"))
    assert (tree.teams, tree.sizes["c2"]) == ({"s0": ("c2", "c0"), "s1": ("c1", "c3")}, 4)
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree
    assert hash(again) == hash(tree)
    assert again.clients == tree.clients
    assert again.arch("c3") == "b"
    assert tree != Tree.of([3, 1, 4, 2], [0, 1, 0, 1], ("a", "b"))
    assert tree != Tree.of([3, 1, 4, 1], [0, 1, 1, 1], ("a", "b"))
    assert tree != Tree.of([3, 1, 4, 1], [0, 1, 0, 1])


def test_a_million_clients_cost_their_numbers_only() -> None:
    """Half a dozen arrays at most while the tree is built, and next to nothing to draw from it and to look at it."""
    sizes, numbers = np.full(MILLION, 50), np.arange(MILLION) % 3
    tracemalloc.start()
    try:
        tree = Tree.of(sizes, numbers)
        kept, peak = tracemalloc.get_traced_memory()
        assert kept < 25e6
        assert peak < 90e6
        tree.clients, tree.holders, tree.sector_of, tree.teams, tree.sizes  # noqa: B018
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        drawn = participants(tree, 50 / MILLION, 0, 1)
        fed = view(tree, drawn)
        assert len(drawn) == 50
        assert fed.sizes[ROOT] == 2500
        assert len(fed.whole.clients) == MILLION
        assert fed.whole.sizes[ROOT] == 50 * MILLION
        assert fed.whole.sectors == ("s0", "s1", "s2")
        assert fed.whole.among(reversed(drawn)).clients == drawn
        assert fed.whole.nodes_of(CLIENTS, dict.fromkeys(drawn)) == drawn
        assert tracemalloc.get_traced_memory()[1] - before < 1e6
    finally:
        tracemalloc.stop()
