"""Before a run: `headwater plan`, what it will send, compute and need; `headwater partition`, its split."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.cli.directories import check_path, directory_for, plain_name
from headwater.cli.options import Options, Source, takes
from headwater.cli.run import TIERS
from headwater.cli.terminal import as_json, console, pairs, print_lines, reading, status, table
from headwater.core.records import parse_json, to_json
from headwater.errors import OutputError
from headwater.report.numbers import count, duration, size
from headwater.training.run_numbers import RUNS

if TYPE_CHECKING:
    from headwater.partition.partition import Partition
    from headwater.partition.summary import LabelDistance, PartitionSummary
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
FILE, PICTURE, MANIFEST = "plan.json", "partition.png", "partition.json"
DISTANCES = {"total_variation": "total variation", "jensen_shannon": "Jensen–Shannon"}
SPLIT_TIERS = ("clients", "sectors")
TASKS = {("local_train", "clients"): "local steps", ("local_train", "server"): "steps at the server"}


@takes("sets seed rounds out engine workers device data_dir quiet json")
def plan(options: Options, source: Source = None) -> None:
    """Show what a run will send, compute and need.

    Bytes by link and round, gradient steps, memory and time, before anything is trained. With --out they are written to
    plan.json there; otherwise nothing is written.

    Example: `headwater plan fedhead --set data.name=cifar10 --set model.name=resnet8 --rounds 50`
    """
    config = options.config(source)
    if options.out is not None:
        check_path(options.out)
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.planning.resources import resident
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
    if options.out is not None:
        from headwater.training.checkpoint import write_whole

        options.out.mkdir(parents=True, exist_ok=True)
        write_whole(options.out / FILE, to_json(planned.to_dict(), indent=1))
        if not options.json:
            print_lines(f"plan: {options.out / FILE}")


def _lines(planned: Plan) -> Iterator[tuple[str, str]]:
    yield "clients", _clients(planned)
    engine = planned.engine
    workers = f", {engine['workers']} workers" if engine["workers"] > 1 else ""
    threads = f", {engine['threads']} threads each" if engine["threads"] > 1 else ""
    if engine["server_threads"] > engine["threads"]:
        threads += f", {engine['server_threads']} threads for a student at the server"
    yield "engine", f"{engine['name']}{workers}{threads}: {engine['why']}"
    yield from _device(planned)
    how = WAYS[planned.stacking["way"]].format(planned.stacking["width"])
    yield "training", f"clients are trained {how}: {planned.stacking['why']}"
    for number, model in enumerate(planned.models):
        text = f"{model.name}: {count(model.numbers)} numbers trained, {size(model.bytes)} as it travels"
        text += f", {size(model.frozen)} frozen" if model.frozen else ""
        whose = f"; for {count(model.clients)} clients" if len(planned.models) > 1 and model.clients else ""
        yield "models" if number == 0 and len(planned.models) > 1 else "model" if number == 0 else "", text + whose
    yield from _traffic(planned)
    if planned.steps is None:
        yield "steps", UNFORESEEN
    for each in planned.steps or ():
        yield TASKS.get((each.task, each.at), f"{each.task} steps"), _steps(each)
    if planned.transfer:
        spent = planned.transfer
        whole = f"; {duration(spent['total'])} in all" if planned.rounds > 1 else ""
        yield "simulated sending", f"{duration(spent['a_round'])} a round over the links of [links]{whole}"
    if planned.privacy:
        yield "privacy", planned.privacy["sentence"]
    yield "memory", f"about {size(planned.memory['total'])}"
    yield "", _parts(planned.memory)
    if planned.seconds:
        early = "at most " if any(each.stops for each in planned.steps or ()) else ""
        load = f"with a load of {planned.measured['load']:.1f} on {planned.measured['cores']} cores, as now"
        now, idle = duration(planned.seconds["total"]), duration(planned.seconds["idle"])
        yield "time", f"{early}about {now} {load}" + (f"; {idle} on an idle machine" if idle != now else "")
        yield from (("", line) for line in _times(planned))
    elif planned.device["name"] != "cpu":
        yield "time", "not known: it depends on the device, and nothing is computed there for a plan"
    for sentence in planned.cautions:
        yield "caution", sentence


def _device(planned: Plan) -> Iterator[tuple[str, str]]:
    device = planned.device
    precise = f", forward passes in {device['precision']}" if device["precision"] != "float32" else ""
    if device["name"] == "cpu":
        yield from (("device", f"cpu{precise}") for _ in [0] if precise)
        return
    missing = "" if device["present"] else ", which this machine has not; bytes and steps are exact all the same"
    yield "device", f"{device['name']}{precise}{missing}"
    memory = device["memory"]
    yield "", f"about {size(memory['total'])} there for each process ({_parts(memory)}); fewer rows if they do not fit"


def _clients(planned: Plan) -> str:
    who = planned.clients
    all_hold, all_come = who["holding"] == who["registered"], who["taking_part"] == who["holding"]
    here = count(who["holding"]) if all_hold else f"{count(who['holding'])} of {count(who['registered'])} hold data"
    sectors = f"in {who['sectors']} sector{'s' * (who['sectors'] > 1)}"
    part = f"{'all' if all_come else count(who['taking_part'])} of them take part"
    rounds = f"in each of {count(planned.rounds)} rounds" if planned.rounds > 1 else "in the one round"
    return f"{here}, {sectors}; {part} {rounds}"


def _traffic(planned: Plan) -> Iterator[tuple[str, str]]:
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
    about = ("" if each.exact else "about ") + ("at most " if each.stops else "")
    where = "" if (each.task, each.at) in TASKS else f" at {'the ' * (each.at == 'server')}{each.at}"
    before = f" ({count(each.before)} before round 1)" if each.before else ""
    text = f"{about}{_range((each.least, each.most), count)} a round{where}, {count(each.total)} in all{before}"
    if each.teachers:
        text += f"; up to {count(each.teachers)} teachers, who answer for {count(each.asked)} samples in all"
    return text


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size(bytes_held)}" for name, bytes_held in parts.items() if name != "total")


def _times(planned: Plan) -> Iterator[str]:
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


@takes("sets seed rounds out engine workers data_dir quiet json force")
def partition(options: Options, source: Source = None) -> None:
    """Show a split before using it.

    Who would hold what: counts, label distances from the whole, a figure and the manifest with its hash. Without
    --out they go to runs/partition-DATA-001, another split to -002 and so on.

    Example: `headwater partition --set data.name=fashion_mnist --set partition.scheme=shards`

    Keys that are often set: data.name, partition.scheme, partition.alpha, partition.clients, partition.sectors,
    partition.assign.
    """
    config = options.config(source)
    check_path(options.out or RUNS)
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.partition.summary import summarise
        from headwater.report import figures
        from headwater.training.checkpoint import write_whole
        from headwater.training.experiment import prepare

        experiment = prepare(config)
    labels, classes = experiment.split.train.y.numpy(), experiment.split.classes
    summary = summarise(experiment.partition, labels, classes)
    manifest = experiment.manifest()
    stem = RUNS / f"partition-{plain_name(config.data.name)}"
    out = options.out or directory_for(stem, {MANIFEST: experiment.partition.sha256})
    _check_free(out / MANIFEST, experiment.partition.sha256, options.force)
    out.mkdir(parents=True, exist_ok=True)
    with status("drawing the split …", options.quiet):
        figures.partition(experiment.partition, labels, classes, out / PICTURE, experiment.class_names)
    write_whole(out / MANIFEST, json_text.dumps(manifest))
    if options.json:
        as_json(_split_facts(summary, manifest, out))
        return
    shown = console()
    if counted := manifest.get("counted"):
        shown.print(f"the first {counted['first']} of {counted['of']} clients, which draw from one pool:")
    for tier in SPLIT_TIERS:
        shown.print(_split_table(tier, getattr(summary, tier), experiment.partition))
    for distance, words in DISTANCES.items():
        by_tier = ", ".join(f"{tier} {summary.mean(tier, distance):.3f}" for tier in SPLIT_TIERS)
        shown.print(f"mean label distance from the whole ({words}, by size): {by_tier}")
    print_lines(f"sha256 {experiment.partition.sha256}", f"figure: {out / PICTURE}", f"manifest: {out / MANIFEST}")


def _check_free(file: Path, sha256: str, force: bool) -> None:
    """Refuse to replace another split, which may be that of a run, unless forced."""
    try:
        stored = parse_json(file.read_text(encoding="utf-8"))["sha256"] if file.exists() else sha256
    except (ValueError, KeyError, TypeError):
        stored = None
    if stored != sha256 and not force:
        raise OutputError(f"{file} holds another split; choose another --out, or replace it with --force")


def _split_table(tier: str, rows: Sequence[LabelDistance], partition: Partition) -> Any:
    """One row per client or sector: its number and, if the data has one, its name."""
    names = partition.client_names if tier == "clients" else partition.sector_names
    numbers = ("number", *(("sector",) if tier == "clients" else ()), "samples", "classes", *DISTANCES.values())
    lines = []
    for row in rows:
        sector = [partition.sector_name(row.sector)] if tier == "clients" else []
        far = ["–" if (value := getattr(row, key)) is None else f"{value:.3f}" for key in DISTANCES]
        line = [str(row.number), *sector, str(row.size), str(row.classes), *far]
        lines.append([names[row.number], *line] if names else line)
    return table([*(("name",) if names else ()), *numbers], lines, title=tier, right=numbers)


def _split_facts(summary: PartitionSummary, manifest: dict[str, Any], out: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from headwater.partition.partition import NAMES

    return {
        "sha256": manifest["sha256"],
        **({"counted": manifest["counted"]} if "counted" in manifest else {}),
        **{key: manifest[key] for key in NAMES if key in manifest},
        **{tier: [asdict(row) for row in getattr(summary, tier)] for tier in SPLIT_TIERS},
        **{f"mean_{distance}": {tier: summary.mean(tier, distance) for tier in SPLIT_TIERS} for distance in DISTANCES},
        "counts": summary.counts.tolist(),
        "figure": str(out / PICTURE),
        "manifest": str(out / MANIFEST),
    }
