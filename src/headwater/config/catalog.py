"""Which keys each section accepts, for the data set, partition scheme, model and method that were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_origin

from headwater.algorithms import ALGORITHMS, Methods
from headwater.config.fields import Built, Setting, build, named_parameters, settings_of
from headwater.config.sections import ARRAYS, CUSTOM, SECTIONS, Top
from headwater.data import DATASETS, PATHS, kind_of_path
from headwater.errors import ConfigError, nearest
from headwater.models import MODELS
from headwater.partition import PARTITIONS
from headwater.registry import Registry, load, path_exists, short_name
from headwater.specs import DistillSpec, LocalSpec

TOP = settings_of(Top)
Spec = LocalSpec | DistillSpec
STAGES: dict[str, type[Spec]] = {"local": LocalSpec, "sector": DistillSpec, "server": DistillSpec}
ORDER = (
    "data",
    "partition",
    "model",
    "algorithm",
    *STAGES,
    "engine",
    "privacy",
    "robust",
    "attack",
    "faults",
    "links",
    "deploy",
)
# The key of a section that decides which options there are.
SELECTORS = {"data": "name", "partition": "scheme", "model": "name", "algorithm": "name"}
REGISTRIES: dict[str, Registry[Any]] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
}
DEFAULT_METHOD = "fedhead"
AUTO = "auto"


def methods() -> Methods:
    """The registry of methods."""
    return ALGORITHMS


def chosen(tree: Mapping[str, Any], section: str) -> str:
    """The data set, scheme, model or method that the tables name, or the default."""
    default = DEFAULT_METHOD if section == "algorithm" else SECTIONS[section].model_fields[SELECTORS[section]].default
    named = tree.get(section, {})
    name = named.get(SELECTORS[section], default) if isinstance(named, Mapping) else default
    return str(name)


def common(section: str) -> dict[str, Setting]:
    """The keys that a section accepts with every choice."""
    if section == "algorithm":
        return {"name": Setting(str, DEFAULT_METHOD)}
    if section in STAGES:
        return settings_of(STAGES[section])
    return settings_of(SECTIONS[section])


def own(section: str, choice: str) -> dict[str, Setting] | None:
    """The options that a choice adds to its section; None if only the part itself knows them."""
    if section == "algorithm":
        kind = ALGORITHMS.load(choice)
        specs = stage_fields(kind).values()
        return {key: setting for key, setting in settings_of(kind).items() if key not in specs}
    if section == "data":
        return _data_options(choice)
    if section == "model":
        return _model_options(choice)
    return settings_of(PARTITIONS.load(choice)) if section == "partition" else {}


def stages(method: str) -> tuple[str, ...]:
    """The stage sections that a method uses."""
    return tuple(stage_fields(ALGORITHMS.load(method)))


def stage_fields(kind: Any) -> dict[str, str]:
    """Stage section → the field of the method that it fills: the field of its name or, if that one is a choice between
    words, the field whose type is the stage's spec."""
    declared = settings_of(kind)
    fields: dict[str, str] = {}
    for stage, spec in STAGES.items():
        if stage in declared and get_origin(declared[stage].annotation) is Literal:
            fields[stage] = next(name for name, setting in declared.items() if setting.annotation is spec)
        elif stage in declared:
            fields[stage] = stage
    return fields


def stage_specs(method: Any) -> dict[str, Spec]:
    """Stage section → the method's spec for it."""
    fields = stage_fields(type(method))
    return {stage: spec for stage, name in fields.items() if (spec := getattr(method, name)) is not None}


def method_from(kind: type[Built], options: Mapping[str, Any], specs: Mapping[str, Spec | None]) -> Built:
    """Build a method.

    Args:
        kind: its class.
        options: the keys of `[algorithm]`.
        specs: stage section → spec; None leaves the default.
    """
    fields = stage_fields(kind)
    given = {fields.get(stage, stage): spec for stage, spec in specs.items() if spec is not None}
    return build("algorithm", kind, {key: value for key, value in options.items() if key != "name"}, given)


def check_name(section: str, choice: str) -> None:
    """Refuse an unknown data set, scheme, model or method in a sentence that names the key."""
    if section == "data":
        check_data("data.name", choice)
        return
    if section == "model" and choice in (AUTO, CUSTOM):
        return
    registry = REGISTRIES[section]
    try:
        if registry.check(choice) not in registry:
            registry.load(choice)  # the user's own part must be importable
    except ConfigError as error:
        raise ConfigError(f"{section}.{SELECTORS[section]}: {error}") from None


def check_engine(name: str) -> None:
    """Refuse an unknown engine."""
    from headwater.engines import ENGINES, engine_class

    known = [AUTO, *ENGINES]
    if name not in known and ":" not in name:
        listed = ", ".join(map(repr, known))
        raise ConfigError(
            f"engine.name must be one of {listed} or 'package.module:Name', got "
            f"{short_name(name)}{nearest(name, known)}"
        )
    if ":" in name:
        engine_class(name)  # the user's own part must be importable, and an engine


def check_data(key: str, name: str, words: tuple[str, ...] = (ARRAYS,)) -> None:
    """Refuse a name that is neither a listed data set nor written like a path or a function."""
    looks_like_path = "/" in name or "\\" in name or "." in name or path_exists(name)
    if name in DATASETS or name in words or ":" in name or looks_like_path:
        return
    known = [*DATASETS, *(word for word in words if word != ARRAYS)]
    raise ConfigError(
        f"{key} must be a data set's name ({', '.join(known)}), the path of a .npz, .csv or .parquet file or of a "
        f"folder, or 'package.module:function', got {short_name(name)}{nearest(name, known)}"
    )


def every_key(methods: Sequence[str] = ()) -> dict[str, list[str]]:
    """Last part of a key → full keys, over all listed parts: for suggestions and for short keywords in Python.

    Args:
        methods: methods of the user's own whose keys are included.
    """
    keys: dict[str, list[str]] = {key: [key] for key in TOP}
    for section in ORDER:
        names = list(common(section))
        for choice in (*REGISTRIES.get(section, ()), *(methods if section == "algorithm" else ())):
            names += own(section, choice) or {}
        if section == "data":
            names += [key for target in PATHS for key in settings_of(load(target))]
        for name in dict.fromkeys(names):
            keys.setdefault(name, []).append(f"{section}.{name}")
    return keys


def _data_options(choice: str) -> dict[str, Setting] | None:
    """The options of the function that reads the data; None if a user's own function takes any."""
    target = DATASETS[choice].target if choice in DATASETS else kind_of_path(choice)
    if target is not None:
        return {key: setting for key, setting in settings_of(load(target)).items() if key not in common("data")}
    return _own_options("data", load(choice)) if ":" in choice and not path_exists(choice) else {}


def _model_options(choice: str) -> dict[str, Setting] | None:
    if choice == AUTO:  # any option of any listed model; checked again once the data has decided
        return {key: Setting(Any) for name in MODELS for key in settings_of(MODELS.load(name))}
    if choice in MODELS:
        return settings_of(MODELS.load(choice))
    return {} if choice == CUSTOM else _own_options("model", MODELS.load(choice))


def _own_options(section: str, function: Any) -> dict[str, Setting] | None:
    """The options of a function or class of the user's own; None if they cannot be known."""
    options = named_parameters(function)
    return options and {key: setting for key, setting in options.items() if key not in common(section)}
