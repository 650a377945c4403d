"""`headwater theory bounds --run`: the constants of a finished run, and its curve under its bound.

A run leaves its last model only, so it is played again (same seed, same result) and looked at after every round. G² and
σ² are maxima over these models: gradients in between, at the clients, are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.cli.directories import check_path, stored
from headwater.cli.terminal import console, pairs, print_lines, status
from headwater.cli.theory.bounds import EQUATIONS, phases, show_bounds, show_comparisons, worked_out
from headwater.cli.theory.topic import Facts, Options, refusing, short
from headwater.core.records import parse_json
from headwater.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.theory.convergence import Problem
    from headwater.theory.softmax import Array, Regression
    from headwater.training.experiment import Experiment
    from headwater.training.result import Run

PICTURE = "bounds.png"


def facts(o: Options) -> Facts:
    from headwater.theory.convergence import bound

    directory, config, quiet = o.run, stored(o.run), o.quiet
    if o.data_dir is not None:
        config = config.merged({"data": {"dir": str(o.data_dir.expanduser().resolve())}})
    model_sha256 = _ended(directory)
    _check(config)
    out = o.out or directory / "theory"
    check_path(out)
    with status(f"playing {directory} again …", quiet):
        experiment, models, replayed = _again(config)
    with status("measuring …", quiet):
        with refusing():
            p, gaps, optimum = _measure(experiment, models, o.delta or 0.0, o.epsilon, o.reference_gap)
            lengths = _lengths(experiment, replayed)
            most = max(_steps(experiment, "server"), default=None)
            results = _of_its_phases(worked_out(p, config.rounds, *lengths, o.target, most), config.method)
        method = config.method
        own = phases(p, *lengths, min(_steps(experiment)))[method]
        over = [bound(p, rounds, *own) for rounds in range(len(gaps))]
        out.mkdir(parents=True, exist_ok=True)
        _draw(method, gaps, over, out / PICTURE)
    return {
        "method": method,
        "constants": asdict(p) | optimum,
        "lengths": dict(zip(("local", "sector", "sector_mean", "server_mean"), lengths, strict=True)),
        **results,
        "gaps": gaps,
        "bound": over,
        "largest_share": max(gap / limit for gap, limit in zip(gaps[1:], over[1:], strict=True)),
        "cautions": [*_cautions(experiment, same=model_sha256 == replayed.result["model_sha256"])],
        "figure": str(out / PICTURE),
    }


def _again(config: Config) -> tuple[Experiment, list[Array], Run]:
    """The run once more, in this process, with its model after every round and before the first."""
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    experiment = prepare(config.merged({"engine": {"name": "inline", "overlap": False}}))
    seen: list[Any] = []
    kind = type(experiment.method)

    class Watched(kind):  # type: ignore[valid-type, misc]
        def init(self, fed: Any, model: Any) -> Any:
            state = super().init(fed, model)
            seen.append(fed.read(state.model))
            return state

        def round(self, fed: Any, state: Any) -> Any:
            state = super().round(fed, state)
            seen.append(fed.read(state.model))
            return state

    method = object.__new__(Watched)
    method.__dict__.update(experiment.method.__dict__)
    run = train(replace(experiment, method=method))
    return experiment, [_weights(model) for model in seen], run


def _weights(model: Any) -> Array:
    """A linear layer as (features + 1) × classes, the bias last."""
    import numpy as np

    named = {name.split(".")[-1]: tensor.double().numpy() for name, tensor in model.named().items()}
    return np.concatenate([named["weight"].T, named["bias"][None]])


def _rows(x: Any, y: Any, classes: int, decay: float) -> Regression:
    import numpy as np

    from headwater.theory.softmax import Regression

    flat = x.reshape(len(x), -1).double().numpy()
    rows = np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
    return Regression(rows, np.eye(classes)[y.numpy()], np.full(len(flat), 1 / len(flat)), decay)


def _measure(
    experiment: Experiment, models: list[Array], delta: float, epsilon: float, reference_gap: float
) -> tuple[Problem, list[float], dict[str, Any]]:
    import numpy as np

    from headwater.theory.convergence import Problem
    from headwater.theory.softmax import optima, squared

    tree, split, local = experiment.tree, experiment.split, experiment.config.local
    decay, train = float(local["weight_decay"]), split.train
    holders = list(tree.holders)
    indices = [experiment.rows[c] for c in holders]
    clients = [_rows(train.x[mine], train.y[mine], split.classes, decay) for mine in indices]
    sizes = [len(client.share) for client in clients]
    counted = [1 if getattr(experiment.method, "by", "samples") == "uniform" else size for size in sizes]
    shares = [weight / sum(counted) for weight in counted]
    sectors = [tree.sectors.index(tree.sector_of[c]) for c in holders]
    best = optima(clients, shares, sectors)
    smooth = max(float(client.smoothness) for client in clients)
    known, labels = reference_gap, split.reference_labels
    if len(split.reference) and labels is not None:
        reference = _rows(split.reference, labels, split.classes, decay)
        known = max(0.0, float(reference.loss(best.weights)) - reference.minimise(best.weights)[1])
        smooth = max(smooth, float(reference.smoothness))
    variance, second, gaps = 0.0, 0.0, []
    for weights in models:
        losses = []
        for client, size in zip(clients, sizes, strict=True):
            batch = min(int(local["batch"]), size)
            residuals = client.residuals(weights)
            spread = float(client.spread(weights, residuals)) / batch if batch < size else 0.0
            variance = max(variance, spread)
            second = max(second, float(squared(client.gradient(weights, residuals))) + spread)
            losses.append(float(client.loss(weights)))
        gaps.append(float(np.dot(shares, losses)) - best.loss)
    by_sector = [sum(s for s, at in zip(shares, sectors, strict=True) if at == m) for m in sorted(set(sectors))]
    p = Problem(
        smoothness=smooth,
        convexity=decay,
        variance=variance,
        gradient=second,
        client_shares=tuple(shares),
        sector_shares=tuple(by_sector),
        client_gap=best.client_gap,
        sector_gap=min(best.sector_gap, best.client_gap),
        reference_gap=known,
        delta=delta,
        epsilon=epsilon,
        distance=float(squared(models[0] - best.weights)),
    )
    return p, gaps, {"optimum": best.loss, "reference_gap_measured": labels is not None}


def _check(config: Config) -> None:
    """Refuse what the bounds do not speak of, and say why."""
    name, local = config.model.name, config.local
    if name != "linear" or config.model.projection or config.model.bn_head:
        more = " with more before its classifier" if name == "linear" else ""
        raise ConfigError(
            f"the run's model is {name!r}{more}, and the bounds hold for strongly convex losses, which of the listed "
            "models 'linear' alone has; run with model.name = 'linear' and local.weight_decay above 0"
        )
    if not local.get("weight_decay"):
        raise ConfigError(
            "the run has local.weight_decay = 0, so its loss is convex but not strongly; the bounds need a μ, which is "
            "the weight decay: run with one above 0"
        )
    if config.method not in EQUATIONS:
        raise ConfigError(f"there is no bound for method {config.method!r} here (there are: {', '.join(EQUATIONS)})")
    if local.get("optimizer") != "sgd":
        raise ConfigError(
            f"the run's optimiser is {local.get('optimizer')!r}, and the bounds are about plain SGD; run with "
            "local.optimizer = 'sgd'"
        )


def _steps(experiment: Experiment, stage: str = "local") -> list[int]:
    """Steps that each client with data, or the server, takes in a stage; empty if the method does not have it."""
    from headwater.tasks.optimizers import total_steps

    spec = getattr(experiment.method, stage, None)
    rows = [experiment.rows[c] for c in experiment.tree.holders] if stage != "server" else [experiment.split.reference]
    return [total_steps(len(each), spec) for each in rows] if spec else []


def _lengths(experiment: Experiment, run: Run) -> tuple[int, int, float, float]:
    """n_l of the client that takes most steps; n_s, the most that a leader may take; both means, from the rows."""
    sector = max(_steps(experiment, "sector"), default=1)
    means: dict[str, list[float]] = {"sector": [], "server": []}
    for row in run.history:
        for place, notes in row.get("distill", {}).items():
            means["server" if place == "server" else "sector"].append(float(notes.get("distill_steps", 0)))
    results = [sum(taken) / len(taken) if taken else 0.0 for taken in means.values()]
    return max(_steps(experiment)), max(1, sector), min(results[0], sector), results[1]


def _cautions(experiment: Experiment, *, same: bool) -> Iterator[str]:
    """What the theorem asks for and this run does not do."""
    config, local = experiment.config, experiment.config.local
    yield (
        f"the bound is for steps of 2/(μ(τ + γ − 1)) that shrink over all rounds; the run begins each round with "
        f"{local['lr']:g}"
    )
    if local.get("momentum"):
        yield f"the bound is for SGD without momentum; the run has {local['momentum']:g}"
    if local.get("clip"):
        yield "the bound is for gradients as they are; the run clips them"
    if config.partition.participation < 1:
        yield "the bound is for rounds in which everybody takes part; here some stay away"
    if len(set(_steps(experiment))) > 1:
        yield "clients take unequal numbers of steps: the most counts for drift and the fewest for progress"
    for name in ("sector", "server"):
        spec = getattr(experiment.method, name, None)
        if spec is None:
            continue
        if spec.optimizer != "sgd" or spec.weight_decay != local["weight_decay"]:
            yield f"distilling ([{name}]) is to be SGD with the weight decay of [local]; here it is not"
        yield f"the theorem stops distilling ([{name}]) at the unknown optimum's loss, which a run cannot"
    if local["batch"] < max(len(experiment.rows[c]) for c in experiment.tree.holders):
        yield "the bound is for batches drawn anew at each step; the run goes through its rows in epochs"
    if not same:
        yield "played again, the run ended with another model, as it may on another machine or with other versions"


def _ended(directory: Path) -> str | None:
    """SHA-256 of the model that the run ended with."""
    file = directory / "result.json"
    if not file.is_file():
        raise OutputError(f"{directory} holds a run that is not finished; carry it on with headwater resume first")
    try:
        return str(parse_json(file.read_text(encoding="utf-8"))["model_sha256"])
    except (ValueError, KeyError, TypeError):
        raise OutputError(f"{file} cannot be read; restore it, or start the run anew") from None


def _of_its_phases(results: dict[str, Any], method: str) -> dict[str, Any]:
    """Only the methods whose phases the run has: nothing is known of the others'."""
    known = {"fedavg": ("fedavg",), "fedhead": ("fedavg", "fedhead"), "feddf": ("fedavg", "feddf")}.get(method)
    if known is None:
        return results
    comparisons = [row for row in results["comparisons"] if {row["first"], row["second"]} <= {*known}]
    return results | {"methods": {name: results["methods"][name] for name in known}, "comparisons": comparisons}


def _draw(method: str, gaps: list[float], over: list[float], path: Path) -> None:
    from headwater.report import charts

    named = {f"{method}, measured": gaps, f"bound {EQUATIONS[method]}": over}
    rows = [
        {"name": name, "round": at, "value": value}
        for name, values in named.items()
        for at, value in enumerate(values)
        if value > 0  # the axis is logarithmic
    ]
    spec = charts.lines(rows, [*named], up="Loss above the optimum", form="~g", log=True, height=320)
    charts.picture(spec | {"width": 560}, path)


WORDS = {
    "smoothness": "L, from the clients' rows",
    "convexity": "μ, the weight decay",
    "variance": "σ², largest at any round's model",
    "gradient": "G², largest at any round's model",
    "client_gap": "Γ_client",
    "sector_gap": "Γ_sec",
    "reference_gap": "Γ_ref",
    "delta": "δ, as given",
    "epsilon": "ε, as given",
    "distance": "Δ₁, of the start",
    "optimum": "the lowest loss",
}


def show(results: Facts) -> None:
    lines = [(name, f"{short(results['constants'][name])}: {words}") for name, words in WORDS.items()]
    lengths = results["lengths"]
    steps = f"n_l {lengths['local']}, n_s {lengths['sector']}, n̄_s {short(lengths['sector_mean'])}"
    lines.append(("steps", f"{steps}, n̄_g {short(lengths['server_mean'])}"))
    last = f"{short(results['gaps'][-1])} after the last round, under a bound of {short(results['bound'][-1])}"
    if results["largest_share"] > 1:
        last = f"{short(results['gaps'][-1])} after the last round; in some round it is above the bound"
    lines.append(("measured", f"loss above the optimum {last}; at most {short(results['largest_share'])} of the bound"))
    lines += [("caution", sentence) for sentence in results["cautions"]]
    console().print(pairs(lines, f"{results['method']}: constants measured on the run"))
    show_bounds(results)
    if results["comparisons"]:
        show_comparisons(results)
    print_lines(f"figure: {results['figure']}")
