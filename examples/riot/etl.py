"""RIoTBench's ETL: clean the readings of sensors at their edge, add metadata, store and publish them in the cloud.

docs/suites/riotbench.md tells how each task is written, and what differs from RIoTBench.
"""

from __future__ import annotations

from collections.abc import Sequence

import headwater as hw
from examples.riot.city import CITIES, DATA, FIELDS, META, METADATA, RANGES, RESULTS, SENSORS, UNITS, publish, readings
from headwater import iot


def etl(data: str, results: str | None, *, cities: Sequence[str] = CITIES, broker: str | None = None) -> hw.Dataflow:
    """Build the dataflow over ``{data}/packs/{city}``: a table in ``{results}/table``, and packs.

    ``results=None`` keeps both in memory. ``broker``: publish the packs by MQTT instead of writing files.
    """
    f = hw.flow("etl", locations=cities)
    ranged = iot.range_filter(readings(f, data), RANGES).named("range_filter")
    known = iot.bloom_filter(ranged, iot.Bloom.of(SENSORS, false_positives=1e-6)).named("bloom_filter")
    filled = iot.interpolate(known, window=5).named("interpolation")
    joined = iot.join_message(filled, FIELDS, keys=("city", "id", *META)).named("join")
    annotated = iot.annotate(joined.to_layer("cloud"), METADATA, unknown="").named("annotate")
    table = annotated.select("ts AS at", "city", "id", *META, *FIELDS, "annotation")
    if results is None:
        table.write.memory("table")
    else:
        table.write.parquet(f"{results}/table").named("table")
    packs = iot.to_senml(annotated.with_columns(source="id"), UNITS, texts=("source", *META, "annotation"))
    publish(packs.named("csv_to_senml"), "clean", results=results, broker=broker)
    return f.build()


flow = etl(DATA, RESULTS)
