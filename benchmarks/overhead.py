"""Compare Headwater with plain Spark: throughput of one pipeline in three forms, latency of two hops.

The pipeline is that of the FlowUnits paper: O1 keeps every third row, O2 averages ten rows of a key
in order, O3 counts Collatz steps and keeps the small ones. It runs as one hand-written Structured
Streaming query, as one Headwater unit, and as three units joined by filelogs; side by side on one
warmed server, with the same limit of files per batch and the same trigger. Every result is compared
with one computed with numpy before any figure is printed.

    python -m benchmarks.overhead [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headwater as hw
from benchmarks import common, pipeline
from benchmarks.pipeline import COLLATZ, SIZE, STEPS, Averages, check, results
from headwater.app.local import LocalRun
from headwater.channels.filelog import FileLog
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build, one_unit
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONTINUUM = """
name: line
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
"""
SCHEMA = "i bigint"
FILE_ROWS = 50_000
FILES_PER_BATCH = 10  # of the source, for every variant
TRIGGER = "0 seconds"  # of every variant: the next batch as soon as there is input
FAST = "0 seconds"  # of the latency's units
RATE, EVERY = 2_500, 0.2  # rows a second, seconds between two files


# ---------------------------------------------------------------- input and expected output


def write_rows(directory: Path, rows: int) -> None:
    """Write ``i = 0 .. rows - 1`` as files whose times of change are in the order of i."""
    directory.mkdir(parents=True)
    begin = time.time() - 100_000
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        values = pa.array(np.arange(first, min(rows, first + FILE_ROWS), dtype="int64"))
        file = directory / f"{number:06d}.parquet"
        pq.write_table(pa.table({"i": values}), file)
        os.utime(file, (begin + number, begin + number))  # Spark takes files in this order


def written(directory: Path) -> pa.Table:
    """Return the rows in a variant's sink."""
    return pipeline.written([f for f in directory.rglob("*.parquet") if ".headwater" not in f.parts])


# ---------------------------------------------------------------- (a) by hand


def plain_frame(spark: SparkSession, source: Path) -> DataFrame:
    """Return the pipeline as a user would write it without Headwater."""
    rows = (
        spark.readStream.name("rows")
        .schema(SCHEMA)
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .option("maxFileAge", "36500d")
        .parquet(str(source))
    )
    means = (
        rows.where("i % 3 = 0")
        .selectExpr("i % 10 AS key", "i")
        .groupBy("key")
        .transformWithStateInPandas(
            statefulProcessor=Averages("key"),
            outputStructType="key bigint, mean double",
            outputMode="Append",
            timeMode="None",
        )
    )
    return means.selectExpr("key", "mean", f"{COLLATZ} AS steps").where(f"steps < {STEPS}")


@dataclass(frozen=True)
class Run:
    """The duration of a variant, and the phases of its batches as Spark reports them."""

    seconds: float
    batches: dict[str, dict[str, float]]


def run_plain(endpoint: LocalEndpoint, source: Path, directory: Path) -> Run:
    """Run the hand-written query until its input is used up."""
    begun = time.monotonic()
    writer = plain_frame(endpoint.session(), source).writeStream.format("parquet").queryName("plain")
    writer = writer.option("path", str(directory / "out")).outputMode("append")
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(processingTime=TRIGGER).start()
    try:
        query.processAllAvailable()
        seconds = time.monotonic() - begun
        return Run(seconds, {"plain": durations(query.recentProgress)})
    finally:
        query.stop()


# ---------------------------------------------------------------- (b), (c) by Headwater


def flow(source: Path, out: Path) -> hw.Dataflow:
    """Return the pipeline for Headwater."""
    f = hw.flow("flowunits", locations=["L1"])
    rows = f.read.files(str(source), SCHEMA, format="parquet", maxFilesPerTrigger=str(FILES_PER_BATCH))
    means = (
        rows.where("i % 3 = 0")
        .with_columns(key="i % 10")
        .to_layer("site")
        .count_window(SIZE, keys="key", order_by="i")
        .agg(mean="avg(i)")
    )
    results = means.to_layer("cloud").with_columns(steps=COLLATZ).where(f"steps < {STEPS}")
    results.write.parquet(str(out))
    return f.build()


def run_units(shape: str) -> Callable[[LocalEndpoint, Path, Path], Run]:
    """Run the pipeline as one unit, or as the three that its layers make."""

    def run(endpoint: LocalEndpoint, source: Path, directory: Path) -> Run:
        begun = time.monotonic()
        dataflow, continuum = flow(source, directory / "out"), hw.Continuum.from_text(CONTINUUM)
        decision = one_unit(dataflow, continuum) if shape == "one_unit" else None
        plan = build(dataflow, continuum, decision)
        assert len(plan.units) == (1 if shape == "one_unit" else 3)
        deployment = LocalRun(plan, directory / "deployment", endpoint, UnitSettings(trigger=TRIGGER))
        deployment.start()
        try:
            deployment.settle()
            seconds = time.monotonic() - begun
            queries = endpoint.session().streams.active
            return Run(seconds, {q.name.split("/")[1]: durations(q.recentProgress) for q in queries})
        finally:
            deployment.stop()

    return run


VARIANTS: dict[str, Callable[[LocalEndpoint, Path, Path], Run]] = {
    "plain": run_plain,
    "one_unit": run_units("one_unit"),
    "three_units": run_units("three_units"),
}


def durations(progress: Any) -> dict[str, float]:
    """Sum up, in seconds, the phases of the batches that had input."""
    total: dict[str, float] = {"batches": 0}
    for report in progress:
        if "addBatch" in report["durationMs"]:
            total["batches"] += 1
            for phase, ms in report["durationMs"].items():
                total[phase] = round(total.get(phase, 0.0) + ms / 1000, 3)
    return total


def throughput(endpoint: LocalEndpoint, place: Path, sizes: list[int], repeats: int) -> dict[str, Any]:
    """Run all variants in turn, the one that begins changing from round to round."""
    found: dict[str, Any] = {}
    warm = min(sizes[0], 200_000)
    for rows in dict.fromkeys([warm, *sizes]):
        write_rows(place / f"rows-{rows}", rows)
    names = list(VARIANTS)
    wanted = results(0, warm)
    for name in names:  # the server's code and workers are warm before the measurement
        _once(endpoint, name, place, warm, wanted)
    for rows in sizes:
        wanted = results(0, rows)
        runs: dict[str, list[Run]] = {name: [] for name in names}
        for turn in range(repeats):
            for name in names[turn % 3 :] + names[: turn % 3]:
                runs[name].append(_once(endpoint, name, place, rows, wanted))
        seconds = {name: common.middle([r.seconds for r in mine]) for name, mine in runs.items()}
        found[str(rows)] = {
            **{f"{name}_rows_per_s": round(rows / seconds[name]) for name in names},
            "one_unit_of_plain": round(seconds["plain"] / seconds["one_unit"], 3),
            "three_units_of_plain": round(seconds["plain"] / seconds["three_units"], 3),
            "result_rows": wanted.num_rows,
            "seconds": {name: [round(r.seconds, 3) for r in mine] for name, mine in runs.items()},
            "phases_s": {name: mine[-1].batches for name, mine in runs.items()},
        }
    return found


def _once(endpoint: LocalEndpoint, name: str, place: Path, rows: int, wanted: pa.Table) -> Run:
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
    run = VARIANTS[name](endpoint, place / f"rows-{rows}", directory)
    check(f"{name} over {rows:,} rows", written(directory / "out"), wanted)
    shutil.rmtree(directory)
    print(f"  {name:<12} {rows:>11,} rows {run.seconds:8.2f} s, result right", file=sys.stderr, flush=True)
    return run


# ---------------------------------------------------------------- latency


def feed(directory: str, stop: Event) -> None:
    """Write a small file every 200 ms; each row carries its creation time (runs in a separate process)."""
    count, per_file = 0, round(RATE * EVERY)
    due = time.time() + EVERY
    while not stop.is_set():
        time.sleep(max(0.0, due - time.time()))
        now = time.time()
        ingested = now - EVERY * (1 - np.arange(1, per_file + 1) / per_file)
        table = pa.table({"i": np.arange(count, count + per_file, dtype="int64"), "ingested": ingested})
        scratch = Path(directory) / f".{count:012d}"
        pq.write_table(table, scratch)
        scratch.rename(Path(directory) / f"{count:012d}.parquet")
        count, due = count + per_file, max(due + EVERY, now)


def two_hops(source: Path) -> DeploymentPlan:
    """Plan a row's path from edge over site to cloud, without an operator that waits."""
    f = hw.flow("twohops", locations=["L1"])
    rows = f.read.parquet(str(source), "i bigint, ingested double").where("i >= 0")
    site = rows.to_layer("site").with_columns(twice="2 * i")
    site.to_layer("cloud").where("twice >= 0").write.memory("arrived")
    return build(f.build(), hw.Continuum.from_text(CONTINUUM))


def latency(endpoint: LocalEndpoint, place: Path, *, seconds: float, trigger: str) -> dict[str, Any]:
    """Measure from the creation of each batch's newest row to the publication of that batch in the cloud."""
    source = place / f"feed-{trigger.replace(' ', '')}"
    source.mkdir()
    plan = two_hops(source)
    deployment = LocalRun(plan, place / f"twohops-{trigger.replace(' ', '')}", endpoint, UnitSettings(trigger=trigger))
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    feeder = context.Process(target=feed, args=(str(source), stop), daemon=True)
    deployment.start()
    try:
        feeder.start()
        time.sleep(5)  # until the queries keep pace
        begun = time.time()
        time.sleep(seconds)
        ended = time.time()
    finally:
        stop.set()
        feeder.join(10)
        deployment.stop()
    ran = deployment.plan
    (writer,) = (unit for unit in ran.units if "arrived" in unit.outputs)
    log = FileLog(deployment.layout.sink("arrived", ran.tags["arrived"], writer))
    samples, rows = [], 0
    for entry in log.entries(log.earliest(), log.latest()):
        if begun <= entry.written <= ended and entry.rows:
            ingested = [b.column("ingested").to_numpy().max() for b in log.read(entry.seq, entry.seq + 1)]
            samples.append(entry.written - float(max(ingested)))
            rows += entry.rows
    if not samples:
        sys.exit("latency: nothing arrived in the cloud")
    return {
        "p50": round(common.quantile(samples, 0.5), 3),
        "p95": round(common.quantile(samples, 0.95), 3),
        "max": round(max(samples), 3),
        "batches": len(samples),
        "rows_per_s": round(rows / (ended - begun)),
        "seconds": seconds,
        "trigger": trigger,
    }


# ---------------------------------------------------------------- the whole


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("Throughput and latency of Headwater beside plain Spark", repeats=3)
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="other numbers of rows, ascending")
    parser.add_argument("--trigger", default=FAST, help=f"trigger of the latency's units (default {FAST!r})")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    repeats = common.repeats_of(options)
    sizes = options.rows or ([200_000] if options.quick else [1_000_000, 10_000_000])
    place = Path(tempfile.mkdtemp(prefix="headwater-overhead-"))
    partitions = {"spark.sql.shuffle.partitions": str(facts["machine"]["cores"])}
    endpoint = None
    try:
        endpoint = LocalEndpoint.start(place / "spark", memory_mb=3072, extra_conf=partitions, quick=False)
        by_size = throughput(endpoint, place, sizes, repeats)
        hops = latency(endpoint, place, seconds=6 if options.quick else 60, trigger=options.trigger)
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    largest = by_size[str(sizes[-1])]
    result = {
        "rows": sizes[-1],
        **{f"{name}_rows_per_s": largest[f"{name}_rows_per_s"] for name in VARIANTS},
        "two_hop_latency_s": hops,
        "repeats": repeats,
        "one_unit_of_plain": largest["one_unit_of_plain"],
        "three_units_of_plain": largest["three_units_of_plain"],
        "sizes": by_size,
        "trigger": TRIGGER,
        "files_per_batch": FILES_PER_BATCH,
        "rows_per_file": FILE_ROWS,
    }
    for rows, figures in by_size.items():
        print(f"{int(rows):,} rows, medians of {repeats}; all results equal")
        for name in VARIANTS:
            share = figures["seconds"]["plain"], figures["seconds"][name]
            ratio = common.middle(share[0]) / common.middle(share[1])
            print(f"  {name:<12} {figures[f'{name}_rows_per_s']:>12,} rows/s   {ratio:5.2f} of plain")
    print(
        f"two hops at {hops['rows_per_s']:,} rows/s, trigger {hops['trigger']}: "
        f"p50 {hops['p50']:.2f} s, p95 {hops['p95']:.2f} s, {hops['batches']} batches"
    )
    common.write_result(options.json, result, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
