"""Text from outside in messages: bounded, and without a terminal's escapes."""

from __future__ import annotations


def cut(text: str, most: int) -> str:
    """Return at most ``most`` characters of a text.

    >>> cut("temperature", 8)
    'tempe...'
    """
    return text if len(text) <= most else text[: most - 3] + "..."


def shown(text: str) -> str:
    """Quote a text, cut to a readable length."""
    return repr(cut(text, 60))


def printable(text: str, most: int = 600) -> str:
    r"""Return a text for a message: cut, and with control characters as they are written in Python.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in cut(text, most))
