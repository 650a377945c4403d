"""Secure sums between parties: the bits of the simulation, clients lost in every step, and hosts that cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.deploy.init import check, init
from headwater.deploy.payload import CARGO
from headwater.deploy.transport import Message, Unanswered
from headwater.errors import ConfigError
from headwater.training.loop import train
from headwater.training.result import Run
from loopback import SIX, loopback, small

ONE = SIX | {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 1}
COHORTS = {"algorithm__cohorts": 2, "algorithm__consolidate": "none"}
STEPS = ["keys", "shares", "opened", "value", "reveal"]  # of FedEED, one exchange with a client for each


def model(run: Run) -> torch.Tensor:
    return next(iter(run.params.values())).vector


@pytest.mark.parametrize(
    ("method", "mode", "more"),
    [
        pytest.param("fedeed", "server", COHORTS, id="fedeed"),
        pytest.param("hfedavg", "both", {}, id="hfedavg", marks=pytest.mark.thorough),
        pytest.param("fedavg", "sectors", {}, id="sealed", marks=pytest.mark.thorough),
        pytest.param("scaffold", "server", {}, id="scaffold", marks=pytest.mark.thorough),
        pytest.param("mtgc", "both", {}, id="mtgc", marks=pytest.mark.thorough),
    ],
)
def test_parties_give_the_bits_of_the_simulation(method: str, mode: str, more: dict[str, Any], tmp_path: Path) -> None:
    made = small(method, **ONE | more, privacy__secure=mode)
    with loopback(made, tmp_path) as federation:
        run, simulated = federation.train(), train(made)
        assert federation.refusals == []
    assert run.result["model_sha256"] == simulated.result["model_sha256"]
    assert run.ledger.of_round(1) == simulated.ledger.of_round(1)


class Losing:
    """Loses a client before its nth reply of work in round 1, and notes what passes a link."""

    def __init__(self, client: str, nth: int) -> None:
        self.client, self.nth, self.seen = client, nth, 0

    def __call__(self, sender: str, reply: Message) -> Message:
        if sender == self.client and reply.head.get(CARGO):
            self.seen += 1
            if self.seen >= self.nth:
                raise Unanswered(f"{sender} is gone")
        return reply


@pytest.mark.thorough
@pytest.mark.parametrize("step", STEPS)
def test_fedeed_with_a_client_lost_in_a_step(step: str, tmp_path: Path) -> None:
    """It is in the average of its cohort if its masked value arrived."""
    made = small("fedeed", **ONE | COHORTS, privacy__secure="server")
    plain = small("fedeed", **ONE | COHORTS)
    client = "c0"
    with loopback(made, tmp_path / "secure", meddle=Losing(client, 1 + STEPS.index(step))) as federation:
        run = federation.train()
    expected = whole = model(train(plain))
    if step != "reveal":
        with loopback(plain, tmp_path / "plain", meddle=Losing(client, 1)) as federation:
            expected = model(federation.train())
        assert float((expected - whole).abs().max()) > 1e-4  # the client is of the cohort whose average this is
    assert float((model(run) - expected).abs().max()) <= 6 * 2.0**-23


def test_a_host_relays_what_it_cannot_read(tmp_path: Path) -> None:
    sent: list[tuple[str, str, int]] = []

    def note(sender: str, reply: Message) -> Message:
        sent.extend((sender, part.dtype, len(part.data)) for part in reply.parts if reply.head.get(CARGO))
        return reply

    made = small("fedavg", **ONE, privacy__secure="sectors")
    with loopback(made, tmp_path, meddle=note) as federation:
        run = federation.train()
    size = 4 * run.result["parameters"]
    large = [(sender, dtype) for sender, dtype, count in sent if count >= size]
    assert large
    assert {dtype for _, dtype in large} == {"uint8"}
    assert {sender for sender, _ in large} == {*made.tree.holders, *made.tree.sectors}


def test_masks_that_are_left_out_are_refused(tmp_path: Path) -> None:
    config = small("fedavg", **ONE, privacy__secure="server", privacy__secure_masks=False).config
    with pytest.raises(ConfigError, match="secure_masks = false leaves out the masks of a simulation"):
        check(config, tmp_path, force=False)


def test_what_needs_single_models_is_refused_before_folders_are_written(tmp_path: Path) -> None:
    made = small("feddf", **ONE, privacy__secure="server")
    with pytest.raises(ConfigError, match="hides single values from the server, but drop_worst needs them there"):
        init(made, tmp_path / "federation")
    assert not (tmp_path / "federation").exists()
