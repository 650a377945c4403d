"""A configuration as plain tables: merged layer by layer, checked key by key, compared, and written as TOML text."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headwater.config import catalog
from headwater.config.adversity import LinksConfig
from headwater.config.fields import MISSING, NONE, Setting, build, check, plain, shown
from headwater.config.privacy import check_secure
from headwater.config.sections import DeployConfig
from headwater.data import REFERENCES, Reference, columns
from headwater.errors import ConfigError
from headwater.partition import PARTITIONS
from headwater.registry import short_name

Tree = dict[str, Any]
MOST_LISTED, MOST_DRAWN = 1_000_000, 100_000_000  # clients of schemes that list samples, and of those that draw them
HEADER = "# Written by Headwater: the whole configuration of a run. `headwater run` on this file repeats it.\n\n"
MOST_OWNERS = 4  # parts that a suggestion names
ALIKE = 0.9  # a key so similar in the same section is suggested before the same key in another section
# Keys that say where and when a run is computed. They never change a result.
NEUTRAL = (
    "data.dir",
    "engine.name",
    "engine.workers",
    "engine.memory",
    "engine.address",
    "engine.overlap",
    "engine.device",  # resuming on another kind of device is refused elsewhere
    "engine.device_memory",
    "privacy.secure_masks",
    "faults.availability",
    "faults.period",
    *(f"links.{key}" for key in LinksConfig.model_fields),
    *(f"deploy.{key}" for key in DeployConfig.model_fields),
)


def checked(tree: Mapping[str, Any]) -> Tree:
    """The tables with every value in its own type and the defaults of the chosen parts filled in.

    Raises:
        ConfigError: the first problem in one sentence, with the number of further ones.
    """
    problems: list[str] = []
    result: Tree = {}
    for key, value in tree.items():
        if key in catalog.TOP:
            _take(problems, result, key, key, catalog.TOP[key], value)
        elif key not in catalog.ORDER:
            problems.append(unknown(key, "", [*catalog.TOP, *catalog.ORDER]))
        elif not isinstance(value, Mapping):
            problems.append(f"{key} is a section with keys of its own, not a single value, got {shown(value)}")
    for section in catalog.ORDER:
        values = tree.get(section, {})
        if isinstance(values, Mapping):
            result[section] = _section(problems, section, values, tree)
    _refuse(problems)
    _check_together(result)
    return result


def merge(base: Mapping[str, Any], layer: Mapping[str, Any]) -> Tree:
    """Lay `layer` over `base`. If it makes another choice, options that only the earlier choice had are removed."""
    result = copy.deepcopy(dict(base))
    for section, key in catalog.SELECTORS.items():
        named = isinstance(layer.get(section), Mapping) and key in layer[section]
        before, after = catalog.chosen(base, section), catalog.chosen(layer, section)
        if named and after != before and before != "auto":
            _drop_foreign(result, section, after)
    for key, value in layer.items():
        if not isinstance(value, Mapping) or not isinstance(result.get(key), dict):
            result[key] = plain(value)
            continue
        for length, other in (("epochs", "steps"), ("steps", "epochs")):
            if key in catalog.STAGES and value.get(length, NONE) not in (None, NONE) and other not in value:
                result[key].pop(other, None)
        result[key].update(plain(value))
    return result


def without_unused(tree: Mapping[str, Any], methods: Sequence[str]) -> Tree:
    """The tables without the stages that none of the methods has: a file may serve several. Their keys are checked."""
    try:
        used = {stage for method in methods for stage in catalog.stages(method)}
    except ConfigError:
        return dict(tree)  # the check that follows refuses the name
    unused = {stage: tree[stage] for stage in catalog.STAGES if stage in tree and stage not in used}
    problems: list[str] = []
    for stage, values in unused.items():
        if isinstance(values, Mapping):
            _values(problems, stage, values, catalog.common(stage))
    _refuse(problems)
    return {key: value for key, value in tree.items() if key not in unused}


def stages_of(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages of the method that the tables name; none if there is no such method, which a check refuses."""
    try:
        return catalog.stages(catalog.chosen(tree, "algorithm"))
    except ConfigError:
        return ()


def unknown(key: str, section: str, accepted: Sequence[str], choice: str = "") -> str:
    """The sentence for an unknown key, with the nearest one or the section where it belongs."""
    dotted = f"{section}.{key}" if section else key
    elsewhere = [other for other in catalog.every_key().get(key, []) if other != dotted]
    close = difflib.get_close_matches(key, accepted, n=1, cutoff=0.5)
    here = [f"{section}.{word}" if section else word for word in close]
    near = bool(close) and difflib.SequenceMatcher(None, key, close[0]).ratio() >= ALIKE
    better = [*(here if near or not elsewhere else []), *elsewhere]
    hint = (
        f"; did you mean {' or '.join(repr(other) + _owners(other, accepted) for other in better)}?" if better else ""
    )
    where = f"[{section}]{f' with {choice!r}' if choice else ''}" if section else "the top level"
    listed = f"accepted in {where}: {', '.join(accepted)}" if accepted else f"{where} takes no keys in this version"
    return f"there is no setting called {short_name(dotted)}{hint} ({listed})"


def _owners(key: str, accepted: Sequence[str]) -> str:
    """Of a key that only some data sets, schemes, models or methods have: which do.

    Empty if the chosen one has it (it is `accepted`), or the one that is chosen by default.
    """
    section, _, last = key.rpartition(".")
    if section not in catalog.SELECTORS or last in catalog.common(section):
        return ""
    if last in accepted or last in (catalog.own(section, catalog.chosen({}, section)) or {}):
        return ""
    parts = [name for name in catalog.REGISTRIES[section] if last in (catalog.own(section, name) or {})]
    if not parts or len(parts) == len(catalog.REGISTRIES[section]):
        return ""
    more = f" and {len(parts) - MOST_OWNERS} more" if len(parts) > MOST_OWNERS else ""
    return f" (of {', '.join(parts[:MOST_OWNERS])}{more})"


def to_toml(tree: Mapping[str, Any]) -> str:
    """Return TOML text: top-level keys, then the sections in the order of the documentation, without empty ones."""
    import tomli_w

    sections = {section: tree[section] for section in catalog.ORDER if tree.get(section)}
    top = {key: tree[key] for key in catalog.TOP if key in tree}
    return HEADER + tomli_w.dumps(_without_null(plain({**top, **sections})))


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted key and both values of each difference that can change a result."""
    left, right = _flat(mine), _flat(theirs)
    for key in [*left, *(key for key in right if key not in left)]:
        if key not in NEUTRAL and left.get(key) != right.get(key):
            yield key, left.get(key), right.get(key)


def _section(problems: list[str], section: str, values: Mapping[str, Any], tree: Mapping[str, Any]) -> Tree:
    accepted: dict[str, Setting] = catalog.common(section)
    options: dict[str, Setting] | None = {}
    result: Tree = {}
    choice = ""
    if section in catalog.SELECTORS:
        selector, choice = catalog.SELECTORS[section], catalog.chosen(tree, section)
        try:
            check(f"{section}.{selector}", accepted[selector], values.get(selector, choice))
            catalog.check_name(section, choice)
            options = catalog.own(section, choice)
        except ConfigError as error:  # the options of an unknown choice cannot be checked
            problems.append(str(error))
            return result
        accepted = accepted | (options or {})
        if section == "algorithm":
            result["name"] = choice
    elif section in catalog.STAGES and values and (useless := _useless(section, values, tree)):
        problems.append(useless)
        return result
    if options is None:  # a part of the user's own, which checks its options itself
        result |= {key: plain(value) for key, value in values.items() if key not in accepted}
        values = {key: value for key, value in values.items() if key in accepted}
    result |= _values(problems, section, values, accepted, choice)
    if section == "model":  # the method's defaults take precedence over the model's; they are filled in later
        return result
    missing = {key: setting.default for key, setting in (options or {}).items() if key not in values}
    kept = {key: value for key, value in missing.items() if value is not MISSING}
    return result | {
        key: tuple(plain(value)) if isinstance(value, tuple) else plain(value) for key, value in kept.items()
    }


def _values(
    problems: list[str], section: str, values: Mapping[str, Any], accepted: Mapping[str, Setting], choice: str = ""
) -> Tree:
    result: Tree = {}
    for key, value in values.items():
        if key in accepted:
            _take(problems, result, key, f"{section}.{key}", accepted[key], value)
        else:
            problems.append(unknown(key, section, list(accepted), choice))
    return result


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        rest = len(problems) - 1
        more = f" (and {rest} more problem{'s' if rest > 1 else ''})" if rest else ""
        raise ConfigError(problems[0] + more)


def _take(problems: list[str], result: Tree, key: str, dotted: str, setting: Setting, value: Any) -> None:
    try:
        result[key] = check(dotted, setting, value)
    except ConfigError as error:
        problems.append(str(error))


def _useless(stage: str, values: Mapping[str, Any], tree: Mapping[str, Any]) -> str:
    """The sentence for settings of a stage that the method does not have, or an empty string."""
    method = catalog.chosen(tree, "algorithm")
    try:
        if stage in catalog.stages(method):
            return ""
    except ConfigError:
        return ""  # the unknown method is a problem of its own
    return (
        f"{stage}.{next(iter(values))} has no effect, since method {method!r} has no {stage} stage; "
        "remove it or choose a method that has one"
    )


def _check_together(tree: Tree) -> None:
    """Checks that involve several keys."""
    from headwater.core.sectors import MOST_COUNTED
    from headwater.core.sectors import check as check_assign

    catalog.check_engine(tree["engine"].get("name", catalog.AUTO))
    data: Tree = _filled("data", tree)
    catalog.check_data("data.name", data["name"])
    catalog.check_data("data.reference", data["reference"], REFERENCES)
    kept = ("size", "noise", "classes", "fraction", "labelled")
    Reference(source=data["reference"], **{key: data[f"reference_{key}"] for key in kept})
    for key in ("label", "client", "sector"):
        if data[key] != catalog.common("data")[key].default and key not in columns(data["name"]):
            raise ConfigError(f"data.{key} names a column of a table, but {data['name']!r} is not a table; remove it")
    split = _filled("partition", tree)
    scheme = catalog.own("partition", split["scheme"]) or {}
    built = build("partition", PARTITIONS.load(split["scheme"]), {key: split[key] for key in scheme if key in split})
    if split["assign"] == "balanced" and built.by_sector:
        raise ConfigError(
            f"partition.assign = 'balanced' looks at what clients hold, but {split['scheme']!r} decides that by their "
            "sectors; use 'random', 'blocks' or a list"
        )
    if split["clients"] > (most := MOST_DRAWN if built.SHARED else MOST_LISTED):
        raise ConfigError(
            f"partition.clients must be at most {most:,} with scheme {split['scheme']!r}, got {split['clients']:,}"
            + ("" if built.SHARED else "; 'drawn' allows more")
        )
    check_secure(tree)
    check_assign(split["assign"], split["clients"], split["sectors"])
    if split["assign"] == "balanced" and built.SHARED and split["clients"] > MOST_COUNTED:
        raise ConfigError(
            f"partition.assign = 'balanced' counts what every client holds, which takes too long for "
            f"{split['clients']} drawn clients (at most {MOST_COUNTED}); use 'random', 'blocks' or a list"
        )
    for stage, kind in catalog.STAGES.items():
        if tree[stage]:  # keys that are filled in later get a value, so that they are no reason to refuse the others
            length = {} if any(tree[stage].get(key) is not None for key in ("epochs", "steps")) else {"epochs": 1}
            build(stage, kind, {"optimizer": "sgd", **tree[stage], **length})


def _filled(section: str, tree: Tree) -> Tree:
    return {key: setting.default for key, setting in catalog.common(section).items()} | dict(tree[section])


def _drop_foreign(tree: Tree, section: str, choice: str) -> None:
    try:
        options = catalog.own(section, choice)
        used = catalog.stages(choice) if section == "algorithm" else tuple(catalog.STAGES)
    except ConfigError:
        return  # the check that follows refuses the name
    keep = catalog.common(section) | (options or {})
    if isinstance(tree.get(section), dict):
        tree[section] = {key: value for key, value in tree[section].items() if key in keep}
    for stage in set(catalog.STAGES) - set(used):
        tree.pop(stage, None)


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in plain(tree).items():
        values |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return values


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items()}
    return NONE if value is None else value
