"""Compare the Kafka channel with Spark's own Kafka source, which reads one JSON record per row.

Real Spark queries on one warmed server, the variants in turn: ``channel`` is a Kafka channel, ``records`` the
transactional Kafka sink into four partitions, read with read_committed by Spark's Kafka source, ``spark sink``
Spark's own sink (at least once, written only). A write takes rows at rest in batches of 50,000; a read is an
aggregate over all columns, as one batch and in batches. Latency is that of a steady feed from a filelog through
the topic into a filelog. Processor seconds are those of Spark, its Python workers and this process; the
broker's are given apart. Results are checked before any figure is printed.

    python -m benchmarks.kafkasource [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from benchmarks.channels import broker_or_none, check, finish
from headwater.channels.channel_spark import ChannelSource
from headwater.channels.kafkacluster import cluster_of
from headwater.channels.open import open_log
from headwater.connectors.sparkformats import own_format
from headwater.core.errors import Unavailable
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.spark.profiling import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's Kafka source: the newest version; there is none of Spark 4.3 yet."""

LOGS = {"filelog": "filelog", "kafka": "kafkalog"}
"""Kinds of logs, and of the sink writers that write them."""

VARIANTS = ("channel", "records", "spark sink")
SCHEMA = "id bigint, ts timestamp, k string, v double"
JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}  # the default drops microseconds
PARTITIONS, BATCH = 4, 50_000
EVERY, HOP_ROWS = 0.2, 200  # seconds between two batches of the feed, rows of each
SETTLE = 4.0  # seconds of the feed that are not measured


class Bench:
    """One directory, one Spark, one broker; topics are numbered in the order of their creation."""

    def __init__(self, place: Path, endpoint: LocalEndpoint, broker: LocalBroker) -> None:
        self.place, self.broker = place, broker
        self.session = endpoint.session()
        self._count = 0

    def topic(self, variant: str) -> dict[str, Any]:
        """Return the description of a new topic: a log, or records."""
        self._count += 1
        name = f"bench-{self._count}"
        home = self.place / name
        if variant == "channel":
            return {"kind": "kafka", "servers": self.broker.address, "topic": name, "staging": str(home / "staging")}
        cluster = cluster_of({"bootstrap.servers": self.broker.address}, where=name)
        cluster.ensure(name, partitions=PARTITIONS, config={}, replication=1)
        settings = {"bootstrap.servers": self.broker.address, "compression.type": "lz4"}
        return {"kind": variant, "topic": name, "settings": settings, "id": name, "path": str(home)}

    def source(self, spec: dict[str, Any], limit: int | None = None) -> DataFrame:
        """Return a topic as a stream, at most about ``limit`` rows a batch."""
        from pyspark.sql import functions as F

        reader = self.session.readStream.name("rows")
        if spec["kind"] in LOGS:
            self._count += 1
            members = self.place / f"members-{self._count}.json"
            members.write_text(json.dumps({"writers": {"w": spec}}))
            reader = reader.format(own_format(self.session, ChannelSource)).option("members", str(members))
            reader = reader.option("schema", SCHEMA).option("reader", f"r{self._count}")
            return (reader.option("max_rows_per_batch", limit) if limit else reader).load()
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        reader = reader.option("subscribe", spec["topic"]).option("startingOffsets", "earliest")
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.option("maxOffsetsPerTrigger", limit) if limit else reader
        row = F.from_json(F.col("value").cast("string"), SCHEMA, JSON)
        return reader.load().select(row.alias("row")).select("row.*")

    def sink(self, frame: DataFrame, spec: dict[str, Any], **trigger: Any) -> Any:
        """Start the query that writes a stream into a topic."""
        from pyspark.sql import functions as F

        self._count += 1
        if spec["kind"] not in LOGS:
            frame = frame.select(F.col("k").alias("key"), F.to_json(F.struct("*"), JSON).alias("value"))
        if spec["kind"] == "spark sink":
            writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
            writer = writer.option("topic", spec["topic"]).option("kafka.compression.type", "lz4")
        else:
            kind = LOGS.get(spec["kind"], "kafka")
            config = {"epoch": 1, "sink_writers": [{**spec, "kind": kind, "lineage": str(self._count)}]}
            writer = frame.writeStream.format("headwater_sink").option("config", json.dumps(config))
        writer = writer.option("checkpointLocation", str(self.place / f"checkpoint-{self._count}"))
        return writer.trigger(**trigger).start()

    def write(self, rows: int, spec: dict[str, Any]) -> None:
        """Write rows at rest into a topic."""
        stream = self.session.readStream.name("rest").schema(SCHEMA).option("maxFilesPerTrigger", 1)
        finish(self.sink(stream.parquet(str(self.place / f"rows-{rows}")), spec, availableNow=True))

    def read(self, rows: int, spec: dict[str, Any], limit: int | None = None) -> None:
        """Aggregate all columns of a topic's rows, and check the results."""
        self._count += 1
        table = f"read_{self._count}"
        frame = self.source(spec, limit).selectExpr(
            "count(*) rows", "sum(id) ids", "sum(length(k)) letters", "round(sum(v)) v", "unix_micros(max(ts)) ts"
        )
        writer = frame.writeStream.format("memory").queryName(table).outputMode("complete")
        writer = writer.option("checkpointLocation", str(self.place / f"checkpoint-{self._count}"))
        finish(writer.trigger(availableNow=True).start())
        (found,) = self.session.table(table).collect()
        check("read", found["rows"], rows)
        check("read, by ids,", found["ids"], rows * (rows - 1) // 2)
        check("read, by time,", found["ts"], rows - 1)

    def stored(self, spec: dict[str, Any]) -> int:
        """Return the bytes of a topic on the broker's disk."""
        return sum(file.stat().st_size for file in self.broker.directory.glob(f"data/{spec['topic']}-[0-9]/*.log"))

    def clocks(self) -> dict[str, float]:
        """Return the clock, and the processor times of the broker and of all other processes here."""
        broker = sum(psutil.Process(self.broker.process.pid).cpu_times()[:2])
        return {"s": time.monotonic(), "cpu_s": cpu_seconds() + time.process_time() - broker, "broker_cpu_s": broker}

    def hops(self, variant: str, seconds: float) -> list[float]:
        """Feed a filelog, copy it through a topic into another; return the age of each batch's newest row there."""
        first, last = ({"kind": "filelog", "path": str(self.place / f"log-{self._count}-{n}")} for n in range(2))
        topic = self.topic(variant)
        feed, end = open_log(first), open_log(last)
        queries = [self.sink(self.source(a), b, processingTime="0 seconds") for a, b in ((first, topic), (topic, last))]
        try:
            begun, sent = time.time() + SETTLE, 0
            while (now := time.time()) < begun + seconds:
                feed.append(rows_of(sent * HOP_ROWS, HOP_ROWS, round(now * 1e6), 0), epoch=1, batch=sent)
                sent += 1
                time.sleep(max(0.0, EVERY - (time.time() - now)))
            deadline = time.monotonic() + 60
            while end.stats().rows < sent * HOP_ROWS and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            for query in queries:
                query.stop()
        ids: set[int] = set()
        found = []
        for entry in end.entries(0, end.latest()):
            table = pa.Table.from_batches(end.read(entry.seq, entry.seq + 1))
            ids.update(table.column("id").to_pylist())
            newest = float(table.column("ts").cast(pa.int64()).to_numpy().max()) / 1e6
            found += [entry.written - newest] if newest >= begun else []
        check("through the topic", len(ids), sent * HOP_ROWS)
        return found


def rows_of(first: int, count: int, time_: int, step: int) -> pa.Table:
    """Return rows that compress badly, from ``time_`` in microseconds on."""
    i = np.arange(first, first + count, dtype="int64")
    ts = pa.array(time_ + step * i).cast(pa.timestamp("us", tz="UTC"))
    k = pa.array([f"sensor-{n % 97}" for n in i])
    return pa.table({"id": i, "ts": ts, "k": k, "v": np.sin(i * 12.9898) * 43758.5453})


def measure(bench: Bench, *, rows: int, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Run all variants in turn."""
    for count in dict.fromkeys([BATCH, rows]):
        place = bench.place / f"rows-{count}"
        place.mkdir()
        for first in range(0, count, BATCH):
            pq.write_table(rows_of(first, min(BATCH, count - first), 0, 1), place / f"{first:09d}.parquet")
    found: dict[tuple[str, str], list[float]] = {}

    def timed(variant: str, what: str, do: Callable[[], None]) -> None:
        before = bench.clocks()
        do()
        taken = {name: value - before[name] for name, value in bench.clocks().items()}
        for name, value in taken.items():
            found.setdefault((variant, f"{what}_{name}"), []).append(value)
        print(f"  {variant:<10} {what:<14} {taken['s']:6.2f} s, {taken['cpu_s']:6.2f} s of a core", file=sys.stderr)

    for turn in range(-1, repeats):
        size = BATCH if turn < 0 else rows  # the first round warms up
        if turn == 0:
            found.clear()
        for variant in VARIANTS[turn % 3 :] + VARIANTS[: turn % 3]:
            spec = bench.topic(variant)
            timed(variant, "write", partial(bench.write, size, spec))
            found.setdefault((variant, "bytes"), []).append(bench.stored(spec))
            if variant == "spark sink":
                continue
            timed(variant, "read", partial(bench.read, size, spec))
            timed(variant, "read_batches", partial(bench.read, size, spec, BATCH))
            if turn >= 0:
                found.setdefault((variant, "latency_s"), []).extend(bench.hops(variant, seconds))
    names = list(dict.fromkeys(name for _, name in found))
    middle = {key: common.middle(values) for key, values in found.items()}
    return [{"variant": v} | {n: middle[v, n] for n in names if (v, n) in middle} for v in VARIANTS]


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("The Kafka channel and Spark's own Kafka source", repeats=3)
    parser.add_argument("--rows", type=int, metavar="N", help="rows to write and read")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    rows = options.rows or (50_000 if options.quick else 1_000_000)
    place = Path(tempfile.mkdtemp(prefix="headwater-kafkasource-"))
    endpoint = None
    found: list[dict[str, Any]] = []
    try:
        with broker_or_none(place / "kafka") as broker:
            if broker is not None:
                endpoint = LocalEndpoint.start(
                    place / "spark", memory_mb=2048, quick=options.quick, packages=[CONNECTOR]
                )
                bench = Bench(place, endpoint, broker)
                seconds = 2.0 if options.quick else 20.0
                found = measure(bench, rows=rows, repeats=common.repeats_of(options), seconds=seconds)
    except Unavailable as error:
        print(f"without Spark's connector: {error}", file=sys.stderr)
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    print(f"{rows:,} rows, medians of {common.repeats_of(options)}; ratios to the first line")
    for row in found:
        print(f"  {row['variant']}")
        for name, value in list(row.items())[1:]:
            print(f"    {name:<26} {value:>14,.3f} ({value / (found[0][name] or 1):5.2f})")
    common.write_result(options.json, {"rows": rows, "variants": found, "connector": CONNECTOR}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
