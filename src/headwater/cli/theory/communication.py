"""`headwater theory communication`: what each method sends, by closed form."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import DataDir
from headwater.cli.terminal import console, table
from headwater.cli.theory.topic import Facts, Options, counts, listed, topic, whole
from headwater.errors import ConfigError
from headwater.report.numbers import count, size

if TYPE_CHECKING:
    from headwater.theory.traffic import Active, Payload

PARAMETERS, CLASSES, FEATURES = 1_000_000, 10, 64
Methods = Annotated[list[str] | None, typer.Argument(metavar="[METHOD …]", show_default=False)]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="A listed model, whose size is then used.")]
Set = Annotated[str | None, typer.Option("--data", metavar="NAME", help="The data that --model is for; digits if not.")]
# Headings are keys of columns, so a second "down" and "bytes" have a space more.
HEADINGS = ["method", "long up", "down", "trips", "bytes", "inside up", "down ", "bytes ", "before"]
# Methods whose long link is compared in any case, with the number of round trips.
COMPARED = {"fedhead": ("FedHEAD", "2M·T"), "hfedavg": ("hierarchical FedAvg", "M·T"), "feddf": ("FedDF", "N·T")}
DATA = ("centralized", "fedhead", "fedhead+", "fedmd")  # which also send data sets before the first round


def _show(facts: Facts) -> None:
    rows = []
    for row in facts["methods"]:
        long, inside = row["server_sector"], row["sector_client"]
        cells = [row["method"], count(long["up_models"]), count(long["down_models"]), count(long["round_trips"])]
        cells += [size(long["up_bytes"] + long["down_bytes"]), count(inside["up_models"])]
        cells += [count(inside["down_models"]), size(inside["up_bytes"] + inside["down_bytes"])]
        rows.append([*cells, count(row["setup"]["server_sector"]["down_models"])])
    what = facts["model"]
    named = f"{what['name']}, " if what["name"] else ""
    people = f"{facts['clients']} clients in {facts['sectors']} sectors, {facts['rounds']} rounds"
    title = f"{people}, a model of {named}{size(what['bytes'])}"
    console().print(table(HEADINGS, rows, title=title, right=HEADINGS[1:]))
    legend = (
        "Models on the long link and inside sectors; round trips of the long link; models sent down before round 1."
    )
    console().print(legend)
    verdict = "sends fewer models over the long link than" if facts["fedhead_beats_feddf"] else "sends no fewer than"
    sign = "<" if facts["fedhead_beats_feddf"] else "≥"
    console().print(f"FedHEAD {verdict} FedDF: 2M = {2 * facts['sectors']} {sign} N = {facts['clients']}")
    totals = [
        f"{label} {forms} = {count(long['round_trips'])} round trips, {size(long['up_bytes'] + long['down_bytes'])}"
        for (label, forms), long in zip(COMPARED.values(), facts["long_link"].values(), strict=True)
    ]
    console().print(f"Over the long link in all rounds: {'; '.join(totals)}")
    if also := [row["method"] for row in facts["methods"] if row["method"] in DATA]:
        console().print(f"Data sets that go out before round 1 ({', '.join(also)}) are counted by `headwater plan`.")


@topic(
    _show,
    methods=(Methods, None),
    clients=whole("--clients --N", 20, "N: clients that take part in a round."),
    sectors=whole("--sectors --M", 2, "M: sectors that they are in, as equal as can be."),
    teams=listed("--teams", None, "Clients of each sector, in place of --clients and --sectors."),
    rounds=whole("--rounds --T", 50, "T: rounds."),
    sector_rounds=whole("--sector-rounds", 2, "E: sector rounds, for the methods that average at sectors."),
    parameters=whole("--parameters", None, f"Numbers in a model, four bytes each; {PARAMETERS} unless given."),
    bytes=whole("--bytes", None, "Bytes of a model as it travels, in place of --parameters."),
    model=(Model, None),
    data=(Set, None),
    classes=whole("--classes", None, f"Classes, where class means travel; {CLASSES} unless given."),
    features=whole("--features", None, f"Numbers of a representation; {FEATURES} unless given."),
    align=whole("--align", 1000, "Public rows that clients predict in a round (fedmd)."),
    generator=whole("--generator", 100_000, "Numbers in a generator of features (fedgen)."),
    data_dir=(DataDir, None),
)
def communication(o: Options) -> Facts:
    """Models and bytes on each link, by method.

    All listed methods unless some are named. Everybody is taken to share every class. `headwater plan` says the same of
    a configured run, with the clients that will really take part and what goes out before the first round.
    """
    from headwater.theory.communication import FORMULAS, formula, run_traffic, setup_traffic

    who, (sizes, shown) = _active(o), _payload(o)
    options = {"sector_rounds": o.sector_rounds}
    rows = []
    for name in o.methods or FORMULAS:
        moved = run_traffic(name, [who] * o.rounds, sizes, options)
        setup = setup_traffic(name, who, sizes, options)
        row = {"method": name, "models_a_round": formula(name).models}
        rows.append(row | asdict(moved) | {"setup": asdict(setup)})
    compared = {name: run_traffic(name, [who] * o.rounds, sizes, options).server_sector for name in COMPARED}
    n, m = who.clients, who.sectors
    return {
        "clients": n,
        "sectors": m,
        "rounds": o.rounds,
        "sector_rounds": o.sector_rounds,
        "model": shown,
        "methods": rows,
        "fedhead_beats_feddf": 2 * m < n,
        "long_link": {name: asdict(link) for name, link in compared.items()},
    }


def _active(o: Options) -> Active:
    from headwater.theory.traffic import Active

    if o.teams is not None:
        return Active(tuple(counts(o.teams, "--teams")))
    if o.sectors > o.clients:
        raise ConfigError(
            f"--sectors is {o.sectors}, more than the {o.clients} clients; a sector has one client or more"
        )
    return Active(tuple(o.clients // o.sectors + (number < o.clients % o.sectors) for number in range(o.sectors)))


def _payload(o: Options) -> tuple[Payload, Facts]:
    """Sizes of what travels: as given, or measured on a model that is built for some data."""
    from headwater.theory.traffic import Payload, model_bytes

    named = (("--parameters", o.parameters), ("--bytes", o.bytes), ("--model", o.model))
    given = [name for name, value in named if value]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} were both given; each says how large a model is, so give one")
    shown: Facts = {"name": None}
    classes, features = o.classes, o.features
    if o.model is not None or o.data is not None:
        shown, known_classes, width = _built(o.model or "auto", o.data or "digits", o.data_dir)
        classes, features = classes or known_classes, features or width
    else:
        shown["bytes"] = o.bytes if o.bytes is not None else model_bytes(o.parameters or PARAMETERS)
    classes, features = classes or CLASSES, features or FEATURES
    shown |= {"classes": classes, "features": features, "align": o.align}
    more = {"features": 4 * features, "align": o.align, "generator": 4 * o.generator}
    return Payload(shown["bytes"], classes=classes, **more), shown


def _built(model: str, data: str, data_dir: Any) -> tuple[Facts, int, int | None]:
    """The one place where torch is needed: a model is built to be measured."""
    from headwater.data.loading import load
    from headwater.models.base import ModelSpec
    from headwater.models.parts import width_of
    from headwater.planning.resources import model_size

    loaded = load(data, data_dir)
    spec = ModelSpec(model, loaded.shape, loaded.classes)
    size = model_size(spec, spec.name)
    shown = {"name": spec.name, "data": data, "parameters": size.numbers, "bytes": size.bytes}
    return shown, loaded.classes, width_of(spec)
