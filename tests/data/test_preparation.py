"""What clients tell of their rows before the first round: sums and counts that equal those of the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.data.arrays import Owners
from headwater.data.preparation import Standardise, pack, unpack
from headwater.data.text import Counted, Lexicon, hashed, tokens
from headwater.errors import HeadwaterError


class TestStandardise:
    @settings(max_examples=40)
    @given(
        st.integers(0, 10_000), st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([0.0, 1e6, -3e7])
    )
    def test_pooled_and_apart_are_equal(self, seed: int, sizes: list[int], centre: float) -> None:
        rng = np.random.default_rng(seed)
        parts = [torch.from_numpy(rng.normal(centre, 1 + rng.random(4), (n, 4))) for n in sizes]
        way = Standardise()
        mean, deviation = way.settle([way.measure(part) for part in parts])
        whole = torch.cat(parts).numpy()
        np.testing.assert_allclose(mean, whole.mean(0), rtol=1e-12)
        if sum(sizes) > 1:
            np.testing.assert_allclose(deviation, whole.std(0), rtol=1e-6)

    def test_by_hand(self) -> None:
        way = Standardise()
        told = [way.measure(torch.tensor([[1.0], [3.0]])), way.measure(torch.tensor([[8.0], [float("nan")]]))]
        assert [part.tolist() for part in told[0]] == [[2.0], [4.0], [2.0]]
        assert [part.tolist() for part in told[1]] == [[1.0], [8.0], [0.0]]
        mean, deviation = way.settle(told)
        assert mean.tolist() == [4.0]
        assert deviation.tolist() == pytest.approx([(26 / 3) ** 0.5])  # 9 + 1 + 16 over three
        assert way.apply(torch.tensor([[4.0], [float("nan")]]), (mean, deviation)).tolist() == [[0.0], [0.0]]


class TestWords:
    def test_words_and_signs(self) -> None:
        assert tokens("It's GOOD, isn't it?") == ["it's", "good", ",", "isn't", "it", "?"]

    def test_hashes_are_fixed_and_never_padding(self) -> None:
        x = hashed(["a b c", "", "c c c c c c"], words=100, length=4)
        assert x.tolist()[1] == [0, 0, 0, 0]
        assert x[0, 0] == 0
        assert (x[2] == x[0, 3]).all()
        assert x[0, 1:].min() >= 2
        assert x.max() < 100
        assert hashed(["good film"], words=10_000, length=2).tolist() == [[6839, 7880]]

    def test_the_most_frequent_words_of_all_clients_are_kept(self) -> None:
        texts = [["a", "b", "b"], ["c", "c", "c", "a"], ["d"]]
        lexicon = Lexicon(texts)
        x = torch.from_numpy(lexicon.encode(texts, 4))
        way = Counted(lexicon, words=4)  # padding, unknown and two words
        told = [way.measure(x[:1]), way.measure(x[1:])]
        assert unpack(told[0][0]) == ["a", "b"]
        assert told[0][1].tolist() == [1, 2]
        settled = way.settle(told)
        assert unpack(settled[0]) == ["c", "a"]  # 3, then a and b with 2 each: by name
        assert way.apply(x, settled).tolist() == [[0, 3, 1, 1], [2, 2, 2, 3], [0, 0, 0, 1]]

    def test_packed_words_come_back(self) -> None:
        for words in ([], ["a"], ["a", "é", "长"]):
            assert unpack(pack(words)) == words


class TestOwners:
    def test_rows_sectors_and_the_order_of_names(self) -> None:
        owners = Owners.of(["s10", "s2", "s10", "s2"], ["x", "w", "x", "w"], 4)
        assert owners.clients == ("s2", "s10")
        assert [rows.tolist() for rows in owners.indices()] == [[1, 3], [0, 2]]
        assert owners.sectors == (0, 1)
        assert owners.sector_names == ("w", "x")
        assert [rows.tolist() for rows in owners.take(np.array([0, 2])).indices()] == [[], [0, 1]]

    def test_too_few_names(self) -> None:
        with pytest.raises(HeadwaterError, match="client has 1 entries for 2"):
            Owners.of(["a"], None, 2)
