"""`headwater theory mtgc`, `fedhkd` and `feddf`: published rates, and FedHKD's noise."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headwater.cli.terminal import console, pairs
from headwater.cli.theory.topic import Facts, Options, counts, listed, number, numbers, refusing, short, topic, whole
from headwater.errors import ConfigError

Sensitivity = Annotated[
    str,
    typer.Option("--sensitivity", metavar="per_coordinate|l2", help="What S is for: a coordinate, or all."),
]
VARIANCE = number("--variance --sigma2", 1.0, "σ²: variance of a stochastic gradient.")


def _show_mtgc(facts: Facts) -> None:
    words = {
        "noise": ("noise", "√(F₀Lσ²/(ÑTEH)), which all clients, rounds and steps average out"),
        "drift": ("drift", "(F₀Lσ/T)^⅔, which only more rounds lower"),
        "start": ("start", "LF₀/T"),
    }
    lines = [("clients", f"{short(facts['effective_clients'])} equal ones have the same variance (Ñ)")]
    for name, (title, text) in words.items():
        mark = "; the largest" if name == facts["largest"] else ""
        lines.append((title, f"{short(facts[name])}: {text}{mark}"))
    lines.append(("together", f"{short(facts['total'])}, with unknown constants taken as 1"))
    console().print(pairs(lines, "MTGC: the terms of its rate"))


@topic(
    _show_mtgc,
    gap=number("--gap", 1.0, "F₀: the loss of the start above the lowest loss."),
    smoothness=number("--smoothness --L", 1.0, "L: how fast a client's gradient can change."),
    variance=VARIANCE,
    rounds=whole("--rounds", 100, "T: global rounds."),
    sector_rounds=whole("--sector-rounds", 30, "E: sector rounds in a global round."),
    steps=whole("--steps", 10, "H: local steps in a sector round."),
    teams=listed(
        "--teams", "10,10,10,10,10,10,10,10,10,10", "Clients in each sector; ten sectors of ten unless given."
    ),
)
def mtgc(o: Options) -> Facts:
    """The three terms of MTGC's rate.

    They bound the mean squared gradient norm up to constants that the paper does not give, which are taken as 1. So
    compare terms and settings, not absolute values. The heterogeneity of clients and sectors has no influence.
    """
    from headwater.theory.rates import effective_clients, mtgc_rate

    with refusing():
        clients = effective_clients(counts(o.teams, "--teams"))
        rate = mtgc_rate(o.gap, o.smoothness, o.variance, o.rounds, o.sector_rounds, o.steps, clients)
    terms = asdict(rate)
    return {
        "effective_clients": clients,
        **terms,
        "total": rate.total,
        "largest": max(terms, key=lambda name: terms[name]),
    }


def _show_fedhkd(facts: Facts) -> None:
    noise, rounds = facts["noise"], facts["rounds"]
    classic = "holds below ε = 1 only" if noise["sigma_min"] is None else short(noise["sigma_min"])
    lines = [
        ("σ by the paper's rule", f"{classic}: √(2 ln(5/4δ))/ε"),
        ("σ by the exact rule", f"{short(noise['sigma_analytic'])}: the least that gives this ε at this δ"),
        ("σ used", short(noise["sigma"])),
        ("least count", f"{noise['least_count']} samples of a class, by ν"),
        ("sensitivity S", f"{short(noise['sensitivity'])}: 2ζ over that count"),
        ("variance of a mean", f"{short(noise['variance'])}: (Sσ)², on each coordinate of one client's"),
        ("after the server's mean", short(noise["variance_of_the_mean"])),
        ("all releases", noise["sentence"]),
    ]
    console().print(pairs(lines, "FedHKD: noise on representations"))
    reached = rounds["rounds"]
    promised = f"no number of them: drift outweighs progress down to {short(rounds['floor'])}"
    limit = f"below {short(rounds['step_limit'])}" if rounds["step_limit"] else "none: the knowledge terms outweigh it"
    lines = [
        ("drift of a round", f"{short(rounds['drift'])}: by how much it can raise the loss (Theorem 2)"),
        (f"rounds to {short(rounds['target'])}", promised if reached is None else f"{short(reached)} (Theorem 3)"),
        ("least target", f"{short(rounds['floor'])}: nothing is promised below it"),
        ("step size", f"{limit}, where the squared gradient is the target (Corollary 1)"),
    ]
    console().print(pairs(lines, "FedHKD: rounds"))


@topic(
    _show_fedhkd,
    epsilon=number("--epsilon", 0.5, "ε that one release of one coordinate is to have."),
    delta=number("--delta", 0.01, "δ that goes with it."),
    sigma=number("--sigma", None, "Noise in units of what one sample can do; else the least for ε and δ."),
    zeta=number("--zeta", 3.0, "ζ: features are clipped to ±ζ before the mean."),
    nu=number("--nu", 0.25, "ν: the share of a client's samples that a class must be to be shared."),
    samples=whole("--samples", 1024, "Samples of a client."),
    sharers=whole("--sharers", 10, "Clients that share a class, each with the least count."),
    releases=whole("--releases", 50, "Rounds in which a client shares a class."),
    features=whole("--features", 64, "d: numbers of a representation."),
    sensitivity=(Sensitivity, "per_coordinate"),
    smoothness=number("--smoothness --L1", 1.0, "L₁: smoothness of a client's loss."),
    extractor=number("--extractor --L2", 1.0, "L₂: Lipschitz constant of the extractor."),
    classifier=number("--classifier --L3", 1.0, "L₃: Lipschitz constant of the classifier."),
    gradient=number("--gradient --V", 1.0, "V: bound on the norm of a stochastic gradient."),
    variance=VARIANCE,
    steps=whole("--steps", 5, "E: local steps of a round."),
    lr=number("--lr", 0.01, "η: step size."),
    prediction=number("--prediction --lambda", 0.05, "λ: weight of the prediction term."),
    feature=number("--feature --gamma", 0.05, "γ: weight of the feature term."),
    gap=number("--gap", 1.0, "Δ: the loss of the start above the lowest loss."),
    target=number("--target", 0.5, "Mean squared gradient norm that is to be reached."),
)
def fedhkd(o: Options) -> Facts:
    """FedHKD's noise, its variance, and the rounds of its theorem.

    Shows the noise on the means of representations and its privacy guarantee. Then it shows by how much a round can
    raise the loss (Theorem 2), how many rounds suffice (Theorem 3) and which step size lowers the loss (Corollary 1).
    """
    if o.sensitivity not in ("per_coordinate", "l2"):
        raise ConfigError(f"--sensitivity is per_coordinate or l2, got {o.sensitivity!r}")
    with refusing():
        return {"noise": _noise(o), "rounds": _rounds(o)}


def _noise(o: Options) -> Facts:
    from headwater.theory import privacy

    least = privacy.sigma_min(o.epsilon, o.delta) if 0 < o.epsilon < 1 else None
    analytic = privacy.gaussian_sigma(o.epsilon, o.delta)
    used = o.sigma if o.sigma is not None else least if least is not None else analytic
    count = max(2, privacy.least_count(o.nu, o.samples))
    one = privacy.sensitivity(o.zeta, count, o.features, o.sensitivity)
    together = privacy.aggregated_variance(used, [1 / o.sharers] * o.sharers, [one] * o.sharers)
    spent = privacy.spent(used, o.releases, o.delta, o.features, o.sensitivity)
    return {
        "sigma_min": least,
        "sigma_analytic": analytic,
        "sigma": used,
        "least_count": count,
        "sensitivity": one,
        "variance": privacy.noise_variance(used, one),
        "variance_of_the_mean": together,
        "epsilon_spent": spent.epsilon,
        "sentence": spent.sentence(),
    }


def _rounds(o: Options) -> Facts:
    from headwater.theory import rates

    k = rates.Knowledge(
        o.smoothness, o.extractor, o.classifier, o.gradient, o.variance, o.steps, o.lr, o.prediction, o.feature
    )
    floor = rates.fedhkd_floor(k)
    return {
        "target": o.target,
        "drift": rates.fedhkd_drift(k),
        "floor": floor,
        "rounds": rates.fedhkd_rounds(k, o.gap, o.target) if o.target > floor else None,
        "step_limit": rates.fedhkd_step_limit(k, o.target**0.5),
    }


def _show_feddf(facts: Facts) -> None:
    lines = [
        ("empirical", f"{short(facts['empirical'])}: the loss of a model trained on everything"),
        ("mismatch", f"{short(facts['mismatch'])}: mean over {facts['clients']} clients of ½d + λ"),
        ("sampling", f"{short(facts['sampling'])}: √(ln(2K/δ)/2m), for clients with few samples"),
        ("together", short(facts["total"]) + ("" if facts["says_something"] else ": 1 or more, which says nothing")),
    ]
    console().print(pairs(lines, "FedDF: generalisation bound of the ensemble"))


@topic(
    _show_feddf,
    empirical=number("--empirical", 0.05, "Loss of the model trained on everybody's data."),
    divergences=listed(
        "--divergences", "0.2,0.4", "d_k: how far each client's data are from the global distribution, 0 to 2."
    ),
    joint_errors=listed(
        "--joint-errors", "0.01,0.03", "λ_k: the least error of one model on a client's and the global data."
    ),
    samples=whole("--samples", 2000, "m: samples of a client."),
    delta=number("--delta", 0.05, "δ: with which probability the bound may fail."),
)
def feddf(o: Options) -> Facts:
    """FedDF's generalisation bound.

    It bounds the risk of the clients' ensemble on the global distribution, with probability 1 − δ. A bound of 1 or more
    is vacuous.
    """
    from headwater.theory.rates import feddf_generalisation

    apart, joint = numbers(o.divergences, "--divergences"), numbers(o.joint_errors, "--joint-errors")
    if len(joint) == 1:
        joint *= len(apart)
    if len(apart) != len(joint):
        raise ConfigError(
            f"--divergences names {len(apart)} clients and --joint-errors {len(joint)}; give one of each a client, "
            "or a single joint error for all"
        )
    with refusing():
        bound = feddf_generalisation(o.empirical, apart, joint, o.samples, o.delta)
    return {"clients": len(apart), **asdict(bound), "total": bound.total, "says_something": bound.total < 1}
