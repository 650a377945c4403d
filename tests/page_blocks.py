"""Runs the code blocks of a Markdown page in order, in the current directory: `python page_blocks.py PAGE`.

| block | what happens |
|---|---|
| `python` | is executed; all of a page share their names |
| `sh` | is executed by bash, which stops at the first command that fails |
| `console` | every `$ command` is executed, and must print what is below it |
| `toml`, `json` | must be well-formed |
| `text` and others | nothing |

A comment `<!-- not run: REASON -->` in the line before a block excludes it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN = ("python", "sh", "console")
KNOWN = (*RUN, "toml", "json", "text")
NOT_RUN = re.compile(r"^\s*<!-- not run: (.+) -->$")


@dataclass(frozen=True)
class Block:
    """A code block.

    Args:
        line: the number of its first line in the page.
        language: the word after the fence.
        text: its lines.
        excluded: the reason why it is not run; empty if it is.
    """

    line: int
    language: str
    text: str
    excluded: str = ""

    @property
    def runs(self) -> bool:
        return self.language in RUN and not self.excluded


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        opening = re.fullmatch(r"( *)(`{3,})([\w+-]*)\s*", lines[at])
        if opening is None:
            at += 1
            continue
        indent, fence, language = opening.groups()
        end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == fence)
        mark = NOT_RUN.fullmatch(lines[at - 1]) if at else None
        text = "".join(f"{line.removeprefix(indent)}\n" for line in lines[at + 1 : end])
        found.append(Block(at + 2, language, text, mark.group(1) if mark else ""))
        at = end + 1
    return found


def exchanges(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a `console` block, each with what it should print."""
    lines = text.splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        command, rest = lines[start].removeprefix("$ "), lines[start + 1 : end]
        while not complete(command):
            command += "\n" + rest.pop(0)
        yield command, "\n".join(rest)


def complete(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # a quotation is open
        return False
    return True


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def bash(command: str, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"exit status {done.returncode}: {command}")
    return done  # type: ignore[no-any-return]


def run(block: Block, page: Path, names: types.ModuleType) -> None:
    """Run one block."""
    if block.language == "python":
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), vars(names))
    elif block.language == "sh":
        bash(block.text, stdin=subprocess.DEVNULL)
    else:
        for command, shown in exchanges(block.text):
            printed = bash(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout
            if trimmed(printed) != trimmed(shown):
                sys.exit(f"{command}\n--- shown\n{shown}\n--- printed\n{printed}")


def commands() -> None:
    """Put `headwater` and `python` of this environment first, in a folder beside the page's."""
    folder = Path.cwd().parent / f"{Path.cwd().name}-bin"
    folder.mkdir(exist_ok=True)
    for name, words in {"headwater": "-m headwater ", "python": ""}.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n', encoding="utf-8")
        script.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    os.environ["COLUMNS"] = "160"
    sys.path.insert(0, "")  # as in an interactive session


def main(page: Path) -> None:
    commands()
    names = types.ModuleType("page")  # a module, so that classes of a page can be found by name
    sys.modules["page"] = names
    for block in blocks(page):
        if block.excluded:
            continue
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.runs:
            print(f"-- {page.name}:{block.line} ({block.language})", file=sys.stderr, flush=True)
            run(block, page, names)
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
