"""Text from outside in messages: bounded, and without a terminal's escapes."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_DIGITS = 400  # bits of a number that is written out


def cut(text: str, most: int) -> str:
    """Return at most ``most`` characters of a text.

    >>> cut("temperature", 8)
    'tempe...'
    """
    return text if len(text) <= most else text[: most - 3] + "..."


def shown(text: str) -> str:
    """Quote a text, cut to a readable length."""
    return repr(cut(text, 60))


def shown_value(value: Any) -> str:
    """Return any value for a message: cut, quick for the largest, and without fail.

    >>> shown_value("a"), shown_value(1.5), shown_value([1] * 1_000_000), shown_value(10**5000)
    ("'a'", '1.5', '[1, 1, 1, 1, 1, 1, ...]', 'a number of 5001 digits')
    """
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, int) and abs(value).bit_length() > _DIGITS:
        return f"a number of {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        return printable(reprlib.repr(value), 100)
    except Exception:  # its __repr__ is code from outside
        return f"an object of type {cut(type(value).__name__, 60)}"


def printable(text: str, most: int = 600) -> str:
    r"""Return a text for a message: cut, and with control characters as they are written in Python.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in cut(text, most))


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return `did you mean ...?` for names close to `name`, or None."""
    # Bounded: comparing is quadratic in the length and linear in the number of names.
    candidates = [k for _, k in zip(range(2000), known, strict=False) if len(k) <= 100]
    found = difflib.get_close_matches(name, candidates, n=3, cutoff=0.5) if len(name) <= 100 else []
    return f"did you mean {' or '.join(found)}?" if found else None
