"""SenML packs, the messages of sensors: from packs to one row per reading, and back.

A pack is a JSON object ``{"e": [{"n": name, "u": unit, "v": value, "sv": text}, ...], "bt": milliseconds}``
(draft-jennings-senml, the form of RIoTBench's streams).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.sql.lexer import quote_string, quoted

PACK = "e array<struct<n:string,u:string,v:string,sv:string>>, bt bigint"
"""The columns of a pack: ``flow.read.json(path, iot.PACK)`` reads a file with one pack per line."""


def parse_senml(
    packs: Stream,
    *,
    id: str = "source",
    fields: Sequence[str],
    meta: Sequence[str] = (),
    delay: str = "10 seconds",
) -> Stream:
    """Return a row for each reading of a pack: location, ``ts``, ``id``, the ``meta`` columns, ``obs``, ``value``.

    The location columns of the packs (``location_as``) stay.

    ``id``: the name of the pack's device entry. ``fields``: the names of readings; ``meta``: the names of entries
    added to each reading as text. A value that is not a number is NULL. ``delay``: how late a pack may arrive.
    """
    if not fields:
        raise DataflowError("there are no fields", where="parse_senml", hint="give some: fields=('temperature', ...)")
    texts = [f"{_text_of(name)} AS {quoted(name)}" for name in meta]
    names = ", ".join(quote_string(name) for name in fields)
    located = [quoted(name) for name in sorted(packs.shape.located_by)]
    split = packs.select(
        *located,
        "timestamp_millis(bt) AS ts",
        f"{_text_of(id)} AS id",
        *texts,
        f"filter(e, x -> x.n IN ({names})) AS e",
    )
    timed = split.with_watermark("ts", delay)
    meta_columns = [quoted(name) for name in meta]
    return timed.explode("e", "reading").select(
        *located, "ts", "id", *meta_columns, "reading.n AS obs", "try_cast(reading.v AS double) AS value"
    )


def to_senml(rows: Stream, values: Mapping[str, str], *, time: str = "ts", texts: Sequence[str] = ()) -> Stream:
    """Return each row as a pack, column ``pack``: ``values`` gives the unit of each reading column.

    ``texts``: columns added as text. NULL columns are omitted.
    """
    entries = [
        f"IF({quoted(name)} IS NULL, NULL, named_struct('n', {quote_string(name)}, 'u', {quote_string(unit)}, "
        f"'v', CAST({quoted(name)} AS double), 'sv', CAST(NULL AS string)))"
        for name, unit in values.items()
    ]
    entries += [
        f"IF({quoted(name)} IS NULL, NULL, named_struct('n', {quote_string(name)}, 'u', 'string', "
        f"'v', CAST(NULL AS double), 'sv', CAST({quoted(name)} AS string)))"
        for name in texts
    ]
    pack = f"named_struct('e', array_compact(array({', '.join(entries)})), 'bt', unix_millis({quoted(time)}))"
    return rows.select(quoted(time), f"to_json({pack}) AS pack")


def _text_of(name: str) -> str:
    """Return the value of a pack's entry, as text."""
    found = f"element_at(filter(e, x -> x.n = {quote_string(name)}), 1)"
    return f"coalesce({found}.sv, {found}.v)"
