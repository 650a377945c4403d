"""Label distances of the clients and sectors of a partition from the whole, and the figure of samples per class."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headwater.errors import DataError
from headwater.partition.base import Ints
from headwater.partition.partition import Partition

Floats = np.ndarray[Any, np.dtype[np.float64]]
INK, FAINT, GRID = "#1f6f8b", "#8a8a8a", "#e9e9e9"
MOST_DRAWN = 200  # clients of a lazy partition
LEFT, RIGHT, ABOVE, HEAD = 0.4, 0.4, 0.45, 0.6  # inches beside and above each panel, and above them all
LETTER, LONGEST = 0.058, 20  # inches per letter, and letters of the longest client name
BOLD = 0.085  # inches per letter of a sector's name
DEEPEST = 14  # letters of the longest class name
Place = tuple[float, float, float, float]


@dataclass(frozen=True)
class LabelDistance:
    """The label distance of one client or one sector from the whole.

    Args:
        number: of the client or sector.
        sector: of the client, or the sector itself.
        size: number of samples.
        classes: how many classes have at least one sample.
        total_variation: 0 for the label shares of the whole, at most 1; None without samples.
        jensen_shannon: distance (root of the divergence, base 2), 0 to 1; None without samples.
    """

    number: int
    sector: int
    size: int
    classes: int
    total_variation: float | None
    jensen_shannon: float | None


@dataclass(frozen=True)
class PartitionSummary:
    """Label distances by client and by sector.

    Args:
        clients: one row per client.
        sectors: one row per sector.
        counts: samples per client and class.
    """

    clients: tuple[LabelDistance, ...]
    sectors: tuple[LabelDistance, ...]
    counts: Ints

    def mean(self, tier: str = "clients", distance: str = "total_variation") -> float:
        """The mean distance, weighted by size.

        Args:
            tier: "clients" or "sectors".
            distance: "total_variation" or "jensen_shannon".
        """
        rows = [row for row in getattr(self, tier) if row.size]
        return float(sum(row.size * getattr(row, distance) for row in rows) / sum(row.size for row in rows))

    @property
    def empty(self) -> int:
        """The number of clients without samples."""
        return sum(row.size == 0 for row in self.clients)


def total_variation(p: Floats, q: Floats) -> float:
    """Half the sum of absolute differences: the share of samples that would have to change label."""
    return float(np.abs(p - q).sum() / 2)


def jensen_shannon(p: Floats, q: Floats) -> float:
    """The root of the Jensen–Shannon divergence in bits, which unlike the divergence is a metric."""
    middle = (p + q) / 2
    return math.sqrt(max(0.0, (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2))


def summarise(partition: Partition, labels: Ints, classes: int) -> PartitionSummary:
    """The label distances of all clients and sectors from the whole; of a lazy partition, of its first clients.

    Args:
        partition: of the training set.
        labels: of the training set.
        classes: how many there are.
    """
    counts = partition.counts(labels, classes, partition.shown)
    whole = counts.sum(axis=0)
    if not whole.sum():
        raise DataError("the partition holds no samples at all, so there are no label shares to compare")
    places = np.asarray(partition.sectors[: partition.shown])
    clients = tuple(_row(client, sector, counts[client], whole) for client, sector in enumerate(places.tolist()))
    sectors = tuple(
        _row(sector, sector, counts[places == sector].sum(axis=0), whole) for sector in np.unique(places).tolist()
    )
    return PartitionSummary(clients, sectors, counts)


def _row(number: int, sector: int, counts: Ints, whole: Ints) -> LabelDistance:
    size = int(counts.sum())
    if not size:
        return LabelDistance(number, sector, 0, 0, None, None)
    p, q = counts / size, whole / whole.sum()
    return LabelDistance(
        number, sector, size, int(np.count_nonzero(counts)), total_variation(p, q), jensen_shannon(p, q)
    )


def _relative_entropy(p: Floats, q: Floats) -> float:
    present = p > 0
    return float((p[present] * np.log2(p[present] / q[present])).sum())


@dataclass(frozen=True)
class _PanelLayout:
    """Where each panel goes, in inches from the lower left corner."""

    width: float
    height: float
    left: float  # beside each panel, where the clients' names are
    cell: tuple[float, float]  # of one class and one client
    places: tuple[Place, ...]


def figure(
    partition: Partition,
    labels: Ints,
    classes: int,
    path: Path,
    class_names: Sequence[str] | None = None,
    registered: int | None = None,
) -> Path:
    """Draw one panel per sector: clients down, classes across, and a dot whose area is the number of samples.

    Args:
        partition: of a lazy one, the first clients are drawn.
        labels: of the training set.
        classes: how many there are.
        path: of the file; its ending decides between PNG, SVG and PDF.
        class_names: by class; numbers if None.
        registered: how many clients there are, if the partition has only some of them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    summary = summarise(partition, labels, classes)
    most = partition.clients if partition.rule is None else min(partition.clients, MOST_DRAWN)
    panels, sectors = _panels(summary, most)
    names = [_cut(name, DEEPEST) for name in class_names or map(str, range(classes))]
    if classes > 30:
        names = [str(label) if label % 20 == 0 else "" for label in range(classes)]  # too many to name
    below = 0.3 if max(len(name) for name in names) <= 3 else 0.85
    called = {client: _cut(partition.client_name(client)) for members in panels for client in members}
    left = max(LEFT, 0.12 + LETTER * max(map(len, called.values())))
    plan = _arrange([len(members) for members in panels], classes, below, left)
    drawing = Figure(figsize=(plan.width, plan.height), dpi=150)
    FigureCanvasAgg(drawing)
    largest = int(summary.counts.max())
    # In points²: the largest dot nearly fills its cell. Where cells are tiny, dots overlap so that they stay visible.
    area = (max(min(plan.cell), 0.11) * 72 * 0.95) ** 2
    for members, sector, (x, y, w, h) in zip(panels, sectors, plan.places, strict=True):
        box = (x / plan.width, y / plan.height, w / plan.width, h / plan.height)
        axis, name = drawing.add_axes(box), partition.sector_name(sector.number)
        _panel(axis, members, summary.counts, area / largest, names, [called[client] for client in members])
        _title(axis, _cut(f"sector {name}", int((plan.left + w + RIGHT) / BOLD)), sector)
    registered = registered or partition.clients
    title = "Clients" if most == registered else f"First {most} of {registered:,} clients"
    _heading(drawing, summary, plan, largest, area, title)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font may lack letters of a name
        drawing.savefig(path)
    return path


def _panels(summary: PartitionSummary, most: int) -> tuple[list[list[int]], list[LabelDistance]]:
    """The clients of each sector, the largest first, and the sectors that have clients."""
    members: dict[int, list[int]] = {}
    for row in sorted(summary.clients[:most], key=lambda row: (-row.size, row.number)):
        members.setdefault(row.sector, []).append(row.number)
    sectors = [sector for sector in summary.sectors if sector.number in members]
    return [members[sector.number] for sector in sectors], sectors


def _arrange(sizes: list[int], classes: int, below: float, left: float) -> _PanelLayout:
    """Arrange the panels in rows so that the page is about three by two."""
    across = 0.24 if classes <= 30 else max(0.035, 7 / classes)
    down = 0.24 if sum(sizes) <= 40 else 0.17
    wide = max(classes * across, 1.7)
    best: _PanelLayout | None = None
    for columns in range(1, len(sizes) + 1):
        rows = [sizes[start : start + columns] for start in range(0, len(sizes), columns)]
        heights = [max(row) * down + ABOVE + below for row in rows]
        width, height = max(columns * (left + wide + RIGHT), 4.8), HEAD + sum(heights)
        places = []
        for number, size in enumerate(sizes):
            row, column = divmod(number, columns)
            top = height - HEAD - sum(heights[:row]) - ABOVE
            places.append((left + column * (left + wide + RIGHT), top - size * down, wide, size * down))
        plan = _PanelLayout(width, height, left, (wide / classes, down), tuple(places))
        if best is None or abs(math.log(width / height / 1.5)) < abs(math.log(best.width / best.height / 1.5)):
            best = plan
    assert best is not None  # a partition has at least one sector
    return best


def _panel(axis: Any, members: list[int], counts: Ints, scale: float, names: list[str], called: list[str]) -> None:
    shown = counts[members]
    row, label = np.nonzero(shown)
    axis.scatter(
        label, row, s=np.maximum(shown[row, label] * scale, 0.7), color=INK, linewidths=0, zorder=2, clip_on=False
    )
    axis.set_xlim(-0.5, len(names) - 0.5)
    axis.set_ylim(len(members) - 0.5, -0.5)
    small = 7 if len(counts) <= 40 else 6
    ticks = [label for label, name in enumerate(names) if name]
    upright = max(len(name) for name in names) <= 3
    axis.set_xticks(ticks, [names[label] for label in ticks], rotation=0 if upright else 90, parse_math=False)
    axis.set_yticks(range(len(members)), called, parse_math=False)
    axis.tick_params(labelsize=small, length=0, pad=2)
    for position, client in enumerate(members):
        total = f"{int(counts[client].sum()):,}" if counts[client].any() else "empty"
        at, style = (len(names) - 0.5, position), {"textcoords": "offset points", "va": "center", "color": FAINT}
        axis.annotate(total, at, (5, 0), fontsize=small - 1, **style)
    axis.grid(color=GRID, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[:].set_visible(False)


def _title(axis: Any, name: str, sector: LabelDistance) -> None:
    far = (
        "no samples" if sector.total_variation is None else f"{sector.size:,} samples, TV {sector.total_variation:.2f}"
    )
    above = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axis.annotate(name, (0, 1), (0, 14), fontsize=8, weight="bold", parse_math=False, **above)
    axis.annotate(far, (0, 1), (0, 5), fontsize=7, color=FAINT, **above)


def _cut(name: str, most: int = LONGEST) -> str:
    """A long name shortened to its beginning and its end."""
    end = most // 3
    return name if len(name) <= most else f"{name[: most - 1 - end]}…{name[-end:]}"


def _heading(
    drawing: Any, summary: PartitionSummary, plan: _PanelLayout, largest: int, area: float, title: str
) -> None:
    """Title, mean distances and legend."""
    from matplotlib.lines import Line2D

    line = f"mean TV: clients {summary.mean():.2f}, sectors {summary.mean('sectors'):.2f}"
    if summary.empty:
        line += f"; {summary.empty} empty"
    top = plan.height - 0.2
    left = plan.left / plan.width
    drawing.text(left, top / plan.height, f"{title} (down) and classes (across)", fontsize=9, va="center")
    under = "TV: distance of label shares from the whole, 0 to 1"
    drawing.text(left, (top - 0.17) / plan.height, line, fontsize=7, color=FAINT, va="center")
    drawing.text(left, (top - 0.32) / plan.height, under, fontsize=7, color=FAINT, va="center")
    shown = sorted({max(1, round(largest * share)) for share in (0.1, 0.4, 1.0)})
    dots = [
        Line2D([], [], marker="o", linestyle="", color=INK, markersize=math.sqrt(area * count / largest), mew=0)
        for count in shown
    ]
    drawing.legend(
        dots,
        [f"{count:,}" for count in shown],
        title="samples",
        ncols=len(shown),
        loc="upper right",
        bbox_to_anchor=(1 - 0.2 / plan.width, 1),
        frameon=False,
        fontsize=7,
        title_fontsize=7,
        handletextpad=0.4,
        columnspacing=1.0,
    )
