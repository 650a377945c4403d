"""Secure sums between real processes: a client is killed in a step, and what came of it is held against what should.

`carry_out` runs a federation whose parties keep all that they see (`trial_party.py`), and kills a client that is about
to carry out a step of a sum. Afterwards `sums` says who is in each sum, from the models that the parties made, and
`exposed` looks for single models in all that others received or stored.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from federation import Federation, command
from headwater.config import Config
from headwater.core import submission
from headwater.training.experiment import prepare
from headwater.training.loop import train
from headwater.training.result import Run
from trial_party import MADE, RECEIVED

STEPS = ("advertise_keys", "share_seeds", "open_shares", "mask_value", "reveal_shares")  # of a member of a sum
TRAINED, SUMMED = "local_train", "open_sum"  # tasks that make what is hidden, and sums of it
WINDOW = 64  # bytes of a model that are looked for
WINDOWS = 12  # of each model
SIGMAS = 6.0  # by how many deviations a correlation may differ from none
LONG = 900.0  # seconds, on a busy machine


@dataclass(frozen=True)
class Loss:
    """A client that is killed when it is about to carry out a task of a round."""

    client: str
    task: str
    round: int


@dataclass
class Trial:
    """A federation that has finished.

    Args:
        federation: its parties.
        seen: folder with what each party received and made, by name.
    """

    federation: Federation
    seen: Path

    def made(self, party: str, title: str) -> dict[int, list[np.ndarray]]:
        """Models that a task made at a party, by round."""
        found: dict[int, list[np.ndarray]] = {}
        for path in sorted((self.seen / party).glob(f"{MADE}-*-{title}.*")):
            round = int(path.name.split("-")[2])
            found.setdefault(round, []).append(np.frombuffer(path.read_bytes(), path.suffix[1:]))
        return found

    def received(self, party: str) -> Iterator[tuple[str, bytes]]:
        """Type and bytes of every array that a party received."""
        for path in sorted((self.seen / party).glob(f"{RECEIVED}-*")):
            yield path.suffix[1:], path.read_bytes()

    def teams(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = _json(self.federation.found["server"].path / "federation.json")["sectors"]
        return found

    def rows(self) -> dict[str, int]:
        found: dict[str, int] = _json(self.federation.found["server"].state / "begun.json")["sizes"]
        return found


def carry_out(out: Path, config: Config, loss: Loss | None = None) -> Trial:
    """Run a federation until its server has ended well. Its other parties are ended."""
    seen = out.parent / f"{out.name}-seen"
    with Federation.init(out, config) as federation:
        mark = seen / "halted"
        for name in federation.names():
            words = ["--keep", str(seen / name)]
            if loss is not None and name == loss.client:
                words += ["--halt", loss.task, str(loss.round), str(mark)]
            federation.programs[name] = (str(Path(__file__).with_name("trial_party.py")), *words)
        federation.start()
        if loss is not None:
            federation.until(mark.exists, f"{loss.client} to begin {loss.task} in round {loss.round}", LONG)
            federation.kill(loss.client)
        server = federation.processes["server"]
        if status := server.wait(LONG):
            raise RuntimeError(f"the server ended with status {status}: {federation.said('server')[-3:]}")
    return Trial(federation, seen)


def simulated(config: Config, loss: Loss | None = None) -> Run:
    """The same run in one process, with the same client lost from the same step on."""

    def is_lost(fed: Any, home: str, title: str, nth: int) -> bool:
        if loss is not None and home == loss.client:
            if fed.round > loss.round or (fed.round == loss.round and title == loss.task):
                fed.session.lost.add(home)
            return home in fed.session.lost
        return False

    real, submission._is_lost = submission._is_lost, is_lost
    try:
        return train(prepare(config.merged({"engine": {"name": "inline", "stack": "off"}})))
    finally:
        submission._is_lost = real


# -- who is in a sum


def sums(trial: Trial) -> list[tuple[int, str, tuple[str, ...]]]:
    """Round, place and members of every sum of models: those whose models have this very mean.

    Raises:
        ValueError: there is a mean that no members have.
    """
    weights: dict[str, float] = {name: float(count) for name, count in trial.rows().items()}
    models = {name: trial.made(name, TRAINED) for name in trial.federation.names("client")}
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for sector, team in trial.teams().items():
        for round, made in trial.made(sector, SUMMED).items():
            members = {client: models[client][round][0] for client in team if round in models[client]}
            found += [(round, sector, _members(mean, members, weights)) for mean in made]
    hosts = {sector: trial.made(sector, SUMMED) for sector in trial.teams()}
    for round, made in trial.made("server", SUMMED).items():
        if any(hosts.values()):  # a sector weighs as much as those in its sum
            members = {sector: own[round][-1] for sector, own in hosts.items() if round in own}
            inside = {(at, place): within for at, place, within in found}
            of = {sector: sum(weights[client] for client in inside[round, sector]) for sector in members}
        else:
            members, of = {client: own[round][0] for client, own in models.items() if round in own}, weights
        found += [(round, "server", _members(mean, members, of)) for mean in made]
    return sorted(found)


def _members(mean: np.ndarray, models: dict[str, np.ndarray], weights: dict[str, float]) -> tuple[str, ...]:
    """The members whose weighted mean this is, to the rounding of a number."""
    limit = 2.0**-23 * max(1.0, float(np.abs(mean).max()))
    for count in range(2, len(models) + 1):
        for names in itertools.combinations(models, count):
            whole = sum(weights[name] for name in names)
            exact = sum(weights[name] / whole * models[name].astype(np.float64) for name in names)
            if float(np.abs(exact - mean).max()) <= limit:
                return names
    raise ValueError(f"no two or more of {', '.join(models)} have this mean")


# -- what others see of a model


def exposed(trial: Trial) -> tuple[list[str], dict[str, int]]:
    """Sentences about models of a single member that others received or stored, and how much was looked through.

    Raises:
        ValueError: what is looked for is not even found where it is, so that nothing follows from not finding it.
    """
    federation, told = trial.federation, []
    looked = {"models": 0, "arrays": 0, "bytes": 0, "masked": 0}
    hidden = _hidden(trial)
    last = max(model.round for model in hidden)
    for watcher in federation.names():
        arrays = list(trial.received(watcher))
        stored = [path.read_bytes() for path in sorted(federation.found[watcher].path.rglob("*")) if path.is_file()]
        content = b"\0".join([data for _, data in arrays] + stored)
        looked["arrays"], looked["bytes"] = looked["arrays"] + len(arrays), looked["bytes"] + len(content)
        for model in hidden:
            if model.owner == watcher:
                if model.round == last and watcher in federation.names("client") and not model.inside(content):
                    raise ValueError(f"the model that {watcher} trained last is not found in its own folder")
                continue
            if model.owner in federation.names("sector") and watcher != "server":
                continue  # clients get what their sector has added up
            looked["models"] += 1
            if model.inside(content):
                told.append(f"{watcher} holds the model of {model.owner} of round {model.round}")
            for words in _words(arrays, len(model.vector)):
                looked["masked"] += 1
                alike = abs(np.corrcoef(words[: len(model.vector)].astype(float), model.vector)[0, 1])
                if alike > SIGMAS / np.sqrt(len(model.vector)):
                    told.append(f"an array at {watcher} resembles the model of {model.owner} of round {model.round}")
    return told, looked


@dataclass(frozen=True)
class HiddenModel:
    """A model that nobody but its owner may see, and pieces of it that no other model has."""

    owner: str
    round: int
    vector: np.ndarray
    pieces: tuple[bytes, ...]

    def inside(self, content: bytes) -> bool:
        return any(piece in content for piece in self.pieces)


def _hidden(trial: Trial) -> list[HiddenModel]:
    """Models that clients trained, and sums of sectors.

    Numbers that training did not change are those of the model that it began with, so pieces are taken from where a
    model differs from all others.
    """
    federation = trial.federation
    owned = [(name, TRAINED) for name in federation.names("client")]
    owned += [(name, SUMMED) for name in federation.names("sector")]
    single = {(name, round): made[0] for name, title in owned for round, made in trial.made(name, title).items()}
    public = [model for made in trial.made("server", "*").values() for model in made]
    found = []
    for (name, round), vector in single.items():
        others = [other for key, other in single.items() if key != (name, round)] + public
        apart = np.all([vector != other for other in others], axis=0)
        wide = WINDOW // vector.itemsize
        starts = np.flatnonzero(np.convolve(apart, np.ones(wide), "valid") == wide)
        chosen = starts[np.linspace(0, len(starts) - 1, WINDOWS).astype(int)]
        pieces = tuple(vector[at : at + wide].tobytes() for at in chosen)
        found.append(HiddenModel(name, round, vector, pieces))
    return found


def _words(arrays: list[tuple[str, bytes]], length: int) -> Iterator[np.ndarray]:
    """Arrays that are long enough for a masked model."""
    for dtype, data in arrays:
        if dtype == "int64" and len(data) >= 8 * length:
            yield np.frombuffer(data, np.int64)


def kinds_sent_up(trial: Trial) -> set[str]:
    """Kinds of values that clients have sent, as `headwater deploy audit` tells it."""
    parties = json.loads(command("deploy", "audit", str(trial.federation.out), "--json"))
    clients = [party for party in parties if party["role"] == "client"]
    return {row["kind"] for party in clients for row in party["payload"] if row["direction"] == "up"}


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
