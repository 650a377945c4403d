"""The configuration: one frozen tree, from TOML and back.

A file or preset holds differences only. Whatever a key belongs to declares it (a section here, a method's or scheme's
dataclass, a model's builder), and everything else about it follows from that declaration: its default, its check, the
sentence when a value does not fit, and its line in the written configuration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator

from headwater.config.load import read, read_each
from headwater.config.methods import method_from, spec_from
from headwater.config.sections import (
    ARRAYS,
    CUSTOM,
    DataConfig,
    DeployConfig,
    EngineConfig,
    FaultsConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
    Top,
)
from headwater.config.tree import checked, merge
from headwater.config.write import differences, to_toml
from headwater.errors import ConfigError

__all__ = ["ARRAYS", "CUSTOM", "Config", "method_from", "spec_from"]


class Config(Top):
    """Everything that decides a run. `[local]`, `[sector]` and `[server]` hold only what was set."""

    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    algorithm: dict[str, Any] = Field(default_factory=dict)  # name, and the method's own fields
    local: dict[str, Any] = Field(default_factory=dict)
    sector: dict[str, Any] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)
    engine: EngineConfig = EngineConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    faults: FaultsConfig = FaultsConfig()
    deploy: DeployConfig = DeployConfig()

    @model_validator(mode="before")
    @classmethod
    def _in_sentences(cls, given: Any) -> Any:
        tables = {key: value.model_dump() if isinstance(value, BaseModel) else value for key, value in given.items()}
        return checked(tables)

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.algorithm["name"])

    @classmethod
    def load(cls, source: str | Path | None = None, sets: Sequence[str] = (), **direct: Any) -> Config:
        """A preset, a file or the defaults; over it the KEY=VALUE pairs `sets`; over these `direct` options.

        Direct options are top-level keys or `section__key`; those that are None are left out.
        """
        return cls(**read(source, sets, direct))

    @classmethod
    def load_each(
        cls, methods: Sequence[str], source: str | Path | None = None, sets: Sequence[str] = (), **direct: Any
    ) -> list[Config]:
        """The same configuration for each method; a setting that only some of them have goes to those."""
        return [cls(**tree) for tree in read_each(methods, source, sets, direct)]

    def merged(self, changes: Mapping[str, Any]) -> Config:
        """A new configuration with these tables laid over this one, checked as a whole."""
        return Config(**merge(self.tree(), changes))

    def tree(self) -> dict[str, Any]:
        """As plain tables."""
        return self.model_dump()

    def to_toml(self) -> str:
        """All of it; `from_toml` gives an equal configuration back."""
        return to_toml(self.tree())

    @classmethod
    def from_toml(cls, text: str) -> Config:
        try:
            return cls(**tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"the configuration is not valid TOML: {error}") from None

    def difference(self, other: Config) -> tuple[str, Any, Any] | None:
        """The first key that makes this another run than `other`, with both values; where it is computed does not."""
        return next(differences(self.tree(), other.tree()), None)
