"""RIoTBench's STATS: averages, forecasts and counts of sensors at their edge, drawn and stored in the cloud.

docs/suites/riotbench.md tells how each task is written, and what differs from RIoTBench.
"""

from __future__ import annotations

from collections.abc import Sequence

import headwater as hw
from examples.riot.city import CITIES, DATA, RESULTS, publish, readings
from headwater import iot


def stats(
    data: str,
    results: str | None,
    *,
    cities: Sequence[str] = CITIES,
    broker: str | None = None,
    points: int = 20,
    charts: int = 100,
) -> hw.Dataflow:
    """Build the dataflow over ``{data}/packs/{city}``: archives of charts in ``{results}/plots``, and the figures.

    ``points``: results in a chart; ``charts``: charts in an archive. ``results=None`` keeps both in memory.
    ``broker``: publish the figures by MQTT instead of writing files.
    """
    f = hw.flow("stats", locations=cities)
    read = readings(f, data)
    average = iot.block_average(read, size=5).named("average")
    smooth = iot.kalman(read, process_noise=0.125, sensor_noise=0.32, estimated_error=30.0).named("kalman")
    line = iot.sliding_regression(smooth, train=10, predict=10).named("sliding_regression")
    count = iot.distinct_count(read, buckets=10).named("distinct_count")
    columns = ("city", "ts", "id", "obs")
    figures = average.select(*columns, "'average' AS kind", "array(value) AS figures").union(
        line.select(*columns, "'forecast' AS kind", "forecast AS figures"),
        count.select(*columns, "'distinct' AS kind", "array(`distinct`) AS figures"),
    )
    above = figures.to_layer("cloud").with_columns(value="figures[0]")
    publish(above.drop("value"), "figures", results=results, broker=broker)
    drawn = iot.plot_lines(above, size=points, keys=("city", "kind", "obs")).named("plot")
    archives = iot.zip_files(drawn, size=charts, keys=("city",), archive="plots").named("zip")
    if results is None:
        archives.write.memory("plots")
    else:
        iot.upload_blobs(archives, container=f"{results}/plots").named("plots")
    return f.build()


flow = stats(DATA, RESULTS)
