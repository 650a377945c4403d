"""Data sets: published ones by name, files and folders of the user's own. Listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwater.registry import Info, Registry, path_exists

PATHS = ("headwater.data.loading:npz", "headwater.data.tables:table", "headwater.data.folders:folder")
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
