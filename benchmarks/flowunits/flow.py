"""The pipeline as a Headwater dataflow: O1 at the edges, O2 at the sites, O3 in the cloud."""

from __future__ import annotations

from collections.abc import Callable

import headwater as hw
from benchmarks.flowunits.workload import EDGES
from benchmarks.pipeline import COLLATZ, SIZE, STEPS

SCHEMA = "i bigint"
FILE_ROWS = 50_000


def flow(events: str, results: str, *, batch_rows: int) -> hw.Dataflow:
    """Read the files of a directory on each edge's own disk; write Parquet in the cloud."""
    return pipeline(events, lambda found: found.write.parquet(results), batch_rows=batch_rows)


def pipeline(events: str, write: Callable[[hw.Stream], object], *, batch_rows: int) -> hw.Dataflow:
    """Read the files of a directory; give the results, in the cloud, to ``write``."""
    f = hw.flow("flowunits", locations=list(EDGES.values()))
    files = str(max(1, batch_rows // FILE_ROWS))
    rows = f.read.files(events, SCHEMA, format="parquet", location_as="location", maxFilesPerTrigger=files)
    means = (
        rows.where("i % 3 = 0")
        .to_layer("site")
        .with_columns(key="i % 10")
        .count_window(SIZE, keys=["location", "key"], order_by="i")
        .agg(mean="avg(i)")
    )
    write(means.to_layer("cloud").with_columns(steps=COLLATZ).where(f"steps < {STEPS}"))
    return f.build()
