"""Find the generators in items of a projection: ``explode(items) AS item`` gives rows, not a value."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.errors import DataflowError
from headwater.sql.parser import parse_item
from headwater.sql.printer import canonical
from headwater.sql.syntax import Alias, Call

_OUTER = {"explode": False, "explode_outer": True}


@dataclass(frozen=True)
class ArrayRows:
    """An item that gives a row for each element of an array, as column ``name``."""

    array: str
    name: str
    outer: bool


def exploded_of(text: str) -> ArrayRows | None:
    """Return the explode that an item is, or None for other items; Spark's own name of the column is ``col``."""
    if not any(name in text.lower() for name in _OUTER):
        return None
    try:
        node = parse_item(text)
    except DataflowError:
        return None  # who checks the item says it with the place
    value, name = (node.value, node.name) if isinstance(node, Alias) else (node, "col")
    if not isinstance(value, Call) or value.name not in _OUTER or len(value.arguments) != 1:
        return None
    return ArrayRows(canonical(value.arguments[0]), name, _OUTER[value.name])
