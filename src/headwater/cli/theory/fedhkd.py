"""`headwater theory fedhkd`: noise and rounds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwater.cli.options import Json
from headwater.cli.show import out as console
from headwater.cli.show import pairs
from headwater.cli.theory.inputs import number, refusing, short, tell, whole
from headwater.errors import ConfigError

Epsilon = Annotated[float, number("--epsilon", help="ε that one release of one coordinate is to have.")]
Delta = Annotated[float, number("--delta", help="δ that goes with it.")]
Sigma = Annotated[
    float | None, number("--sigma", help="Noise in units of what one sample can do; else the least for ε and δ.")
]
Zeta = Annotated[float, number("--zeta", help="ζ: features are clipped to ±ζ before the mean.")]
Nu = Annotated[float, number("--nu", help="ν: the share of a client's samples that a class must be to be shared.")]
Samples = Annotated[int, whole("--samples", help="Samples of a client.")]
Sharers = Annotated[int, whole("--sharers", help="Clients that share a class, each with the least count.")]
Rounds = Annotated[int, whole("--releases", help="Rounds in which a client shares a class.")]
Width = Annotated[int, whole("--features", help="d: numbers of a representation.")]
Scale = Annotated[
    str,
    typer.Option("--sensitivity", metavar="per_coordinate|l2", help="What S is for: a coordinate, or all."),
]
Smooth = Annotated[float, number("--smoothness", "--L1", help="L₁: smoothness of a client's loss.")]
Extractor = Annotated[float, number("--extractor", "--L2", help="L₂: Lipschitz constant of the extractor.")]
Classifier = Annotated[float, number("--classifier", "--L3", help="L₃: Lipschitz constant of the classifier.")]
Gradient = Annotated[float, number("--gradient", "--V", help="V: bound on the norm of a stochastic gradient.")]
Variance = Annotated[float, number("--variance", "--sigma2", help="σ²: variance of a stochastic gradient.")]
Steps = Annotated[int, whole("--steps", help="E: local steps of a round.")]
Lr = Annotated[float, number("--lr", help="η: step size.")]
Prediction = Annotated[float, number("--prediction", "--lambda", help="λ: weight of the prediction term.")]
Feature = Annotated[float, number("--feature", "--gamma", help="γ: weight of the feature term.")]
Gap = Annotated[float, number("--gap", help="Δ: the loss of the start above the lowest loss.")]
Target = Annotated[float, number("--target", help="Mean squared gradient norm that is to be reached.")]


def fedhkd(
    epsilon: Epsilon = 0.5,
    delta: Delta = 0.01,
    sigma: Sigma = None,
    zeta: Zeta = 3.0,
    nu: Nu = 0.25,
    samples: Samples = 1024,
    sharers: Sharers = 10,
    releases: Rounds = 50,
    features: Width = 64,
    sensitivity: Scale = "per_coordinate",
    smoothness: Smooth = 1.0,
    extractor: Extractor = 1.0,
    classifier: Classifier = 1.0,
    gradient: Gradient = 1.0,
    variance: Variance = 1.0,
    steps: Steps = 5,
    lr: Lr = 0.01,
    prediction: Prediction = 0.05,
    feature: Feature = 0.05,
    gap: Gap = 1.0,
    target: Target = 0.5,
    json: Json = False,
) -> None:
    """FedHKD's noise, its variance, and the rounds of its theorem.

    First what noise the means of representations get and what it is worth; then by how much a round can raise the loss
    (Theorem 2), how many rounds are promised (Theorem 3) and which step size lowers the loss (Corollary 1).
    """
    tell(locals(), facts, show)


def facts(
    epsilon: float,
    delta: float,
    sigma: float | None,
    zeta: float,
    nu: float,
    samples: int,
    sharers: int,
    releases: int,
    features: int,
    sensitivity: str,
    smoothness: float,
    extractor: float,
    classifier: float,
    gradient: float,
    variance: float,
    steps: int,
    lr: float,
    prediction: float,
    feature: float,
    gap: float,
    target: float,
) -> dict[str, Any]:
    if sensitivity not in ("per_coordinate", "l2"):
        raise ConfigError(f"--sensitivity is per_coordinate or l2, got {sensitivity!r}")
    with refusing():
        noise = _noise(epsilon, delta, sigma, zeta, nu, samples, sharers, releases, features, sensitivity)
        constants = (smoothness, extractor, classifier, gradient, variance, steps, lr, prediction, feature)
        return {"noise": noise, "rounds": _rounds(constants, gap, target)}


def _noise(
    epsilon: float,
    delta: float,
    sigma: float | None,
    zeta: float,
    nu: float,
    samples: int,
    sharers: int,
    releases: int,
    features: int,
    kind: Any,
) -> dict[str, Any]:
    from headwater.theory import privacy

    least = privacy.sigma_min(epsilon, delta) if 0 < epsilon < 1 else None
    analytic = privacy.gaussian_sigma(epsilon, delta)
    used = sigma if sigma is not None else least if least is not None else analytic
    count = max(2, privacy.least_count(nu, samples))
    one = privacy.sensitivity(zeta, count, features, kind)
    together = privacy.aggregated_variance(used, [1 / sharers] * sharers, [one] * sharers)
    spent = privacy.spent(used, releases, delta, features, kind)
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


def _rounds(constants: tuple[Any, ...], gap: float, target: float) -> dict[str, Any]:
    from headwater.theory import rates

    k = rates.Knowledge(*constants)
    floor = rates.fedhkd_floor(k)
    return {
        "target": target,
        "drift": rates.fedhkd_drift(k),
        "floor": floor,
        "rounds": rates.fedhkd_rounds(k, gap, target) if target > floor else None,
        "step_limit": rates.fedhkd_step_limit(k, target**0.5),
    }


def show(found: dict[str, Any]) -> None:
    noise, rounds = found["noise"], found["rounds"]
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
