"""The configuration of a run: frozen, checked, read from TOML and written to it.

A file or preset holds only what differs from the defaults. A key is declared once, by the part that it belongs to: a
section here, the dataclass of a method or partition scheme, the builder of a model or data set. Its default, its check
and the error message for an invalid value follow from that declaration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from headwater.config import catalog, sections
from headwater.config.adversity import AttackConfig, FaultsConfig, LinksConfig, RobustConfig
from headwater.config.catalog import method_from
from headwater.config.fields import build as spec_from
from headwater.config.fields import check
from headwater.config.load import read, read_each
from headwater.config.plain_tables import checked, differences, merge, stages_of, to_toml
from headwater.config.sections import ARRAYS, CUSTOM, Top
from headwater.core.records import parse_toml
from headwater.errors import ConfigError

__all__ = ["ARRAYS", "CUSTOM", "Config", "method_from", "spec_from"]


class Config(Top):
    """Everything that decides a run. `[local]`, `[sector]` and `[server]` hold only keys that were set.

    docs/configuration.md lists all keys. `Config.load` is the usual way to make one.

    Args:
        seed: seed that everything random follows from.
        rounds: rounds to train for.
        eval_every: rounds from one evaluation to the next; the last round is always evaluated.
        data: the data set and how it is divided into training, validation, reference and test rows.
        partition: how training rows are split over clients and sectors, and who takes part in a round.
        model: the architecture.
        algorithm: the method's name and its own options.
        local: settings of local training (`LocalSpec`).
        sector: settings of distillation at leaders (`DistillSpec`).
        server: settings of distillation at the server (`DistillSpec`).
        engine: where tasks run.
        privacy: what is hidden from whom, and noise that bounds what can be learnt about a client or a row.
        robust: fusion that a minority of wrong members cannot steer.
        attack: a simulated attack.
        faults: simulated losses and delays, and how results that are not finite are treated.
        links: speeds for simulated time.
        deploy: links and timeouts between organisations.

    Example:
        >>> config = Config.load("fedavg", ["local.lr=0.05"], rounds=3)
        >>> config.method, config.rounds, config.local["lr"]
        ('fedavg', 3, 0.05)
    """

    data: sections.DataConfig = sections.DataConfig()
    partition: sections.PartitionConfig = sections.PartitionConfig()
    model: sections.ModelConfig = sections.ModelConfig()
    algorithm: dict[str, Any] = Field(default_factory=dict)  # name, and the method's own fields
    local: dict[str, Any] = Field(default_factory=dict)
    sector: dict[str, Any] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)
    engine: sections.EngineConfig = sections.EngineConfig()
    privacy: sections.PrivacyConfig = sections.PrivacyConfig()
    robust: RobustConfig = RobustConfig()
    attack: AttackConfig = AttackConfig()
    faults: FaultsConfig = FaultsConfig()
    links: LinksConfig = LinksConfig()
    deploy: sections.DeployConfig = sections.DeployConfig()
    # Stages that the source has for other methods. A change of the method brings them back.
    _unused: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _in_sentences(cls, given: Any) -> Any:
        tables = {key: value.model_dump() if isinstance(value, BaseModel) else value for key, value in given.items()}
        return checked(tables)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.tree() == other.tree()

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.algorithm["name"])

    @classmethod
    def load(cls, source: str | Path | None = None, sets: Sequence[str] = (), **direct: Any) -> Config:
        """Read a configuration.

        Args:
            source: a method, a preset or the path of a file; None: the defaults.
            sets: KEY=VALUE pairs such as "local.lr=0.05"; they override the source.
            direct: top-level keys or `section__key`; they override `sets`. None means not given.

        Raises:
            ConfigError: a key or value is not accepted.
        """
        return cls._made(*read(source, sets, direct))

    @classmethod
    def load_each(
        cls, methods: Sequence[str], source: str | Path | None = None, sets: Sequence[str] = (), **direct: Any
    ) -> list[Config]:
        """Read the same configuration for several methods; arguments as for `load`.

        A setting that only some methods have is passed to those methods. One that none has is an error.
        """
        return [cls._made(*tables) for tables in read_each(methods, source, sets, direct)]

    @classmethod
    def _made(cls, tree: Mapping[str, Any], unused: Mapping[str, Any]) -> Config:
        config = cls(**tree)
        config._unused.update(unused)
        return config

    def merged(self, changes: Mapping[str, Any]) -> Config:
        """Return a new configuration in which these tables override this one. All of it is checked.

        If the method has another stage than the one before, that stage is set as the file or preset has it that this
        configuration was loaded from.
        """
        base = self.tree()
        return self._made(merge(self._stages_back(base, merge(base, changes)), changes), self._unused)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Config:
        """Return a copy in which these values replace whole sections or keys. All of it is checked.

        Args:
            update: section or top-level key → its new value.
            deep: no effect, since a configuration cannot be changed.
        """
        changes = dict(update or {})
        if all(key in catalog.TOP for key in changes):  # no other key depends on these
            return super().model_copy(update={key: check(key, catalog.TOP[key], changes[key]) for key in changes})
        base = self.tree()
        return self._made(self._stages_back(base, base | changes) | changes, self._unused)

    def _stages_back(self, base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
        """The tables of this configuration, with stages of its source that only the method after a change has."""
        used = stages_of(changed)
        return {**base, **{k: table for k, table in self._unused.items() if k in used and not base[k]}}

    def tree(self) -> dict[str, Any]:
        """The configuration as plain tables."""
        return self.model_dump()

    def to_toml(self) -> str:
        """The whole configuration as TOML text; `from_toml` reads it back."""
        return to_toml(self.tree())

    @classmethod
    def from_toml(cls, text: str) -> Config:
        """Read a configuration from TOML text."""
        try:
            return cls(**parse_toml(text))
        except ValueError as error:
            raise ConfigError(f"the configuration is not valid TOML: {error}") from None

    def difference(self, other: Config) -> tuple[str, Any, Any] | None:
        """The first key that can change a result and differs from `other`, with both values; None: there is none."""
        return next(differences(self.tree(), other.tree()), None)
