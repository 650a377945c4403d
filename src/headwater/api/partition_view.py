"""`PartitionView`: a split of the data over clients and sectors, as `hw.partition` returns it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.errors import OutputError
from headwater.partition.partition import Partition
from headwater.partition.summary import LabelDistance, PartitionSummary, summarise
from headwater.report import figures
from headwater.report.notebook import MOST_ROWS, card, grid, sectors
from headwater.report.numbers import count

if TYPE_CHECKING:
    import pandas as pd

    from headwater.training.experiment import Experiment


@dataclass(frozen=True, eq=False, repr=False)
class PartitionView:
    """A split of the data over clients and sectors, before a run uses it. Returned by `hw.partition`.

    Args:
        experiment: what a run with the same keywords would train.

    Example:
        >>> import headwater as hw
        >>> split = hw.partition(data="digits", clients=5, sectors=2, alpha=0.1)
        >>> len(split.clients), int(split.counts.to_numpy().sum()) == int(split.clients["samples"].sum())
        (5, True)
    """

    experiment: Experiment

    @property
    def partition(self) -> Partition:
        """The samples and the sector of each client."""
        return self.experiment.partition

    @property
    def sha256(self) -> str:
        """Hash of the split: that of `run.result["partition_sha256"]` for the same keywords."""
        return self.partition.sha256

    @property
    def manifest(self) -> dict[str, Any]:
        """The content of partition.json."""
        return self.experiment.manifest()

    @cached_property
    def summary(self) -> PartitionSummary:
        """Label distances by client and by sector from the whole, and their means."""
        return summarise(self.partition, self._labels, self.experiment.split.classes)

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Samples by client (rows) and class (columns); of drawn clients, the first 1 000."""
        import pandas as pd

        names = pd.Index([self.partition.client_name(row.number) for row in self.summary.clients], name="client")
        return pd.DataFrame(self.summary.counts, index=names, columns=list(self.experiment.class_names))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client: sector, samples, classes, and label distances from the whole."""
        rows = self.summary.clients
        names = [self.partition.client_name(row.number) for row in rows]
        return _frame(rows, names, "client").assign(sector=[self.partition.sector_name(row.sector) for row in rows])

    @cached_property
    def sectors(self) -> pd.DataFrame:
        """One row per sector: samples, classes, and label distances from the whole."""
        rows = self.summary.sectors
        return _frame(rows, [self.partition.sector_name(row.number) for row in rows], "sector").drop(columns="sector")

    def figure(self, path: str | Path) -> Path:
        """Draw the split: clients down, classes across, a panel per sector.

        Args:
            path: file to write; its ending decides between PNG, SVG and PDF.

        Returns:
            The path of the file.
        """
        file = _file(path)
        if file.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise OutputError(f"a figure is written as .png, .svg or .pdf, got {str(path)!r}")
        try:
            classes, names = self.experiment.split.classes, self.experiment.class_names
            return figures.partition(self.partition, self._labels, classes, file, names)
        except OSError as error:
            raise OutputError(f"{file} cannot be written ({error.strerror}); choose another path") from error

    def save(self, path: str | Path) -> Path:
        """Write the manifest as JSON, which `partition.scheme = "manifest"` reads.

        Args:
            path: file to write.

        Returns:
            The path of the file.
        """
        file = _file(path)
        try:
            file.write_text(json.dumps(self.manifest), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{file} cannot be written ({error.strerror}); choose another path") from error
        return file

    def __repr__(self) -> str:
        part, summary = self.partition, self.summary
        far = f"label distance (total variation): clients {summary.mean():.2f}, sectors {summary.mean('sectors'):.2f}"
        empty = f", {summary.empty} empty" if summary.empty else ""
        who = f"{part.clients} clients{empty} in {sectors(max(part.sectors) + 1)}"
        return f"<Partition of {self._data}: {who}\n {far}\n sha256 {part.sha256[:16]}…>"

    def _repr_html_(self) -> str:
        part, summary = self.partition, self.summary
        sizes = sorted(int(size) for size in part.lengths)
        empty = f", {summary.empty} without samples" if summary.empty else ""
        rows = [
            ("clients", f"{count(part.clients)} in {sectors(max(part.sectors) + 1)}{empty}"),
            ("samples", f"{count(sum(sizes))}; a client has {count(sizes[0])} to {count(sizes[-1])}"),
            (
                "label distance",
                f"clients {summary.mean():.2f}, sectors {summary.mean('sectors'):.2f} (total variation)",
            ),
            ("sha256", part.sha256[:16] + "…"),
        ]
        first = f"; the first {MOST_ROWS} of {count(part.clients)} clients" if part.clients > MOST_ROWS else ""
        chart = grid(self.summary.counts.tolist(), "samples by client and class")
        return card(f"Split of {self._data}", rows, chart, [f"One row per client, one column per class{first}."])

    @property
    def _data(self) -> str:
        return Path(self.experiment.config.data.name).name

    @property
    def _labels(self) -> Any:
        return self.experiment.split.train.y.numpy()


def _file(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise OutputError(f"give the path of a file to write, got {path!r}")
    return Path(path).expanduser()


def _frame(rows: tuple[LabelDistance, ...], names: list[str], index: str) -> pd.DataFrame:
    import pandas as pd

    titles = {"size": "samples", "total_variation": "total variation", "jensen_shannon": "Jensen–Shannon"}
    frame = pd.DataFrame([asdict(row) for row in rows], index=pd.Index(names, name=index))
    return frame.drop(columns="number").rename(columns=titles)
