"""Hadoop's path patterns, with which Spark finds files: ``*``, ``?``, ``[a-z]``, ``{a,b}``."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WILD = frozenset("*?[{")
MARK = "(?:-?replayed-[0-9a-f]{16}(?:-[0-9]+)?)+-?"
"""Regular expression, of Python and Java, of what the replay of a dead letter adds to the name of its file."""


def is_glob(text: str) -> bool:
    """Return whether a path is a pattern."""
    return not _WILD.isdisjoint(text)


def literal(path: str) -> str:
    """Return the pattern that a path alone fits.

    >>> literal("/in/a*"), fits("/in/a*", literal("/in/a*")), fits("/in/ab", literal("/in/a*"))
    ('/in/a\\\\*', True, False)
    """
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def fits(name: str, pattern: str) -> bool:
    """Return whether a path, or a name, fits a pattern as a whole; only ``{a/b,c}`` matches a ``/``.

    >>> fits("/in/a-1.csv", "/in/a-?.csv"), fits("/in/x/a.csv", "/in/*"), fits("b.csv", "{a,b}.[ct]sv")
    (True, False, True)
    """
    return any(re.fullmatch(_regex(one), name, re.DOTALL) for one in alternatives(pattern))


def alternatives(pattern: str) -> Iterator[str]:
    """Expand the braces of a pattern: yield one pattern for each choice."""
    start = pattern.find("{")
    depth, begun, parts = 0, start + 1, list[str]()
    for at in range(max(start, 0), len(pattern)):
        match pattern[at]:
            case "{":
                depth += 1
            case "," if depth == 1:
                parts.append(pattern[begun:at])
                begun = at + 1
            case "}" if depth == 1:
                for part in (*parts, pattern[begun:at]):
                    yield from alternatives(pattern[:start] + part + pattern[at + 1 :])
                return
            case "}":
                depth -= 1
    yield pattern


def _regex(pattern: str) -> str:
    found, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        closed = pattern.find("]", at + 2) if char == "[" else -1
        if closed > 0:
            inner = pattern[at + 1 : closed]
            negated = inner[0] in "^!"
            inner = (inner[1:] if negated else inner).replace("\\", "\\\\").replace("[", "\\[")
            found += f"(?!/)[{'^' if negated else ''}{inner}]"
            at = closed
        elif char == "\\" and at + 1 < len(pattern):
            at += 1
            found += re.escape(pattern[at])
        else:
            found += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
        at += 1
    return found
