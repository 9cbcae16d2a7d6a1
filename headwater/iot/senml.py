"""SenML packs, the form in which sensors speak: from packs to one row per reading, and back.

A pack is a JSON object ``{"e": [{"n": name, "u": unit, "v": value, "sv": text}, ...], "bt": milliseconds}``
(draft-jennings-senml, the form of RIoTBench's streams).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.sql.lexer import quote_string

PACK = "e array<struct<n:string,u:string,v:string,sv:string>>, bt bigint"
"""The columns of a pack: ``flow.read.json(path, iot.PACK)`` reads a file with a pack in each line."""


def parse_senml(
    packs: Stream,
    *,
    id: str = "source",
    fields: Sequence[str],
    meta: Sequence[str] = (),
    delay: str = "10 seconds",
) -> Stream:
    """Give a row for each reading of a pack: ``ts``, ``id``, the ``meta`` columns, ``obs``, ``value``.

    ``id``: the name under which a pack says whose it is. ``fields``: the names that are readings; ``meta``:
    those that go along with each of these as text. A value that is no number is NULL. ``delay``: how late a
    pack may come.
    """
    if not fields:
        raise DataflowError("no fields are named", where="parse_senml", hint="fields=('temperature', ...)")
    texts = [f"{_text_of(name)} AS `{name}`" for name in meta]
    names = ", ".join(quote_string(name) for name in fields)
    split = packs.select(
        "timestamp_millis(bt) AS ts",
        f"{_text_of(id)} AS id",
        *texts,
        f"filter(e, x -> x.n IN ({names})) AS e",
    )
    timed = split.with_watermark("ts", delay)
    meta_columns = [f"`{name}`" for name in meta]
    return timed.explode("e", "reading").select(
        "ts", "id", *meta_columns, "reading.n AS obs", "try_cast(reading.v AS double) AS value"
    )


def to_senml(rows: Stream, values: Mapping[str, str], *, time: str = "ts", texts: Sequence[str] = ()) -> Stream:
    """Write each row as a pack, column ``pack``: ``values`` gives the unit of each column that is a reading.

    ``texts``: columns that go along as text. Columns that are NULL are left out.
    """
    entries = [
        f"IF(`{name}` IS NULL, NULL, named_struct('n', {quote_string(name)}, 'u', {quote_string(unit)}, "
        f"'v', CAST(`{name}` AS double), 'sv', CAST(NULL AS string)))"
        for name, unit in values.items()
    ]
    entries += [
        f"IF(`{name}` IS NULL, NULL, named_struct('n', {quote_string(name)}, 'u', 'string', "
        f"'v', CAST(NULL AS double), 'sv', CAST(`{name}` AS string)))"
        for name in texts
    ]
    pack = f"named_struct('e', array_compact(array({', '.join(entries)})), 'bt', unix_millis(`{time}`))"
    return rows.select(f"`{time}`", f"to_json({pack}) AS pack")


def _text_of(name: str) -> str:
    """Give what a pack says under a name, as text."""
    found = f"element_at(filter(e, x -> x.n = {quote_string(name)}), 1)"
    return f"coalesce({found}.sv, {found}.v)"
