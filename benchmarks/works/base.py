"""What the driver asks of a work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from contest import Contestant, hold, progress
from record import Answers, Claim


@dataclass(frozen=True)
class Work:
    title: str
    contestants: list[Contestant]
    pack: Callable[[Path], Path]  # writes what all of them get
    reference: str  # whom ratios are to
    claims: list[Claim] = field(default_factory=list)
    unit: str = "seconds a round"
    repeats: int = 3  # unless the driver is told otherwise
    cpu: bool = False  # judged by CPU time too

    def measure(self, folder: Path, repeats: int) -> Answers:
        return hold(self.contestants, self.pack(folder / "pack.npz"), repeats)


@dataclass(frozen=True)
class Inside(Work):
    """A work whose contestants are functions of this process, in turns; each gives an accuracy or nothing."""

    functions: dict[str, Callable[[], float | None]] = field(default_factory=dict)

    def measure(self, folder: Path, repeats: int) -> Answers:
        answers: Answers = {name: [] for name in self.functions}
        for repeat in range(repeats):
            for name, function in self.functions.items():
                begun = time.perf_counter()
                accuracy = function()
                answers[name].append({"seconds": time.perf_counter() - begun, "accuracy": accuracy})
                progress(f"{repeat + 1}/{repeats} {name}: {answers[name][-1]['seconds']:.3g} s")
        return answers
