"""The runs that ``benchmarks.cost`` measures: plain Spark, units on one Spark, and zones with an agent each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headwater as hw
from benchmarks import common, overhead, pipeline
from benchmarks.cost import stacks
from benchmarks.cost.processes import Meter, Spent
from benchmarks.cost.stacks import Recorder, Sampled, Stack
from headwater.app.local import LocalRun
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint

SAMPLES = "BENCH_SAMPLES"
SAMPLER = Path(__file__).with_name("sampler")
PATIENCE = 300.0
ONE = """
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [L1]}
"""


@dataclass
class Measured:
    """One run: what it took, its duration, its batches' phases, and the samples of its JVMs and Pythons, by pid."""

    spent: Spent
    seconds: float
    batches: dict[str, Any] = field(default_factory=dict)
    java: dict[int, list[Stack]] = field(default_factory=dict)
    python: list[Sampled] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """The zone of each JVM, where each zone has its own."""


def measured(root: int, jvms: dict[int, str], samples: Path, run: Callable[[], dict[str, Any]]) -> Measured:
    """Run something, and measure the processes below ``root``."""
    with tempfile.TemporaryDirectory(prefix="cost-jfr-") as scratch:
        recorders = {pid: Recorder(pid, Path(scratch)) for pid in jvms}
        for recorder in recorders.values():
            recorder.begin()
        meter = Meter(root)
        begun, now = time.monotonic(), time.time()
        meter.begin()
        batches = run()
        seconds = time.monotonic() - begun
        spent, ended = meter.end(), time.time()
        java = {pid: recorder.end() for pid, recorder in recorders.items()}
    python = stacks.python_stacks(samples, now, ended)
    return Measured(spent, seconds, batches, java, python, jvms)


# ---------------------------------------------------------------- on one Spark


def sql_flow(source: Path, out: Path) -> hw.Dataflow:
    """Return a dataflow of a filter and projections, without Python functions and without state."""
    f = hw.flow("sql", locations=["L1"])
    limit = str(overhead.FILES_PER_BATCH)
    rows = f.read.files(str(source), overhead.SCHEMA, format="parquet", maxFilesPerTrigger=limit)
    rows.where("i % 3 = 0").with_columns(key="i % 10").write.parquet(str(out))
    return f.build()


def plain_sql(endpoint: LocalEndpoint, source: Path, directory: Path) -> dict[str, Any]:
    """Run the same as a hand-written query."""
    rows = endpoint.session().readStream.name("rows").schema(overhead.SCHEMA)
    rows = rows.option("maxFilesPerTrigger", overhead.FILES_PER_BATCH).option("maxFileAge", "36500d")
    writer = rows.parquet(str(source)).where("i % 3 = 0").selectExpr("i", "i % 10 AS key").writeStream
    writer = writer.format("parquet").queryName("plain").option("path", str(directory / "out"))
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(processingTime="0 seconds")
    running = query.start()
    try:
        running.processAllAvailable()
        return {"plain": overhead.durations(running.recentProgress)}
    finally:
        running.stop()


def unit_sql(endpoint: LocalEndpoint, source: Path, directory: Path) -> dict[str, Any]:
    """Run it as a unit."""
    plan = build(sql_flow(source, directory / "out"), hw.Continuum.from_text(ONE))
    deployment = LocalRun(plan, directory / "deployment", endpoint, UnitSettings(trigger=overhead.TRIGGER))
    deployment.start()
    try:
        deployment.settle()
        queries = endpoint.session().streams.active
        return {q.name.split("/")[1]: overhead.durations(q.recentProgress) for q in queries}
    finally:
        deployment.stop()


def _of_pipeline(name: str) -> Callable[[LocalEndpoint, Path, Path], dict[str, Any]]:
    return lambda endpoint, source, directory: dict(overhead.VARIANTS[name](endpoint, source, directory).batches)


ON_ONE_SPARK: dict[str, Callable[[LocalEndpoint, Path, Path], dict[str, Any]]] = {
    "plain": _of_pipeline("plain"),
    "one_unit": _of_pipeline("one_unit"),
    "three_units": _of_pipeline("three_units"),
    "plain_sql": plain_sql,
    "one_unit_sql": unit_sql,
}


def check(name: str, directory: Path, rows: int) -> None:
    """End the benchmark if a run's result is wrong."""
    files = [f for f in (directory / "out").rglob("*.parquet") if ".headwater" not in f.parts]
    if not name.endswith("_sql"):
        pipeline.check(name, pipeline.written(files), pipeline.results(0, rows))
        return
    got = pa.concat_tables([pq.ParquetFile(f).read().select(["i", "key"]) for f in files]).sort_by("i")
    wanted = np.arange(0, rows, 3)
    same = np.array_equal(got["i"].to_numpy(), wanted) and np.array_equal(got["key"].to_numpy(), wanted % 10)
    if not same:
        sys.exit(f"{name}: {got.num_rows} rows, or other ones, instead of {len(wanted)}")


# ---------------------------------------------------------------- zones


def zones(place: Path, samples: Path, rows: int) -> Measured:
    """Run the three units in three zones with an agent and a Spark each, below a controller.

    The zones are up, and have processed some rows, before the measured rows arrive.
    """
    first = 100_000
    ready, source = place / "zones-ready", place / "zones-in"
    overhead.write_rows(ready, first + rows)
    source.mkdir()
    files = sorted(ready.iterdir())
    count = first // overhead.FILE_ROWS
    for file in files[:count]:
        os.link(file, source / file.name)
    continuum = place / "zones.yaml"
    continuum.write_text(overhead.CONTINUUM)
    home = place / "zones"
    out = place / "zones-out"
    settings = {"COST_INPUT": str(source), "COST_OUTPUT": str(out)}
    environment = {**os.environ, **settings}
    environment["PYTHONPATH"] = os.pathsep.join([str(common.ROOT), os.environ.get("PYTHONPATH", "")])
    told = ["--store", str(place / "store.db"), "--home", str(home)]
    headwater = [sys.executable, "-m", "headwater"]
    with (place / "up.log").open("ab") as log:
        up = subprocess.Popen(
            [*headwater, "up", "--listen", "none", *told], env=environment, cwd=place, stdout=log, stderr=log
        )
    try:
        apply = [*headwater, "apply", str(Path(__file__).with_name("zones_flow.py")), "-c", str(continuum)]
        subprocess.run(
            [*apply, "--yes", "--wait", *told[:2]],
            env=environment, cwd=place, check=True, stdout=sys.stderr, timeout=PATIENCE,
        )  # fmt: skip
        _await_rows(out, pipeline.results(0, first).num_rows)
        jvms = {}
        for zone in ("E1", "S1", "C1"):
            for directory in (home / "zones" / zone / "spark").iterdir():
                endpoint = LocalEndpoint.attach(directory)
                if endpoint is not None:
                    jvms[endpoint.pid] = zone
        wanted = pipeline.results(0, first + rows)

        def run() -> dict[str, Any]:
            for file in files[count:]:
                os.link(file, source / file.name)
            _await_rows(out, wanted.num_rows)
            return {}

        found = measured(up.pid, jvms, samples, run)
        written = [f for f in out.rglob("*.parquet") if ".headwater" not in f.parts]
        pipeline.check("zones", pipeline.written(written), wanted)
        return found
    finally:
        subprocess.run([*headwater, "down", *told[2:]], env=environment, cwd=place, stdout=sys.stderr, timeout=PATIENCE)
        up.terminate()
        up.wait(60)


def _await_rows(out: Path, rows: int) -> None:
    deadline = time.monotonic() + PATIENCE
    known: dict[Path, int] = {}
    while sum(known.values()) < rows:
        if time.monotonic() > deadline:
            sys.exit(f"zones: {sum(known.values())} rows in the sink after {PATIENCE:.0f} s, instead of {rows}")
        for file in out.glob("*.parquet"):
            if file not in known:
                known[file] = pq.ParquetFile(file).metadata.num_rows
        time.sleep(0.1)
