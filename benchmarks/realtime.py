"""The latency from Kafka to Kafka: real-time mode beside micro-batches, and beside hand-written PySpark.

Records come at an even rate into two partitions; a filter and a projection pass on nine tenths of them. The latency of
a row is the time from its production to its arrival at a consumer of the output topic, both on this machine. All
variants run in turn on one warmed Spark, each for the same seconds; its first batch is left out. Whether each row came
is checked before any figure is printed.

    python -m benchmarks.realtime [--quick] [--json FILE] [--repeats N] [--rate N]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import headwater as hw
from benchmarks import common
from benchmarks.channels import broker_or_none, check
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

SCHEMA = "id bigint, sent double"
CONTINUUM = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}")
PARTITIONS, CORES = 2, 2
WARM_SECONDS, SECONDS, QUICK_SECONDS = 8.0, 20.0, 6.0
PATIENCE = 60.0


class Bench:
    """A Spark, a broker, and a topic pair for each measurement."""

    def __init__(self, place: Path, endpoint: LocalEndpoint, broker: LocalBroker) -> None:
        self.place, self.endpoint, self.broker = place, endpoint, broker
        self._runs = 0

    def measure(self, begin: Callable[[str, str, Path], Callable[[], None]], rate: float, seconds: float) -> Any:
        """Run a variant, which ``begin`` starts between two topics; return latencies (s) and the cores used."""
        self._runs += 1
        given, out = f"in-{self._runs}", f"out-{self._runs}"
        settings = {"bootstrap.servers": self.broker.address}
        for topic in (given, out, f"{out}.dead-letters"):
            cluster_of(settings, where=topic).ensure(topic, partitions=PARTITIONS, config={}, replication=1)
        end = begin(given, out, self.place / f"run-{self._runs}")
        try:
            self._exchange(given, out, rate, WARM_SECONDS)
            before, broker, since = cpu_seconds(), self._broker_seconds(), time.monotonic()
            found = self._exchange(given, out, rate, seconds)
            cores = cpu_seconds() - before - self._broker_seconds() + broker
            return found, cores / (time.monotonic() - since)
        finally:
            end()

    def _broker_seconds(self) -> float:
        return float(sum(psutil.Process(self.broker.process.pid).cpu_times()[:2]))

    def _exchange(self, given: str, out: str, rate: float, seconds: float) -> list[float]:
        """Send records at a rate, and take their rows; return the latencies of those rows."""
        from confluent_kafka import Consumer, Producer, TopicPartition

        servers = {"bootstrap.servers": self.broker.address}
        consumer = Consumer({**servers, "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 5})
        places = [TopicPartition(out, p) for p in range(PARTITIONS)]
        for one in places:
            one.offset = consumer.get_watermark_offsets(one, timeout=PATIENCE)[1]
        consumer.assign(places)
        producer = Producer({**servers, "linger.ms": 0})
        count, begun = int(rate * seconds), time.monotonic()

        def send() -> None:
            for n in range(count):
                wait = begun + n / rate - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                producer.produce(given, json.dumps({"id": n, "sent": time.time()}), partition=n % PARTITIONS)
                producer.poll(0)
            producer.flush()

        sender = threading.Thread(target=send)
        sender.start()
        found: dict[int, float] = {}
        wanted = {n for n in range(count) if n % 10}
        deadline = begun + seconds + PATIENCE
        while len(found) < len(wanted) and time.monotonic() < deadline:
            for message in consumer.consume(100, timeout=0.01):
                row = json.loads(message.value())
                found.setdefault(row["id"], time.time() - row["sent"])
        sender.join()
        consumer.close()
        check("rows", len(found.keys() & wanted), len(wanted))
        return list(found.values())

    def headwater(self, trigger: str, **sink: Any) -> Callable[[str, str, Path], Callable[[], None]]:
        """Return a variant of Headwater's."""

        def begin(given: str, out: str, place: Path) -> Callable[[], None]:
            builder = hw.flow("latency", locations=["L1"])
            read = builder.read.kafka(self.broker.address, given, SCHEMA)
            read.where("id % 10 != 0").select("id", "sent").write.kafka(self.broker.address, out, **sink)
            run = LocalRun(build(builder.build(), CONTINUUM), place, self.endpoint, UnitSettings(trigger=trigger))
            run.start()
            return run.stop

        return begin

    def plain(self, given: str, out: str, place: Path) -> Callable[[], None]:
        """Run PySpark's real-time mode by hand."""
        from pyspark.sql import functions as F

        servers = ("kafka.bootstrap.servers", self.broker.address)
        reader = self.endpoint.session().readStream.name("rows").format("kafka").option(*servers)
        rows = reader.option("subscribe", given).option("startingOffsets", "earliest").load()
        rows = rows.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
        rows = rows.where("id % 10 != 0").select(F.to_json(F.struct("id", "sent")).alias("value"))
        writer = rows.writeStream.format("kafka").option(*servers).option("topic", out).outputMode("update")
        query = writer.option("checkpointLocation", str(place)).trigger(realTime="5 seconds").start()

        def end() -> None:
            query.stop()

        return end


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("latency from Kafka to Kafka, in real-time mode and in batches", repeats=3)
    parser.add_argument("--rate", type=float, default=100.0, metavar="N", help="records per second")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    place = Path(tempfile.mkdtemp(prefix="headwater-realtime-"))
    endpoint, found = None, []
    seconds = QUICK_SECONDS if options.quick else SECONDS
    try:
        with broker_or_none(place / "kafka") as broker:
            if broker is not None:
                wide = {"spark.master": f"local[{CORES + PARTITIONS}]"}
                endpoint = LocalEndpoint.start(
                    place / "spark", cores=CORES, memory_mb=1024, packages=[KAFKA], extra_conf=wide
                )
                bench = Bench(place, endpoint, broker)
                at_least = {"delivery": "at_least_once"}
                variants = {
                    "PySpark, real time": bench.plain,
                    "real time": bench.headwater("0 seconds", **at_least, real_time="5 seconds"),
                    "batches": bench.headwater("0 seconds", **at_least),
                    "batches, exactly once": bench.headwater("0 seconds"),
                }
                found = measure(bench, variants, options.rate, seconds, common.repeats_of(options))
    except Unavailable as error:
        print(f"without Spark's connector: {error}", file=sys.stderr)
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    print(f"{options.rate:g} records/s for {seconds:g} s, medians of {common.repeats_of(options)} runs")
    print(f"  {'variant':<22} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'cores':>6}")
    for one in found:
        print(
            f"  {one['variant']:<22} {one['p50_ms']:>8.1f} {one['p95_ms']:>8.1f} {one['p99_ms']:>8.1f} "
            f"{one['cores']:>6.2f}"
        )
    result = {"rate": options.rate, "seconds": seconds, "variants": found, "connector": KAFKA}
    common.write_result(options.json, result, facts=facts)
    return 0


def measure(
    bench: Bench,
    variants: dict[str, Callable[[str, str, Path], Callable[[], None]]],
    rate: float,
    seconds: float,
    repeats: int,
) -> list[dict[str, Any]]:
    """Run all variants in turn; return the medians over the turns."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            latencies, cores = bench.measure(variants[name], rate, seconds)
            shares = {f"p{share}_ms": 1000 * common.quantile(latencies, share / 100) for share in (50, 95, 99)}
            taken[name].append({**shares, "cores": cores})
            print(f"  {name:<22} p50 {shares['p50_ms']:7.1f} ms, {cores:.2f} cores", file=sys.stderr)
    return [
        {"variant": name, **{key: common.middle([one[key] for one in of]) for key in of[0]}}
        for name, of in taken.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
