"""Declare event time as early as its column exists.

``where(...).with_watermark(...)`` and ``with_watermark(...).where(...)`` give the same rows. With the watermark
first, every stream that crosses to another zone has an event time, so a zone that reads several others can wait
for the slowest of them. For the same reason a watermark has the place of its input.
"""

from __future__ import annotations

from dataclasses import replace

from headwater.dataflow.operators import Explode, Operator, Select, Watermark, Where, plain_column


def hoist_watermarks(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Move watermarks up to their input, past filters, explodes and projections that keep their column."""
    by_id = {o.id: o for o in operators}
    while True:
        readers = [i for o in by_id.values() for i in o.inputs]
        step = next((s for s in map(lambda o: _step(o, by_id, readers), by_id.values()) if s), None)
        if step is None:
            return tuple(_placed_as_input(o, by_id) for o in by_id.values())
        mark, parent = step
        moved = replace(mark, column=column_before(parent, mark.column), inputs=parent.inputs)
        by_id = {
            id_: moved if id_ == mark.id
            else replace(parent, inputs=(mark.id,)) if id_ == parent.id
            else replace(o, inputs=tuple(parent.id if i == mark.id else i for i in o.inputs))
            for id_, o in by_id.items()
        }  # fmt: skip


def _step(mark: Operator, by_id: dict[str, Operator], readers: list[str]) -> tuple[Watermark, Operator] | None:
    if not isinstance(mark, Watermark) or len(mark.inputs) != 1:
        return None
    parent = by_id.get(mark.inputs[0])
    if parent is None or readers.count(parent.id) != 1 or len(parent.inputs) != 1 or mark.id in parent.inputs:
        return None
    if isinstance(parent, Where):
        return mark, parent
    if isinstance(parent, (Select, Explode)) and column_before(parent, mark.column):
        return mark, parent
    return None


def _placed_as_input(operator: Operator, by_id: dict[str, Operator]) -> Operator:
    """Give a watermark its input's place; other operators stay unchanged."""
    above = by_id.get(operator.inputs[0]) if isinstance(operator, Watermark) else None
    return operator if above is None else replace(operator, layer=above.layer, requires=above.requires)


def column_before(parent: Operator, column: str) -> str:
    """Return the name of ``column`` before ``parent``; '' if ``parent`` computes it."""
    wanted = (plain_column(column) or column).lower()
    if isinstance(parent, Explode):
        made = {name.lower() for name in (parent.alias, parent.position) if name is not None}
        return "" if wanted in made else column
    if not isinstance(parent, Select):
        return column
    # Of two names for one column, the first keeps the event time.
    names: dict[str, str] = {}
    for name, text in parent.columns:
        origin = plain_column(text)
        if origin is not None:
            names.setdefault(origin.lower(), name.lower())
            if name.lower() == wanted:
                return origin if names[origin.lower()] == wanted else ""
    return ""
