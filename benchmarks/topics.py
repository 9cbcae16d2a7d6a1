"""The rate at which a topic is read: Headwater's Kafka source beside hand-written PySpark over the same topic.

Small records in four partitions are read from the first to the newest and written to Parquet, on one warmed Spark, the
variants in turn. ``plain`` is readStream, from_json and writeStream; a malformed value gives it a row of NULLs.
``plain, checked`` keeps malformed values apart too, with foreachBatch. ``json`` and ``avro`` are Headwater's, where a
malformed value is a dead letter, the checkpoint is synced, and each row is written once. The seconds include the start
and the end of the query. Results are checked before any figure is printed.

    python -m benchmarks.topics [--quick] [--json FILE] [--repeats N] [--rows N]
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds

import headwater as hw
from benchmarks import common
from benchmarks.channels import broker_or_none, check, finish
from headwater.app.local import LocalRun
from headwater.channels.kafkacluster import cluster_of
from headwater.connectors.packages import KAFKA
from headwater.continuum.model import Continuum
from headwater.core.errors import Unavailable
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.spark.profiling import cpu_seconds

SCHEMA = "id bigint, ts timestamp, k string, v double"
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "k", "type": "string"},
        {"name": "v", "type": "double"},
    ],
}
PARTITIONS, WARM = 4, 20_000
CONTINUUM = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}")
BEGIN = 1_700_000_000


class Bench:
    """One directory, one Spark, one broker, and topics of a number of rows."""

    def __init__(self, place: Path, endpoint: LocalEndpoint, broker: LocalBroker) -> None:
        self.place, self.endpoint, self.broker = place, endpoint, broker
        self._runs = 0

    def fill(self, topic: str, rows: int, value: Callable[[int], bytes]) -> None:
        """Write a new topic."""
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self.broker.address}
        cluster_of(settings, where=topic).ensure(topic, partitions=PARTITIONS, config={}, replication=1)
        producer = Producer({**settings, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
        for n in range(rows):
            while True:
                try:
                    producer.produce(topic, value(n), partition=n % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def _new(self) -> Path:
        self._runs += 1
        return self.place / f"run-{self._runs}"

    def plain(self, topic: str, *, checked: bool) -> Path:
        """Read a topic with PySpark alone."""
        from pyspark.sql import functions as F

        place, spark = self._new(), self.endpoint.session()
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest").name("rows")
        text = F.col("value").cast("string")
        if checked:
            schema, options = f"{SCHEMA}, bad string", {"columnNameOfCorruptRecord": "bad"}
            frame = reader.load().select(F.from_json(text, schema, options).alias("r")).select("r.*")
            out, bad = str(place / "out"), str(place / "bad")

            def write(batch: Any, _: int) -> None:
                batch.persist()
                batch.where("bad IS NULL").drop("bad").write.mode("append").parquet(out)
                batch.where("bad IS NOT NULL").select("bad").write.mode("append").json(bad)
                batch.unpersist()

            writer = frame.writeStream.foreachBatch(write)
        else:
            frame = reader.load().select(F.from_json(text, SCHEMA).alias("r")).select("r.*")
            writer = frame.writeStream.format("parquet").option("path", str(place / "out"))
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())
        return place / "out"

    def headwater(self, topic: str, **settings: Any) -> Path:
        """Read a topic with Headwater, as a run that ends with the newest record."""
        place = self._new()
        builder = hw.flow(f"topics-{self._runs}", locations=["L1"])
        schema = () if "avro_schema" in settings else (SCHEMA,)
        stream = builder.read.kafka(self.broker.address, topic, *schema, **settings)
        stream.write.parquet(str(place / "out"))
        run = LocalRun(
            build(builder.build(), CONTINUUM), place / "run", self.endpoint, UnitSettings(trigger="0 seconds")
        )
        run.start()
        try:
            run.drain()
        finally:
            run.stop()
        return place / "out"

    def clocks(self) -> dict[str, float]:
        """Return the clock, and the processor times of the broker and of all other processes here."""
        broker = sum(psutil.Process(self.broker.process.pid).cpu_times()[:2])
        return {"s": time.monotonic(), "cpu_s": cpu_seconds() + time.process_time() - broker, "broker_cpu_s": broker}


def as_json(n: int) -> bytes:
    """Return a record of some 70 bytes."""
    row = {"id": n, "ts": f"2024-01-01T00:{n // 60 % 60:02d}:{n % 60:02d}.000Z", "k": f"sensor-{n % 97}", "v": n / 7}
    return json.dumps(row).encode()


def avro_writer() -> Callable[[int], bytes]:
    """Return a function that makes the same record in Avro."""
    import fastavro

    schema = fastavro.parse_schema(AVRO)

    def write(n: int) -> bytes:
        out = io.BytesIO()
        at = (BEGIN + n % 3600) * 1_000_000
        fastavro.schemaless_writer(out, schema, {"id": n, "ts": at, "k": f"sensor-{n % 97}", "v": n / 7})
        return out.getvalue()

    return write


def measure(bench: Bench, *, rows: int, repeats: int) -> list[dict[str, Any]]:
    """Run all variants in turn."""
    for count in dict.fromkeys((WARM, rows)):
        bench.fill(f"json-{count}", count, as_json)
        bench.fill(f"avro-{count}", count, avro_writer())
    variants: dict[str, Callable[[int], Path]] = {
        "plain": lambda n: bench.plain(f"json-{n}", checked=False),
        "plain, checked": lambda n: bench.plain(f"json-{n}", checked=True),
        "json": lambda n: bench.headwater(f"json-{n}"),
        "avro": lambda n: bench.headwater(f"avro-{n}", format="avro", avro_schema=json.dumps(AVRO)),
    }
    found: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    for turn in range(-1, repeats):
        size = WARM if turn < 0 else rows  # the first round warms up
        names = list(variants)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            before = bench.clocks()
            out = variants[name](size)
            taken = {key: value - before[key] for key, value in bench.clocks().items()}
            table = ds.dataset([str(f) for f in sorted(out.rglob("*.parquet")) if ".headwater" not in f.parts])
            ids = table.to_table(columns=["id"]).column("id")
            check(name, len(ids), size)
            check(f"{name}, by ids,", sum(ids.to_pylist()), size * (size - 1) // 2)
            shutil.rmtree(out.parent)
            print(
                f"  {name:<15} {size:>9,} rows {taken['s']:6.2f} s, {taken['cpu_s']:6.2f} s of a core", file=sys.stderr
            )
            for key, value in taken.items() if turn >= 0 else ():
                found[name].setdefault(key, []).append(value)
    result = []
    for name, values in found.items():
        middle = {key: common.middle(of) for key, of in values.items()}
        result.append({"variant": name, "rows_per_s": round(rows / middle["s"]), **middle})
    return result


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("Headwater's Kafka source and plain PySpark over one topic", repeats=3)
    parser.add_argument("--rows", type=int, metavar="N", help="records of the topic")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    rows = options.rows or (WARM if options.quick else 1_000_000)
    place = Path(tempfile.mkdtemp(prefix="headwater-topics-"))
    endpoint = None
    found: list[dict[str, Any]] = []
    try:
        with broker_or_none(place / "kafka") as broker:
            if broker is not None:
                endpoint = LocalEndpoint.start(place / "spark", memory_mb=2048, quick=options.quick, packages=[KAFKA])
                found = measure(Bench(place, endpoint, broker), rows=rows, repeats=common.repeats_of(options))
    except Unavailable as error:
        print(f"without Spark's connector: {error}", file=sys.stderr)
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    print(f"{rows:,} records in {PARTITIONS} partitions, medians of {common.repeats_of(options)}")
    print(f"  {'variant':<15} {'rows/s':>9} {'s':>8} {'core s':>8} {'broker s':>9}")
    for one in found:
        print(
            f"  {one['variant']:<15} {one['rows_per_s']:>9,} {one['s']:>8.2f} {one['cpu_s']:>8.2f} "
            f"{one['broker_cpu_s']:>9.2f}"
        )
    common.write_result(options.json, {"rows": rows, "variants": found, "connector": KAFKA}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
