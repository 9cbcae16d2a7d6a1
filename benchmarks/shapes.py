"""Rows per second of one unit's ways: plain, joined with a reference table, backfilled, and with early results.

The same Parquet files are read to their end on one warmed Spark, the variants in turn: ``plain`` writes them to
Parquet, ``lookup`` joins them with a table of 1,000 rows first, ``backfill`` reads the first half as history and the
second as the live stream, ``windows`` writes the windows of an aggregate once to a Delta table, and ``updates`` in each
batch that changes them. The seconds include start and end of the query. Results are checked before any figure is
printed.

    python -m benchmarks.shapes [--quick] [--json FILE] [--repeats N] [--rows N]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import headwater as hw
from benchmarks import common
from benchmarks.channels import check
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint

SCHEMA = "id bigint, ts timestamp, k string, v double"
CONTINUUM = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}")
FILES, KEYS, WARM, QUICK = 20, 1_000, 20_000, 100_000
BEGIN = 1_700_000_000


def write_rows(directory: Path, rows: int) -> None:
    """Write the rows to files of equal size; event time advances by a millisecond a row."""
    size = rows // FILES
    for half in ("first", "second"):
        (directory / half).mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * size, (number + 1) * size)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "ts": pa.array([BEGIN * 1_000_000 + n * 1_000 for n in ids], pa.timestamp("us", "UTC")),
                "k": [f"k{n % KEYS}" for n in ids],
                "v": pa.array([n % 97 / 7 for n in ids], pa.float64()),
            }
        )
        half = "first" if number < FILES // 2 else "second"
        pq.write_table(table, directory / half / f"{number:03d}.parquet")


def read(f: DataflowBuilder, path: Path) -> Any:
    """Read files of one place, a few in each batch."""
    return f.read.files(str(path), SCHEMA, format="parquet", maxFilesPerTrigger=4)


def plain(f: DataflowBuilder, given: Path, out: Path) -> None:
    """Pass all rows on."""
    read(f, given / "*").write.parquet(str(out))


def lookup(f: DataflowBuilder, given: Path, out: Path) -> None:
    """Join all rows with a reference table."""
    table = f.table.parquet(str(given.parent / "keys.parquet"), "k string, most double")
    read(f, given / "*").join(table, "k").write.parquet(str(out))


def backfill(f: DataflowBuilder, given: Path, out: Path) -> None:
    """Read the first half as history."""
    live = read(f, given / "second").with_watermark("ts", "1 second")
    live.backfill(read(f, given / "first")).write.parquet(str(out))


def windows(f: DataflowBuilder, given: Path, out: Path) -> None:
    """Write each window once."""
    _windows(f, given).write.delta(str(out))


def updates(f: DataflowBuilder, given: Path, out: Path) -> None:
    """Write each window in every batch that changes it."""
    _windows(f, given).write.output_mode("update").delta(str(out), keys=["begin", "k"])


def _windows(f: DataflowBuilder, given: Path) -> Any:
    timed = read(f, given / "*").with_watermark("ts", "1 second")
    counted = timed.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)")
    return counted.select("window.start AS begin", "k", "n")


VARIANTS = {"plain": plain, "lookup": lookup, "backfill": backfill, "windows": windows, "updates": updates}


def run(name: str, given: Path, place: Path, endpoint: LocalEndpoint, rows: int) -> float:
    """Run a variant to the end of its input; return the seconds."""
    builder, out = hw.flow("shapes", locations=["L1"]), place / "out"
    VARIANTS[name](builder, given, out)
    settings = UnitSettings(trigger="0 seconds")
    deployment = LocalRun(build(builder.build(), CONTINUUM), place / "run", endpoint, settings)
    begun = time.monotonic()
    deployment.start()
    try:
        deployment.drain()
    finally:
        deployment.stop()
    seconds = time.monotonic() - begun
    check(name, _rows(out, name), rows)
    return seconds


def _rows(out: Path, name: str) -> int:
    """Return the rows in an output, or those that its windows count."""
    if name in ("windows", "updates"):
        from deltalake import DeltaTable

        table = DeltaTable(str(out)).to_pyarrow_table()
        return int(sum(table.column("n").to_pylist()))
    files = [str(f) for f in out.rglob("*.parquet") if ".headwater" not in f.parts]
    return int(ds.dataset(files).count_rows())


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("rows per second of one unit's ways", repeats=3)
    parser.add_argument("--rows", type=int, metavar="N", help="rows of the input")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    rows = (options.rows or (QUICK if options.quick else 2_000_000)) // FILES * FILES
    place = Path(tempfile.mkdtemp(prefix="headwater-shapes-"))
    taken: dict[str, list[float]] = {name: [] for name in VARIANTS}
    endpoint = None
    try:
        keys = pa.table({"k": [f"k{n}" for n in range(KEYS)], "most": pa.array(range(KEYS), pa.float64())})
        pq.write_table(keys, place / "keys.parquet")
        for size in (WARM, rows):
            write_rows(place / f"rows-{size}", size)
        endpoint = LocalEndpoint.start(place / "spark", memory_mb=1536, quick=options.quick)
        for turn in range(-1, common.repeats_of(options)):
            size = WARM if turn < 0 else rows  # the first round warms up
            names = list(VARIANTS)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                at = place / f"{turn}-{name}"
                seconds = run(name, place / f"rows-{size}", at, endpoint, size)
                shutil.rmtree(at)
                print(f"  {name:<9} {size:>9,} rows {seconds:6.2f} s", file=sys.stderr)
                if turn >= 0:
                    taken[name].append(seconds)
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    middles = {name: common.middle(of) for name, of in taken.items()}
    found = [
        {"variant": name, "s": s, "rows_per_s": round(rows / s), "of_plain": round(middles["plain"] / s, 2)}
        for name, s in middles.items()
    ]
    print(f"{rows:,} rows, medians of {common.repeats_of(options)}")
    print(f"  {'variant':<9} {'rows/s':>10} {'of plain':>9}")
    for one in found:
        print(f"  {one['variant']:<9} {one['rows_per_s']:>10,} {one['of_plain']:>9.2f}")
    common.write_result(options.json, {"rows": rows, "variants": found}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
