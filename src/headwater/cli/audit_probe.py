"""The part of `headwater audit` that attacks what parties saw: repeats a run and prints the findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwater.cli.directories import stored
from headwater.cli.options import Options
from headwater.cli.terminal import RunProgress, console, print_lines, reading, say, status, table

if TYPE_CHECKING:
    from headwater.audit.membership_inference import Estimate, MembershipRisk
    from headwater.audit.probe import Finding, Probe, Resemblance

WHOSE = {"client": "one client", "sector": "a sector", "several": "several sectors"}
CAUTION = (
    "AUC: probability that a training row gets a higher score than a row that nobody trained on, with equal class "
    "shares; 0.5 is guessing. Advantage: true minus false positive rate; 0 is guessing. Rebuilt: how much the best "
    "reconstructed input resembles a row of these clients (1 is the row itself), beside rows of the same classes that "
    "nobody trained on; equal numbers show nothing.",
    "These are simple attacks on what was seen in one round, so the numbers are lower bounds of the leak: a small one "
    "proves nothing.",
)


def probed(directory: Path, options: Options, sha256: str) -> Probe:
    """Repeat the run of a directory, and attack what each kind of party held in its last round.

    Args:
        directory: of a finished run; nothing is written there.
        options: of the command.
        sha256: of the run's model.
    """
    from headwater.config.load import nested

    keys = {key: value for key, value in options.keys().items() if key == "data__dir"}
    config = stored(directory).merged(nested({**keys, "engine__name": "inline"}))
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.audit.probe import probe
        from headwater.training.experiment import prepare

        experiment = prepare(config)
    with RunProgress("the run again", options.quiet) as progress:
        found = probe(experiment, watch=progress)
    if found.model_sha256 != sha256:
        say(
            "the repeated run gave another model than the first one, so the numbers are those of the repeated run: "
            "data, versions or the kind of machine have changed since, clients came later, or the run was stopped early"
        )
    return found


def print_probe(found: Probe, parties: dict[str, str], purposes: dict[str, str]) -> None:
    """Print the findings as a table, and what they mean.

    Args:
        found: the findings.
        parties: role → the party in words.
        purposes: of a move, in words.
    """
    head = ("party", "models of", "when", "AUC by loss", "AUC beside a reference", "advantage", "rebuilt by layer")
    cells, before = [], ""
    for each in found.findings:
        about = f"{each.models} of {WHOSE[each.subject]}" + (f" ({each.part})" if each.part else "")
        when = purposes.get(each.purpose, each.purpose)
        numbers = (_auc(each.loss), _auc(each.calibrated), _advantage(each), _rebuilt(each.analytic))
        first = parties[each.role] if each.role != before else ""
        cells.append([first, about, when, *numbers, _rebuilt(each.searched)])
        before = each.role
    for role in found.without:
        cells.append([parties[role], "nothing", *[""] * 6])
    title = f"what simple attacks learn from the models of round {found.round}"
    console().print(table([*head, "rebuilt by search"], cells, title=title))
    print_lines(*CAUTION)


def _interval(estimate: Estimate) -> str:
    value, low, high = estimate.value, estimate.low, estimate.high
    return f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _auc(risk: MembershipRisk | None) -> str:
    return "" if risk is None else _interval(risk.auc)


def _advantage(finding: Finding) -> str:
    return "" if finding.loss is None else _interval(finding.loss.advantage)


def _rebuilt(found: Resemblance | None) -> str:
    return "" if found is None else f"{found.similarity:.2f} beside {found.control:.2f}"
