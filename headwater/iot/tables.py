"""Queries of tables by rows of a stream: one row by its key, and the rows of a range. Joins with reference tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headwater.core.errors import DataflowError
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.stream import Stream
from headwater.sql.lexer import quoted


def look_up(
    rows: Stream, table: ReferenceTable, *, on: str | Sequence[str] = "id", how: Literal["inner", "left"] = "left"
) -> Stream:
    """Add the columns of the table's rows of equal keys; ``how="inner"`` drops rows without one."""
    return rows.join(table, on, how=how)


def query_range(
    rows: Stream,
    table: ReferenceTable,
    *,
    by: str,
    on: str | Sequence[str] = "id",
    start: str = "start",
    end: str = "end",
) -> Stream:
    """Return for each row the table's rows of equal keys, whose ``by`` is from ``start`` until before ``end``.

    ``by``: a column of the table; ``start``, ``end``: columns of the rows, which are kept. NULL is in no range.
    """
    missing = [name for name in (start, end) if name not in rows.columns]
    if missing:
        raise DataflowError(
            f"there is no column '{missing[0]}'",
            where="query_range",
            hint="name the bounds: start='from', end='until'",
        )
    found = rows.join(table, on)
    return found.where(f"{quoted(by)} >= {quoted(start)} AND {quoted(by)} < {quoted(end)}")
