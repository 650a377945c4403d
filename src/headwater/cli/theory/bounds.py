"""`headwater theory bounds`: FedHEAD's bounds for strongly convex losses, and who beats whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import DataDir, Json, Out, Quiet
from headwater.cli.terminal import console, pairs, table
from headwater.cli.theory.inputs import Facts, Options, listed, number, numbers, refusing, short, tell, whole
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.theory.convergence import Problem

EQUATIONS = {"fedavg": "(24)", "fedhead": "(6)", "fedhead+": "(26)", "feddf": "(32)"}
Smoothness = Annotated[float, number("--smoothness", "--L", help="L: how fast a client's gradient can change.")]
Convexity = Annotated[float, number("--convexity", "--mu", help="μ: strong convexity; with an ℓ2 term, its weight.")]
Variance = Annotated[float, number("--variance", "--sigma2", help="σ²: variance of a stochastic gradient.")]
Gradient = Annotated[float, number("--gradient", "--G2", help="G²: largest mean square of a stochastic gradient.")]
ClientGap = Annotated[
    float,
    number("--client-gap", "--gamma-client", help="Γ_client: best loss for all less the mean of clients' own best."),
]
SectorGap = Annotated[
    float, number("--sector-gap", "--gamma-sec", help="Γ_sec: the same for sectors, never above Γ_client.")
]
ReferenceGap = Annotated[
    float,
    number("--reference-gap", "--gamma-ref", help="Γ_ref: what the optimum loses on the reference set to its best."),
]
Delta = Annotated[
    float | None,
    number(
        "--delta",
        help="δ, 0 to 1: by how much distillation gradients are smaller than those of labels; 0.5 unless given, and "
        "with --run the cautious 0.",
    ),
]
Epsilon = Annotated[float, number("--epsilon", help="ε: what a teacher's errors add to Γ_sec and Γ_ref.")]
Distance = Annotated[float, number("--distance", help="Δ₁: squared distance of the start from the optimum.")]
Clients = Annotated[int, whole("--clients", help="Clients, of equal share p_k.")]
Shares = Annotated[str | None, listed("--shares", help="The clients' shares p_k, in place of --clients.")]
Sectors = Annotated[int, whole("--sectors", help="Sectors, of equal share p_m.")]
SectorShares = Annotated[str | None, listed("--sector-shares", help="The sectors' shares p_m, in place of --sectors.")]
Rounds = Annotated[int, whole("--rounds", help="t: rounds to look at.")]
Local = Annotated[int, whole("--local", help="n_l: local SGD steps of a round.")]
Sector = Annotated[int, whole("--sector", help="n_s: steps of distilling at a sector, at most.")]
SectorMean = Annotated[float | None, number("--sector-mean", help="n̄_s: its steps on average; n_s unless given.")]
ServerMean = Annotated[float, number("--server-mean", help="n̄_g: steps of distilling at the server, on average.")]
Target = Annotated[float | None, number("--target", help="A loss above the optimum: when does each bound reach it?")]
Run = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="A finished run of model 'linear' with local.weight_decay: all constants but δ and ε are measured on it, "
        "and its curve is drawn under the bound.",
    ),
]


def bounds(
    smoothness: Smoothness = 4.0,
    convexity: Convexity = 0.5,
    variance: Variance = 1.0,
    gradient: Gradient = 1.0,
    client_gap: ClientGap = 0.5,
    sector_gap: SectorGap = 0.1,
    reference_gap: ReferenceGap = 0.5,
    delta: Delta = None,
    epsilon: Epsilon = 0.1,
    distance: Distance = 10.0,
    clients: Clients = 20,
    shares: Shares = None,
    sectors: Sectors = 2,
    sector_shares: SectorShares = None,
    rounds: Rounds = 100,
    local: Local = 5,
    sector: Sector = 5,
    sector_mean: SectorMean = None,
    server_mean: ServerMean = 5.0,
    target: Target = None,
    run: Run = None,
    out: Out = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """FedHEAD's bounds (6), (24), (26) and (32), and which method's is lower.

    They bound the expected loss above the optimum after t rounds of SGD with steps 2/(μ(τ + γ − 1)) on a smooth and
    strongly convex loss. With --run, constants are those of a run; --delta, --epsilon and, for an unlabelled reference
    set, --reference-gap are still as given.
    """
    if run is None:
        tell(locals(), facts, show)
        return
    arguments = dict(locals())
    from headwater.cli.theory import measured

    tell(arguments, measured.facts, measured.show)


def facts(o: Options) -> Facts:
    from headwater.theory.convergence import Problem

    if o.sector_gap > o.client_gap:
        raise ConfigError(
            f"--sector-gap is {o.sector_gap:g} and --client-gap {o.client_gap:g}; a sector serves several clients with "
            "one model, so its gap cannot be the larger one"
        )
    mean = float(o.sector) if o.sector_mean is None else o.sector_mean
    if not 0 <= mean <= o.sector:
        raise ConfigError(f"--sector-mean is {mean:g}, but must be from 0 to the {o.sector} steps of --sector")
    if not o.server_mean >= 0:
        raise ConfigError(f"--server-mean must be 0 or more, got {o.server_mean:g}")
    parts = _shares(o.shares, o.clients, "--shares"), _shares(o.sector_shares, o.sectors, "--sector-shares")
    constants = (o.smoothness, o.convexity, o.variance, o.gradient, *parts, o.client_gap, o.sector_gap, o.reference_gap)
    with refusing():
        p = Problem(*constants, 0.5 if o.delta is None else o.delta, o.epsilon, o.distance)
        return worked_out(p, o.rounds, o.local, o.sector, mean, o.server_mean, o.target)


def _shares(text: str | None, equal: int, option: str) -> tuple[float, ...]:
    if text is None:
        return (1 / equal,) * equal
    found = numbers(text, option)
    if min(found) < 0 or abs(sum(found) - 1) > 1e-6:
        raise ConfigError(f"{option} takes shares of 0 or more that add up to 1, got {text!r}")
    return tuple(found)


def worked_out(
    p: Problem, rounds: int, local: int, sector: int, sector_mean: float, server_mean: float, target: float | None
) -> dict[str, Any]:
    """Error terms, bounds after some rounds, and the comparisons."""
    from headwater.theory import convergence as theory

    b_l, b_s, b_g = theory.local_error(p, local), theory.sector_error(p, sector), theory.server_error(p)
    phases = {
        "fedavg": (float(local), b_l, theory.offset(p, local)),
        "fedhead": (local + sector_mean, b_l + b_s, theory.offset(p, local, sector)),
        "fedhead+": (local + sector_mean + server_mean, b_l + b_s + b_g, theory.offset(p, local, sector)),
        "feddf": (local + server_mean, b_l + b_g, theory.offset(p, local)),
    }
    looked = sorted({t for t in (1, 10, 100, 1000) if t < rounds} | {rounds})
    methods = {}
    for name, (steps, error, offset) in phases.items():
        methods[name] = {
            "equation": EQUATIONS[name],
            "steps": steps,
            "error": error,
            "offset": offset,
            "first_step": theory.step_size(p, 1, offset),
            "bounds": {str(t): theory.bound(p, t, steps, error, offset) for t in looked},
        }
        if target is not None:
            methods[name]["rounds_to_target"] = theory.rounds_to(p, target, steps, error, offset)
    return {
        "condition": p.condition,
        "errors": {"local": b_l, "sector": b_s, "server": b_g},
        "methods": methods,
        "comparisons": [
            _compared("fedhead", "fedavg", "n̄_s", sector_mean, local, b_s, b_l)
            | {"holds": theory.fedhead_beats_fedavg(local, sector_mean, b_l, b_s)}
            | {"can_hold": theory.sector_distillation_can_pay(p, sector)},
            _compared("fedhead+", "feddf", "n̄_s", sector_mean, local + server_mean, b_s, b_l + b_g)
            | {"holds": theory.fedhead_plus_beats_feddf(local, sector_mean, server_mean, b_l, b_s, b_g)}
            | {"can_hold": theory.sector_distillation_can_pay_before_server(p, sector)},
            _compared("feddf", "fedavg", "n̄_g", server_mean, local, b_g, b_l)
            | {"holds": theory.feddf_beats_fedavg(local, server_mean, b_l, b_g)}
            | {"can_hold": theory.server_distillation_can_pay(p, local)},
        ],
    }


def _compared(
    first: str, second: str, length: str, has: float, others: float, error: float, errors: float
) -> dict[str, Any]:
    needs = others * error / errors if errors else None if error else 0.0
    return {"first": first, "second": second, "length": length, "has": has, "needs": needs}


def show(found: Facts) -> None:
    show_bounds(found)
    show_comparisons(found)


def show_bounds(found: Facts) -> None:
    names = {"local": "B_l", "sector": "B_s", "server": "B_g"}
    errors = ", ".join(f"{names[name]} {short(value)}" for name, value in found["errors"].items())
    methods = found["methods"]
    rounds = list(next(iter(methods.values()))["bounds"])
    heads = ["method", "equation", "steps a round", "sum of B", "γ", *(f"t = {t}" for t in rounds)]
    wanted = "rounds_to_target" in next(iter(methods.values()))
    rows = []
    for name, row in methods.items():
        cells = [name, row["equation"], *(short(row[key]) for key in ("steps", "error", "offset"))]
        cells += [short(value) for value in row["bounds"].values()]
        rows.append([*cells, str(row["rounds_to_target"])] if wanted else cells)
    heads += ["rounds to target"] * wanted
    title = f"Loss above the optimum after t rounds, at most (κ = {short(found['condition'])}; {errors})"
    console().print(table(heads, rows, title=title, right=heads[2:]))


def show_comparisons(found: Facts) -> None:
    lines = []
    for row in found["comparisons"]:
        needs = "infinitely many" if row["needs"] is None else short(row["needs"])
        verdict = "yes" if row["holds"] else "no"
        can = "is met" if row["can_hold"] else "is not met"
        text = f"{verdict}: {row['length']} has to be {needs} or more and is {short(row['has'])}"
        lines.append((f"{row['first']} over {row['second']}", f"{text}; the sufficient condition {can}"))
    console().print(pairs(lines, "Whose bound is lower after many rounds"))
