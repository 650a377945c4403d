"""Data sets by name, files and folders of the user's own, and the options of the reference set.

Free of torch, so that data sets are listed, and a wrong configuration is refused, before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import ConfigError, nearest
from headwater.registry import Info, Registry, path_exists

PATHS = ("headwater.data.loading:npz", "headwater.data.tables:table", "headwater.data.folders:folder")
HOLDOUT, UNUSED, NOISE, GENERATOR = REFERENCES = ("holdout", "unused", "noise", "generator")  # of a reference set
NOISES = ("uniform", "gaussian")
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")


@dataclass(frozen=True)
class DatasetInfo(Info):
    """Describes a loader: a function that takes the data directory and keyword-only options and returns `hw.Data`.

    Args:
        name: the name of the set.
        summary: one line for `headwater list datasets`.
        unlabelled: whether it has no labels and so can only be a reference set.
    """

    unlabelled: bool = False


DATASETS = Registry("data set", "headwater.data.datasets", info=DatasetInfo)


def kind_of_path(name: str) -> str | None:
    """The function that reads a path, as "package.module:function"; None if the name is not a path."""
    if name in DATASETS:
        return None
    npz, table, folder = PATHS
    if name.lower().endswith(".npz"):
        return npz
    if name.lower().endswith(TABLES):
        return table
    path = Path(name).expanduser()
    return folder if path_exists(path) and path.is_dir() else None


def columns(name: str) -> tuple[str, ...]:
    """Which of the keys label, client and sector apply to this data: all for tables and folders, else none."""
    target = kind_of_path(name)
    return () if target in (None, PATHS[0]) else ("label", "client", "sector")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Options of the reference set.

    Args:
        source: "holdout"; "unused", what `data.fraction` leaves out; "noise"; "generator"; a data set's name, a path or
            "package.module:function".
        size: the largest number of samples.
        noise: "uniform" or "gaussian", for the source "noise".
        classes: how many or which classes of the source are used; all if empty. With "holdout", the samples of other
            classes are left out; the clients' rows stay the same.
        fraction: the share of the source that is used, likewise.
        labelled: whether the labels of a source of the user's own number the same classes as the clients' data.

    Raises:
        ConfigError: a value is out of its range, or two options contradict each other.
    """

    source: str = HOLDOUT
    size: int = 5000
    noise: str = "uniform"
    classes: int | Sequence[int] = ()
    fraction: float = 1.0
    labelled: bool = False

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"data.reference_size must be 0 or more, got {self.size}; 0 means no reference set")
        if self.noise not in NOISES:
            raise ConfigError(
                f"data.reference_noise must be {' or '.join(map(repr, NOISES))}, "
                f"got {self.noise!r}{nearest(self.noise, NOISES)}"
            )
        if not 0 < self.fraction <= 1:
            raise ConfigError(
                f"data.reference_fraction must be above 0 and at most 1, got {self.fraction}; 1 uses the whole source"
            )
        if not well_formed(self.classes):
            raise ConfigError(
                "data.reference_classes must say how many classes, at least 1, or list class numbers from 0 on, each "
                f"once, got {self.classes!r}"
            )
        if not isinstance(self.classes, int):
            object.__setattr__(self, "classes", tuple(self.classes))
        if self.noise != NOISES[0] and self.source != NOISE:
            raise ConfigError(
                f"data.reference_noise = {self.noise!r} has no effect, since data.reference is {self.source!r}; "
                "set data.reference = 'noise' or remove it"
            )
        if self.source in (NOISE, GENERATOR):
            self.check_drawn()
            if self.labelled:
                raise ConfigError(
                    f"data.reference_labelled = true needs a source with labels, and {self.source!r} has none; "
                    "use 'holdout', a file or function of your own, or remove it"
                )
        if self.labelled and self.source in DATASETS:
            raise ConfigError(
                f"data.reference_labelled = true cannot be for {self.source!r}, whose labels number classes of its "
                "own; use 'holdout', a file or function of your own, or remove it"
            )

    @property
    def narrowed(self) -> bool:
        """Whether `classes` or `fraction` leave out a part of the source."""
        return self.classes != () or self.fraction < 1

    def check_drawn(self) -> None:
        """Refuse options that need a set of samples, for a source that generates any number of inputs."""
        if self.classes != ():
            raise ConfigError(
                f"data.reference_classes picks samples by their labels, but {self.source!r} is drawn without looking "
                "at classes; name a data set as data.reference or remove it"
            )
        if self.fraction < 1:
            raise ConfigError(
                f"data.reference_fraction is a share of a set of samples, but {self.source!r} is drawn in any number; "
                "say how many with data.reference_size"
            )


def well_formed(classes: int | Sequence[int]) -> bool:
    """Whether this is a number of classes, at least 1, or a list of different class numbers."""
    if isinstance(classes, int):
        return classes >= 1
    return len(set(classes)) == len(classes) and all(number >= 0 for number in classes)
