"""Changes to valid content, drawn at random: bytes, numbers, keys, types, nesting, lines and cells.

Everything is drawn from the generator that is handed in, so that the number of a case gives the same case again.
"""

from __future__ import annotations

import copy
import io
import json
import math
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

Tree = Any  # what JSON can hold
NUMBERS = (0, -1, 1, 2, 7, 255, 256, 65536, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400)
FLOATS = (0.0, -0.0, 0.5, -0.5, 1.5, 1e-320, 1e-9, 1e9, 1e308, -1e308, math.nan, math.inf, -math.inf)
TEXTS = (
    "",
    " ",
    "0",
    "1e999",
    "nan",
    "true",
    "None",
    "a\0b",
    "\n",
    "../../etc",
    "/",
    "~",
    "é\u0301",
    "\u202eabc",
    "𐍈" * 3,
    "\ufeff",
    "'\"\\",
    "%s%n{0}",
    "os:system",
    "headwater.core.rng:stream",
    "x" * 5000,
    "c0",
    "server",
    "s0",
)
LONE = "\ud800"  # half of a pair, which UTF-8 cannot hold; JSON can, as an escape
DEEP = (3, 30, 1200)  # levels of nesting


def odd(rng: random.Random, lone: bool = False) -> Tree:
    """A value that stands where another is expected."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(-(10**6), 10**6)
    if kind == 3:
        return rng.choice(FLOATS)
    if kind in (4, 5):
        return LONE if lone and rng.random() < 0.1 else rng.choice(TEXTS)
    if kind == 6:
        return [odd(rng, lone) for _ in range(rng.randrange(4))]
    return {rng.choice(("name", "$", "x", "", "round", "a.b")): odd(rng, lone) for _ in range(rng.randrange(3))}


def nested(value: Tree, levels: int, in_lists: bool) -> Tree:
    """A value below so many levels of lists or tables."""
    for _ in range(levels):
        value = [value] if in_lists else {"a": value}
    return value


def places(tree: Tree) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree; without recursion."""
    found: list[tuple[Any, Any]] = []
    left = [tree]
    while left:
        each = left.pop()
        inner = (
            list(each.items()) if isinstance(each, dict) else list(enumerate(each)) if isinstance(each, list) else []
        )
        for key, value in inner:
            found.append((each, key))
            left.append(value)
    return found


def changed_tree(rng: random.Random, tree: Tree, *, lone: bool = True, most: int = 3, deep: int = 2) -> Tree:
    """A copy of plain tables and lists with up to `most` changes.

    Args:
        rng: draws all changes.
        tree: what is changed.
        lone: whether texts that are no Unicode are among the values.
        most: number of changes.
        deep: how many of `DEEP` are drawn from.
    """
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, most)):
        known = places(tree)
        if not known:
            return odd(rng, lone)
        # Every level is equally likely, so that a long list of numbers does not take all changes.
        holder, key = rng.choice(known) if rng.random() < 0.5 else rng.choice(known[: max(1, len(known) // 20) + 10])
        value = holder[key]
        match rng.randrange(9):
            case 0 | 1 | 2:
                holder[key] = odd(rng, lone)
            case 3:
                holder[key] = alike(rng, value)
            case 4:
                del holder[key]
            case 5 if isinstance(holder, dict):
                holder[rng.choice((*TEXTS[:12], "unknown", str(key).upper()))] = holder.pop(key)
            case 5 | 6:
                other, at = rng.choice(known)
                try:
                    holder[key] = copy.deepcopy(other[at])
                except (KeyError, IndexError):
                    holder[key] = odd(rng, lone)
            case 7 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(value))
            case 7:
                holder[rng.choice(TEXTS)] = odd(rng, lone)
            case 8:
                levels = rng.choice(DEEP[:deep])
                holder[key] = nested(value, levels, rng.random() < 0.5)
    return tree


def alike(rng: random.Random, value: Tree) -> Tree:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(NUMBERS)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        at = rng.randint(0, len(value))
        return value[:at] + rng.choice(TEXTS) + value[at + rng.randint(0, 3) :]
    if isinstance(value, list):
        return value * rng.choice((0, 2, 50)) if len(value) < 100 else value[: rng.randrange(len(value))]
    return {} if isinstance(value, dict) else odd(rng)


def changed_bytes(rng: random.Random, data: bytes, most: int = 4) -> bytes:
    """Bytes that are flipped, cut, inserted, repeated or replaced by numbers at the ends of their range."""
    data = bytearray(data)
    for _ in range(rng.randint(1, most)):
        # The head of a file says more about it than the rest, so half of the changes are there.
        end = len(data) if rng.random() < 0.5 else min(len(data), 256)
        at = rng.randint(0, end)
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del data[at : at + rng.choice((1, 2, 4, 8, 64, 1024))]
            case 3:
                data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
            case 4:
                data[at:at] = data[at : at + rng.choice((1, 4, 16, 256))] * rng.randint(1, 3)
            case 5:
                del data[at:]
            case 6:
                width = rng.choice("BHIQ")
                size = struct.calcsize(width)
                number = rng.choice((0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 1) - 1))
                data[at : at + size] = struct.pack(rng.choice("<>") + width, number)
            case _:
                other = rng.randint(0, len(data))
                data[at : at + 16] = data[other : other + 16]
    return bytes(data)


def json_bytes(rng: random.Random, tree: Tree) -> bytes:
    """A tree as JSON; rarely with a key twice, too many levels, or damaged bytes."""
    text = json.dumps(tree)
    if rng.random() < 0.05 and "{" in text:
        at = text.index("{") + 1
        key = rng.choice(list(tree)) if isinstance(tree, dict) and tree else "a"
        text = f"{text[:at]}{json.dumps(key)}: {json.dumps(odd(rng))}, {text[at:]}".replace(", }", "}")
    if rng.random() < 0.03:
        depth = rng.choice((900, 5000, 200_000))
        text = text[: len(text) // 2] + "[" * depth if rng.random() < 0.5 else "[" * depth + "]" * depth
    if rng.random() < 0.03:
        text = text.replace("0", "9" * 5000, 1)
    data = text.encode("utf-8", "surrogatepass")
    return changed_bytes(rng, data) if rng.random() < 0.15 else data


def json_change(rng: random.Random, data: bytes) -> bytes:
    """A file with one JSON value, changed."""
    if rng.random() < 0.15:
        return changed_bytes(rng, data)
    return json_bytes(rng, changed_tree(rng, json.loads(data)))


def lines_change(rng: random.Random, data: bytes) -> bytes:
    """A file with a JSON value in each line, changed."""
    lines = data.splitlines(keepends=True)
    if not lines or rng.random() < 0.15:
        return changed_bytes(rng, data)
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        case 2:
            rng.shuffle(lines)
        case _:
            lines[at] = json_change(rng, lines[at]) + b"\n"
    return b"".join(lines)


def toml_change(rng: random.Random, text: str, tree: Tree) -> bytes:
    """TOML, changed as tables or as text.

    Args:
        rng: draws the changes.
        text: valid TOML.
        tree: its content.
    """
    if rng.random() < 0.6:
        text = toml_text(changed_tree(rng, tree, lone=False))
    lines = text.split("\n")
    if rng.random() < 0.5:
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])  # a key or a table twice
            case 1:
                del lines[at]
            case 2:
                key, _, value = lines[at].partition("=")
                depth = rng.choice((50, 900, 20_000))
                lines[at] = f"{key} = {'[' * depth}{value}{']' * depth}"
            case 3:
                lines[at] = (
                    lines[at].partition("=")[0] + "= " + rng.choice(("9" * 5000, "1979-05-27", "0x_", "''''", "inf"))
                )
            case 4:
                lines.append("[" + ".".join(["a"] * rng.choice((2, 400, 5000))) + "]")
            case _:
                lines[at] = lines[at] + rng.choice(("\r", "\0", "\u2028", " # ☃", "[", "="))
    data = "\n".join(lines).encode("utf-8", "replace")
    return changed_bytes(rng, data) if rng.random() < 0.15 else data


def toml_text(tree: Tree) -> str:
    """TOML of any tree; what TOML cannot hold becomes an empty text."""
    if not isinstance(tree, dict):
        return f"value = {toml_value(tree, 0)}\n"
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = [f"{json.dumps(str(key))} = {toml_value(value, 0)}" for key, value in plain.items()]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines.append(f"[{json.dumps(str(key))}]")
            lines += [f"{json.dumps(str(inner))} = {toml_value(each, 0)}" for inner, each in value.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Tree, level: int = 0) -> str:
    """A value as it stands after = in TOML."""
    if level > 200 or value is None:
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict):
        inner = (f"{json.dumps(str(key))} = {toml_value(each, level + 1)}" for key, each in value.items())
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(each, level + 1) for each in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")


def table_change(rng: random.Random, text: str, separator: str) -> bytes:
    """Lines and cells of a table, changed."""
    rows = [line.split(separator) for line in text.rstrip("\n").split("\n")]
    for _ in range(rng.randint(1, 4)):
        row = rng.randrange(len(rows)) if rng.random() < 0.7 else 0
        cells = rows[row]
        column = rng.randrange(len(cells)) if cells else 0
        match rng.randrange(9):
            case 0 | 1 if cells:
                cells[column] = str(odd(rng)).replace("\n", " ")
            case 2:
                cells.insert(column, rng.choice(TEXTS))
            case 3 if cells:
                del cells[column]
            case 4:
                rows.insert(row, list(cells))
            case 5 if len(rows) > 1:
                del rows[row]
            case 6:
                for each in rows[1:]:
                    if len(each) > column:
                        each[column] = rng.choice(("1e400", "", "x", "0", "nan", "1e38"))
            case 7 if cells:
                cells[column] = rng.choice(('"', '""', '"open', "a\rb", "=1+1", "1,5", "١٢", "0x1F"))
            case _ if cells:
                cells[column] = rows[0][min(column, len(rows[0]) - 1)] if rows[0] else ""
    data = "\n".join(separator.join(cells) for cells in rows).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "latin-1", "utf-8-sig")), "replace")
    return changed_bytes(rng, data) if rng.random() < 0.15 else data


def array_change(rng: random.Random, array: Any) -> Any:
    """An array of another type, shape or content."""
    with np.errstate(all="ignore"):
        match rng.randrange(8):
            case 0:
                kinds = ("float16", "float64", "int8", "uint64", "bool", "complex64", "U5", "S3", "datetime64[s]")
                try:
                    return array.astype(rng.choice(kinds))
                except (ValueError, TypeError):
                    return array[:0]
            case 1 if array.ndim:
                return array[: rng.choice((0, 1, 2))]
            case 2:
                return array.reshape(-1) if rng.random() < 0.5 else array[..., None]
            case 3:
                return np.array(array.flat[0] if array.size else 0)
            case 4 if array.size and array.dtype.kind == "f":
                array = array.copy()
                array.flat[rng.randrange(array.size)] = rng.choice(FLOATS)
                return array
            case 5 if array.size and array.dtype.kind in "iu":
                array = array.copy()
                limits = np.iinfo(array.dtype)
                array.flat[rng.randrange(array.size)] = rng.choice((limits.min, limits.max, 0))
                return array
            case 6:
                return np.concatenate([array, array]) if array.ndim else array
            case _:
                return np.asfortranarray(array) if rng.random() < 0.5 else array.astype(array.dtype.newbyteorder())


def npz_change(rng: random.Random, arrays: dict[str, Any]) -> bytes:
    """A .npz file whose arrays, names, members or bytes are changed."""
    arrays = dict(arrays)
    for _ in range(rng.randint(1, 2)):
        if not arrays:
            break
        name = rng.choice(list(arrays))
        match rng.randrange(5):
            case 0:
                del arrays[name]
            case 1:
                arrays[rng.choice(("x", "y", "x_train", "odd", "é", "a/b"))] = arrays.pop(name)
            case _:
                arrays[name] = array_change(rng, arrays[name])
    file = io.BytesIO()
    np.savez(file, **arrays) if rng.random() < 0.5 else np.savez_compressed(file, **arrays)
    data = file.getvalue()
    if rng.random() < 0.2:
        data = member_change(rng, data)
    return changed_bytes(rng, data) if rng.random() < 0.4 else data


def member_change(rng: random.Random, data: bytes) -> bytes:
    """A zip file one of whose members has other bytes, such as another shape in the head of an array; its sums fit."""
    changed, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    names = changed.namelist()
    at = rng.choice(names) if names else ""
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            content = changed.read(name)
            if name == at:
                if rng.random() < 0.5:
                    shape = rng.choice(("(99999999999,)", "(-1,)", "(0, 7)", "(2147483647, 64)", "()", "(1,", "('a',)"))
                    content = _with_shape(content, shape)
                else:
                    content = changed_bytes(rng, content)
            archive.writestr(name, content)
    return out.getvalue()


def _with_shape(content: bytes, shape: str) -> bytes:
    start, end = content.find(b"'shape': ("), content.find(b"\n")
    if start < 0 or end < 0:
        return content
    close = content.index(b")", start) + 1
    head = content[10:start] + b"'shape': " + shape.encode() + content[close:end].rstrip()
    head = head.ljust(end - 10)[: max(end - 10, len(head))] + b"\n"
    return content[:8] + struct.pack("<H", len(head)) + head + content[end + 1 :]


Change = Callable[[random.Random, bytes], bytes]
