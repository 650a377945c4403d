"""What a client does to a secure sum by damaged shares or a damaged masked value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headwater.deploy.payload import CARGO
from headwater.deploy.transport import Message, Unanswered
from headwater.secure.setting import SecureSums
from headwater.training.loop import train
from headwater.training.result import Run
from loopback import SIX, Loopback, loopback, small

ONE = SIX | {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 1}
STEPS = ["keys", "shares", "opened", "value", "reveal"]  # one reply of a client each


class Damaging:
    """Changes arrays of one reply of c0: all of them, or the first so many."""

    def __init__(self, step: str, change: Callable[[bytes], bytes], most: int | None = None) -> None:
        self.nth, self.change, self.most, self.seen = 1 + STEPS.index(step), change, most, 0

    def __call__(self, sender: str, reply: Message) -> Message:
        if sender != "c0" or not reply.head.get(CARGO):
            return reply
        self.seen += 1
        if self.seen != self.nth:
            return reply
        few, rest = reply.parts[: self.most], reply.parts[len(reply.parts[: self.most]) :]
        parts = (*(part._replace(data=self.change(part.data)) if part.data else part for part in few), *rest)
        return Message(reply.head, parts, reply.most)


def flipped(at: int) -> Callable[[bytes], bytes]:
    """Changes the lowest bit of a byte."""

    def change(data: bytes) -> bytes:
        content = bytearray(data)
        content[at] ^= 1
        return bytes(content)

    return change


def model(run: Run) -> torch.Tensor:
    return next(iter(run.params.values())).vector


def damaged(
    place: Path, step: str, change: Callable[[bytes], bytes], most: int | None = None
) -> tuple[Run, Loopback, torch.Tensor]:
    """The run, the federation, and the model that the round began with."""
    made = small("fedavg", **ONE, privacy__secure="server")
    meddle = Damaging(step, change, most)
    with loopback(made, place, meddle=meddle) as federation:
        run = federation.train()
    assert meddle.seen >= meddle.nth
    return run, federation, made.context().initial(run.result["model"], 0).vector


@pytest.mark.parametrize(
    ("step", "at", "said"),
    [
        pytest.param("value", -8, "the masks of a secure sum do not cancel", id="count of the masked value"),
        pytest.param(
            "reveal", 3, "the masks of a secure sum do not cancel", id="revealed shares", marks=pytest.mark.thorough
        ),
    ],
)
def test_the_round_counts_for_nothing_and_the_model_stays(step: str, at: int, said: str, tmp_path: Path) -> None:
    run, federation, start = damaged(tmp_path, step, flipped(at))
    assert any(said in sentence for sentence in federation.said), federation.said
    assert torch.equal(model(run), start)
    assert run.result["rounds"] == 1


class Absent:
    """Loses what a client trained."""

    def __call__(self, sender: str, reply: Message) -> Message:
        if sender == "c0" and reply.head.get(CARGO):
            raise Unanswered("c0 is gone")
        return reply


@pytest.mark.parametrize(("step", "change"), [("shares", flipped(3)), ("keys", lambda data: bytes(len(data)))])
def test_a_client_whose_shares_or_keys_are_of_no_use_is_left_out_alone(
    step: str, change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """The model is that of a round without this client; nobody else is lost, and nothing of the sum."""
    run, federation, start = damaged(tmp_path / "damaged", step, change)
    with loopback(small("fedavg", **ONE), tmp_path / "absent", meddle=Absent()) as others:
        expected = model(others.train())
    assert float((model(run) - expected).abs().max()) <= 6 * 2.0**-23
    assert not torch.equal(model(run), start)
    assert not any("is left out of this round" in sentence for sentence in federation.said), federation.said
    assert run.history[0]["secure_left_out"] == {"server": ["c0"]}
    assert "secure_too_few" not in run.history[0]


def test_a_client_whose_shares_enough_others_can_read_stays_in_the_sum(tmp_path: Path) -> None:
    """Two of five boxes cannot be opened; four members, with itself, are as many as must remain."""
    run, federation, _ = damaged(tmp_path, "shares", flipped(3), most=2)
    assert torch.equal(model(run), model(train(small("fedavg", **ONE, privacy__secure="server"))))
    assert federation.said == []
    assert "secure_left_out" not in run.history[0]


def test_a_changed_number_is_in_the_sum_as_if_its_client_had_sent_it(tmp_path: Path) -> None:
    """It changes this number of the mean, by as much as the client's weight in it says, and nothing else."""
    run, federation, _ = damaged(tmp_path, "value", flipped(5))
    made = small("fedavg", **ONE, privacy__secure="server")
    change = (model(run).double() - model(train(made)).double()).abs()
    rows = sum(made.tree.client_sizes.values())
    step = 2.0 ** -SecureSums().exponent(rows + len(made.tree.holders))
    assert change.nonzero().flatten().tolist() == [0]
    assert float(change[0]) == pytest.approx(2.0**40 * step / rows, rel=1e-3)
    assert federation.said == []
