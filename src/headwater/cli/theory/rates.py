"""`headwater theory mtgc` and `headwater theory feddf`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from headwater.cli.options import Json
from headwater.cli.show import out as console
from headwater.cli.show import pairs
from headwater.cli.theory.inputs import counts, listed, number, numbers, refusing, short, tell, whole
from headwater.errors import ConfigError

Gap = Annotated[float, number("--gap", help="F₀: the loss of the start above the lowest loss.")]
Smoothness = Annotated[float, number("--smoothness", "--L", help="L: how fast a client's gradient can change.")]
Variance = Annotated[float, number("--variance", "--sigma2", help="σ²: variance of a stochastic gradient.")]
Rounds = Annotated[int, whole("--rounds", help="T: global rounds.")]
Paces = Annotated[int, whole("--sector-rounds", help="E: sector rounds in a global round.")]
Steps = Annotated[int, whole("--steps", help="H: local steps in a sector round.")]
Teams = Annotated[str, listed("--teams", help="Clients in each sector; ten sectors of ten unless given.")]


def mtgc(
    gap: Gap = 1.0,
    smoothness: Smoothness = 1.0,
    variance: Variance = 1.0,
    rounds: Rounds = 100,
    sector_rounds: Paces = 30,
    steps: Steps = 10,
    teams: Teams = "10,10,10,10,10,10,10,10,10,10",
    json: Json = False,
) -> None:
    """The three terms of MTGC's rate.

    They bound the mean squared gradient norm up to constants that the source does not give, taken as 1: compare terms
    and settings, not absolute values. How unlike clients and sectors are does not appear.
    """
    tell(locals(), mtgc_facts, mtgc_show)


def mtgc_facts(
    gap: float, smoothness: float, variance: float, rounds: int, sector_rounds: int, steps: int, teams: str
) -> dict[str, Any]:
    from headwater.theory.rates import effective_clients, mtgc_rate

    with refusing():
        clients = effective_clients(counts(teams, "--teams"))
        found = mtgc_rate(gap, smoothness, variance, rounds, sector_rounds, steps, clients)
    terms = asdict(found)
    return {
        "effective_clients": clients,
        **terms,
        "total": found.total,
        "largest": max(terms, key=lambda name: terms[name]),
    }


def mtgc_show(found: dict[str, Any]) -> None:
    words = {
        "noise": ("noise", "√(F₀Lσ²/(ÑTEH)), which all clients, rounds and steps average out"),
        "drift": ("drift", "(F₀Lσ/T)^⅔, which only more rounds lower"),
        "start": ("start", "LF₀/T"),
    }
    lines = [("clients", f"{short(found['effective_clients'])} equal ones have the same variance (Ñ)")]
    for name, (title, text) in words.items():
        mark = "; the largest" if name == found["largest"] else ""
        lines.append((title, f"{short(found[name])}: {text}{mark}"))
    lines.append(("together", f"{short(found['total'])}, with unknown constants taken as 1"))
    console().print(pairs(lines, "MTGC: the terms of its rate"))


Empirical = Annotated[float, number("--empirical", help="Loss of the model trained on everybody's data.")]
Divergences = Annotated[
    str, listed("--divergences", help="d_k: how far each client's data are from the global distribution, 0 to 2.")
]
Joint = Annotated[
    str,
    listed("--joint-errors", help="λ_k: the least error of one model on a client's and the global data."),
]
Samples = Annotated[int, whole("--samples", help="m: samples of a client.")]
Delta = Annotated[float, number("--delta", help="δ: with which probability the bound may fail.")]


def feddf(
    empirical: Empirical = 0.05,
    divergences: Divergences = "0.2,0.4",
    joint_errors: Joint = "0.01,0.03",
    samples: Samples = 2000,
    delta: Delta = 0.05,
    json: Json = False,
) -> None:
    """FedDF's generalisation bound.

    It bounds the risk of the clients' ensemble on the global distribution, with probability 1 − δ; 1 or more says
    nothing.
    """
    tell(locals(), feddf_facts, feddf_show)


def feddf_facts(empirical: float, divergences: str, joint_errors: str, samples: int, delta: float) -> dict[str, Any]:
    from headwater.theory.rates import feddf_generalisation

    apart, joint = numbers(divergences, "--divergences"), numbers(joint_errors, "--joint-errors")
    if len(joint) == 1:
        joint *= len(apart)
    if len(apart) != len(joint):
        raise ConfigError(
            f"--divergences names {len(apart)} clients and --joint-errors {len(joint)}; give one of each a client, "
            "or a single joint error for all"
        )
    with refusing():
        found = feddf_generalisation(empirical, apart, joint, samples, delta)
    return {"clients": len(apart), **asdict(found), "total": found.total, "says_something": found.total < 1}


def feddf_show(found: dict[str, Any]) -> None:
    lines = [
        ("empirical", f"{short(found['empirical'])}: the loss of a model trained on everything"),
        ("mismatch", f"{short(found['mismatch'])}: mean over {found['clients']} clients of ½d + λ"),
        ("sampling", f"{short(found['sampling'])}: √(ln(2K/δ)/2m), for clients with few samples"),
        ("together", short(found["total"]) + ("" if found["says_something"] else ": 1 or more, which says nothing")),
    ]
    console().print(pairs(lines, "FedDF: generalisation bound of the ensemble"))
