"""Readings joined: with what is known of their devices, and with the others of their message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.sql.lexer import quote_string

_MOST_ENTRIES = 5_000


def annotate(
    rows: Stream,
    known: Mapping[str, str],
    *,
    key: str = "id",
    into: str = "annotation",
    unknown: str | None = None,
) -> Stream:
    """Add what is known of a row's key: the text under it in ``known``; ``unknown`` where there is none."""
    if not 0 < len(known) <= _MOST_ENTRIES:
        raise DataflowError(
            f"{len(known)} entries, 1 to {_MOST_ENTRIES} are possible",
            where="annotate",
            hint="read a longer table as a stream and join it",
        )
    pairs = ", ".join(f"{quote_string(k)}, {quote_string(v)}" for k, v in sorted(known.items()))
    found = f"try_element_at(map({pairs}), `{key}`)"
    return rows.with_columns(**{into: found if unknown is None else f"coalesce({found}, {quote_string(unknown)})"})


def join_message(
    readings: Stream, fields: Sequence[str], *, keys: Sequence[str] = ("id",), value: str = "value"
) -> Stream:
    """Put the readings of a message together again: one row with a column for each of ``fields``.

    A message is what has one event time and the same ``keys``. Its row comes when the watermark has passed
    it; a field that it lacks is NULL.
    """
    time = readings.shape.event_time
    if time is None:
        raise DataflowError(
            "the readings have no event time",
            where="join_message",
            hint=".with_watermark('ts', '10 seconds')",
        )
    columns = {field: f"max(CASE WHEN obs = {quote_string(field)} THEN `{value}` END)" for field in fields}
    return readings.group_by(time.column, *keys).agg(**columns)
