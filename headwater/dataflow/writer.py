"""The sinks of a stream, as in PySpark's ``writeStream``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

from headwater.core.errors import DataflowError
from headwater.dataflow import habits, sinks, tablesinks
from headwater.dataflow.arguments import ArgumentGuard
from headwater.dataflow.customs import CustomWriter, provider_of
from headwater.dataflow.opcua import OpcuaSink
from headwater.dataflow.settings import (
    ColumnName,
    Columns,
    Computed,
    Duration,
    FileSize,
    Label,
    Option,
    Place,
    QualityOfService,
    RealTimeBatch,
    ShownRows,
)
from headwater.dataflow.stateful import ROWS
from headwater.dataflow.streambase import S, tuple_of
from headwater.dataflow.tablesinks import SmallFiles
from headwater.dataflow.updates import HOW
from headwater.dataflow.updatestream import updating
from headwater.sql.rewrite import row_json


@dataclass(frozen=True)
class Writer(habits.NameGuard, Generic[S]):
    """Sinks of a stream. Each returns the written stream, so ``.named("alarms")`` can name the sink."""

    stream: S
    updates: bool = False
    """Whether results are written as they change."""

    def output_mode(self, mode: Literal["append", "update"]) -> Writer[S]:
        """Choose when the results of ``group_by`` are written, as PySpark's ``outputMode``.

        ``"append"``: once, when they are final. ``"update"``: in each batch that changes them, to ``postgres`` or
        ``delta`` with ``keys``, where the later result replaces the earlier one. The rows get the column
        ``headwater_rows``, the number of rows that a result was computed from.
        """
        return replace(self, updates=mode == "update")

    outputMode = output_mode

    def files(
        self,
        path: Place,
        *,
        format: Literal["csv", "json", "parquet"],
        partition_by: Columns = (),
        target_file_size: FileSize | None = None,
        max_file_age: Duration | None = None,
    ) -> WrittenStream[S]:
        """Write files, each row exactly once; files appear complete. ``{zone}`` in the path is replaced.

        ``partition_by``: columns that become directories, as in Hive and Spark: ``day=2026-01-01``.
        ``target_file_size``, such as "128MiB": smaller files wait out of sight, for at most ``max_file_age`` ("10
        minutes"), until they appear as one file. With one of both, the other one has the value named here.
        """
        return self._sink(
            sinks.FileSink,
            path=path,
            format=format,
            partition_by=tuple_of(partition_by) or None,
            target_file_size=target_file_size,
            max_file_age=max_file_age,
        )

    def csv(
        self,
        path: Place,
        *,
        partition_by: Columns = (),
        target_file_size: FileSize | None = None,
        max_file_age: Duration | None = None,
    ) -> WrittenStream[S]:
        """Write CSV files with a header; settings as for ``files``."""
        sizes = {"target_file_size": target_file_size, "max_file_age": max_file_age}
        return self.files(path, format="csv", partition_by=partition_by, **sizes)

    def json(
        self,
        path: Place,
        *,
        partition_by: Columns = (),
        target_file_size: FileSize | None = None,
        max_file_age: Duration | None = None,
    ) -> WrittenStream[S]:
        """Write JSON lines; settings as for ``files``."""
        sizes = {"target_file_size": target_file_size, "max_file_age": max_file_age}
        return self.files(path, format="json", partition_by=partition_by, **sizes)

    def parquet(
        self,
        path: Place,
        *,
        partition_by: Columns = (),
        target_file_size: FileSize | None = None,
        max_file_age: Duration | None = None,
    ) -> WrittenStream[S]:
        """Write Parquet files; settings as for ``files``."""
        sizes = {"target_file_size": target_file_size, "max_file_age": max_file_age}
        return self.files(path, format="parquet", partition_by=partition_by, **sizes)

    def delta(
        self, path: Place, *, keys: Columns = (), partition_by: Columns = (), compact_after: SmallFiles = 32
    ) -> WrittenStream[S]:
        """Write to a Delta table, each row exactly once. ``{zone}`` in the path is replaced.

        ``keys``: with ``output_mode("update")``, the columns by which a result replaces an earlier one.
        ``compact_after``: so many small files, at most 1000000, become larger ones; 0: never.
        """
        return self._sink(
            tablesinks.DeltaSink,
            path=path,
            partition_by=tuple_of(partition_by),
            compact_after=compact_after,
            keys=tuple_of(keys) or None,
        )

    def iceberg(
        self,
        table: Place,
        *,
        catalog: Place,
        warehouse: Place,
        catalog_name: Place = "default",
        partition_by: Columns = (),
        compact_after: SmallFiles = 32,
        user_env: Place | None = None,
        password_env: Place | None = None,
    ) -> WrittenStream[S]:
        """Write to an Iceberg table ``namespace.name`` of a SQL catalog, each row exactly once.

        ``catalog``: ``sqlite:////dir/catalog.db`` or ``postgresql://host/db``. ``warehouse``: the directory of its
        tables. ``compact_after``: so many small files, at most 1000000, become larger ones; 0: never.
        ``user_env``, ``password_env``: secrets, ``HEADWATER_SECRET_...``.
        """
        return self._sink(
            tablesinks.IcebergSink,
            table=table,
            catalog=catalog,
            warehouse=warehouse,
            catalog_name=catalog_name,
            partition_by=tuple_of(partition_by),
            compact_after=compact_after,
            user_env=user_env,
            password_env=password_env,
        )

    def console(self, rows: ShownRows = 20) -> WrittenStream[S]:
        """Print the newest rows of every batch where the dataflow was started, at most 10000."""
        return self._sink(sinks.ConsoleSink, rows=rows)

    def memory(self, name: Label) -> WrittenStream[S]:
        """Keep the rows in memory under this name (tests, notebooks)."""
        return self._sink(sinks.MemorySink).named(name)

    def for_each_batch(
        self, function: Callable[..., Any], *, one_zone: bool = False, as_dataframe: bool = False
    ) -> WrittenStream[S]:
        """Call ``function(pyarrow.Table, batch_number)`` per batch; after a failure a batch may be repeated.

        Each zone numbers its own batches. With ``one_zone``, a plan that runs the sink in several zones is refused.
        With ``as_dataframe``, the function gets a DataFrame of the zone's Spark instead of the table.
        """
        captured = self.stream._function(function, 2, "for_each_batch")
        return self._sink(
            sinks.CallbackSink, function=captured, one_zone=one_zone or None, as_dataframe=as_dataframe or None
        )

    def kafka(
        self,
        bootstrap_servers: Place,
        topic: Place,
        *,
        key: Computed | None = None,
        value: Computed | None = None,
        delivery: Literal["exactly_once", "at_least_once"] = "exactly_once",
        real_time: RealTimeBatch | None = None,
        dead_letters: Place | None = None,
        user_env: Place | None = None,
        password_env: Place | None = None,
        **options: Option,
    ) -> WrittenStream[S]:
        """Write to a Kafka topic: expressions ``key`` and ``value``, or each row as one JSON object.

        ``real_time="5 seconds"``: in Spark's real-time mode, each row within milliseconds, with
        ``delivery="at_least_once"``; offsets are stored once in that time, 5 seconds to 10 minutes. Malformed records
        then go to the topic ``dead_letters``, as a default ``<topic>.dead-letters``.

        ``options`` are librdkafka's, with ``_`` for ``.``: ``compression_type="zstd"``. ``user_env`` and
        ``password_env`` name secrets, ``HEADWATER_SECRET_...``.
        """
        columns = [f"{row_json(self.stream.columns) if value is None else value} AS value"]
        columns += [f"{key} AS key"] if key is not None else []
        settings = dict(
            bootstrap_servers=bootstrap_servers,
            topic=topic,
            delivery=delivery,
            user_env=user_env,
            password_env=password_env,
            options=tuple(sorted((k.replace("_", "."), str(v)) for k, v in options.items())),
        )
        self._check_real_time(real_time, delivery, dead_letters)
        stream = self.stream.select(*columns)
        if real_time is None:
            return replace(self, stream=stream)._sink(sinks.KafkaSink, **settings)
        dead_letters = dead_letters or f"{topic}.dead-letters"
        # Results of real-time mode are early in either output mode.
        return Writer(stream)._sink(sinks.RealTimeKafkaSink, **settings, real_time=real_time, dead_letters=dead_letters)

    def _check_real_time(self, real_time: str | None, delivery: str, dead_letters: str | None) -> None:
        where = self._place_of("kafka")
        if real_time is not None and delivery != "at_least_once":
            raise DataflowError(
                "Spark's real-time mode writes each row at least once",
                where=where,
                hint='add delivery="at_least_once" if readers can bear repeated rows, or leave real_time out',
            )
        if real_time is None and dead_letters is not None:
            raise DataflowError(
                "dead_letters names a topic, which only real-time mode writes",
                where=where,
                hint="leave it out: `headwater deadletters` lists the malformed records, or add real_time='5 seconds'",
            )

    def format(self, source: Any) -> CustomWriter[WrittenStream[S]]:
        """Write to a Python data source: its class, or the name of one that ``f.dataSource`` knows.

        ``s.write.format(MySink).option("url", "...").start()``, as in PySpark. Its ``streamWriter`` gets each batch
        with its number; after a failure it may get a batch again.
        """
        where = self._place_of("format")
        provider = provider_of(source, self.stream.builder.data_sources, where=where)
        return CustomWriter(self._sink, provider, where)

    def mqtt(
        self,
        broker: Place,
        topic: Place | None = None,
        *,
        topic_from: Computed | None = None,
        value: Computed | None = None,
        qos: QualityOfService = 1,
        retain: bool = False,
        username_env: Place | None = None,
        password_env: Place | None = None,
        tls: bool = False,
    ) -> WrittenStream[S]:
        """Send messages to an MQTT topic, or with ``topic_from`` to the one that this expression gives for each row.

        ``value``: the payload, as an expression; else each row is one JSON object. ``{zone}`` in the topic is replaced.
        ``username_env`` and ``password_env`` name secrets, ``HEADWATER_SECRET_...``. MQTT 5.
        """
        if (topic is None) == (topic_from is None):
            raise DataflowError(
                "write.mqtt takes either a topic or topic_from",
                where=self._place_of("mqtt"),
                hint="write.mqtt('broker', 'plant/alarms'), or topic_from=\"concat('plant/', site, '/commands')\"",
            )
        columns = [f"{row_json(self.stream.columns) if value is None else value} AS value"]
        columns += [f"{topic_from} AS topic"] if topic_from is not None else []
        return replace(self, stream=self.stream.select(*columns))._sink(
            sinks.MqttSink,
            broker=broker,
            topic=topic,
            qos=qos,
            retain=retain,
            username_env=username_env,
            password_env=password_env,
            tls=tls,
        )

    def opcua(
        self,
        url: Place,
        node: Place | None = None,
        *,
        node_from: Computed | None = None,
        value: Computed,
        username_env: Place | None = None,
        password_env: Place | None = None,
        certificate: Place | None = None,
        key: Place | None = None,
        server_certificate: Place | None = None,
    ) -> WrittenStream[S]:
        """Write ``value`` to a node of an OPC UA server, or with ``node_from`` to the one that it gives for each row.

        ``node``: an id as ``ns=2;s=Line1.Setpoint`` or ``nsu=URI;s=...``; ``{zone}`` in it is replaced. The values of
        a node are written in order. ``..._env`` name secrets, ``HEADWATER_SECRET_...``; ``certificate``, ``key``,
        ``server_certificate``: PEM or DER files in the zone, for an encrypted connection.
        """
        if (node is None) == (node_from is None):
            raise DataflowError(
                "write.opcua takes either a node or node_from",
                where=self._place_of("opcua"),
                hint="write.opcua(url, 'ns=2;s=Setpoint', value='v'), or node_from=\"concat('ns=2;s=', machine)\"",
            )
        columns = [f"{value} AS value"] + ([f"{node_from} AS node"] if node_from is not None else [])
        return Writer(self.stream.select(*columns))._sink(
            OpcuaSink,
            url=url,
            node=node,
            username_env=username_env,
            password_env=password_env,
            certificate=certificate,
            key=key,
            server_certificate=server_certificate,
        )

    def jdbc(
        self,
        url: Place,
        table: Place,
        *,
        batch_column: ColumnName | None = "headwater_batch",
        user_env: Place | None = None,
        password_env: Place | None = None,
        driver: Place | None = None,
        **options: Option,
    ) -> WrittenStream[S]:
        """Append to a table through JDBC. ``user_env``, ``password_env``: secrets, ``HEADWATER_SECRET_...``."""
        return self._sink(
            sinks.JdbcSink,
            url=url,
            table=table,
            batch_column=batch_column,
            user_env=user_env,
            password_env=password_env,
            driver=driver,
            options=tuple(sorted((k, str(v)) for k, v in options.items())),
        )

    def postgres(
        self,
        url: Place,
        table: Place,
        *,
        keys: Columns = (),
        order_by: Columns | None = None,
        user_env: Place | None = None,
        password_env: Place | None = None,
    ) -> WrittenStream[S]:
        """Write to a table of PostgreSQL, each row exactly once; with ``keys`` a row replaces that of the same keys.

        ``order_by``: the row with the greatest values of these columns is the newest of a key, in whatever order
        rows come; as a default the event time. Without both, the row that came last.
        """
        if self.updates and order_by is not None:
            raise DataflowError(
                "results that change are ordered by their number of rows",
                where=self._place_of("postgres"),
                hint="leave order_by out",
            )
        newest = (ROWS,) if self.updates else None if order_by is None else tuple_of(order_by)
        return self._sink(
            tablesinks.PostgresSink,
            url=url,
            table=table,
            keys=tuple_of(keys),
            order_by=newest,
            user_env=user_env,
            password_env=password_env,
        )

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.WRITER, where=f"write after '{self.stream.operator.id}'")

    def _place_of(self, method: str) -> str:
        return f"write.{method} after '{self.stream.operator.id}'"

    def _sink(self, cls: type[sinks.Sink], **settings: Any) -> WrittenStream[S]:
        before = self.stream
        if self.updates:
            if not settings.get("keys"):
                raise DataflowError(
                    f"'{cls.kind}' adds rows, and early results would stay beside the final ones",
                    where=self._place_of("output_mode"),
                    hint=HOW,
                )
            before = updating(self.stream, where=self._place_of("output_mode"))
        stream = before._then(cls, **settings)
        self.stream.builder.add_sink(stream)
        return WrittenStream(stream)


@dataclass(frozen=True)
class WrittenStream(ArgumentGuard, Generic[S]):
    """A stream that ends in a sink."""

    stream: S

    def _place_of(self, method: str) -> str:
        return f"{method} after '{self.stream.operator.id}'"

    def named(self, name: Label) -> WrittenStream[S]:
        """Name the sink."""
        renamed = self.stream.named(name)
        self.stream.builder.replace_sink(self.stream, renamed)
        return WrittenStream(renamed)
