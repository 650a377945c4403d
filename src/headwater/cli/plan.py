"""`headwater plan`: what a run will send, compute and need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headwater.cli.options import Options, Source, takes
from headwater.cli.run import TIERS
from headwater.cli.terminal import as_json, console, pairs, reading, status

if TYPE_CHECKING:
    from headwater.planning import Plan, Steps

WAYS = {
    "hand": "up to {} together, with gradients written out for such a model",
    "vmap": "up to {} together, by torch's vmap",
    "loop": "one by one",
}
PHASES = ("train", "distill", "evaluate")
NBSP = "\u00a0"
DIRECTIONS = ("up", "down")
UNFORESEEN = "not known: what this method does depends on what training brings"
TASKS = {("local_train", "clients"): "local steps", ("local_train", "server"): "steps at the server"}


@takes("sets seed rounds engine workers data_dir quiet json")
def plan(options: Options, source: Source = None) -> None:
    """Show what a run will send, compute and need.

    Bytes by link and round, gradient steps, memory and time, before anything is trained: nothing is written.
    """
    config = options.config(source)
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.planning.memory import resident
        from headwater.training.experiment import prepare

        startup, bare = time.process_time(), resident()  # until here libraries were loaded, as in every worker
        experiment = prepare(config)
    with status("measuring …", options.quiet):
        from headwater.planning import plan as plan_run

        planned = plan_run(experiment, startup=startup, bare=bare)
    if options.json:
        as_json(planned.to_dict())
    else:
        console().print(pairs(_lines(planned), f"{planned.method} on {planned.data}, planned"))


def _lines(planned: Plan) -> Iterator[tuple[str, str]]:
    from headwater.report.numbers import count, duration, size

    yield "clients", _clients(planned)
    engine = planned.engine
    workers = f", {engine['workers']} workers" if engine["workers"] > 1 else ""
    threads = f", {engine['threads']} threads each" if engine["threads"] > 1 else ""
    if engine["server_threads"] > engine["threads"]:
        threads += f", {engine['server_threads']} threads for a student at the server"
    yield "engine", f"{engine['name']}{workers}{threads}: {engine['why']}"
    how = WAYS[planned.stacking["way"]].format(planned.stacking["width"])
    yield "training", f"clients are trained {how}: {planned.stacking['why']}"
    for number, model in enumerate(planned.models):
        text = f"{model.name}: {count(model.numbers)} numbers trained, {size(model.bytes)} as it travels"
        whose = f"; for {count(model.clients)} clients" if len(planned.models) > 1 and model.clients else ""
        yield "models" if number == 0 and len(planned.models) > 1 else "model" if number == 0 else "", text + whose
    yield from _traffic(planned)
    if planned.steps is None:
        yield "steps", UNFORESEEN
    for each in planned.steps or ():
        yield TASKS.get((each.task, each.at), f"{each.task} steps"), _steps(each)
    yield "memory", f"about {size(planned.memory['total'])}"
    yield "", _parts(planned.memory)
    if planned.seconds:
        early = "at most " if any(each.stops for each in planned.steps or ()) else ""
        load = f"with a load of {planned.measured['load']:.1f} on {planned.measured['cores']} cores, as now"
        yield "time", f"{early}about {duration(planned.seconds['total'])} {load}"
        yield from (("", line) for line in _times(planned))
    for sentence in planned.cautions:
        yield "caution", sentence


def _clients(planned: Plan) -> str:
    from headwater.report.numbers import count

    who = planned.clients
    all_hold, all_come = who["holding"] == who["registered"], who["taking_part"] == who["holding"]
    here = count(who["holding"]) if all_hold else f"{count(who['holding'])} of {count(who['registered'])} hold data"
    sectors = f"in {who['sectors']} sector{'s' * (who['sectors'] > 1)}"
    part = f"{'all' if all_come else count(who['taking_part'])} of them take part"
    rounds = f"in each of {count(planned.rounds)} rounds" if planned.rounds > 1 else "in the one round"
    return f"{here}, {sectors}; {part} {rounds}"


def _traffic(planned: Plan) -> Iterator[tuple[str, str]]:
    from headwater.report.numbers import count, size

    traffic = planned.traffic
    if traffic is None:
        unsized = (
            f"not known: the size of what {', '.join(planned.unknown)} returns; declare it with @task(…, returns=…)"
        )
        yield "bytes", unsized if planned.unknown else UNFORESEEN
        return
    about = "" if traffic.exact else "about "
    per_round = traffic.per_round()
    for tier, words in TIERS.items():
        link = traffic.total[tier]
        each = ", ".join(f"{_range(per_round[tier][way], size)} {way}" for way in DIRECTIONS)
        whole = (
            f"{size(link['up_bytes'])} up, {size(link['down_bytes'])} down, {count(link['round_trips'])} round trips"
        )
        yield words, f"{about}{each} a round; in all {whole}"
    setup = {
        words: ", ".join(f"{size(moved)} {way}" for way in DIRECTIONS if (moved := traffic.setup[tier][f"{way}_bytes"]))
        for tier, words in TIERS.items()
    }
    if any(setup.values()):
        yield "before round 1", about + "; ".join(f"{words} {text}" for words, text in setup.items() if text)


def _range(ends: Sequence[int], show: Callable[[float], str]) -> str:
    least, most = ends
    return show(most) if least == most else f"{show(least)} to {show(most)}"


def _steps(each: Steps) -> str:
    from headwater.report.numbers import count

    about = ("" if each.exact else "about ") + ("at most " if each.stops else "")
    where = "" if (each.task, each.at) in TASKS else f" at {'the ' * (each.at == 'server')}{each.at}"
    before = f" ({count(each.before)} before round 1)" if each.before else ""
    text = f"{about}{_range((each.least, each.most), count)} a round{where}, {count(each.total)} in all{before}"
    if each.teachers:
        text += f"; up to {count(each.teachers)} teachers, who answer for {count(each.asked)} samples in all"
    return text


def _parts(parts: Mapping[str, int]) -> str:
    from headwater.report.numbers import size

    return ", ".join(f"{name} {size(held)}" for name, held in parts.items() if name != "total")


def _times(planned: Plan) -> Iterator[str]:
    from headwater.report.numbers import duration

    parts = [f"{phase} {duration(planned.seconds[phase])}" for phase in PHASES if planned.seconds[phase]]
    shared = f" for {planned.engine['workers']} workers" if planned.engine["workers"] > 1 else ""
    start = f", and {duration(planned.seconds['startup'])} to start them" if planned.seconds["startup"] else ""
    if parts:
        yield f"{', '.join(parts)} of work{shared}{start}"
    steps = [
        f"a step of {name} with {planned.measured['batch'][name]} samples takes {1000 * seconds:.2g}{NBSP}ms"
        for name, seconds in planned.measured["step"].items()
    ]
    if steps:
        yield f"measured just now: {'; '.join(steps)}"
    if planned.uncounted:
        yield f"not counted: {', '.join(planned.uncounted)}"
