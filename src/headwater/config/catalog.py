"""Which keys each section accepts, given the method, the scheme and the model that were chosen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

from headwater.config.fields import Setting, settings_of
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
    Section,
    Top,
)
from headwater.errors import ConfigError, nearest
from headwater.registry import Registry, load
from headwater.specs import DistillSpec, LocalSpec

TOP = settings_of(Top)
SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "partition": PartitionConfig,
    "model": ModelConfig,
    "engine": EngineConfig,
    "privacy": PrivacyConfig,
    "faults": FaultsConfig,
    "deploy": DeployConfig,
}
STAGES: dict[str, type[LocalSpec] | type[DistillSpec]] = {
    "local": LocalSpec,
    "sector": DistillSpec,
    "server": DistillSpec,
}
ORDER = ("data", "partition", "model", "algorithm", *STAGES, "engine", "privacy", "faults", "deploy")
SELECTORS = {
    "data": "name",
    "partition": "scheme",
    "model": "name",
    "algorithm": "name",
}  # the key that decides which options there are
DEFAULT_METHOD = "fedhead"


def methods() -> Registry:
    from headwater.algorithms import ALGORITHMS

    return ALGORITHMS


def chosen(tree: Mapping[str, Any], section: str) -> str:
    """The scheme, model or method that a tree names, or the default."""
    default = DEFAULT_METHOD if section == "algorithm" else SECTIONS[section].model_fields[SELECTORS[section]].default
    named = tree.get(section, {})
    name = named.get(SELECTORS[section], default) if isinstance(named, Mapping) else default
    return str(name)


def common(section: str) -> dict[str, Setting]:
    """The keys that a section accepts whatever is chosen."""
    if section == "algorithm":
        return {"name": Setting(str, DEFAULT_METHOD)}
    if section in STAGES:
        return settings_of(STAGES[section])
    return settings_of(SECTIONS[section])


def own(section: str, choice: str) -> dict[str, Setting] | None:
    """The options that come with a choice; none if they cannot be known before it is used."""
    if section == "algorithm":
        kind = methods().load(choice)
        specs = stage_fields(kind).values()
        return {key: setting for key, setting in settings_of(kind).items() if key not in specs}
    if section == "data":
        return _data_options(choice)
    if section == "partition":
        from headwater.partition import PARTITIONS

        return settings_of(PARTITIONS.load(choice))
    if section == "model":
        return _model_options(choice)
    return {}


def stages(method: str) -> tuple[str, ...]:
    """The stage sections that a method has a use for."""
    return tuple(stage_fields(methods().load(method)))


def stage_fields(kind: Any) -> dict[str, str]:
    """Stage section → the method's field that it fills: the one of its name or, where that is a choice between words,
    the one whose type is the stage's spec."""
    declared = settings_of(kind)
    found: dict[str, str] = {}
    for stage, spec in STAGES.items():
        if stage in declared and get_origin(declared[stage].annotation) is Literal:
            found[stage] = next(name for name, setting in declared.items() if setting.annotation is spec)
        elif stage in declared:
            found[stage] = stage
    return found


def stage_specs(method: Any) -> dict[str, LocalSpec | DistillSpec]:
    """Stage section → the spec that a method has for it."""
    fields = stage_fields(type(method))
    return {stage: spec for stage, name in fields.items() if (spec := getattr(method, name)) is not None}


def check_name(section: str, choice: str) -> None:
    """Refuse a scheme, model or method that there is not, naming the key."""
    from headwater.models import MODELS
    from headwater.partition import PARTITIONS

    if section == "data":
        check_data("data.name", choice)
        return
    if section == "model" and choice in ("auto", CUSTOM):
        return
    table = {"algorithm": methods(), "partition": PARTITIONS, "model": MODELS}[section]
    try:
        if table.check(choice) not in table:
            table.load(choice)  # a part of the user's own: it must at least be there
    except ConfigError as error:
        raise ConfigError(f"{section}.{SELECTORS[section]}: {error}") from None


def check_data(key: str, name: str, words: tuple[str, ...] = (ARRAYS,)) -> None:
    """Refuse what is neither a listed data set nor written like a path or a function."""
    from headwater.data import DATASETS

    looks_like_path = "/" in name or "\\" in name or "." in name or Path(name).exists()
    if name in DATASETS or name in words or ":" in name or looks_like_path:
        return
    known = [*DATASETS, *(word for word in words if word != ARRAYS)]
    raise ConfigError(
        f"{key} must be a data set's name ({', '.join(known)}), the path of a .npz, .csv or .parquet file or of a "
        f"folder, or 'package.module:function', got {name!r}{nearest(name, known)}"
    )


def every_key() -> dict[str, list[str]]:
    """Last part → dotted keys, over all data, methods, schemes and models there are: for suggestions and short
    names."""
    from headwater.data import DATASETS, PATHS
    from headwater.models import MODELS
    from headwater.partition import PARTITIONS

    found: dict[str, list[str]] = {key: [key] for key in TOP}
    choices = {"data": DATASETS, "algorithm": methods(), "partition": PARTITIONS, "model": MODELS}
    for section in ORDER:
        names = list(common(section))
        for choice in choices.get(section, ()):
            names += own(section, choice) or {}
        if section == "data":
            names += [key for target in PATHS for key in settings_of(load(target))]
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(f"{section}.{name}")
    return found


def _data_options(choice: str) -> dict[str, Setting] | None:
    """The keyword-only parameters of the function that reads the data; a function of the user's own checks itself."""
    from headwater.data import DATASETS, kind_of_path

    target = DATASETS[choice].target if choice in DATASETS else kind_of_path(choice)
    if target is not None:
        return {key: setting for key, setting in settings_of(load(target)).items() if key not in common("data")}
    return None if ":" in choice else {}


def _model_options(choice: str) -> dict[str, Setting] | None:
    from headwater.models import MODELS

    if choice == "auto":  # any option that some listed model has; checked again once the data has decided
        return {key: Setting(Any) for name in MODELS for key in settings_of(MODELS.load(name))}
    if choice in MODELS:
        return settings_of(MODELS.load(choice))
    return {} if choice == CUSTOM else None
