"""The sink that Spark's own connector writes: a table behind JDBC.

With a batch column (``JdbcSink.batch_column``, the default): a batch is one partition and
so one transaction, and every row carries the batch's number. A batch is written only where the table
holds neither that number nor a later one of the same checkpoint. So a batch that is
repeated after a crash is written once.

A number is ``checkpoint number * 2**32 + batch id``. Batch ids begin anew with every checkpoint,
and several units may write to one table: without the first part, one would take the other's rows
for its own and skip rows that were never written. The checkpoint's number is drawn at random when its
directory is first used and stored there in ``headwater.json``; copy that file together with the
checkpoint. An index on the batch column keeps the query cheap.

One case remains: when the database commits but its answer is lost, Spark may try the *task* again
on a cluster (not with ``local[n]``). ``spark.task.maxFailures=1`` rules that out.

The table is created when it is missing. User names and passwords are read from the environment of
the zone's Spark, in the process that writes, and are in no plan that the client sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.connectors import sparksql
from headwater.connectors.packages import how_to_add
from headwater.core.errors import DataflowError, RuntimeFailure, Unavailable
from headwater.dataflow.jdbcurl import known_database
from headwater.dataflow.sinks import JdbcSink
from headwater.disk.checkpoint import checkpoint_number
from headwater.disk.credentials import read_secret
from headwater.disk.syncing import sync_checkpoint
from headwater.sql.lexer import quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AVAILABLE_NOW = "available now"
"""The trigger that reads all available input, and ends."""

_BATCH_BITS = 32


def _driver_of(sink: JdbcSink) -> str | None:
    """Return the class of a sink's driver, where it is known.

    Java finds a driver by its URL alone only among the jars that it started with, not among fetched packages.
    """
    found = known_database(sink.url)
    return sink.driver if found is None else found.driver


def start_sink(
    sink: JdbcSink,
    frame: DataFrame,
    *,
    checkpoint: Path,
    sync: bool,
    query_name: str,
    trigger: str,
    check: Callable[[int], None] | None = None,
) -> StreamingQuery:
    """Start the query that writes ``frame`` to a table; the module's docstring states its guarantees.

    ``check`` is called with the number of a batch before it is written, and raises an error to refuse it.
    ``trigger`` is an interval such as '1 second', or 'available now'. With ``sync`` the checkpoint is on disk before
    the rows of a batch are in the table.
    """
    column = sink.batch_column
    if column is not None and column.lower() in {n.lower() for n in frame.columns}:
        raise DataflowError(
            f"the data already has a column '{column}', the name of the batch column",
            where=sink.where,
            hint="rename the data's column, or choose another batch column: batch_column='...'",
        )
    number = checkpoint_number(str(checkpoint), where=sink.where) if column is not None else 0
    write = _BatchWriter(sink, number, checkpoint if sync else None, check)
    writer: Any = frame.writeStream.foreachBatch(write).queryName(query_name)
    writer = writer.option("checkpointLocation", str(checkpoint))
    now = trigger == AVAILABLE_NOW
    writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime=trigger)
    query: StreamingQuery = writer.start()
    return query


@dataclass(frozen=True)
class _BatchWriter:
    """Write one batch; runs in a Python process beside the zone's Spark."""

    sink: JdbcSink
    number: int
    checkpoint: Path | None = None
    """The checkpoint that is synced first."""
    check: Callable[[int], None] | None = None
    ready: list[bool] = field(default_factory=list)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        sink, column = self.sink, self.sink.batch_column
        if self.check is not None:
            self.check(batch_id)
        options = _options(sink)
        if self.checkpoint is not None:
            sync_checkpoint(self.checkpoint)
        # One partition is one transaction.
        rows = batch.coalesce(1)
        try:
            if column is not None:
                first = self.number << _BATCH_BITS
                this, last = first + batch_id, first + (1 << _BATCH_BITS) - 1
                rows = rows.withColumn(column, sparksql.expression(f"CAST({this} AS bigint)"))
                if not self.ready:
                    # Writing no rows creates the table, or fails where it does not fit.
                    rows.limit(0).write.format("jdbc").options(**options).mode("append").save()
                    self.ready.append(True)
                table = batch.sparkSession.read.format("jdbc").options(**options).load()
                same_or_later = table.where(sparksql.column_of(column).between(this, last))
                if same_or_later.limit(1).count():
                    return
            rows.write.format("jdbc").options(**options).mode("append").save()
        except Exception as error:
            raise _plain(error, sink) from error


def _options(sink: JdbcSink) -> dict[str, str]:
    user = read_secret(sink.user_env, where=sink.where)
    password = read_secret(sink.password_env, where=sink.where)
    named = {"user": user, "password": password, "driver": _driver_of(sink)}
    given = {**dict(sink.options), "url": sink.url, "dbtable": sink.table}
    return given | {k: v for k, v in named.items() if v is not None}


def has_output(sink: JdbcSink, schema: str, spark: SparkSession) -> bool:
    """Return whether a sink's table holds rows of any run, for rows of a schema; a missing table is made."""
    if sink.batch_column is None:
        return False
    column, options = quote_name(sink.batch_column), _options(sink)
    try:
        # As before the first batch: writing no rows makes the table, or fails where it does not fit.
        rows = spark.createDataFrame([], f"{schema}, {column} bigint")
        rows.write.format("jdbc").options(**options).mode("append").save()
        table = spark.read.format("jdbc").options(**options).load()
        return table.where(sparksql.column_of(sink.batch_column) >= 1 << _BATCH_BITS).limit(1).count() > 0
    except Exception as error:
        raise _plain(error, sink) from error


def remove_output(sink: JdbcSink, spark: SparkSession) -> None:
    """Delete the rows with a batch number from a table, in one transaction; rows of others stay."""
    assert sink.batch_column is not None
    mark = "`" if sink.url.startswith(("jdbc:mysql:", "jdbc:mariadb:")) else '"'
    column = f"{mark}{sink.batch_column.replace(mark, mark * 2)}{mark}"
    delete = f"DELETE FROM {sink.table} WHERE {column} >= {1 << _BATCH_BITS}"
    try:
        # Spark executes a statement of the user's only at the beginning of a read.
        options = {**_options(sink), "sessionInitStatement": delete}
        spark.read.format("jdbc").options(**options).load().limit(1).collect()
    except Exception as error:
        raise _plain(error, sink) from error


def _plain(error: Exception, sink: JdbcSink) -> Exception:
    """Shorten a Java stack trace to an error of one line."""
    text = str(error)
    if lacks_driver(error):
        return Unavailable(f"Spark has no driver for {scheme_of(sink.url)}", where=sink.where, hint=how_to_add(sink))
    return RuntimeFailure(
        f"the table '{sink.table}' was not written: {text.splitlines()[0] if text else type(error).__name__}",
        where=sink.where,
        hint="the batch is written again when the unit starts again; check that the database answers and the "
        "table has the columns of the rows and the batch column (bigint)",
    )


def lacks_driver(error: Exception) -> bool:
    """Return whether an error of Spark says that it has no driver for a URL."""
    return "No suitable driver" in str(error) or "ClassNotFoundException" in str(error)


def scheme_of(url: str) -> str:
    """Return the part of a JDBC URL that names the driver."""
    return ":".join(url.split(":")[:2]) + ":"
