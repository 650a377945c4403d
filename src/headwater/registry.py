"""Registries of parts by name: methods, data sets, models, partition schemes, engines.

A part describes itself where it is defined: a class with `INFO = Info(...)`, a function with the decorator
`@Info(...)`. A registry finds the parts of a package by reading its source files, without importing them, so listing
what exists never imports torch.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_type_hints

from headwater.errors import ConfigError, HeadwaterError, nearest

SOURCE = Path(__file__).parent
MOST_SHOWN = 120  # letters of a name that a message shows
LONGEST_TARGET = 1000  # letters of "package.module:attribute"
F = TypeVar("F", bound=Callable[..., Any])
AnyInfo = TypeVar("AnyInfo", bound="Info")


@dataclass(frozen=True)
class Info:
    """What a part says about itself. All arguments must be literals, since they are read without importing the file.

    Args:
        name: the name under which the part is chosen, in configurations and on the command line.
        summary: one line for `headwater list`.

    Example:
        >>> @Info("double", "twice the input")
        ... def double(x: int) -> int:
        ...     return 2 * x
        >>> double.INFO.summary
        'twice the input'
    """

    name: str
    summary: str = ""

    def __call__(self, function: F) -> F:
        """Use as a decorator: attaches this to a function as its attribute `INFO`."""
        function.INFO = self  # type: ignore[attr-defined]
        return function


@dataclass(frozen=True)
class Part(Generic[AnyInfo]):
    """One row of a registry.

    Args:
        target: where the part is, as "package.module:attribute".
        info: what it says about itself.
    """

    target: str
    info: AnyInfo

    @property
    def summary(self) -> str:
        """One line for `headwater list`."""
        return self.info.summary

    def load(self) -> Any:
        """Import the part."""
        return load(self.target)


class Registry(Mapping[str, Part[AnyInfo]], Generic[AnyInfo]):
    """The parts of one kind by name, in the order of files and of lines in a file.

    Wherever a name is accepted, "package.module:attribute" is accepted too: a part of the user's own.

    Args:
        kind: what the parts are called in messages, such as "method".
        package: the package whose files are searched, such as "headwater.algorithms", subpackages included.
        info: the class that the parts describe themselves with. Only calls of a class of this name are found.
        order: sorts the parts, if files and lines are not the order to list them in.

    Raises:
        HeadwaterError: at the first use, if two parts have one name or a description is not literal.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        *,
        info: type[AnyInfo] = Info,  # type: ignore[assignment]
        order: Callable[[AnyInfo], Any] | None = None,
    ) -> None:
        self.kind = kind
        self._package, self._info, self._order = package, info, order
        self._known: dict[str, Part[AnyInfo]] | None = None

    @property
    def _parts(self) -> dict[str, Part[AnyInfo]]:
        if self._known is None:
            parts = scan(self.kind, self._package, self._info)
            if self._order is not None:
                order = self._order
                parts.sort(key=lambda part: order(part.info))
            self._known = {part.info.name: part for part in parts}
        return self._known

    def __getitem__(self, name: str) -> Part[AnyInfo]:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def check(self, name: str) -> str:
        """Return the name if it is listed or written as "package.module:attribute".

        Raises:
            ConfigError: otherwise, with the nearest name.
        """
        if name in self._parts or ":" in name:
            return name
        raise ConfigError(
            f"there is no {self.kind} called {short_name(name)}{nearest(name, self._parts)} "
            f"(known: {', '.join(self._parts)})"
        )

    def load(self, name: str) -> Any:
        """Import the part of this name, or the user's own at "package.module:attribute"."""
        self.check(name)
        return self._parts[name].load() if name in self._parts else load(name)


def short_name(name: str) -> str:
    """A name in quotes, cut to a readable length."""
    return repr(name) if len(name) <= MOST_SHOWN else f"{name[: MOST_SHOWN // 2]!r}… ({len(name):,} letters)"


def path_exists(name: str | Path) -> bool:
    """Whether there is a file or folder of this name; False also for a name that is too long for one."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def load(target: str) -> Any:
    """Import the object at "package.module:attribute"; also from a file in the current directory."""
    module, _, attribute = target.partition(":")
    if not module or len(target) > LONGEST_TARGET:
        raise ConfigError(f"{short_name(target)} names no object; write it as 'package.module:name'")
    _search_current_directory(module.partition(".")[0])
    try:
        result: Any = importlib.import_module(module)
        for name in attribute.split("."):
            result = getattr(result, name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{target!r} could not be imported ({error}); write it as 'package.module:name', of a package that is "
            "installed or a file in the directory where the command is given"
        ) from error
    return result


def says_it_returns(function: Any, kind: type) -> bool | None:
    """Whether a function is annotated to return `kind`, or is such a class. It is not called.

    Returns:
        None if it says nothing, or if what it says cannot be resolved.
    """
    function = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if isinstance(function, type):
        return issubclass(function, kind)
    routine = function if inspect.isroutine(function) else type(function).__call__
    annotations = getattr(routine, "__annotations__", {})
    if "return" not in annotations:
        return None
    try:
        returned = get_type_hints(routine)["return"]
    except Exception:  # names that only a type checker knows; an annotation may be any expression
        return True if str(annotations["return"]).strip("'\"").rpartition(".")[2] == kind.__name__ else None
    if isinstance(returned, type) and issubclass(returned, kind):
        return True
    return None if returned in (Any, object) or not isinstance(returned, type | type(None)) else False


def cannot_return(function: Any, kind: type) -> bool:
    """Whether a function says that it returns something else than `kind`.

    A function without an annotation counts as such if it is compiled, or is one of the standard library's or of
    Headwater's: it is no part of a user's own.
    """
    said = says_it_returns(function, kind)
    if said is not None:
        return not said
    function = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    own = package == "__main__" or package not in (*sys.stdlib_module_names, "headwater")
    return inspect.isbuiltin(function) or not own


def _search_current_directory(name: str) -> None:
    """Let Python import a module of the current directory, which an installed command does not search.

    It is searched last, and only if it has such a module, so that nothing else in it is taken for a package.
    """
    if "" not in sys.path and (Path(f"{name}.py").is_file() or Path(name, "__init__.py").is_file()):
        sys.path.append("")


def scan(kind: str, package: str, info: type[AnyInfo]) -> list[Part[AnyInfo]]:
    """Find the parts of a package of Headwater by reading its source files.

    Args:
        kind: for messages.
        package: its dotted name; files of its subpackages are read too.
        info: the class whose calls describe a part.

    Returns:
        The parts, by file and line.

    Raises:
        HeadwaterError: two parts have one name, or a description is not literal.
    """
    parts: dict[str, Part[AnyInfo]] = {}
    call = f"{info.__name__}("
    for path in sorted((SOURCE / Path(*package.split(".")[1:])).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if call not in text:  # most files define no part
            continue
        inside = path.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(("headwater", *(inside[:-1] if inside[-1] == "__init__" else inside)))
        for node in _outline(text).body:
            described = _description(node, info.__name__, module)
            if described is None:
                continue
            target = f"{module}:{cast(ast.ClassDef, node).name}"
            part = Part(target, _literal(described, info, target))
            if part.info.name in parts:
                raise HeadwaterError(
                    f"two {kind}s are called {part.info.name!r}: {parts[part.info.name].target} and {target}; "
                    "rename one of them"
                )
            parts[part.info.name] = part
    return list(parts.values())


def _outline(text: str) -> ast.Module:
    """The statements of a file without the bodies of functions, whose parsing takes most of the time of a scan."""
    short = re.sub(r"^    (?:def |@)[\s\S]*?(?=^[@\w]|\Z)", "", text, flags=re.MULTILINE)
    short = re.sub(r"^def (\w+)[\s\S]*?(?=^[@\w]|\Z)", r"def \1(): ...\n", short, flags=re.MULTILINE)
    try:
        return ast.parse(short if short.count("INFO = ") == text.count("INFO = ") else text)
    except SyntaxError:  # an unusual layout
        return ast.parse(text)


def _description(node: ast.stmt, name: str, module: str) -> ast.Call | None:
    """The call that describes what a top-level statement defines: the value of INFO in a class, or a decorator."""
    if isinstance(node, ast.FunctionDef):
        return next((each for each in node.decorator_list if _calls(each, name)), None)  # type: ignore[return-value]
    for line in node.body if isinstance(node, ast.ClassDef) else ():
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else ()
        )
        if any(isinstance(target, ast.Name) and target.id == "INFO" for target in targets):
            value = cast(ast.Assign, line).value
            if value is not None and not _calls(value, name):
                raise HeadwaterError(f"INFO of {module}:{node.name} must be {name}(...), written out in the class")  # type: ignore[attr-defined]
            return cast(ast.Call | None, value)
    return None


def _calls(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == name


def _literal(call: ast.Call, info: type[AnyInfo], target: str) -> AnyInfo:
    try:
        values = [ast.literal_eval(each) for each in call.args]
        options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        return info(*values, **options)
    except (ValueError, TypeError) as error:
        raise HeadwaterError(
            f"{info.__name__}(...) of {target} is read without importing the file, so it takes its known arguments "
            f"and only literals, no names and no expressions ({error})"
        ) from None
