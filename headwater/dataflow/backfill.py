"""Backfill: a stream of history and a live one as one stream, each row once, in event time."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow.hoist import column_before
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.operators import Explode, Operator, Select, Union, Watermark, Where
from headwater.dataflow.sources import FileSource, Source
from headwater.dataflow.streambase import S
from headwater.dataflow.tablesources import DeltaSource, IcebergSource
from headwater.sql.lexer import quoted

_STEPS = (Where, Select, Explode)
_WITH_END = (FileSource, KafkaSource, DeltaSource, IcebergSource)
"""Sources of which all that there is can be read at once: one that has nothing new has been read to its end."""


def backfilled(live: S, history: S, *, until: str | None, disorder: str | None, where: str) -> S:
    """Return the union of a live stream and its history, which is read to its end; see ``Stream.backfill``."""
    time = live.shape.event_time
    if time is None or not live._has_time():
        raise DataflowError(
            "the live stream has no event time, by which history is put in front of it",
            where=where,
            hint='declare it first: live.with_watermark("ts", "10 seconds").backfill(history, until="...")',
        )
    if history.shape.event_time is not None:
        raise DataflowError(
            "history has an event time already",
            where=where,
            hint="leave out its with_watermark: history gets the event time of the live stream",
        )
    _check_history(history, time.column, where)
    columns = tuple(map(quoted, live.columns))
    past = history if history.columns == live.columns else history.select(*columns)
    past = past._then(
        Watermark,
        column=time.column,
        delay=disorder if disorder is not None else f"{time.delay:g} seconds",
        history="unordered" if disorder is None else "ordered",
    )
    if until is not None:
        column, bound = quoted(time.column), f"timestamp'{_instant(until, where)}'"
        # No bound divides rows without a time: they come from both.
        past = past.where(f"{column} < {bound} OR {column} IS NULL")
        live = live.where(f"{column} >= {bound} OR {column} IS NULL")
    return live._then(Union, (past,))


def backfill_problems(operators: Mapping[str, Operator]) -> Iterator[DataflowError]:
    """Yield an error for each watermark of history whose end cannot be seen: it stands behind a source that ends."""
    for operator in operators.values():
        if isinstance(operator, Watermark) and operator.history is not None:
            source = operators[operator.inputs[0]]
            if not _has_end(source):
                yield _no_end(source, operator.where)


def _has_end(operator: Operator) -> bool:
    """Return whether the end of a source can be seen; a topic that others write has one only where it is stated."""
    return isinstance(operator, _WITH_END) and not (isinstance(operator, KafkaSource) and operator.ending is None)


def _no_end(operator: Operator, where: str) -> DataflowError:
    """Return the error of history that comes from an operator whose end cannot be seen."""
    if isinstance(operator, KafkaSource):
        return DataflowError(
            f"history comes from the topic '{operator.topic}', which has no end while others write to it",
            where=where,
            hint='state it: read.kafka(..., ending="2026-01-31T12:00:00Z"), and let the live stream start there',
        )
    if isinstance(operator, Source):
        what = f"history comes from '{operator.id}' ({operator.kind}), of which no end can be seen"
        return DataflowError(what, where=where, hint="read history from files, a table or a topic")
    return DataflowError(
        f"history comes from '{operator.id}' ({operator.kind}), and its end is seen at a source only",
        where=where,
        hint="give .backfill(...) a stream that is read, filtered and selected for it alone; compute behind it",
    )


def _check_history(history: Any, column: str, where: str) -> None:
    at, name = history, column
    while isinstance(at.operator, _STEPS):
        name = column_before(at.operator, name)
        if not name:
            raise DataflowError(
                f"'{column}' of history is computed or copied by '{at.operator.id}' ({at.operator.kind})",
                where=where,
                hint="give the source's schema the event time as a timestamp; it may be renamed once",
            )
        (at,) = at.parents
    if not _has_end(at.operator):
        raise _no_end(at.operator, where)


def _instant(text: str, where: str) -> str:
    """Return a time as Spark reads it in a literal; without a zone it is in UTC."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise DataflowError(
            f"until='{cut(text, 60)}' is no timestamp", where=where, hint="write it as 2026-01-31T12:00:00Z"
        ) from None
    at = found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
    return at.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
