"""The ledger of a run that has not been made: the closed forms, with the clients that will really take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from headwater.core.ledger import TIERS
from headwater.core.params import Layout
from headwater.core.sampling import participants
from headwater.core.tree import ROOT
from headwater.data.base import Examples
from headwater.models.base import ModelSpec
from headwater.models.slim import weighted
from headwater.planning.rehearsal import LEAST
from headwater.theory.communication import FORMULAS, Active, Link, Payload, Traffic, round_traffic, setup_traffic
from headwater.training.experiment import Experiment

DRAWS = 1_000_000  # clients drawn to take part, over all rounds, that are looked at one by one
LOOKS = 30_000_000  # and clients that are drawn from
FLOAT32 = ("fedhkd", "fedhkd-star", "fedmd", "fedma")  # whose closed forms count numbers of four bytes


@dataclass(frozen=True)
class Size:
    """A model as it is trained and as it travels."""

    name: str
    numbers: int  # trained
    bytes: int  # of the vector and the counters
    width: int  # bytes of a number
    clients: int  # that train it


@dataclass(frozen=True)
class Moved:
    """What a run will move; `exact` says that no accident and no estimate is left in it."""

    rounds: tuple[Traffic, ...]  # of the rounds that were looked at
    total: Traffic
    setup: Traffic
    exact: bool

    def a_round(self) -> dict[str, dict[str, list[int]]]:
        """The least and the most of any round, by tier and direction."""
        found: dict[str, dict[str, list[int]]] = {}
        for tier in TIERS:
            links = [getattr(each, tier) for each in self.rounds]
            sizes = {"up": [link.up_bytes for link in links], "down": [link.down_bytes for link in links]}
            found[tier] = {way: [min(each), max(each)] for way, each in sizes.items()}
        return found

    def to_dict(self) -> dict[str, Any]:
        """As `ledger` of result.json, and the spread over rounds."""
        return asdict(self.total) | {"setup": asdict(self.setup), "a_round": self.a_round(), "exact": self.exact}


def size_of(spec: ModelSpec, name: str, clients: int) -> Size:
    outline = spec.outline()
    layout = Layout.of(outline, name, spec.buffers)
    width = next((p.element_size() for p in outline.parameters() if p.requires_grad), 4)
    floats = sum(int(np.prod(shape)) for _, shape in layout.floats)
    counters = sum(int(np.prod(shape)) for _, shape in layout.counters)
    return Size(name, layout.size, width * (layout.size + floats) + 8 * counters, width, clients)


def sizes_of(experiment: Experiment) -> dict[str, Size]:
    """Every architecture of a run."""
    tree = experiment.tree
    train = Counter({tree.archs[0]: len(tree.holders)})
    if len(tree.archs) > 1:
        train = Counter(tree.arch(client) for client in tree.holders)
    return {name: size_of(spec, name, train[name]) for name, spec in experiment.models.items()}


def moved(experiment: Experiment, sizes: dict[str, Size]) -> Moved | None:
    """The whole ledger of training; None for a method without a closed form."""
    config, tree, method = experiment.config, experiment.tree, experiment.config.method
    if method not in FORMULAS:
        return None
    share = config.partition.participation
    first = participants(tree, share, config.seed, 1)
    looked = min(config.rounds, max(LEAST, min(DRAWS // max(1, len(first)), LOOKS // max(1, len(tree.holders)))))
    active = [participants(tree, share, config.seed, number) for number in range(1, looked + 1)]
    everybody = Active(tuple(len(tree.teams.get(sector, ())) for sector in tree.sectors))
    options = _options(experiment, active) | {"sectors": everybody.sectors}
    payload = _payload(experiment, sizes)

    def told(clients: Sequence[str]) -> tuple[Active, Payload]:
        """Unequal models count with their mean over these clients, so that N of them are their exact sum."""
        mean = Fraction(sizes[tree.archs[0]].bytes)
        if len(tree.archs) > 1:
            mean = Fraction(sum(sizes[tree.arch(client)].bytes for client in clients), max(1, len(clients)))
        if clients is tree.holders:
            return everybody, Payload(mean, **payload)  # type: ignore[arg-type]
        each = Counter(tree.sector_of[client] for client in clients)
        return Active(tuple(each[sector] for sector in tree.sectors)), Payload(mean, **payload)  # type: ignore[arg-type]

    rounds = tuple(
        _whole(round_traffic(method, *told(clients), options | {"round": number}))
        for number, clients in enumerate(active, 1)
    )
    setup = _whole(setup_traffic(method, *told(tree.holders), options))
    if experiment.exchange is not None:
        told_by = experiment.exchange.up
        link = Link(sum(told_by.values()), experiment.exchange.down * len(told_by))
        setup += Traffic(link, link)
    total = sum(rounds, Traffic())
    if left := config.rounds - looked:
        total += _times(sum(rounds[1:], Traffic()), Fraction(left, len(rounds) - 1))
    mixed = len(tree.archs) > 1 and bool(options.get("through_sectors"))
    odd = method in FLOAT32 and any(size.width != 4 for size in sizes.values())
    return Moved(rounds, total, setup, not (left or mixed or odd or config.faults.dropout))


def _options(experiment: Experiment, active: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """The method's own fields, and all that traffic depends on beside them."""
    config, method = experiment.config, experiment.method
    given = {name: getattr(method, name) for name in getattr(method, "__dataclass_fields__", {})}
    given |= {"weights": config.sector.get("weights"), "server_weights": config.server.get("weights")}
    labels, classes = experiment.split.train.y.numpy(), experiment.split.classes
    given |= {"active": active, "sector_of": experiment.tree.sector_of, "seed": config.seed}
    if config.method in ("fedhkd", "fedhkd-star", "fedproto"):  # who holds which class
        taking = {client for clients in active for client in clients}
        counts = {c: np.bincount(labels[experiment.rows[c]], minlength=classes).tolist() for c in taking}
        given["counts"] = counts
    if config.method == "fedma":
        outline = experiment.model.outline()
        names = weighted(outline, "fedma")
        given["layers"] = len(names)
        given["neurons"] = sum(len(outline.get_parameter(f"{name}.weight")) for name in names[:-1])
    return given


def _payload(experiment: Experiment, sizes: dict[str, Size]) -> dict[str, int]:
    split, own = experiment.split, set(experiment.models) - set(experiment.tree.archs)
    labels = split.reference_labels
    return {
        "validation": _bytes(split.validation),
        "rows": int(experiment.tree.sizes[ROOT]) * (_bytes(split.train) // max(1, len(split.train))),
        "classes": split.classes,
        "features": features_of(experiment) * sizes[experiment.model.name].width,
        "reference": split.reference.nbytes + (0 if labels is None else labels.nbytes),
        "align": min(len(split.reference), int(getattr(experiment.method, "align", len(split.reference)))),
        "generator": sum(sizes[name].bytes for name in own),
    }


def _bytes(rows: Examples) -> int:
    return int(rows.x.nbytes + rows.y.nbytes)


def features_of(experiment: Experiment) -> int:
    """How many numbers a representation has, for the methods that work with it."""
    if "features" not in getattr(experiment.method, "NEEDS", ()):
        return 0
    net = experiment.context().flat_module(experiment.model.name, 0)
    return int(net.represent(experiment.split.test.x[:1]).shape[1])


def _whole(traffic: Traffic) -> Traffic:
    return _times(traffic, Fraction(1))


def _times(traffic: Traffic, factor: Fraction) -> Traffic:
    def link(x: Link) -> Link:
        return Link(*(round(factor * getattr(x, f.name)) for f in fields(Link)))

    return Traffic(link(traffic.server_sector), link(traffic.sector_client))
