"""Declare event time as early as its column exists.

``where(...).with_watermark(...)`` and ``with_watermark(...).where(...)`` give the same rows. With
the watermark first, every stream that crosses to another zone has an event time, so that a
zone that reads several others can wait for the slowest of them.
"""

from __future__ import annotations

from dataclasses import replace

from headwater.dataflow.operators import Operator, Select, Watermark, Where, plain_column


def hoist_watermarks(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Move watermarks up past filters and past projections that keep their column."""
    by_id = {o.id: o for o in operators}
    while True:
        readers = [i for o in by_id.values() for i in o.inputs]
        step = next((s for s in map(lambda o: _step(o, by_id, readers), by_id.values()) if s), None)
        if step is None:
            return tuple(by_id.values())
        mark, parent = step
        moved = replace(mark, column=_before(parent, mark.column), inputs=parent.inputs)
        moved = replace(moved, layer=parent.layer, requires=parent.requires)
        by_id = {
            id_: moved if id_ == mark.id
            else replace(parent, inputs=(mark.id,)) if id_ == parent.id
            else replace(o, inputs=tuple(parent.id if i == mark.id else i for i in o.inputs))
            for id_, o in by_id.items()
        }  # fmt: skip


def _step(
    mark: Operator, by_id: dict[str, Operator], readers: list[str]
) -> tuple[Watermark, Operator] | None:
    if not isinstance(mark, Watermark) or len(mark.inputs) != 1:
        return None
    parent = by_id.get(mark.inputs[0])
    if parent is None or readers.count(parent.id) != 1 or len(parent.inputs) != 1 or mark.id in parent.inputs:
        return None
    if isinstance(parent, Where):
        return mark, parent
    if isinstance(parent, Select) and _before(parent, mark.column):
        return mark, parent
    return None


def _before(parent: Operator, column: str) -> str:
    """Name ``column`` as it is called before ``parent``; '' where it is computed there."""
    if not isinstance(parent, Select):
        return column
    wanted = (plain_column(column) or column).lower()
    # Of two names for one column, the first takes the event time on.
    names: dict[str, str] = {}
    for name, text in parent.columns:
        origin = plain_column(text)
        if origin is not None:
            names.setdefault(origin.lower(), name.lower())
            if name.lower() == wanted:
                return origin if names[origin.lower()] == wanted else ""
    return ""
