"""The (ε, δ) that a run with noise spends: before it begins, after each round, and in its result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headwater.algorithms.base import Method
from headwater.core.rng import SecretStream, stream
from headwater.core.sampling import participants
from headwater.engines.base import Done
from headwater.errors import ConfigError
from headwater.models.parts import width_of
from headwater.tasks.privacy import WITHIN, privacy_of
from headwater.theory import accounting
from headwater.training.experiment import Experiment
from headwater.training.remarks import releases

if TYPE_CHECKING:
    from headwater.planning.exposure import Exposure, Level

WHOSE = {"client": "each client's update", "sector": "a sector's mean", "server": "the server's mean"}
PUBLIC = "who takes part and how many rows a client has count as known"


@dataclass
class Spending:
    """What the noise of a run is worth. Without noise it has nothing to say.

    Args:
        experiment: the run.
        drawn: whether the clients of a round are those that the seed draws. Otherwise every client counts as taking
            part in every round, as where clients may join later.
        secret: of the server, where parties are separate.
    """

    experiment: Experiment
    drawn: bool = True
    secret: str = ""

    def __post_init__(self) -> None:
        self._keys = self.experiment.config.privacy
        self._parts: tuple[int, Counter[str]] = (0, Counter())  # a round, and the rounds up to it by client
        self._most = self.experiment.config.rounds
        if self._keys.epsilon_max and not self.active:
            raise ConfigError(
                "privacy.epsilon_max bounds what noise leaves open, and there is none; set privacy.clip and "
                "privacy.noise, or privacy.row_clip and privacy.row_noise"
            )

    @property
    def active(self) -> bool:
        """Whether the run adds noise."""
        return bool(self._keys.noise or self._keys.row_noise)

    @cached_property
    def levels(self) -> dict[Level, Exposure]:
        """What is protected, and what leaves all the same."""
        from headwater.planning.exposure import exposure  # loads what only plans need

        wanted: dict[Level, float] = {"clients": self._keys.noise, "rows": self._keys.row_noise}
        return {level: exposure(self.experiment, level) for level, noise in wanted.items() if noise}

    @cached_property
    def last(self) -> int:
        """The last round of the run: no later one keeps to `privacy.epsilon_max`.

        Raises:
            ConfigError: no round does, or no ε holds.
        """
        most = self._keys.epsilon_max
        if not most:
            return self._most
        for level, found in self.levels.items():
            if found.leaks:
                raise ConfigError(
                    f"privacy.epsilon_max = {most:g} cannot be kept for {level}, since these values leave without "
                    f"noise: {'; '.join(found.leaks)}; use another method or option, or set epsilon_max = 0"
                )
        for number in range(1, self._most + 1):
            if any(self._epsilon(level, number) > most for level in self.levels):
                break
        else:
            return self._most
        if number == 1:
            each = ", ".join(f"{self._epsilon(level, 1):.4g} for {level}" for level in self.levels)
            raise ConfigError(
                f"privacy.epsilon_max = {most:g} ends this run before its first round, after which ε would be {each}; "
                "use more noise, or a larger epsilon_max"
            )
        return number - 1

    @property
    def ended(self) -> str:
        """Why the run has fewer rounds than configured; empty if it has not."""
        if self.last == self._most:
            return ""
        return (
            f"ended after round {self.last} of {self._most}: one more would bring ε above privacy.epsilon_max = "
            f"{self._keys.epsilon_max:g}"
        )

    @property
    def cautions(self) -> tuple[str, ...]:
        """Sentences for before the run."""
        said = [
            f"no ε holds for {level}, because {self._open(found)}"
            for level, found in self.levels.items()
            if found.leaks
        ]
        return (*said, *([f"the run is {self.ended}"] if self.ended else []))

    @property
    def adapts(self) -> bool:
        """Whether the bound of updates follows from the round before."""
        return bool(self._keys.quantile)

    def bound(self, history: Sequence[Mapping[str, Any]]) -> float:
        """The bound of updates in the round after these, if it is adapted; else 0."""
        if not self.adapts:
            return 0.0
        return float(history[-1]["privacy"]["next_clip"]) if history else self._keys.clip

    def row(self, number: int, history: Sequence[Mapping[str, Any]], done: Sequence[Done]) -> dict[str, Any]:
        """What a row of rounds.jsonl says: (ε, δ) of all rounds so far; ε is null where none holds.

        Args:
            number: of the round.
            history: rows before it.
            done: reports of its tasks.
        """
        row: dict[str, Any] = self._of_means(history, done)
        if self.active:
            row |= {level: self._spent(level, number) for level in self.levels}
        if self.adapts:
            within = [notes[WITHIN] for each in done for notes in each.notes.values() if WITHIN in notes]
            row["clip"] = self.bound(history)
            row["next_clip"] = privacy_of(self._keys).adapted(row["clip"], within, self._noise(number, within))
        return {"privacy": row} if row else {}

    def _noise(self, number: int, within: Sequence[float]) -> float:
        """Noise on the number of updates within the bound; other noise, if a round is repeated with other answers."""
        name = ("privacy", number, "share of updates within the bound")
        if self.secret:
            return float(SecretStream(self.secret, *name, str(within)).normal(1)[0])
        return float(stream(self.experiment.config.seed, *name).standard_normal())

    def _of_means(self, history: Sequence[Mapping[str, Any]], done: Sequence[Done]) -> dict[str, Any]:
        """(ε, δ) of the noise that the method itself adds to representations, if it adds any."""
        method = self.experiment.method
        if type(method).privacy is Method.privacy or not (width := width_of(self.experiment.model)):
            return {}
        shared = {node: notes["released"] for each in done for node, notes in each.notes.items() if "released" in notes}
        spent = method.privacy(releases([*history, {"released": shared}])[1], width)
        return {"representations": {key: spent.get(key) for key in ("epsilon", "delta")}} if spent else {}

    def report(self, rounds: int) -> dict[str, Any]:
        """What the result of so many rounds, or a plan of them, says; empty without noise."""
        if not self.active:
            return {}
        found: dict[Level, Any] = {
            level: self._spent(level, rounds) | self._terms(level, rounds) for level in self.levels
        }
        first = next(iter(found.values()))
        said = " ".join(self._sentence(level, rounds, figures) for level, figures in found.items())
        by_level: dict[str, Any] = {str(level): figures for level, figures in found.items()}
        return {"epsilon": first["epsilon"], "delta": first["delta"], **by_level, "sentence": said}

    # -- figures

    def _rounds_by_client(self, number: int) -> Counter[str]:
        """In how many of the first rounds each client takes part."""
        config, tree = self.experiment.config, self.experiment.tree
        share = config.partition.participation
        if share >= 1 or not self.drawn:
            return Counter(dict.fromkeys(tree.holders, number))
        done, counts = self._parts if self._parts[0] <= number else (0, Counter())
        counts = counts.copy()
        for later in range(done + 1, number + 1):
            counts.update(participants(tree, share, config.seed, later))
        self._parts = number, counts
        return counts

    def _delta(self, level: Level) -> float:
        tree = self.experiment.tree
        members = len(tree.holders) if level == "clients" else sum(tree.client_sizes.values())
        return accounting.delta_of(self._keys.delta, members)

    def _epsilon(self, level: Level, number: int) -> float:
        """ε of the client, or of the rows of the client, that has spent most."""
        often = self._rounds_by_client(number)
        if not often:
            return 0.0
        if level == "clients":
            releases = self.levels[level].releases * max(often.values())
            return accounting.releases_epsilon(self._keys.noise, releases, self._delta(level))
        return accounting.sampled_steps_epsilon(*self._steps(max(self._bounds(number).items(), key=lambda i: i[1])[0]))

    def _steps(self, kind: tuple[int, int]) -> tuple[float, float, int, float]:
        """Noise, sampling probability, steps and δ of a client with so many rows that took part in so many rounds."""
        size, rounds = kind
        found = self.levels["rows"]
        return self._keys.row_noise, found.probability(size), rounds * found.steps(size), self._delta("rows")

    def _bounds(self, number: int) -> dict[tuple[int, int], float]:
        """(Rows, rounds) of clients → a bound on their ε, by RDP."""
        sizes, often = self.experiment.tree.sizes, self._rounds_by_client(number)
        kinds = {(sizes[client], rounds) for client, rounds in often.items()}
        return {kind: accounting.sampled_steps_bound(*self._steps(kind)) for kind in kinds}

    def _spent(self, level: Level, number: int) -> dict[str, Any]:
        epsilon = None if self.levels[level].leaks else self._epsilon(level, number)
        return {"epsilon": _finite(epsilon), "delta": self._delta(level)}

    def _terms(self, level: Level, rounds: int) -> dict[str, Any]:
        """How the figures of a result came about."""
        keys, found, often = self._keys, self.levels[level], self._rounds_by_client(rounds)
        most = max(often.values(), default=0)
        if level == "rows":
            terms: dict[str, Any] = {
                "noise": keys.row_noise,
                "clip": keys.row_clip,
                "neighbours": "one row of a client added or removed",
                "accountant": "dp-accounting, PLD, Poisson samples",
            }
            if not found.leaks:
                bounds, sizes = self._bounds(rounds), self.experiment.tree.sizes
                terms["by_client_rdp"] = {c: _finite(bounds[sizes[c], often[c]]) for c in often}
        else:
            releases = found.releases * most
            terms = {
                "noise": keys.noise,
                "clip": keys.clip,
                **({"quantile": keys.quantile} if keys.quantile else {}),
                "at": keys.at,
                "releases": releases,
                "neighbours": "the update of one client, or none (zero) in its place",
                "accountant": "composed Gaussian mechanisms, exact; no amplification by sampling",
            }
            if not found.leaks:
                delta = self._delta(level)
                terms["epsilon_replaced"] = _finite(accounting.releases_epsilon(keys.noise / 2, releases, delta))
        return terms | {"rounds_of_a_client": most, "unprotected": list(found.leaks)}

    # -- sentences

    def _sentence(self, level: Level, rounds: int, figures: Mapping[str, Any]) -> str:
        times = f"{rounds} round{'s' * (rounds != 1)}, of which a client took part in {figures['rounds_of_a_client']}"
        if figures["unprotected"]:
            return f"No ε holds for {level}, because {self._open(self.levels[level])}."
        spent = "no finite ε" if figures["epsilon"] is None else f"ε = {figures['epsilon']:.4g}"
        if level == "rows":
            how = f"noise of {figures['noise']:g} × {figures['clip']:g} on sums of gradients of rows"
        else:
            how = f"noise of {figures['noise']:g} × {figures['clip']:g} on {WHOSE[figures['at']]}"
        return (
            f"{level.capitalize()}: {spent} at δ = {figures['delta']:.3g} after {times} at most ({how}; neighbours: "
            f"{figures['neighbours']}; {PUBLIC})."
        )

    def _open(self, found: Exposure) -> str:
        return f"these values leave without noise: {'; '.join(found.leaks)}"


def _finite(number: float | None) -> float | None:
    return None if number is None or math.isinf(number) else number
