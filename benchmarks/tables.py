"""Measure table sinks beside plain files: rows per second of Parquet files, Delta and Iceberg tables.

One unit reads Parquet files of 50,000 rows, a file a batch, and writes them to one sink; the sinks take turns on one
warmed server. A figure is rows by the time of all batches but the first ones, which warm up. After each run the rows
are counted.

    python -m benchmarks.tables [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks import common
from headwater.app.local import LocalRun
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing.readback import rows_in

CONTINUUM = "name: one\nlayers: [edge]\nzones:\n  E1: {layer: edge, locations: [L1]}\n"
SCHEMA = "id bigint, ts timestamp, k string, day date, v double"
BATCH_ROWS = 50_000
BATCHES, QUICK_BATCHES = 20, 4
WARM = 2

SINKS: dict[str, Callable[[Any, Path], Any]] = {
    "parquet": lambda s, out: s.write.parquet(str(out / "files")),
    "parquet by day": lambda s, out: s.write.parquet(str(out / "files"), partition_by="day"),
    "delta": lambda s, out: s.write.delta(str(out / "table")),
    "delta by day": lambda s, out: s.write.delta(str(out / "table"), partition_by="day"),
    "iceberg": lambda s, out: s.write.iceberg(
        "bench.rows", catalog=f"sqlite:///{out / 'catalog.db'}", warehouse=str(out / "warehouse")
    ),
}


def make_input(directory: Path, files: int) -> None:
    """Write the input, a file for each batch."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    directory.mkdir(parents=True)
    for number in range(files):
        ids = pa.array(range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS), pa.int64())
        seconds = pc.cast(pc.add(ids, 1_767_225_600), pa.timestamp("s", "UTC"))
        rows = {
            "id": ids,
            "ts": pc.cast(seconds, pa.timestamp("us", "UTC")),
            "k": pc.binary_join_element_wise("machine", pc.cast(pc.bit_wise_and(ids, 63), pa.string()), "-"),
            "day": pc.cast(seconds, pa.date32()),
            "v": pc.divide(pc.cast(ids, pa.float64()), 7.0),
        }
        pq.write_table(pa.table(rows), directory / f"{number:06d}.parquet")


def run(name: str, source: Path, place: Path, endpoint: LocalEndpoint, rows: int) -> dict[str, float]:
    """Write all rows to one sink; return rows/s, and milliseconds of a batch."""
    out = place / "out"
    out.mkdir(parents=True)
    f = hw.flow("tables", locations=["L1"])
    read = f.read.files(str(source), SCHEMA, format="parquet", maxFilesPerTrigger=1)
    SINKS[name](read, out).named("sink")
    plan = build(f.build(), hw.Continuum.from_text(CONTINUUM))
    deployment = LocalRun(plan, place / "run", endpoint, UnitSettings(trigger="0 seconds"))
    deployment.start()
    try:
        deployment.settle()
        (query,) = endpoint.session().streams.active
        seconds = {
            int(p["batchId"]): p["durationMs"]["triggerExecution"] / 1000
            for p in query.recentProgress
            if "addBatch" in p["durationMs"]
        }
    finally:
        deployment.stop()
    (sink,) = plan.dataflow.sinks
    import pyarrow as pa

    found = rows_in(sink, pa.schema([("id", pa.int64())]))
    if found.num_rows != rows or len(set(found.column("id").to_pylist())) != rows:
        raise SystemExit(f"{name}: {found.num_rows} rows instead of {rows}")
    timed = [seconds[batch] for batch in sorted(seconds)[WARM:]]
    return {"rows_per_s": BATCH_ROWS * len(timed) / sum(timed), "batch_ms": 1000 * sum(timed) / len(timed)}


def main() -> int:
    """Run the benchmark."""
    options = common.arguments("Rows per second of table sinks beside Parquet files", repeats=3).parse_args()
    facts = common.facts(quick=options.quick)
    batches = QUICK_BATCHES if options.quick else BATCHES
    place = Path(tempfile.mkdtemp(prefix="headwater-tables-"))
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in SINKS}
    endpoint = None
    try:
        endpoint = LocalEndpoint.start(place / "spark", memory_mb=1536, quick=options.quick)
        make_input(place / "in", batches)
        for turn in range(common.repeats_of(options)):
            for name in SINKS:
                at = place / f"{turn}-{name.replace(' ', '-')}"
                figures[name].append(run(name, place / "in", at, endpoint, batches * BATCH_ROWS))
                shutil.rmtree(at)
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    sinks = {
        name: {key: common.middle([one[key] for one in runs], 0) for key in ("rows_per_s", "batch_ms")}
        for name, runs in figures.items()
    }
    for name, figure in sinks.items():
        print(f"{name:16} {figure['rows_per_s']:>10,.0f} rows/s  {figure['batch_ms']:>7,.0f} ms per batch")
    common.write_result(options.json, {"sinks": sinks, "rows": batches * BATCH_ROWS}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
