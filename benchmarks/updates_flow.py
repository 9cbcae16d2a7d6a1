"""The dataflow that `benchmarks.updates` changes while it runs; settings come from the environment.

Readings are cleaned at the edge, averaged by machine and second at the site, and judged in the cloud
by a model, whose code has a version. Both versions judge alike, so that results can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

import headwater as hw

SCHEMA = "id bigint, ts timestamp, machine string, value double"
JUDGED = "window struct<start:timestamp,end:timestamp>, location string, machine string, n bigint, "
JUDGED += "mean double, alarm boolean"


def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raise an alarm above 90."""
    for batch in batches:
        yield batch.append_column("alarm", pc.greater(batch["mean"], 90.0))


def judge_again(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the same, as new code."""
    for batch in batches:
        alarms = [mean > 90.0 for mean in batch["mean"].to_pylist()]
        yield batch.append_column("alarm", pa.array(alarms, pa.bool_()))


def build() -> hw.Dataflow:
    """Build the dataflow for the places and the model that the environment names."""
    builder = hw.flow("updates", locations=os.environ["UPDATES_LOCATIONS"].split(","))
    path = os.path.join(os.environ["UPDATES_INPUT"], "{location}")
    readings = builder.read.json(path, SCHEMA, location_as="location")
    clean = readings.where("value IS NOT NULL").with_watermark("ts", "2 seconds").named("clean")
    means = clean.to_layer("site").group_by(hw.window("ts", "1 second"), "location", "machine")
    averaged = means.agg(n="count(*)", mean="avg(value)").named("means").to_layer("cloud")
    model = judge if os.environ["UPDATES_MODEL"] == "1" else judge_again
    averaged.map_batches(model, JUDGED).named("ml").write.memory("verdicts")
    return builder.build()


if "UPDATES_INPUT" in os.environ:
    flow = build()
