"""The pages on deployment agree with what methods declare and with the configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwater.algorithms import ALGORITHMS
from headwater.cli.app import deploy
from headwater.config.sections import DeployConfig

DOCS = Path(__file__).parents[2] / "docs"
WAY = re.compile(r"(server|sector|leader|client) → (server|sector|leader|client) (\w+)")


def moves(method: str, when: str) -> set[tuple[str, str, str]]:
    """Moves that the method declares for all of its variants."""
    return {*WAY.findall(ALGORITHMS[method].info.moves.get(when, ""))}


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """Method → the cells of its row in the table of trust.md."""
    found: dict[str, list[str]] = {}
    page = (DOCS / "trust.md").read_text(encoding="utf-8")
    for line in page.partition("<!-- table: trust -->")[2].partition("<!-- /table -->")[0].splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            for method in re.findall(r"`([^`]+)`", cells[0]):
                assert method not in found, f"{method} has two rows"
                found[method] = cells
    return found


def test_every_method_has_a_row_and_nothing_else_has(rows: dict[str, list[str]]) -> None:
    assert sorted(rows) == sorted(ALGORITHMS)


@pytest.mark.parametrize("method", list(ALGORITHMS))
def test_moves_are_those_of_the_methods_file(rows: dict[str, list[str]], method: str) -> None:
    _, a_round, before, *_ = rows[method]
    assert {*WAY.findall(a_round)} == moves(method, "a round")
    assert {*WAY.findall(before)} == moves(method, "before the first round")


@pytest.mark.parametrize("method", list(ALGORITHMS))
def test_who_gets_a_value_is_said_to_see_something(rows: dict[str, list[str]], method: str) -> None:
    """Everything between client and server passes the sector's host."""
    _, a_round, _, server, host, client = rows[method]
    if "cannot be deployed" in server:
        return
    reached = {to for _, to, _ in WAY.findall(a_round)}
    assert ("nothing" in server) == ("server" not in reached)
    assert ("nothing" in host) == (not reached)
    assert client


def test_settings_and_commands_of_a_deployment_are_explained() -> None:
    text = (DOCS / "deploy.md").read_text(encoding="utf-8")
    assert [key for key in DeployConfig.model_fields if f"{key} = " not in text] == []
    commands = deploy.app.registered_commands
    names = [command.name or command.callback.__name__ for command in commands if command.callback]
    assert {"init", "server", "revoke", "rollback", "watch", "pause", "resume", "stop"} <= {*names}
    assert [name for name in names if f"headwater deploy {name} " not in text] == []
