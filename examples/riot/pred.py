"""RIoTBench's PRED: predict at the edge with the newest models, which the cloud fetches; estimate the error.

docs/suites/riotbench.md tells how each task is written, and what differs from RIoTBench.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import headwater as hw
from examples.riot.city import CITIES, DATA, FEATURES, FIELDS, MODEL, RESULTS, TARGET, publish, readings
from headwater import iot
from headwater.dataflow.stream import Stream

VALUED = "city string, ts timestamp, id string, actual double, predicted double, average double"


def pred(
    data: str,
    messages: str,
    blobs: str,
    results: str | None,
    *,
    cities: Sequence[str] = CITIES,
    broker: str | None = None,
) -> hw.Dataflow:
    """Build the dataflow over ``{data}/packs/{city}`` and the names of models in JSON files in ``messages``.

    The models are files in ``blobs``. Predictions go to ``{results}/predictions``, or to memory where ``results`` is
    None. ``broker``: publish predictions by MQTT instead of writing files.
    """
    f = hw.flow("pred", locations=cities)
    read = readings(f, data)
    rows = iot.join_message(read, FIELDS).named("message")
    announced = f.read.json(messages, MODEL, layer="cloud").named("subscribe").with_watermark("ts", "10 seconds")
    models = iot.download_blobs(announced, blobs).named("blob_download").where("content IS NOT NULL")

    def newest(kind: str) -> Stream:
        mine = models.where(f"kind = '{kind}'").select("ts", "content AS model")
        return mine.to_layer("edge", location_as="city")

    classed = iot.predict_newest(rows, newest("DTC"), features=FEATURES, type="string", into="class")
    valued = iot.predict_newest(rows, newest("MLR"), features=FEATURES)
    average = iot.block_average(read.where(f"obs = '{TARGET}'"), size=5).named("average")
    error = iot.estimate_error(with_latest(valued, average), actual="actual").named("error_estimate")
    found = error.select("city", "ts", "id", "'MLR' AS kind", "actual", "predicted", "error", "'' AS class").union(
        classed.select(
            "city", "ts", "id", "'DTC' AS kind", f"{TARGET} AS actual", "CAST(NULL AS double) AS predicted",
            "CAST(NULL AS double) AS error", "class",
        )
    )  # fmt: skip
    publish(found.to_layer("cloud"), "predictions", results=results, broker=broker)
    return f.build()


def with_latest(valued: Stream, average: Stream) -> Stream:
    """Add to each prediction the latest average of its sensor, of its time or before."""
    none = "CAST(NULL AS double)"
    rows = valued.select("city", "ts", "id", "1 AS place", f"{TARGET} AS actual", "predicted", f"{none} AS average")
    blocks = average.select(
        "city", "ts", "id", "0 AS place", f"{none} AS actual", f"{none} AS predicted", "value AS average"
    )
    return rows.union(blocks).scan(latest, VALUED, keys=["city", "id"], order_by=["ts", "place"], keeps_keys=True)


def latest(state: float | None, row: dict[str, Any]) -> tuple[float | None, dict[str, Any] | None]:
    """Remember an average; add it to the predictions that follow."""
    if row["place"] == 0:
        return row["average"], None
    return state, {**row, "average": state}


flow = pred(DATA, f"{RESULTS}/models", f"{RESULTS}/blobs", RESULTS)
