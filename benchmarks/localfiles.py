"""Measure what Spark's local files cost a small batch: with Hadoop's class, which starts `chmod`, and with Headwater's.

A plain PySpark runs two queries, one without state and one with windows, in batches of ten rows without a pause. Each
run has a Spark of its own, and the two classes take turns. Compare the ratios.

    python -m benchmarks.localfiles [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.cost.processes import process_of
from headwater.spark.home import OWN_JAR
from headwater.spark.serverconf import FILES_CONF, SERVER_CONF, STREAMING_CONF

WARM = 60  # batches before the measurement
BATCHES, QUICK_BATCHES = 300, 100
_LIMIT = 300.0  # seconds for one query
_FILES = ("chmod", "headwater")


def run(files: str, batches: int, place: Path) -> dict[str, dict[str, float]]:
    """Run both queries in this process; return the figures of a batch by query."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    conf = {**SERVER_CONF, **STREAMING_CONF, "spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}
    conf |= {"spark.sql.streaming.numRecentProgressUpdates": str(batches + WARM)}
    if files == "headwater":
        conf |= {**FILES_CONF, "spark.driver.extraClassPath": str(OWN_JAR)}
    spark: Any = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    found = {}
    for name in ("plain", "windows"):
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).name(name).load()
        if name == "windows":
            keyed = rows.withWatermark("timestamp", "1 second").withColumn("k", F.col("value") % 3)
            rows = keyed.groupBy(F.window("timestamp", "1 second"), "k").count()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(place / name))
        query = writer.trigger(processingTime="0 seconds").start()
        _wait(query, WARM)
        before, first = _processor_seconds(java), query.lastProgress["batchId"]
        _wait(query, first + batches)
        after, last = _processor_seconds(java), query.lastProgress["batchId"]
        took = [p["durationMs"] for p in query.recentProgress if p["batchId"] > first]
        query.stop()
        found[name] = {
            "batch_ms": common.middle([t["triggerExecution"] for t in took], 1),
            "logs_ms": common.middle([t.get("walCommit", 0) + t.get("commitOffsets", 0) for t in took], 1),
            "cpu_ms": round(1000 * (after - before) / (last - first), 1),
        }
    spark.stop()
    return found


def _wait(query: Any, batch: int) -> None:
    deadline = time.monotonic() + _LIMIT
    while query.lastProgress is None or query.lastProgress["batchId"] < batch:
        if not query.isActive or time.monotonic() > deadline:
            sys.exit(f"no batch {batch}: {query.exception()}")
        time.sleep(0.1)


def _processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process and of its children that have ended."""
    one = process_of(pid)
    assert one is not None
    return one.own + one.reaped


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("Cost of a small batch's local files", repeats=5)
    parser.add_argument("--one", choices=_FILES, help="run one side in this process, and print its figures")
    options = parser.parse_args()
    batches = QUICK_BATCHES if options.quick else BATCHES
    if options.one:
        with tempfile.TemporaryDirectory(prefix="headwater-localfiles-") as name:
            print(json.dumps(run(options.one, batches, Path(name))))
        return 0
    facts = common.facts(quick=options.quick)
    rounds: dict[str, list[dict[str, dict[str, float]]]] = {files: [] for files in _FILES}
    for number in range(common.repeats_of(options)):
        for files in _FILES if number % 2 else _FILES[::-1]:
            command = [sys.executable, "-m", "benchmarks.localfiles", "--one", files]
            command += ["--quick"] if options.quick else []
            done = subprocess.run(
                command, cwd=common.ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=3 * _LIMIT
            )
            rounds[files].append(json.loads(done.stdout.splitlines()[-1]))
    result: dict[str, Any] = {}
    for query in rounds["chmod"][0]:
        result[query] = {}
        for figure in rounds["chmod"][0][query]:
            old, new = (common.middle([r[query][figure] for r in rounds[files]], 1) for files in _FILES)
            result[query][figure] = {"chmod": old, "headwater": new, "ratio": round(new / old, 3)}
            print(f"{query:<8} {figure:<9} {old:7.1f} with chmod, {new:7.1f} with Headwater's class: {new / old:.2f}")
    common.write_result(options.json, {"queries": result, "rounds": rounds}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
