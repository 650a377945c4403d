"""What all parties agree on (`federation.json`), and the experiment that each party builds from it and its own data.

The file is the same in every folder, byte for byte. Every message names its SHA-256, and a party with another file
refuses the message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwater.algorithms import ALGORITHMS
from headwater.config import Config, method_from, spec_from
from headwater.config.catalog import stage_fields
from headwater.config.fields import shown
from headwater.core.lazy_clients import number_of
from headwater.core.records import parse_json
from headwater.core.tree import Tree
from headwater.data.base import Examples
from headwater.data.split import Split
from headwater.deploy.folder import FEDERATION, INIT_AGAIN
from headwater.deploy.transport import Address
from headwater.errors import ConfigError
from headwater.partition.divide import OwnRows
from headwater.partition.partition import Partition
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.frozen_part import check_frozen_once
from headwater.tasks.task import RunContext
from headwater.training.architectures import specs_of
from headwater.training.experiment import Experiment
from headwater.training.opening import run_context

VERSION = 1
PUBLIC_SETS = ("validation", "reference", "reference_labels", "test")  # of the split, in the server's folder
STAGES: dict[str, Any] = {"local": LocalSpec, "sector": DistillSpec, "server": DistillSpec}


@dataclass(frozen=True)
class Agreement:
    """The content of `federation.json`.

    Args:
        config: the configuration of the run.
        shape: of one input.
        classes: number of classes.
        words: size of the vocabulary if inputs are tokens, else None.
        class_names: in the order of class numbers.
        sectors: names of the clients by name of their sector.
        sha256: of the file.
        names: what the data calls a client or sector, by party.
        preparation: how a client reads data of its own, from `headwater.data.reading.describe`.
        public: number of rows of each public set, from which every party derives what the method does.
        amendments: clients that were added later, from `headwater.deploy.amendment`.
        origin: SHA-256 of the file as `init` wrote it, before amendments; names the federation in requests and
            approvals of keys.
    """

    config: Config
    shape: tuple[int, ...]
    classes: int
    words: int | None
    class_names: tuple[str, ...]
    sectors: dict[str, tuple[str, ...]]
    sha256: str
    names: dict[str, str] = field(default_factory=dict)
    preparation: dict[str, Any] = field(default_factory=dict)
    public: dict[str, int] = field(default_factory=dict)
    amendments: tuple[dict[str, str], ...] = ()
    origin: str = ""

    @staticmethod
    def read(path: Path) -> Agreement:
        """Read and check the file.

        Raises:
            ConfigError: if it is missing or not what `headwater deploy init` wrote.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise ConfigError(
                f"there is no {path}; bring back the one that all parties have, or {INIT_AGAIN}"
            ) from None
        from headwater.deploy.amendment import unamended

        try:
            fields = parse_json(content)
            if fields["version"] != VERSION:
                raise ConfigError(
                    f"{path} is of version {shown(fields['version'])}, and this Headwater reads version {VERSION}; "
                    "install the same Headwater at every party"
                )
            return Agreement(
                config=Config.from_toml(fields["config"]),
                shape=tuple(int(size) for size in fields["shape"]),
                classes=int(fields["classes"]),
                words=None if fields["words"] is None else int(fields["words"]),
                class_names=tuple(str(name) for name in fields["class_names"]),
                sectors={str(sector): tuple(map(str, clients)) for sector, clients in fields["sectors"].items()},
                sha256=hashlib.sha256(content).hexdigest(),
                names={str(party): str(name) for party, name in fields.get("names", {}).items()},
                preparation={str(key): value for key, value in fields.get("preparation", {}).items()},
                public={name: int(fields["public"][name]) for name in PUBLIC_SETS},
                amendments=tuple(dict(row) for row in fields.get("amendments", ())),
                origin=hashlib.sha256(unamended(content)).hexdigest(),
            )
        except ConfigError as error:
            here = "; install at this party what the configuration names" if "be imported" in str(error) else ""
            raise ConfigError(f"{path}: {error}{here}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ConfigError(
                f"{path} is not what `headwater deploy init` wrote ({type(error).__name__}: {error}); bring that back"
            ) from None

    @property
    def stamp(self) -> dict[str, Any]:
        """Head fields of every message: which agreement it is of."""
        return {"federation": self.sha256} | ({"amendments": [*self.amendments]} if self.amendments else {})

    def members_of(self, party: str) -> tuple[str, ...]:
        """The parties directly below: sectors of the server, clients of a sector."""
        return tuple(self.sectors) if party == "server" else self.sectors.get(party, ())

    def address_of(self, party: str) -> Address:
        """Where members reach the link of the server or of a sector."""
        settings = self.config.deploy
        server = Address.parse(settings.server_address, "deploy.server_address")
        if party == "server":
            return server
        number, hosts = int(party[1:]), settings.sector_addresses
        return Address.parse(hosts[number], "deploy.sector_addresses") if hosts else server.of_sector(number)

    @property
    def sector_of(self) -> dict[str, str]:
        """The sector of each client."""
        return {client: sector for sector, clients in self.sectors.items() for client in clients}


@dataclass(frozen=True)
class DeployedExperiment(Experiment):
    """What the server knows of a federation: the number of rows of each client, and no rows.

    Args:
        preparation: of the data, as in the agreement.
    """

    preparation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prepared(self) -> dict[str, Any]:
        """As in a simulation, where it follows from the data; here it is part of the agreement."""
        return dict(self.preparation)

    def manifest(self) -> dict[str, Any]:
        known = {key: value for key, value in self.partition.manifest().items() if key != "indices"}
        return known | {"sizes": list(self.partition.sizes), "classes": list(self.class_names)}


def check_copy(file: Path, config: Config) -> None:
    """Refuse a changed config.toml: it is a copy for reading, and a change at one party cannot have an effect."""
    if not file.is_file():
        return
    try:
        same = type(config).from_toml(file.read_text(encoding="utf-8")) == config
    except (ConfigError, UnicodeDecodeError):
        same = False
    if not same:
        raise ConfigError(
            f"{file} was changed, and it is only a copy to read: all parties work by {FEDERATION}, which must be the "
            f"same everywhere; bring the file back, or remove it; {INIT_AGAIN} with other settings"
        )


def empty_split(agreement: Agreement) -> Split:
    """A split without any rows."""
    shape, words = tuple(agreement.shape), agreement.words
    x = torch.zeros((0, *shape), dtype=torch.float32 if words is None else torch.int64)
    empty = Examples(x, torch.zeros(0, dtype=torch.int64))
    name = agreement.config.data.name
    return Split(empty, empty, x, empty, agreement.classes, shape, name, words=words)


def public_rows(split: Split) -> dict[str, int]:
    """Number of rows of each public set; 0 for labels that there are none of."""
    found = {name: getattr(split, name) for name in PUBLIC_SETS}
    return {name: 0 if rows is None else len(rows) for name, rows in found.items()}


def server_split(agreement: Agreement, public: Mapping[str, Any]) -> Split:
    """The server's split: the public sets, and no rows of clients."""
    return replace(empty_split(agreement), **{name: public[name] for name in PUBLIC_SETS})


def deployed_experiment(
    agreement: Agreement, split: Split, sizes: Mapping[str, int], device: str = "auto"
) -> DeployedExperiment:
    """The experiment of a party.

    Args:
        split: with the rows that this party has.
        sizes: number of rows by client; a client that is missing here has no part in the run.
        device: what this party computes on.
    """
    config: Config = agreement.config.merged({"engine": {"overlap": False, "device": device}})
    kind = ALGORITHMS.load(config.method)
    spec, others = specs_of(config, kind, split, None)
    check_frozen_once(config.model.frozen_sha256, (spec, *others))
    lengths, sectors = _sizes_and_sectors(agreement, sizes)
    ends = np.cumsum(lengths)
    indices = tuple(np.arange(end - size, end) for end, size in zip(ends, lengths, strict=True))
    tree = Tree.of(lengths, sectors, (spec.name, *(other.name for other in others)))
    stages = {
        stage: spec_from(stage, STAGES[stage], getattr(config, stage))
        for stage in STAGES
        if stage in stage_fields(kind)
    }
    method = method_from(kind, config.algorithm, stages)
    partition = Partition(indices[: _first_clients(agreement)], sectors[: _first_clients(agreement)])
    names = tuple(agreement.class_names)
    prepared = agreement.preparation
    return DeployedExperiment(config, split, partition, tree, spec, method, {}, {}, names, others, preparation=prepared)


def _sizes_and_sectors(agreement: Agreement, sizes: Mapping[str, int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Size and sector of every client by number. Clients without data have no folder; they fill up sectors that were
    left out too, since a method may count sectors."""
    known = {client: int(sector[1:]) for client, sector in agreement.sector_of.items()}
    count = max(agreement.config.partition.clients, 1 + max(int(client[1:]) for client in known))
    gone = [number for number in range(max(known.values()) + 1) if f"s{number}" not in agreement.sectors]
    sectors = [known[f"c{n}"] if f"c{n}" in known else gone.pop() if gone else 0 for n in range(count)]
    return np.array([sizes.get(f"c{n}", 0) for n in range(count)], dtype=np.int64), tuple(sectors)


def _first_clients(agreement: Agreement) -> int:
    """Number of clients without those that were added later: a run keeps the split that it has begun with."""
    added = {row["client"] for row in agreement.amendments}
    numbers = [int(client[1:]) for client in agreement.sector_of if client not in added]
    return max(agreement.config.partition.clients, 1 + max(numbers))


def host_context(agreement: Agreement) -> RunContext:
    """The context of a sector's host, which has no data."""
    return run_context(deployed_experiment(agreement, empty_split(agreement), _one_row_each(agreement)))


def client_context(agreement: Agreement, name: str, data: Examples) -> RunContext:
    """The context of a client: its own rows, some of which it may keep for a test of its own."""
    experiment = deployed_experiment(agreement, replace(empty_split(agreement), train=data), _one_row_each(agreement))
    number = number_of(name, 1 << 40) or 0
    indices = tuple(np.arange(len(data) if at == number else 0) for at in range(number + 1))
    share, seed = experiment.config.partition.local_test, experiment.config.seed
    own, test = (OwnRows(indices, share, seed, test=test)[name] for test in (False, True))
    return replace(run_context(experiment), rows={name: own}, test_rows={name: test})


def _one_row_each(agreement: Agreement) -> dict[str, int]:
    """Sizes for parties that do not need the true ones; a tree without clients would be invalid."""
    return dict.fromkeys(agreement.sector_of, 1)
