"""RIoTBench's TRAIN: on ticks of a timer, train models on a range of the table of ETL; store and announce them.

docs/suites/riotbench.md tells how each task is written, and what differs from RIoTBench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import headwater as hw
from examples.riot.city import CITIES, DATA, FEATURES, FIELDS, META, MODEL, RESULTS, TARGET, publish
from headwater import iot
from headwater.dataflow.stream import Stream

if TYPE_CHECKING:
    import pyarrow as pa

TICK = "ts timestamp, start timestamp, end timestamp"
TABLE = ", ".join(
    ["at timestamp, city string, id string", *(f"{m} string" for m in META), *(f"{n} double" for n in FIELDS)]
)
PERIOD = "1 second"
"""The window of training: all ticks of one time."""


def train(
    data: str,
    table: str,
    blobs: str,
    results: str | None,
    *,
    cities: Sequence[str] = CITIES,
    broker: str | None = None,
) -> hw.Dataflow:
    """Build the dataflow over the ticks in ``{data}/ticks/{city}`` and the Parquet files in ``table``.

    Models become files in ``blobs``; their names go to ``{results}/models``, or to memory where ``results`` is None.
    ``broker``: publish the names by MQTT instead of writing files.
    """
    f = hw.flow("train", locations=cities)
    ticks = f.read.json(f"{data}/ticks/{{location}}", TICK, location_as="city").named("timer")
    due = ticks.with_watermark("ts", "10 seconds").to_layer("cloud")
    rows = iot.query_range(due, f.table.parquet(table, TABLE), by="at", on="city").named("table_range")
    wanted = rows.where(" AND ".join(f"{name} IS NOT NULL" for name in FIELDS)).select("ts", *FIELDS)
    linear = iot.train_linear(wanted, features=FEATURES, target=TARGET, every=PERIOD).named("linear_train")
    trees = iot.train_tree(annotated(wanted), features=FEATURES, label="label", depth=6, every=PERIOD).named(
        "tree_train"
    )
    models = linear.with_columns(kind="'MLR'").union(trees.with_columns(kind="'DTC'"))
    named = models.with_columns(name="concat(kind, '-', date_format(ts, 'yyyyMMdd-HHmmss'), '.onnx')")
    stored = named.map_batches(stores(blobs), MODEL).named("blob_upload")
    publish(stored, "models", results=results, broker=broker)
    return f.build()


def annotated(rows: Stream) -> Stream:
    """Label the rows of each time by the quartiles of their air quality, as AnnotateDTClass does."""
    quartiles = {f"q{share}": f"percentile_cont({share / 100}) WITHIN GROUP (ORDER BY {TARGET})" for share in (50, 75)}
    batches = rows.group_by(hw.window("ts", PERIOD)).agg(
        **quartiles, q100=f"max({TARGET})", rows=f"collect_list(struct({', '.join(FIELDS)}))"
    )
    label = f"CASE WHEN {TARGET} < q50 THEN 'BAD' WHEN {TARGET} < q75 THEN 'GOOD' WHEN {TARGET} < q100 THEN 'VERYGOOD'"
    return (
        batches.select("window_time(window) AS ts", "q50", "q75", "q100", "rows")
        .explode("rows", "row")
        .select("ts", "q50", "q75", "q100", *(f"row.{name} AS {name}" for name in FIELDS))
        .select("ts", *FEATURES, f"{label} ELSE 'EXCELLENT' END AS label")
        .named("annotate_class")
    )


def stores(blobs: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that writes models to files before it passes their messages: no name is without its file."""

    def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            Path(blobs).mkdir(parents=True, exist_ok=True)
            for name, model in zip(batch["name"].to_pylist(), batch["model"].to_pylist(), strict=True):
                hidden = Path(blobs, f".{name}.part")
                hidden.write_bytes(model)
                hidden.replace(Path(blobs, name))
            yield batch.select(["ts", "kind", "name", "samples"])

    return store


flow = train(DATA, f"{RESULTS}/table", f"{RESULTS}/blobs", RESULTS)
