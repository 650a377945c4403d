"""Files that are whole, but not written as they must be: what is wrong, from the error of the library that reads."""

from __future__ import annotations

import re

from headwater.errors import said


def mistake_in(error: Exception, where: str) -> str:
    """The sentence for a mistake in a file; an empty text for an error that only damage explains.

    Args:
        error: what the library raised.
        where: the file, and what was read of it.
    """
    text = said(error)
    if "Object arrays cannot be loaded" in text:
        return (
            f"{where} holds Python objects instead of numbers, such as rows of different lengths or texts; save one "
            "array of numbers in which all rows have the same shape (x.dtype must not be object)"
        )
    if ragged := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", text):
        wanted, line, found = ragged.groups()
        return (
            f"{where}: line {line} has {found} fields, and the lines before it have {wanted}; correct that line, or "
            "put texts that contain the separator into quotes"
        )
    if "Length of header or names does not match" in text:
        return (
            f"{where}: its rows have more fields than its first line has names; name every column, or put texts that "
            "contain the separator into quotes"
        )
    if "No columns to parse" in text:
        return f"{where} is empty; a table needs a line with the names of its columns, and rows below it"
    if "EOF inside string" in text or "unexpected end of data" in text:
        return f"{where}: a quoted text is never closed ({text}); add the missing quote"
    return ""
