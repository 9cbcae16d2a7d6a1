"""Take apart the condition of a join: equal keys, the bound on the time between two rows, and the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headwater.core.errors import DataflowError
from headwater.sql.schema import IntervalType
from headwater.sql.scope import conjuncts, names_in
from headwater.sql.syntax import Binary, Literal, Name, PredicateCall, SyntaxNode

LEFT, RIGHT = "l", "r"
"""The first part of each name in a condition: the side of its column."""
_FIELDS = re.compile(r"'([+-]?)\s*([0-9.]+)' ([A-Z]+)")
_SIGNS = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "=": "="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
Offset = tuple[tuple[bool, str, str], ...]
"""Parts of an interval: negative, number, unit."""


@dataclass
class JoinTerms:
    """The parts of a join's condition; the bounds are those of right event time - left event time."""

    keys: list[tuple[str, str]] = field(default_factory=list)
    earliest: str | None = None
    latest: str | None = None
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    both: list[int] = field(default_factory=list)


def join_terms(condition: SyntaxNode, times: tuple[str, str] | None) -> JoinTerms:
    """Sort the conjuncts of a condition; those of one side, and others of both, by their numbers.

    ``times``: the event times of both sides; None: one side is a table.
    """
    terms = JoinTerms()
    for number, part in enumerate(conjuncts(condition)):
        if times is not None and _bounded(terms, part, *times):
            continue
        if key := _equal_columns(part):
            terms.keys.append(key)
            continue
        sides = {name.parts[0] for name in names_in(part)}
        (terms.left if sides == {LEFT} else terms.right if sides == {RIGHT} else terms.both).append(number)
    return terms


def interval_text(node: SyntaxNode) -> str:
    """Write an interval as durations are written: ``INTERVAL '1' HOUR`` as ``1 hour``."""
    offset = _offset_of(node)
    if not offset:
        raise DataflowError("an interval is needed", hint="write INTERVAL 10 SECONDS")
    return _text(offset)


def _equal_columns(part: SyntaxNode) -> tuple[str, str] | None:
    if not isinstance(part, Binary) or part.operator != "=":
        return None
    names = [side for side in (part.left, part.right) if isinstance(side, Name) and len(side.parts) == 2]
    by_side = {name.parts[0]: name.parts[1] for name in names}
    return (by_side[LEFT], by_side[RIGHT]) if len(by_side) == 2 else None


def _bounded(terms: JoinTerms, part: SyntaxNode, left_time: str, right_time: str) -> bool:
    """Take the bounds of a comparison of both event times; return whether it is one."""
    match part:
        case PredicateCall("BETWEEN", False, subject, (low, high)):
            sides = [(subject, ">=", low), (subject, "<=", high)]
        case Binary(operator, left, right) if operator in _SIGNS:
            sides = [(left, operator, right)]
        case _:
            return False
    found = [_difference(*side, left_time, right_time) for side in sides]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return False
    for sign, offset in known:
        if sign in (">", ">=", "="):
            terms.earliest = _once(terms.earliest, offset, (False, "1", "microsecond") if sign == ">" else None)
        if sign in ("<", "<=", "="):
            terms.latest = _once(terms.latest, offset, (True, "1", "microsecond") if sign == "<" else None)
    return True


def _once(known: str | None, offset: Offset, strict: tuple[bool, str, str] | None) -> str:
    if known is not None:
        raise DataflowError(
            "the join has two bounds of time on one side", hint="keep the narrower one: b.ts BETWEEN ... AND ..."
        )
    return _text((*offset, strict) if strict else offset)


def _difference(
    one: SyntaxNode, sign: str, other: SyntaxNode, left_time: str, right_time: str
) -> tuple[str, Offset] | None:
    """Return the comparison as one of right event time - left event time with an interval."""
    mine, theirs = _moved(one), _moved(other)
    if mine is None or theirs is None:
        return None
    if mine[0] == Name((LEFT, left_time)):
        mine, theirs, sign = theirs, mine, _TURNED[sign]
    if mine[0] != Name((RIGHT, right_time)) or theirs[0] != Name((LEFT, left_time)):
        return None
    return sign, (*theirs[1], *_negative(mine[1]))


def _moved(node: SyntaxNode) -> tuple[Name, Offset] | None:
    """Read ``name``, ``name + interval`` and ``name - interval``."""
    match node:
        case Name():
            return node, ()
        case Binary("+" | "-" as sign, left, right):
            if sign == "+" and _is_interval(left):
                left, right = right, left
            inner = _moved(left)
            offset = _offset_of(right)
            if inner is None or offset is None:
                return None
            return inner[0], (*inner[1], *(offset if sign == "+" else _negative(offset)))
    return None


def _is_interval(node: SyntaxNode) -> bool:
    return isinstance(node, Literal) and isinstance(node.type, IntervalType)


def _offset_of(node: SyntaxNode) -> Offset | None:
    if not isinstance(node, Literal) or not isinstance(node.type, IntervalType):
        return None
    parts = _FIELDS.findall(node.text)
    if not parts or " TO " in node.text:
        raise DataflowError(f"{node.text} cannot be a bound", hint="write INTERVAL 26 HOURS 3 MINUTES")
    return tuple((sign == "-", number, unit.lower()) for sign, number, unit in parts)


def _negative(offset: Offset) -> Offset:
    return tuple((not negative, number, unit) for negative, number, unit in offset)


def _text(offset: Offset) -> str:
    parts = [f"{'-' if n else ''}{number} {unit}{'' if number == '1' else 's'}" for n, number, unit in offset]
    return " ".join(parts) or "0 seconds"
