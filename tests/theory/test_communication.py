"""What the ledger records, and what a plan foresees, equals what the formulas say."""

from __future__ import annotations

import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
import toys
from headwater.algorithms import ALGORITHMS
from headwater.core.ledger import TIERS
from headwater.core.sampling import participants
from headwater.core.tree import Tree
from headwater.errors import ConfigError
from headwater.models.base import in_two_parts
from headwater.planning.rehearsal import rehearse
from headwater.theory.communication import (
    FORMULAS,
    Active,
    Link,
    Payload,
    Traffic,
    round_traffic,
    run_traffic,
    setup_traffic,
)
from headwater.theory.traffic import examples_bytes, model_bytes
from headwater.training.loop import train

DATA = toys.tiny_data()
UNEQUAL = ([9, 0, 4, 1, 6, 3, 0], [0, 0, 0, 1, 0, 1, 2])  # sector 2 holds nobody with data

CASES: dict[str, dict[str, Any]] = {
    "unequal sectors, empty clients": {"sizes": UNEQUAL},
    "partial participation": {"sizes": UNEQUAL, "partition": {"participation": 0.5}, "rounds": 4},
    "batch norm": {"sizes": UNEQUAL, "model": lambda: toys.normed(4, 3)},
    "a frozen extractor": {"sizes": UNEQUAL, "net": {"freeze": "extractor"}},
    "one sector": {"sizes": ([8, 5, 2], [0, 0, 0])},
    "one client": {"sizes": ([8], [0])},
    "a client a sector": {"sizes": ([8, 5, 2], [0, 1, 2])},
}
QUICK = ("partial participation",)  # which has unequal sectors and empty clients, too
# Options that change what moves; a method without any of these runs as it is.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}, {"algorithm": {"through_sectors": True}}],
    "hfedavg": [{}, {"algorithm": {"sector_rounds": 3}}],
    "fedhead": [{}, {"sector": {"weights": "labels"}}, {"algorithm": {"val_source": "leader"}}],
    "fedhead+": [{}, {"sector": {"weights": "labels"}}, {"algorithm": {"server_teacher": "pre_sync"}}],
}
for family in ("corrections", "distillation", "ensembles", "knowledge", "nets"):
    found = Path(__file__).with_name(f"cases_{family}.py")
    if found.exists():
        OPTIONS |= runpy.run_path(str(found))["OPTIONS"]


def payload(experiment: Any) -> Payload:
    """The sizes, from shapes alone."""
    frozen = {name for name, p in experiment.model.build().named_parameters() if not p.requires_grad}
    state = [t for name, t in experiment.model.build().state_dict().items() if name not in frozen]
    floats = sum(t.numel() for t in state if t.is_floating_point())
    counters = sum(t.numel() for t in state if not t.is_floating_point())
    rows = sum(experiment.tree.client_sizes.values())
    split = experiment.split
    net = experiment.model.outline()
    return Payload(
        model=model_bytes(floats, counters=counters),
        validation=examples_bytes(len(split.validation), 4),
        rows=examples_bytes(rows, 4),
        classes=split.classes,
        features=4 * net.classifier.in_features if in_two_parts(net) else 0,
        align=min(len(split.reference), experiment.config.algorithm.get("align", len(split.reference))),
        reference=examples_bytes(len(split.reference), 4),
        generator=_generator(experiment),
        frozen=4 * sum(p.numel() for p in experiment.model.build().parameters() if not p.requires_grad),
    )


def _generator(experiment: Any) -> int:
    """The bytes of what a method brings beside the clients' models."""
    own = [spec for name, spec in experiment.models.items() if name not in experiment.tree.archs]
    state = [t for spec in own for t in spec.build().state_dict().values()]
    floats = sum(t.numel() for t in state if t.is_floating_point())
    return model_bytes(floats, counters=sum(t.numel() for t in state if not t.is_floating_point()))


@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.thorough) for c in CASES])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (method, options) if method in chosen.CHOSEN and at < 2 else chosen.further(method, options)
        for method in FORMULAS
        for at, options in enumerate(OPTIONS.get(method, [{}]))
    ],
)
def test_recorded_bytes_equal_the_formula(method: str, options: dict[str, Any], case: str) -> None:
    if method == "fedma" and case in ("batch norm", "a frozen extractor"):
        pytest.skip("neurons of such layers cannot be matched")
    experiment = toys.tiny(method, arrays=DATA, **CASES[case], **options)
    config, tree, sizes = experiment.config, experiment.tree, payload(experiment)
    given = dict(config.algorithm) | {"weights": config.sector.get("weights")}
    given["server_weights"] = config.server.get("weights")
    labels = {c: experiment.split.train.y[rows].tolist() for c, rows in experiment.rows.items()}
    given["counts"] = {c: [ys.count(label) for label in range(sizes.classes)] for c, ys in labels.items()}
    active = [
        participants(tree, config.partition.participation, config.seed, number)
        for number in range(1, config.rounds + 1)
    ]
    given["sector_of"] = dict(tree.sector_of)
    given["active"] = active  # by round, for methods whose traffic depends on who took part before
    given["sectors"] = Active.of(tree).sectors  # that hold data, whether or not they take part
    found, planned, total = train(experiment), rehearse(experiment), Traffic()
    assert planned is not None
    assert planned.traffic is not None
    for row, clients in zip(found.history, active, strict=True):
        expected = round_traffic(method, Active.of(tree, clients), sizes, given | {"round": row["round"]})
        total += expected
        for tier in TIERS:
            link: Link = getattr(expected, tier)
            assert row["bytes"][tier] == {"up": link.up_bytes, "down": link.down_bytes}
    recorded = found.ledger.summary()
    before = setup_traffic(method, Active.of(tree), sizes, given)
    for tier in TIERS:
        assert recorded[tier] == planned.traffic.total[tier] == asdict(getattr(total, tier))
        assert recorded["setup"][tier] == planned.traffic.setup[tier] == asdict(getattr(before, tier))


def test_participants_do_change() -> None:
    """The case of partial participation is one: who takes part differs by round."""
    tree = Tree.of(*UNEQUAL)
    assert len({Active.of(tree, participants(tree, 0.5, 0, number)) for number in range(1, 5)}) > 1


def test_every_row_is_a_method() -> None:
    assert set(FORMULAS) <= set(ALGORITHMS)


def test_h11_round_trips_as_the_papers_count() -> None:
    """H11: hierarchical averaging and MTGC M·T, FedDF N·T, FedHEAD and FedHEAD+ 2M·T."""
    who, sizes = [Active((4, 2, 1))] * 10, Payload(model=100)
    trips = {
        method: run_traffic(method, who, sizes).server_sector.round_trips
        for method in ("hfedavg", "mtgc", "feddf", "fedhead", "fedhead+")
    }
    assert trips == {"hfedavg": 30, "mtgc": 30, "feddf": 70, "fedhead": 60, "fedhead+": 60}


@pytest.mark.parametrize("teams", [(2, 2), (3, 2), (1, 1), (5,), (1,), (4, 0, 1)])
def test_fedhead_beats_feddf_on_the_long_link_with_more_than_two_clients_a_sector(teams: tuple[int, ...]) -> None:
    """Exactly if 2M < N."""
    who, sizes = Active(teams), Payload(model=8)
    head, feddf = (round_traffic(m, who, sizes).server_sector.bytes for m in ("fedhead", "feddf"))
    assert (head < feddf) == (2 * who.sectors < who.clients)


def test_sizes_of_payloads() -> None:
    """A linear layer of 3 × 2 + 2 floats; batch norm of 2 adds 4 parameters, 4 statistics and a counter of 8 bytes."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    assert model_bytes(parameters=12, float_buffers=4, counters=1) == 4 * 16 + 8
    assert model_bytes(12, 4, 1) == sum(t.nbytes for t in module.state_dict().values())
    assert examples_bytes(10, 4) == 10 * (16 + 8)
    assert Payload(model=1, classes=10).label_counts == 80


def test_active() -> None:
    tree = Tree.of(*UNEQUAL)
    assert Active.of(tree) == Active((3, 2, 0))
    assert (Active.of(tree).clients, Active.of(tree).sectors) == (5, 2)
    assert Active.of(tree, ["c3", "c1"]) == Active((0, 1, 0))  # c1 holds nothing


def test_traffic_adds_up() -> None:
    one = Traffic(Link(1, 2, 3, 4, 5), Link(6))
    assert one + one == Traffic(Link(2, 4, 6, 8, 10), Link(12))
    assert sum([one], Traffic()) == one


def test_unknown_method() -> None:
    with pytest.raises(ConfigError, match=r"no cost formula for method 'fedhed'; did you mean 'fedhead'\?"):
        round_traffic("fedhed", Active((1,)), Payload(model=1))
