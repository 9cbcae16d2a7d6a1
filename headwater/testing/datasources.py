"""Conformance of Python data sources: what exactly-once delivery needs of them, checked on real Spark.

A source is held to its offsets (JSON that is the same after a restart), to replay (a range of offsets has the same
rows each time) and to a run with a Spark that is killed; a sink to runs in which batches are repeated.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headwater.dataflow.builder as builder
from headwater.core.errors import HeadwaterError
from headwater.testing.bounded import KILL, PAUSE, BoundedSource
from headwater.testing.compare import compare

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.continuum.model import Continuum
    from headwater.spark.endpoint import LocalEndpoint

Row = Mapping[str, Any]


class NotConformant(HeadwaterError):
    """A data source does not keep what exactly-once delivery needs."""

    exit_code = 1


def check_source(
    source: type[Any],
    feed: Callable[[], Sequence[Row]],
    endpoint: LocalEndpoint,
    directory: Path,
    *,
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
) -> int:
    """Check a streaming source; return the number of rows that were read. Raise NotConformant with the reason.

    ``feed`` adds some rows to the outside, at least one, and returns them. ``schema``: the columns, where the data
    source does not tell them.
    """
    where, given = f"data source {source.__name__}", dict(options or {})
    fed = list(feed())
    _check_offsets(source, given, schema, lambda: fed.extend(feed()), where)
    flow, continuum = _reading(source, given, schema)
    from headwater.app.local import LocalRun
    from headwater.disk.settings import ChannelSettings, UnitSettings
    from headwater.plan.build import build

    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    run = LocalRun(build(flow, continuum), directory / "source", endpoint, settings)
    run.start()
    try:
        for kill in (False, True, False):
            fed += feed()
            if kill:
                endpoint.kill()
                endpoint.restart()
                run = LocalRun(build(flow, continuum), directory / "source", endpoint, settings)
                run.start()
            run.settle()
        got = run.sink_rows("out")
    finally:
        run.stop()
    _same(fed, got, where, "a run in which Spark was killed")
    return len(fed)


def check_sink(
    sink: type[Any],
    read: Callable[[], Sequence[Row]],
    endpoint: LocalEndpoint,
    directory: Path,
    *,
    options: Mapping[str, str] | None = None,
    rows: int = 120,
) -> int:
    """Check a stream writer; return the number of rows that were written. Raise NotConformant with the reason.

    It is given rows ``id bigint, name string``. ``read`` returns the rows that the outside has. The writer gets
    batches again, with the same number, in one process and after a kill: it has to write each once.
    """
    where, given = f"data source {sink.__name__}", dict(options or {})
    made: list[Any] = [{"id": n, "name": f"row {n}"} for n in range(rows)]
    items = [*made[: rows // 3], PAUSE, *made[rows // 3 : rows // 2], KILL, *made[rows // 2 :]]
    source = BoundedSource(directory / "in", {"L1": items}, rows_per_file=10)
    f = builder.flow("conformance", locations=["L1"])
    f.read.json(source.path, "id bigint, name string").write.format(sink).options(**given).start().named("out")
    from headwater.plan.build import build
    from headwater.testing.oracle import run_to_end

    run_to_end(build(f.build(), _one_zone()), directory / "sink", endpoint, source=source)
    _same(made, read(), where, "a run in which Spark was killed")
    _repeat(sink, given, directory, where)
    again = [*made, *({"id": -n, "name": "again"} for n in (1, 2))]
    _same(again, read(), where, "a batch that came twice")
    return rows


def _repeat(sink: type[Any], options: dict[str, str], directory: Path, where: str) -> None:
    """Write one batch twice, as after a crash between the writer's commit and Spark's record of it."""
    import pyarrow as pa

    from headwater.connectors.customs import CustomSinkWriter
    from headwater.dataflow.function import PythonFunction

    scratch = directory / "repeated"
    scratch.mkdir(parents=True, exist_ok=True)
    provider = PythonFunction.of(sink, where=where).pickled
    spec = {"path": str(scratch), "provider": provider, "options": options, "schema": "id bigint, name string"}
    for _ in range(2):
        writer = CustomSinkWriter(spec)
        segment = writer.open()
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        segment.write(pa.RecordBatch.from_pydict({"id": [-1, -2], "name": ["again"] * 2}, schema=schema))
        closed = segment.close()
        assert closed is not None
        writer.commit([closed], 1_000_000)


def _check_offsets(
    source: type[Any], options: dict[str, str], schema: str | None, feed: Callable[[], None], where: str
) -> None:
    first = _reader(source, options, schema)
    start = _json(first.initialOffset(), where, "initialOffset()")
    if _json(_reader(source, options, schema).initialOffset(), where, "initialOffset()") != start:
        raise NotConformant(
            "initialOffset() is another one in another process",
            where=where,
            hint="begin at a position of the outside, such as 0; not at the present time",
        )
    end = _json(_latest(first, start), where, "latestOffset()")
    rows = _rows(first, start, end)
    if not rows:
        raise NotConformant(
            "no row lies between initialOffset() and latestOffset()", where=where, hint="read the rows that were fed"
        )
    feed()
    later = _reader(source, options, schema)
    beyond = _json(_latest(later, end), where, "latestOffset()")
    for reader, what in ((first, "in the same process"), (later, "in another process, after further rows")):
        if _rows(reader, start, end) != rows:
            raise NotConformant(
                f"the range from {start} to {end} has other rows when it is read again {what}",
                where=where,
                hint="let an offset name a position of stored rows; store rows that cannot be read twice first",
            )
    if beyond == end:
        raise NotConformant(
            "latestOffset() stays where it was although rows came", where=where, hint="look at the outside in each call"
        )
    whole = _rows(later, start, beyond)
    if sorted(whole) != sorted([*rows, *_rows(later, end, beyond)]):
        raise NotConformant(
            f"the ranges up to {end} and from there to {beyond} are not the whole range",
            where=where,
            hint="end a range where the next one begins",
        )


def _reader(source: type[Any], options: dict[str, str], schema: str | None) -> Any:
    from headwater.connectors.sparktypes import spark_schema
    from headwater.sql.schema import Schema

    made: Any = source(dict(options))
    found = schema if schema is not None else made.schema()
    return made.streamReader(spark_schema(Schema.parse(found).columns) if isinstance(found, str) else found)


def _latest(reader: Any, start: Any) -> Any:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    if inspect.signature(reader.latestOffset).parameters:
        return reader.latestOffset(start, ReadAllAvailable())
    return reader.latestOffset()


def _json(offset: Any, where: str, what: str) -> Any:
    try:
        again = json.loads(json.dumps(offset))
    except (TypeError, ValueError) as error:
        raise NotConformant(
            f"{what} is no JSON: {error}", where=where, hint="return dicts of numbers and texts"
        ) from None
    if again != offset or not isinstance(offset, dict):
        raise NotConformant(
            f"{what} is another value once it was stored as JSON: {offset!r}",
            where=where,
            hint="return a dict with texts as keys",
        )
    return again


def _rows(reader: Any, start: Any, end: Any) -> list[str]:
    found = []
    for partition in reader.partitions(start, end):
        for row in reader.read(partition):
            values = row.to_pylist() if hasattr(row, "to_pylist") else [tuple(row)]
            found += [repr(sorted(v.items()) if isinstance(v, dict) else v) for v in values]
    return found


def _reading(source: type[Any], options: dict[str, str], schema: str | None) -> tuple[Any, Continuum]:
    f = builder.flow("conformance", locations=["L1"])
    reader = f.read.format(source).options(**options)
    (reader if schema is None else reader.schema(schema)).load().write.memory("out")
    return f.build(), _one_zone()


def _one_zone() -> Continuum:
    from headwater.continuum.model import Continuum

    return Continuum.from_data(
        {"layers": ["edge"], "zones": {"E1": {"layer": "edge", "locations": ["L1"], "hosts": {"e1": {}}}}}
    )


def _same(expected: Sequence[Row], got: pa.Table | Sequence[Row], where: str, after: str) -> None:
    import pyarrow as pa

    table = got if isinstance(got, pa.Table) else pa.Table.from_pylist([dict(r) for r in got])
    wanted = pa.Table.from_pylist([dict(r) for r in expected])
    columns = wanted.column_names
    difference = compare(wanted, table.select(columns) if table.num_rows else table)
    if difference:
        lost, extra = difference.lost, difference.duplicated
        raise NotConformant(
            f"after {after}, {lost} rows are lost and {extra} too many: {difference.examples}",
            where=where,
            hint="a source reads a range of offsets again; a writer stores the number of a batch with its rows, and "
            "skips a number that it has",
        )
