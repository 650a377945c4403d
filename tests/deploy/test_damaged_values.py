"""Values of a party that were damaged on its disk: noticed at every read, and never used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwater.core import sealed
from headwater.deploy.party_run import DamagedStore, ValueStore
from headwater.engines.jobs import LOST
from headwater.errors import ConfigError
from loopback import Loopback, small


def flip(path: Path, at: int = -60) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0b100
    path.write_bytes(content)


class TestStore:
    def test_a_flipped_bit_anywhere_makes_a_value_lost(self, tmp_path: Path) -> None:
        said: list[str] = []
        store = ValueStore(tmp_path, "one", said.append)
        store["a"] = {"w": torch.arange(20.0), "n": 3}
        file = tmp_path / "one" / "a.value"
        whole = file.read_bytes()
        for at in range(0, len(whole), 7):
            file.write_bytes(whole)
            store = ValueStore(tmp_path, "one", said.append)
            assert torch.equal(store["a"]["w"], torch.arange(20.0))
            flip(file, at)
            said.clear()
            assert store["a"] is LOST
            assert said == ["the stored value a is damaged: what needs it counts as lost"]
            assert "a" not in store

    def test_a_cut_file(self, tmp_path: Path) -> None:
        for kept in (0, 10, -1, -40):
            store = ValueStore(tmp_path, "one")
            store["a"] = torch.ones(3)
            file = tmp_path / "one" / "a.value"
            file.write_bytes(file.read_bytes()[:kept])
            assert store["a"] is LOST

    def test_a_restarted_party_drops_what_was_damaged_meanwhile(self, tmp_path: Path) -> None:
        store = ValueStore(tmp_path, "one")
        store["a"], store["b"] = torch.ones(3), torch.zeros(3)
        store.link("c", "b")
        flip(tmp_path / "one" / "b.value")
        said: list[str] = []
        again = ValueStore(tmp_path, "one", said.append)
        assert "a" in again
        assert "b" not in again
        assert "c" not in again  # the same file
        assert [sentence.split(" is damaged")[0] for sentence in said] == ["the stored value b", "the stored value c"]

    def test_a_second_name_of_a_value_is_checked_too(self, tmp_path: Path) -> None:
        store = ValueStore(tmp_path, "one")
        store["a"] = torch.ones(3)
        store.link("b", "a")
        assert torch.equal(store["b"], torch.ones(3))
        flip(tmp_path / "one" / "a.value")
        assert store["b"] is LOST

    def test_the_server_ends_since_its_checkpoint_has_the_value(self, tmp_path: Path) -> None:
        store = ValueStore(tmp_path, "one", in_checkpoints=True)
        store["a"] = torch.ones(3)
        flip(tmp_path / "one" / "a.value")
        with pytest.raises(DamagedStore, match="start the server again: it carries on from its checkpoint"):
            store["a"]


def damaging(federation: Loopback, where: str, round: str) -> None:
    """Flip a bit in every value that a party stores from a round on."""
    store = federation.stores[where]
    usual = store.sync

    def sync() -> None:
        usual()
        for file in (federation.place / where / "one").glob(f"{round}.*.value"):
            flip(file, -50)

    store.sync = sync  # type: ignore[method-assign]


@pytest.mark.thorough
def test_a_clients_damaged_state_is_lost_and_the_federation_goes_on(tmp_path: Path) -> None:
    """SCAFFOLD's variates are at the clients. One whose file is damaged is not used: the older one is."""
    made = small("scaffold", rounds=3)
    federation = Loopback(made, tmp_path)
    try:
        damaging(federation, "c0", "1")
        run = federation.train()
    finally:
        federation.close()
    assert run.result["rounds"] == 3
    assert run.accuracy > 0.15
    assert any("does not have" in sentence or "is damaged" in sentence for sentence in federation.said), federation.said


def test_damaged_public_sets_are_refused(tmp_path: Path) -> None:
    from headwater.deploy.server import _public_sets

    path = tmp_path / "public.value"
    with path.open("wb") as file:
        sealed.write({"test": torch.ones(5)}, file)
    assert torch.equal(_public_sets(path)["test"], torch.ones(5))
    flip(path)
    with pytest.raises(ConfigError, match=r"public\.value is damaged.*bring it back"):
        _public_sets(path)
