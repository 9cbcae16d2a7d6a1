"""Join readings with attributes of their devices, and with the other readings of their message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.iot.folds import keys_of
from headwater.sql.lexer import quote_string, quoted

_MOST_ENTRIES = 5_000


def annotate(
    rows: Stream,
    known: Mapping[str, str],
    *,
    key: str = "id",
    into: str = "annotation",
    unknown: str | None = None,
) -> Stream:
    """Add the text for a row's key in ``known``; ``unknown`` if there is none."""
    if not 0 < len(known) <= _MOST_ENTRIES:
        raise DataflowError(
            f"the table has {len(known)} entries, not 1 to {_MOST_ENTRIES}",
            where="annotate",
            hint="read a longer table as a stream and join it",
        )
    pairs = ", ".join(f"{quote_string(k)}, {quote_string(v)}" for k, v in sorted(known.items()))
    found = f"try_element_at(map({pairs}), {quoted(key)})"
    return rows.with_columns(**{into: found if unknown is None else f"coalesce({found}, {quote_string(unknown)})"})


def join_message(
    readings: Stream, fields: Sequence[str], *, keys: Sequence[str] | None = None, value: str = "value"
) -> Stream:
    """Join the readings of a message: one row with a column for each of ``fields``.

    A message is the readings of one event time and equal ``keys``, by default ``id`` and the location. Its row is
    output when the watermark has passed it; a missing field is NULL.
    """
    time = readings.shape.event_time
    if time is None:
        raise DataflowError(
            "the readings have no event time",
            where="join_message",
            hint=".with_watermark('ts', '10 seconds')",
        )
    columns = {field: f"max(CASE WHEN obs = {quote_string(field)} THEN {quoted(value)} END)" for field in fields}
    return readings.group_by(time.column, *keys_of(readings, keys, ("id",))).agg(**columns)
