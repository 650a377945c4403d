"""`headwater plan`: a run before it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.cli.options import DataDir, Engine, Json, Quiet, Rounds, Seed, Sets, Source, Workers, configure
from headwater.cli.run import TIERS
from headwater.cli.show import as_json, pairs
from headwater.cli.show import out as console

if TYPE_CHECKING:
    from headwater.planning import Plan, Steps

WAYS = {
    "hand": "up to {} together, with gradients written out for such a model",
    "vmap": "up to {} together, by torch's vmap",
    "loop": "one by one",
}
PHASES = ("train", "distill", "evaluate")
NBSP = "\u00a0"
TASKS = {("local_train", "clients"): "local steps", ("local_train", "server"): "steps at the server"}


def plan(
    source: Source = None,
    sets: Sets = None,
    seed: Seed = None,
    rounds: Rounds = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Show what a run will send, compute and need.

    Bytes by link and round, gradient steps, memory and time, before anything is trained: nothing is written.
    """
    from headwater.cli.progress import status

    config = configure(source, sets, seed=seed, rounds=rounds, engine=engine, workers=workers, data_dir=data_dir)
    with status(f"reading {config.data.name} …", quiet):
        from headwater.planning.memory import resident
        from headwater.training.experiment import prepare

        startup, bare = time.process_time(), resident()  # so far all was loading, as a worker has to
        experiment = prepare(config)
    with status("measuring …", quiet):
        from headwater.planning import plan as planned

        found = planned(experiment, startup=startup, bare=bare)
    if json:
        as_json(found.to_dict())
    else:
        console().print(pairs(_lines(found), f"{found.method} on {found.data}, planned"))


def _lines(found: Plan) -> Iterator[tuple[str, str]]:
    from headwater.report.numbers import count, duration, size

    yield "clients", _clients(found)
    engine = found.engine
    hands = f", {engine['workers']} workers" if engine["workers"] > 1 else ""
    threads = f", {engine['threads']} threads each" if engine["threads"] > 1 else ""
    if engine["server_threads"] > engine["threads"]:
        threads += f", {engine['server_threads']} threads for a student at the server"
    yield "engine", f"{engine['name']}{hands}{threads}: {engine['why']}"
    how = WAYS[found.stacking["way"]].format(found.stacking["width"])
    yield "training", f"clients are trained {how}: {found.stacking['why']}"
    for number, model in enumerate(found.models):
        told = f"{model.name}: {count(model.numbers)} numbers trained, {size(model.bytes)} as it travels"
        whose = f"; for {count(model.clients)} clients" if len(found.models) > 1 and model.clients else ""
        yield "models" if number == 0 and len(found.models) > 1 else "model" if number == 0 else "", told + whose
    yield from _traffic(found)
    if found.steps is None:
        yield "steps", "not known: what this method does depends on what training brings"
    for each in found.steps or ():
        yield TASKS.get((each.task, each.at), f"{each.task} steps"), _steps(each)
    yield "memory", f"about {size(found.memory['total'])}"
    yield "", _parts(found.memory)
    if found.seconds:
        early = "at most " if any(each.stops for each in found.steps or ()) else ""
        load = f"with a load of {found.measured['load']:.1f} on {found.measured['cores']} cores, as now"
        yield "time", f"{early}about {duration(found.seconds['total'])} {load}"
        yield from (("", line) for line in _times(found))
    for sentence in found.cautions:
        yield "caution", sentence


def _clients(found: Plan) -> str:
    from headwater.report.numbers import count

    who = found.clients
    all_hold, all_come = who["holding"] == who["registered"], who["taking_part"] == who["holding"]
    here = count(who["holding"]) if all_hold else f"{count(who['holding'])} of {count(who['registered'])} hold data"
    sectors = f"in {who['sectors']} sector{'s' * (who['sectors'] > 1)}"
    part = f"{'all' if all_come else count(who['taking_part'])} of them take part"
    rounds = f"in each of {count(found.rounds)} rounds" if found.rounds > 1 else "in the one round"
    return f"{here}, {sectors}; {part} {rounds}"


def _traffic(found: Plan) -> Iterator[tuple[str, str]]:
    from headwater.report.numbers import count, size

    if found.moved is None:
        yield "bytes", f"not known: there is no closed form for method {found.method!r}; a run's ledger will tell"
        return
    about = "" if found.moved.exact else "about "
    a_round = found.moved.a_round()
    for tier, words in TIERS.items():
        link = getattr(found.moved.total, tier)
        each = ", ".join(f"{_range(a_round[tier][way], size)} {way}" for way in ("up", "down"))
        whole = f"{size(link.up_bytes)} up, {size(link.down_bytes)} down, {count(link.round_trips)} round trips"
        yield words, f"{about}{each} a round; in all {whole}"
    before = [getattr(found.moved.setup, tier) for tier in TIERS]
    if any(link.bytes for link in before):
        told = [
            f"{words} {', '.join(f'{size(moved)} {way}' for way, moved in _ways(link) if moved)}"
            for words, link in zip(TIERS.values(), before, strict=True)
            if link.bytes
        ]
        yield "before round 1", about + "; ".join(told)


def _ways(link: Any) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("up", link.up_bytes), ("down", link.down_bytes)


def _range(ends: Sequence[int], show: Callable[[float], str]) -> str:
    least, most = ends
    return show(most) if least == most else f"{show(least)} to {show(most)}"


def _steps(each: Steps) -> str:
    from headwater.report.numbers import count

    about = ("" if each.exact else "about ") + ("at most " if each.stops else "")
    where = "" if (each.task, each.at) in TASKS else f" at {'the ' * (each.at == 'server')}{each.at}"
    before = f" ({count(each.before)} before round 1)" if each.before else ""
    told = f"{about}{_range((each.least, each.most), count)} a round{where}, {count(each.total)} in all{before}"
    if each.teachers:
        told += f"; up to {count(each.teachers)} teachers, who answer for {count(each.asked)} samples in all"
    return told


def _parts(parts: Mapping[str, int]) -> str:
    from headwater.report.numbers import size

    return ", ".join(f"{name} {size(held)}" for name, held in parts.items() if name != "total")


def _times(found: Plan) -> Iterator[str]:
    from headwater.report.numbers import duration

    parts = [f"{phase} {duration(found.seconds[phase])}" for phase in PHASES if found.seconds[phase]]
    shared = f" for {found.engine['workers']} workers" if found.engine["workers"] > 1 else ""
    start = f", and {duration(found.seconds['startup'])} to start them" if found.seconds["startup"] else ""
    yield f"{', '.join(parts)} of work{shared}{start}"
    told = [
        f"a step of {name} with {found.measured['batch'][name]} samples takes {1000 * seconds:.2g}{NBSP}ms"
        for name, seconds in found.measured["step"].items()
    ]
    yield f"measured just now: {'; '.join(told)}"
    if found.uncounted:
        yield f"not counted: {', '.join(found.uncounted)}"
