"""Measure each kind of channel and delivery: rows written and read a second, and latency over two hops.

All through real Spark queries on one warmed server, side by side, the variant that begins changing from
round to round. Writing is a query from rows at rest into a channel; reading is a query from that channel
into a sink that keeps few; the hops are two queries, channel to channel, fed by rows that carry their
creation time. The rows that arrived are compared with the rows sent before any figure is printed.

    python -m benchmarks.channels [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from headwater.channels.channel_spark import ChannelSource
from headwater.channels.open import open_log
from headwater.connectors.sparkformats import own_format
from headwater.core.errors import Unavailable
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELIVERIES = ("exactly_once", "at_least_once")
SCHEMA = "i bigint, ingested double, value double, name string"
FILE_ROWS = 50_000
TRIGGER = "0 seconds"
EVERY = 0.2  # seconds between two batches of the latency's feed
KEPT = 1000  # one of this number of rows that are read is kept
HOP_ROWS = 200  # rows of such a batch

Variant = tuple[str, str]


class Bench:
    """One directory, one Spark, one broker, and logs numbered in the order of their creation."""

    def __init__(self, place: Path, endpoint: LocalEndpoint, broker: LocalBroker | None) -> None:
        self.place = place
        self.session: SparkSession = endpoint.session()
        self._broker = broker
        self._count = 0

    def variants(self) -> list[Variant]:
        kinds = ("filelog", "kafka") if self._broker else ("filelog",)
        return [(kind, delivery) for kind in kinds for delivery in DELIVERIES]

    def log(self, variant: Variant) -> dict[str, Any]:
        """Return the description of a new log."""
        kind, delivery = variant
        self._count += 1
        home = self.place / f"log-{self._count}"
        if kind == "filelog":
            return {"kind": "filelog", "path": str(home), "delivery": delivery}
        assert self._broker is not None
        named = {"servers": self._broker.address, "topic": f"bench-{self._count}"}
        return {"kind": "kafka", **named, "staging": str(home / "staging"), "delivery": delivery}

    def source(self, spec: dict[str, Any]) -> DataFrame:
        """Return a log as a stream."""
        self._count += 1
        members = self.place / f"members-{self._count}.json"
        members.write_text(json.dumps({"writers": {"w": spec}}))
        reader = self.session.readStream.name("log").format(own_format(self.session, ChannelSource))
        reader = reader.option("members", str(members))
        return reader.option("reader", f"r{self._count}").option("schema", SCHEMA).load()

    def sink(self, frame: DataFrame, spec: dict[str, Any], **trigger: Any) -> Any:
        """Start the query that writes a stream into a log."""
        self._count += 1
        kind = {"filelog": "filelog", "kafka": "kafkalog"}[spec["kind"]]
        config = {"epoch": 1, "sink_writers": [{**spec, "kind": kind, "lineage": str(self._count)}]}
        writer = frame.writeStream.format("headwater_sink").option("config", json.dumps(config))
        writer = writer.option("checkpointLocation", str(self.place / f"checkpoint-{self._count}"))
        return writer.trigger(**(trigger or {"processingTime": TRIGGER})).start()

    def write(self, rows: int, spec: dict[str, Any]) -> float:
        """Write rows at rest into a log; return the seconds."""
        source = self.place / f"rows-{rows}"
        stream = self.session.readStream.name("rows").schema(SCHEMA).option("maxFilesPerTrigger", 10)
        begun = time.monotonic()
        finish(self.sink(stream.parquet(str(source)), spec, availableNow=True))
        seconds = time.monotonic() - begun
        check("written", open_log(spec).stats().rows, rows)
        return seconds

    def read(self, rows: int, spec: dict[str, Any]) -> float:
        """Read a log and keep one row in a thousand, to check that all have come; return the seconds."""
        few = self.source(spec).where(f"i % {KEPT} = 0")
        kept = self.log(("filelog", "exactly_once"))
        begun = time.monotonic()
        finish(self.sink(few, kept, availableNow=True))
        seconds = time.monotonic() - begun
        check("read", open_log(kept).stats().rows * KEPT, rows)
        return seconds

    def two_hops(self, variant: Variant, seconds: float) -> list[float]:
        """Feed a log, copy it twice; return the age of the newest row of each batch at the end."""
        first, second, third = (self.log(variant) for _ in range(3))
        feed, last = open_log(first), open_log(third)
        queries = [self.sink(self.source(a), b) for a, b in ((first, second), (second, third))]
        try:
            sent, end = 0, time.time() + 3 + seconds  # the first three seconds warm up
            begun = end - seconds
            while (now := time.time()) < end:
                feed.append(rows_of(sent * HOP_ROWS, HOP_ROWS, now), epoch=1, batch=sent)
                sent += 1
                time.sleep(max(0.0, EVERY - (time.time() - now)))
            deadline = time.monotonic() + 60
            while last.stats().rows < sent * HOP_ROWS and time.monotonic() < deadline:
                time.sleep(0.05)
            for query in queries:
                if query.exception() is not None:
                    raise query.exception()
        finally:
            for query in queries:
                query.stop()
        found, arrived = [], []
        for entry in last.entries(0, last.latest()):
            table = pa.Table.from_batches(last.read(entry.seq, entry.seq + 1))
            arrived.append(table.column("i").to_numpy())
            newest = float(table.column("ingested").to_numpy().max())
            if newest >= begun:
                found.append(entry.written - newest)
        check("over two hops", len(np.unique(np.concatenate(arrived))), sent * HOP_ROWS)
        return found


def finish(query: Any) -> None:
    """Wait for a query, and raise its failure."""
    if not query.awaitTermination(300):
        sys.exit("Spark took too long")
    if query.exception() is not None:
        raise query.exception()


def check(what: str, found: int, wanted: int) -> None:
    """End the benchmark when rows are missing or too many."""
    if found != wanted:
        sys.exit(f"{found} rows {what} instead of {wanted}")


def rows_of(first: int, count: int, ingested: float) -> pa.Table:
    """Return rows that compress badly."""
    i = np.arange(first, first + count, dtype="int64")
    value = np.sin(i * 12.9898) * 43758.5453
    names = pa.array([f"sensor-{n % 97}" for n in range(count)])
    return pa.table({"i": i, "ingested": np.full(count, ingested), "value": value, "name": names})


def write_files(directory: Path, rows: int) -> None:
    """Write the rows at rest."""
    directory.mkdir()
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        table = rows_of(first, min(FILE_ROWS, rows - first), 0.0)
        pq.write_table(table, directory / f"{number:06d}.parquet")


@contextlib.contextmanager
def broker_or_none(place: Path) -> Iterator[LocalBroker | None]:
    """Return a broker; None, after a message with the reason, where none can run."""
    with contextlib.ExitStack() as stack:
        try:
            broker = LocalBroker.start(place)
            stack.callback(broker.stop)
        except Unavailable as error:
            print(f"without Kafka: {error}", file=sys.stderr)
            broker = None
        yield broker


def measure(bench: Bench, *, rows: int, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Run all variants in turn."""
    variants = bench.variants()
    writes: dict[Variant, list[float]] = {v: [] for v in variants}
    reads: dict[Variant, list[float]] = {v: [] for v in variants}
    hops: dict[Variant, list[float]] = {v: [] for v in variants}
    warm = min(rows, FILE_ROWS)
    for count in dict.fromkeys([warm, rows]):
        write_files(bench.place / f"rows-{count}", count)
    for variant in variants:
        bench.read(warm, _written(bench, variant, warm))
    for turn in range(repeats):
        at = turn % len(variants)
        for variant in variants[at:] + variants[:at]:
            spec = bench.log(variant)
            writes[variant].append(bench.write(rows, spec))
            reads[variant].append(bench.read(rows, spec))
            hops[variant] += bench.two_hops(variant, seconds)
            print(
                f"  {variant[0]:<8} {variant[1]:<14} write {writes[variant][-1]:6.2f} s, "
                f"read {reads[variant][-1]:6.2f} s, two hops {common.middle(hops[variant]):6.3f} s",
                file=sys.stderr,
                flush=True,
            )
    return [
        {
            "channel": kind,
            "delivery": delivery,
            "write_rows_per_s": round(rows / common.middle(writes[kind, delivery])),
            "read_rows_per_s": round(rows / common.middle(reads[kind, delivery])),
            "two_hop_p50_s": common.middle(hops[kind, delivery]),
            "two_hop_p95_s": round(common.quantile(hops[kind, delivery], 0.95), 3),
            "batches": len(hops[kind, delivery]),
        }
        for kind, delivery in variants
    ]


def _written(bench: Bench, variant: Variant, rows: int) -> dict[str, Any]:
    spec = bench.log(variant)
    bench.write(rows, spec)
    return spec


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("Channels by kind and delivery", repeats=3)
    parser.add_argument("--rows", type=int, metavar="N", help="rows to write and read")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    rows = options.rows or (200_000 if options.quick else 3_000_000)
    seconds = 2.0 if options.quick else 20.0
    place = Path(tempfile.mkdtemp(prefix="headwater-channels-"))
    endpoint = None
    try:
        with broker_or_none(place / "kafka") as broker:
            endpoint = LocalEndpoint.start(place / "spark", memory_mb=2048, quick=options.quick)
            bench = Bench(place, endpoint, broker)
            found = measure(bench, rows=rows, repeats=common.repeats_of(options), seconds=seconds)
            endpoint.stop()
            endpoint = None
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    base = found[0]
    print(f"{rows:,} rows, medians of {common.repeats_of(options)}; ratios to the first line")
    for row in found:
        write = row["write_rows_per_s"] / base["write_rows_per_s"]
        read = row["read_rows_per_s"] / base["read_rows_per_s"]
        print(
            f"  {row['channel']:<8} {row['delivery']:<14} "
            f"write {row['write_rows_per_s']:>10,}/s ({write:4.2f})   "
            f"read {row['read_rows_per_s']:>10,}/s ({read:4.2f})   "
            f"two hops p50 {row['two_hop_p50_s']:.3f} s"
        )
    result = {"rows": found, "rows_written": rows, "repeats": common.repeats_of(options), "trigger": TRIGGER}
    common.write_result(options.json, result, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
