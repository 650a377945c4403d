"""Parts of a method's file for its page: paragraphs of the docstring, and the source of a round."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.algorithms import ALGORITHMS


def page_of(name: str) -> str:
    """Path of a method's page on the site."""
    return f"methods/{name.replace('+', '-plus')}.md"


# -- docstrings


@dataclass(frozen=True)
class Doc:
    """Parts of a method's docstring.

    Args:
        idea: the first paragraph.
        source: citation, and which symbol of the paper is which name here.
        cost: what the counts of models leave out.
        differences: from the paper and the authors' code.
    """

    idea: str
    source: str = ""
    cost: str = ""
    differences: str = ""


def doc_of(kind: type) -> Doc:
    """The parts of a class's docstring, by how its paragraphs begin."""
    text = re.split(r"^(?:Args|Example):$", inspect.cleandoc(kind.__doc__ or ""), flags=re.MULTILINE)[0]
    first, *others = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    parts: dict[str, list[str]] = {"source": [], "cost": [], "differences": []}
    for part in others:
        where = "cost" if part.startswith("Cost:") else "differences" if part.startswith("Differences") else "source"
        parts[where].append(capital(re.sub(r"^(?:Cost|Differences):\s*", "", part)))
    # Markdown wants an empty line before a list.
    joined = {key: re.sub(r":\n\*", ":\n\n*", "\n\n".join(found)) for key, found in parts.items()}
    return Doc(first, **joined)


def capital(text: str) -> str:
    """Begin with a capital letter, unless the first word is a symbol."""
    return text if text[1:2] == " " and text[0] != "a" else text[:1].upper() + text[1:]


def classes() -> dict[str, str]:
    """Name of every listed method by its class."""
    return {part.target.partition(":")[2]: name for name, part in ALGORITHMS.items()}


def linked(text: str, own: str) -> str:
    """Class names of other methods as links to their pages. Links of docstrings lead from the repository's root."""
    known = classes()

    def link(match: re.Match[str]) -> str:
        name = known.get(match.group(1), own)
        return match.group() if name == own else f"[{match.group()}]({Path(page_of(name)).name})"

    text = re.sub(r"(?<!\[)`(\w+)`", link, text)
    return re.sub(r"\bdocs/(\w+\.md)", r"[\1](../\1)", text)


# -- source


def listing(kind: type) -> tuple[str, str]:
    """Source of `round`, and of everything else in the method's file that it calls, in the order of the file."""
    module = sys.modules[kind.__module__]
    parts: dict[str, tuple[int, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        members = node.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__ else [node]
        for each in members:
            if isinstance(each, ast.FunctionDef):
                parts[each.name] = (each.lineno, source_of(module, each))
    main = textwrap.dedent(inspect.getsource(kind.round))  # type: ignore[attr-defined]
    wanted, queue = set[str](), [main]
    while queue:
        called = names_in(queue.pop()) & set(parts) - wanted - {"round", "init"}
        wanted |= called
        queue += [parts[name][1] for name in called]
    return main, "\n\n".join(text for _, text in sorted(parts[name] for name in wanted))


def names_in(source: str) -> set[str]:
    """Names that a function uses, its own attributes included; keywords of calls are none."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"}
    return own | {node.id for node in nodes if isinstance(node, ast.Name)}


def source_of(module: Any, node: ast.FunctionDef) -> str:
    lines = inspect.getsource(module).splitlines()
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))


def base_of(kind: type) -> str:
    """The listed method whose docstring a variant refers to (`FedHead` for `FedHeadPlus`), or its own name."""
    known = classes()
    named = re.findall(r"`(\w+)`", (kind.__doc__ or "").partition("Args:")[0])
    return next((known[each] for each in named if each in known and each != kind.__name__), known[kind.__name__])
