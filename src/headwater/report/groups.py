"""Runs that differ in their seed only belong together; everything else is a method (or a setting) of its own.

Runs are told apart by their configuration rather than by their name, so that the cells of a sweep over one method are
never averaged as if they were seeds. Where several groups carry one name, the keys that differ are put behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.report.runs import RunRecord

# what changes how a run is carried out or watched, but not what it computes
NOT_PART = ("seed", "extends", "eval_every", "engine", "out")


@dataclass(frozen=True)
class Group:
    """One method in one setting, over its seeds."""

    label: str
    runs: tuple[RunRecord, ...]  # by seed

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        return tuple(run for run in self.runs if run.finished)

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs a mean is made of: finished ones, or all of them while none is."""
        return self.finished or self.runs


@dataclass(frozen=True)
class Grouping:
    groups: tuple[Group, ...]  # in the order in which the runs were given
    dropped: tuple[Path, ...]  # second copies of a seed, which would make an interval look narrower than it is


def group(runs: Sequence[RunRecord]) -> Grouping:
    """The runs sorted into methods."""
    sorted_in: dict[str, list[RunRecord]] = {}
    for run in runs:
        sorted_in.setdefault(_key(run), []).append(run)
    dropped: list[Path] = []
    chosen: list[list[RunRecord]] = []
    for members in sorted_in.values():
        by_seed: dict[int, RunRecord] = {}
        for run in members:
            kept = by_seed.setdefault(run.seed, run)
            if kept is not run:
                better, worse = (run, kept) if (run.finished, run.done) > (kept.finished, kept.done) else (kept, run)
                by_seed[run.seed] = better
                dropped.append(worse.path)
        chosen.append([by_seed[seed] for seed in sorted(by_seed)])
    names = _names(chosen)
    return Grouping(tuple(Group(name, tuple(seeds)) for name, seeds in zip(names, chosen, strict=True)), tuple(dropped))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The configuration with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differing(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """Dotted keys whose value is not the same in every group."""
    configs = [_settings(runs[0]) for runs in groups]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({_text(config.get(key)) for config in configs}) > 1]


def _settings(run: RunRecord) -> dict[str, Any]:
    return flat({key: value for key, value in run.config.items() if key not in NOT_PART})


def _key(run: RunRecord) -> str:
    return json.dumps([run.algorithm, _settings(run)], sort_keys=True, default=str)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    # an unfinished seed knows no display name: it takes its finished sibling's
    first = [next((run.label for run in runs if run.finished), runs[0].label) for runs in groups]
    names = list(first)
    for name in dict.fromkeys(first):
        alike = [index for index, other in enumerate(first) if other == name]
        if len(alike) < 2:
            continue
        keys = differing([groups[index] for index in alike])
        for index in alike:
            settings = _settings(groups[index][0])
            parts = [f"{_short(key, keys)} {_shown(settings.get(key))}" for key in keys]
            names[index] = f"{name} ({', '.join(parts)})" if parts else name
    return [
        name if names.index(name) == at else f"{name} #{names[:at].count(name) + 1}" for at, name in enumerate(names)
    ]


def _short(key: str, keys: Sequence[str]) -> str:
    tail = key.rpartition(".")[2]
    return tail if sum(other.rpartition(".")[2] == tail for other in keys) == 1 else key


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
