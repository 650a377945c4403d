"""`headwater audit`: what each kind of party saw in a simulated run, from the run's own list of moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.options import Options, takes
from headwater.cli.terminal import as_json, console, print_lines, table
from headwater.errors import OutputError, UserError
from headwater.report.numbers import count

Folder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
Attack = Annotated[
    bool,
    typer.Option(
        "--probe",
        help="Repeat the run, and attack the models that each kind of party held in its last round: a lower bound of "
        "what they tell. Takes about as long as the run.",
    ),
]
# Role in the list of moves → the party. A leader is a client that acts for its sector in a round.
PARTIES = {"server": "the server", "sector": "a sector's host", "leader": "a leader", "client": "a client"}
SEES = {"sector": "host"}  # role → key of MethodInfo.sees, where they differ
PURPOSES = {"setup": "before round 1", "train": "in rounds", "evaluate": "in evaluations", "export": "at the end"}
BELOW = ("leader", "client")
ROWS = "examples"  # the kind of value that rows of data are
ASIDE = (
    "Counts are over all parties of a kind. Numbers of samples, losses and times, which a deployed federation sends as "
    "control messages, are not in the list (docs/trust.md). Models carry information about the rows that they were "
    "trained on."
)


@takes("probe data_dir quiet json")
def audit(options: Options, directory: Folder, probe: Attack = False) -> None:
    """Show what each kind of party saw in a run, and the privacy that was spent.

    Counted from the moves that the run made, beside what the method says about itself. With `--probe`, simple attacks
    give a number for what could be learned from it. For a deployed federation: `headwater deploy audit`.

    Example: `headwater audit runs/latest`
    """
    from headwater.report.runs import read

    run = read(directory)
    if run.result is None:
        raise OutputError(
            f"{directory} is not finished, and the list of moves is written at the end; carry it on with: headwater "
            f"resume {directory}"
        )
    ledger = run.result.get("ledger")
    moves = ledger.get("moves") if isinstance(ledger, dict) else None
    if not isinstance(moves, list):
        raise OutputError(f"{directory / 'result.json'} has no list of moves; it was written by an earlier version")
    if not all(map(_is_move, moves)):
        raise OutputError(f"{directory / 'result.json'} is damaged: its list of moves has other rows; restore it")
    facts = {
        "algorithm": run.algorithm,
        "parties": {role: _party(role, moves) for role in PARTIES if _present(role, moves)},
        "sees": _said(run.algorithm),
        "privacy": run.result.get("privacy"),
    }
    found = None
    if probe:
        from headwater.cli.audit_probe import print_probe, probed

        found = probed(directory, options, str(run.result.get("model_sha256")))
    if options.json:
        as_json(facts if found is None else facts | {"probe": found.to_dict()})
        return
    _print(facts, f"{run.label} on {run.result.get('data', '')}: who saw what")
    if found is not None:
        print_probe(found, PARTIES, PURPOSES)


def _is_move(row: Any) -> bool:
    texts = ("purpose", "from", "to", "kind")
    return (
        isinstance(row, dict) and all(isinstance(row.get(key), str) for key in texts) and type(row.get("count")) is int
    )


def _present(role: str, moves: list[dict[str, Any]]) -> bool:
    return role in ("server", "sector", "client") or any(role in (move["from"], move["to"]) for move in moves)


def _party(role: str, moves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The values that came to a party, and for a sector's host also those that it only passed on."""
    rows = []
    for move in moves:
        ends = (move["from"], move["to"])
        received = move["to"] == role
        relayed = role == "sector" and "sector" not in ends and any(end in BELOW for end in ends)
        if received or relayed:
            row = {key: move[key] for key in ("purpose", "from", "to", "kind", "count")}
            rows.append(row | {"how": "received" if received else "passed on"})
    order = list(PURPOSES)
    return sorted(rows, key=lambda row: (row["how"], order.index(row["purpose"]) if row["purpose"] in order else 9))


def _said(method: str) -> dict[str, str]:
    """What the method says that parties see; empty for a method that cannot be found here."""
    from headwater.algorithms import ALGORITHMS

    try:
        return dict(ALGORITHMS.info(method).sees)
    except UserError:
        return {}


def _print(facts: dict[str, Any], title: str) -> None:
    cells = []
    for role, rows in facts["parties"].items():
        if not rows:
            cells.append([PARTIES[role], "nothing", "", "", ""])
        for at, row in enumerate(rows):
            way = f"{PARTIES.get(row['from'], row['from'])} → {PARTIES.get(row['to'], row['to'])}"
            origin = way if row["how"] == "passed on" else f"from {PARTIES.get(row['from'], row['from'])}"
            when = PURPOSES.get(row["purpose"], row["purpose"])
            cells.append(
                [PARTIES[role] if at == 0 else "", row["how"], f"{count(row['count'])} {_kind(row)}", origin, when]
            )
    console().print(table(["party", "", "values", "who", "when"], cells, title=title))
    print_lines(*_lines(facts))


def _kind(row: dict[str, Any]) -> str:
    kind = str(row["kind"])
    return kind if row["count"] == 1 or kind.endswith("s") else f"{kind}s"


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    for role, party in PARTIES.items():
        if text := facts["sees"].get(SEES.get(role, role)):
            yield f"as the method says, {party} sees: {text}"
    privacy = facts["privacy"]
    sentence = privacy.get("sentence") if isinstance(privacy, dict) else None
    yield f"privacy spent: {sentence or 'no guarantee was asked for, so none is given'}"
    moved = any(row["kind"] == ROWS and row["from"] in BELOW for rows in facts["parties"].values() for row in rows)
    yield "rows of data LEFT their clients" if moved else "no rows of data left their clients"
    yield ASIDE
