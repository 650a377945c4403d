"""Measure the code base: `python tools/house.py` prints a table of facts, `--static` only those that need no run.

The last fact is the number of files in which a function is called during `headwater run fedhead --rounds 1` on digits,
from the command until model.safetensors is written. Modules are imported before.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "headwater"
LONG_FILE, LONG_METHOD = 300, 160  # lines
COMMAND = ["run", "fedhead", "--rounds", "1", "--engine", "inline", "--quiet"]
NOT_IN_A_RUN = ("headwater.__main__", "headwater.deploy", "headwater.engines.ray")  # not imported beforehand
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Fact = tuple[str, str, str]  # what, how much, which


def code_lines(text: str) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    return len(lines - docs)


def twice(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def explained(thing: Any) -> bool:
    """Whether something has no parameters, or a docstring (of its own or of a base class) with an `Args:` section."""
    if not callable(thing):
        return True
    try:
        kinds = {p.kind for p in inspect.signature(thing).parameters.values()}
    except ValueError:  # an exception without a constructor of its own
        return True
    kinds -= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return not kinds or any("Args:\n" in (each.__doc__ or "") for each in getattr(thing, "__mro__", (thing,)))


def static_facts() -> list[Fact]:
    """Facts that follow from the source files and the public names."""
    headwater, methods = (importlib.import_module(name) for name in ("headwater", "headwater.algorithms"))
    texts = {path.relative_to(SOURCE): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    classes = [node.name for text in texts.values() for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    length = {str(path): len(text.splitlines()) for path, text in texts.items()}
    loose = [str(path) for path in texts if not path.parts[1:] and not path.name.startswith("__")]
    own = {f"algorithms/{p.target.partition(':')[0].rpartition('.')[2]}.py" for p in methods.ALGORITHMS.values()}
    unexplained = [name for name in headwater.__all__ if not explained(getattr(headwater, name))]
    share = 1 - len(unexplained) / len(headwater.__all__)

    def listed(what: str, names: Iterable[str]) -> Fact:
        found = sorted(names)
        return what, str(len(found)), ", ".join(found)

    return [
        ("source files", str(len(texts)), ""),
        ("lines of code, without comments, docstrings and blank lines", str(sum(map(code_lines, texts.values()))), ""),
        listed("loose modules at the top of the package", loose),
        listed("top-level class names that occur twice", twice(classes)),
        listed("module names that occur twice", twice(path.stem for path in texts if path.stem != "__init__")),
        listed(f"files over {LONG_FILE} lines", (name for name, lines in length.items() if lines > LONG_FILE)),
        ("public names with an Args section or no parameters", f"{share:.0%}", ", ".join(unexplained)),
        listed(f"method files over {LONG_METHOD} lines", (name for name in own if length.get(name, 0) > LONG_METHOD)),
    ]


def files_of_a_run() -> set[str]:
    """Files in which `COMMAND` calls a function until the model is written, bodies of modules and classes aside."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(("headwater", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        if not module.startswith(NOT_IN_A_RUN):
            importlib.import_module(module)
    from headwater.cli.app import main as command

    found, written = set[str](), threading.Event()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "return" and code.co_name == "write_model":
            written.set()
        elif event == "call" and code.co_flags & inspect.CO_OPTIMIZED and not written.is_set():
            found.add(code.co_filename)

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        threading.setprofile(note)
        sys.setprofile(note)
        command([*COMMAND, "--out", f"{folder}/run"])
        sys.setprofile(None)
        threading.setprofile(None)
        assert Path(folder, "run", "model.safetensors").is_file()
    return {name for name in found if Path(name).is_relative_to(SOURCE)}


if __name__ == "__main__":
    facts = static_facts()
    if "--static" not in sys.argv:
        facts.append((f"source files that `headwater {' '.join(COMMAND[:4])}` calls", str(len(files_of_a_run())), ""))
    for what, value, which in facts:
        print(f"{value:>6}  {what}{f': {which}' if which else ''}")
