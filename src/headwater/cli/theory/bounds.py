"""`headwater theory bounds`: FedHEAD's bounds for strongly convex losses, and who beats whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import DataDir, Out, Quiet
from headwater.cli.terminal import console, pairs, table
from headwater.cli.theory.topic import Facts, Options, listed, number, numbers, refusing, short, topic, whole
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.theory.convergence import Problem

EQUATIONS = {"fedavg": "(24)", "fedhead": "(6)", "fedhead+": "(26)", "feddf": "(32)"}
Run = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="A finished run of model 'linear' with local.weight_decay: all constants but δ and ε are measured on it, "
        "and its curve is drawn under the bound.",
    ),
]


def _show(facts: Facts) -> None:
    if "method" in facts:  # of a run
        from headwater.cli.theory import measured

        measured.show(facts)
        return
    show_bounds(facts)
    show_comparisons(facts)


@topic(
    _show,
    smoothness=number("--smoothness --L", 4.0, "L: how fast a client's gradient can change."),
    convexity=number("--convexity --mu", 0.5, "μ: strong convexity; with an ℓ2 term, its weight."),
    variance=number("--variance --sigma2", 1.0, "σ²: variance of a stochastic gradient."),
    gradient=number("--gradient --G2", 1.0, "G²: largest mean square of a stochastic gradient."),
    client_gap=number(
        "--client-gap --gamma-client", 0.5, "Γ_client: best loss for all less the mean of clients' own best."
    ),
    sector_gap=number("--sector-gap --gamma-sec", 0.1, "Γ_sec: the same for sectors, never above Γ_client."),
    reference_gap=number(
        "--reference-gap --gamma-ref", 0.5, "Γ_ref: what the optimum loses on the reference set to its best."
    ),
    delta=number(
        "--delta",
        None,
        "δ, 0 to 1: by how much distillation gradients are smaller than those of labels; 0.5 unless given, and "
        "with --run the cautious 0.",
    ),
    epsilon=number("--epsilon", 0.1, "ε: what a teacher's errors add to Γ_sec and Γ_ref."),
    distance=number("--distance", 10.0, "Δ₁: squared distance of the start from the optimum."),
    clients=whole("--clients", 20, "Clients, of equal share p_k."),
    shares=listed("--shares", None, "The clients' shares p_k, in place of --clients."),
    sectors=whole("--sectors", 2, "Sectors, of equal share p_m."),
    sector_shares=listed("--sector-shares", None, "The sectors' shares p_m, in place of --sectors."),
    rounds=whole("--rounds", 100, "t: rounds to look at."),
    local=whole("--local", 5, "n_l: local SGD steps of a round."),
    sector=whole("--sector", 5, "n_s: steps of distilling at a sector, at most."),
    sector_mean=number("--sector-mean", None, "n̄_s: its steps on average; n_s unless given."),
    server=whole("--server", None, "n_g: steps of distilling at the server, at most; n̄_g unless given."),
    server_mean=number("--server-mean", 5.0, "n̄_g: its steps on average."),
    target=number("--target", None, "A loss above the optimum: when does each bound reach it?"),
    run=(Run, None),
    out=(Out, None),
    data_dir=(DataDir, None),
    quiet=(Quiet, False),
)
def bounds(o: Options) -> Facts:
    """FedHEAD's bounds (6), (24), (26) and (32), and which method's is lower.

    They bound the expected loss above the optimum after t rounds of SGD with steps 2/(μ(τ + γ − 1)) on a smooth and
    strongly convex loss. With --run, constants are those of a run; --delta, --epsilon and, for an unlabelled reference
    set, --reference-gap are still as given.
    """
    if o.run is not None:
        from headwater.cli.theory import measured

        return measured.facts(o)
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
    if o.server is not None and o.server_mean > o.server:
        raise ConfigError(f"--server-mean is {o.server_mean:g}, more than the {o.server} steps of --server")
    parts = _shares(o.shares, o.clients, "--shares"), _shares(o.sector_shares, o.sectors, "--sector-shares")
    constants = (o.smoothness, o.convexity, o.variance, o.gradient, *parts, o.client_gap, o.sector_gap, o.reference_gap)
    with refusing():
        p = Problem(*constants, 0.5 if o.delta is None else o.delta, o.epsilon, o.distance)
        return worked_out(p, o.rounds, o.local, o.sector, mean, o.server_mean, o.target, o.server)


def _shares(text: str | None, equal: int, option: str) -> tuple[float, ...]:
    if text is None:
        return (1 / equal,) * equal
    shares = numbers(text, option)
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise ConfigError(f"{option} takes shares of 0 or more that add up to 1, got {text!r}")
    return tuple(shares)


def phases(
    p: Problem, local: int, sector: int, sector_mean: float, server_mean: float, fewest: int | None = None
) -> dict[str, tuple[float, float, float]]:
    """Steps of a round, sum of the error terms and γ, by method.

    Where clients take unequal steps, the most (`local`) count as drift and the `fewest` as progress.
    """
    from headwater.theory import convergence as theory

    b_l, b_s, b_g = theory.local_error(p, local), theory.sector_error(p, sector), theory.server_error(p)
    steps = float(local if fewest is None else fewest)
    flat, led = theory.offset(p, local), theory.offset(p, local, sector)
    return {
        "fedavg": (steps, b_l, flat),
        "fedhead": (steps + sector_mean, b_l + b_s, led),
        "fedhead+": (steps + sector_mean + server_mean, b_l + b_s + b_g, led),
        "feddf": (steps + server_mean, b_l + b_g, flat),
    }


def worked_out(
    p: Problem,
    rounds: int,
    local: int,
    sector: int,
    sector_mean: float,
    server_mean: float,
    target: float | None,
    server: int | None = None,
) -> dict[str, Any]:
    """Error terms, bounds after some rounds, and the comparisons. Without `server`, n_g is n̄_g."""
    from headwater.theory import convergence as theory

    b_l, b_s, b_g = theory.local_error(p, local), theory.sector_error(p, sector), theory.server_error(p)
    most = server_mean if server is None else server
    looked = sorted({t for t in (1, 10, 100, 1000) if t < rounds} | {rounds})
    methods = {}
    for name, (steps, error, offset) in phases(p, local, sector, sector_mean, server_mean).items():
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
            | _sufficient(theory.sector_distillation_can_pay(p, sector), n_s=sector, n_l=local),
            _compared("fedhead+", "feddf", "n̄_s", sector_mean, local + server_mean, b_s, b_l + b_g)
            | {"holds": theory.fedhead_plus_beats_feddf(local, sector_mean, server_mean, b_l, b_s, b_g)}
            | _sufficient(theory.sector_distillation_can_pay_before_server(p, sector), n_s=sector, n_l=local, n_g=most),
            _compared("feddf", "fedavg", "n̄_g", server_mean, local, b_g, b_l)
            | {"holds": theory.feddf_beats_fedavg(local, server_mean, b_l, b_g)}
            | _sufficient(theory.server_distillation_can_pay(p, local), n_l=local, n_g=most),
        ],
    }


def _sufficient(met: bool, **lengths: float) -> dict[str, Any]:
    """Whether a sufficient condition is met; it is proved for phases of equal length only."""
    alike = len(set(lengths.values())) == 1
    return {"can_hold": met and alike, "lengths": lengths, "equal": alike}


def _compared(
    first: str, second: str, length: str, has: float, others: float, error: float, errors: float
) -> dict[str, Any]:
    needs = others * error / errors if errors else None if error else 0.0
    return {"first": first, "second": second, "length": length, "has": has, "needs": needs}


def show_bounds(facts: Facts) -> None:
    names = {"local": "B_l", "sector": "B_s", "server": "B_g"}
    errors = ", ".join(f"{names[name]} {short(value)}" for name, value in facts["errors"].items())
    methods = facts["methods"]
    rounds = list(next(iter(methods.values()))["bounds"])
    heads = ["method", "equation", "steps a round", "sum of B", "γ", *(f"t = {t}" for t in rounds)]
    wanted = "rounds_to_target" in next(iter(methods.values()))
    rows = []
    for name, row in methods.items():
        cells = [name, row["equation"], *(short(row[key]) for key in ("steps", "error", "offset"))]
        cells += [short(value) for value in row["bounds"].values()]
        rows.append([*cells, str(row["rounds_to_target"])] if wanted else cells)
    heads += ["rounds to target"] * wanted
    title = f"Loss above the optimum after t rounds, at most (κ = {short(facts['condition'])}; {errors})"
    console().print(table(heads, rows, title=title, right=heads[2:]))


def show_comparisons(facts: Facts) -> None:
    lines = []
    for row in facts["comparisons"]:
        needs = "infinitely many" if row["needs"] is None else short(row["needs"])
        verdict = "yes" if row["holds"] else "no"
        can = f"{'is met' if row['can_hold'] else 'is not met'}, with {' = '.join(row['lengths'])}"
        if not row["equal"]:
            here = ", ".join(f"{name} = {short(value)}" for name, value in row["lengths"].items())
            can = f"is for {' = '.join(row['lengths'])} and says nothing here ({here})"
        text = f"{verdict}: {row['length']} has to be {needs} or more and is {short(row['has'])}"
        lines.append((f"{row['first']} over {row['second']}", f"{text}; the sufficient condition {can}"))
    console().print(pairs(lines, "Whose bound is lower after many rounds"))
