"""The Acme dataflow of the FlowUnits paper: filter and window, detect, learn; and its detector.

First processing (FP) at the edge turns readings into half-hour means, anomaly detection (AD) at
the site follows each machine, and the cloud (ML) sums up days and ranks machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.dataflow.builder import flow
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stateful import window
from headwater.dataflow.stream import Stream

if TYPE_CHECKING:
    import pyarrow as pa

LOCATIONS = ("L1", "L2", "L3", "L4", "L5")
CONTINUUM = Path(__file__).with_name("acme.yaml")
READINGS = "machine string, ts timestamp, temperature double"
ALARMS = "location string, machine string, ts timestamp, mean double, score double"
RATED = "window struct<start:timestamp,end:timestamp>, machine string, alarms bigint, severity double"

# The detector: tuned on the generator's seed 1 and NAB's series; examples/acme/README.md has its figures
# on unseen seeds.
WEIGHT = 0.002  # of a new mean in the running ones, which thus cover about ten days
THRESHOLD = 3.0  # standard deviations
PERSISTENCE = 6  # half hours in a row: a single noisy one raises no alarm
FLOOR = 5.0  # least deviation in degrees: a quiet week must not make the detector oversensitive
WARM_UP = 48  # first half hours, without alarms


def acme(data: str, *, results: str | None = None, locations: Sequence[str] = LOCATIONS) -> Dataflow:
    """Build the dataflow over the CSV files in ``{data}/{location}``.

    Its sinks write JSON lines below ``results``, or keep the rows in memory if there is none.
    """

    def write(stream: Stream, name: str) -> None:
        if results is None:
            stream.write.memory(name)
        else:
            stream.write.json(f"{results}/{name}").named(name)

    f = flow("acme", locations=locations)
    means = (
        f.read.csv(f"{data}/{{location}}", READINGS, location_as="location")
        .named("readings")
        .where("temperature BETWEEN -50 AND 200")
        .named("plausible")
        .with_watermark("ts", "1 hour")
        .group_by(window("ts", "30 minutes"), "location", "machine")
        # Decimals add up to the same sum in every order of arrival.
        .agg(mean="cast(avg(cast(temperature AS decimal(10, 6))) AS double)", readings="count(*)")
        .named("means")
    )
    alarms = (
        means.to_layer("site")
        .select("location", "machine", "window_time(window) AS ts", "mean")
        .scan(watch, ALARMS, keys=["location", "machine"], order_by="ts")
        .named("alarms")
    )
    cloud = alarms.to_layer("cloud")
    write(cloud, "alarm_list")
    daily = cloud.group_by(window("ts", "1 day"), "location").agg(alarms="count(*)", worst="max(abs(score))")
    write(daily.named("daily"), "daily_by_location")
    top = (
        cloud.group_by(window("ts", "1 day"), "machine")
        .agg(alarms="count(*)", worst="max(abs(score))", coldest="min(mean)", hottest="max(mean)")
        .named("machine_days")
        .require("gpu = true")
        .map_batches(severity, RATED)
        .named("severity")
        .top_k(3, "severity")
        .named("top_machines")
    )
    write(top, "top_machine_list")
    return f.build()


def watch(state: dict[str, float] | None, row: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any] | None]:
    """Track one machine: a row is an alarm if the mean has been far from the running one for long enough.

    Running mean and variance are exponentially weighted (EWMA). Outliers hardly change them, or a
    long failure would become the normal case.
    """
    value = row["mean"]
    if state is None:
        return {"mean": value, "variance": 0.0, "seen": 1, "run": 0}, None
    mean, seen = state["mean"], state["seen"]
    deviation = max(state["variance"] ** 0.5, FLOOR)
    score = (value - mean) / deviation
    warm = seen >= WARM_UP
    far = warm and abs(score) > THRESHOLD
    weight = WEIGHT / 8 if far else max(WEIGHT, 1 / (seen + 1))
    step = value - mean
    held = min(max(step, -THRESHOLD * deviation), THRESHOLD * deviation) if warm else step
    run = state["run"] + 1 if far else 0
    after = {
        "mean": mean + weight * held,
        "variance": (1 - weight) * (state["variance"] + weight * held * held),
        "seen": seen + 1,
        "run": run,
    }
    if run < PERSISTENCE:
        return after, None
    return after, {**{k: row[k] for k in ("location", "machine", "ts", "mean")}, "score": score}


def severity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rate each machine's day between 0 and 1 with a small fixed model, in place of the paper's GPU model."""
    import numpy as np
    import pyarrow as pa

    weights = np.array([0.04, 0.35, -0.01, 0.01])
    for batch in batches:
        features = np.column_stack(
            [batch.column(name).to_numpy(zero_copy_only=False) for name in ("alarms", "worst", "coldest", "hottest")]
        ).astype(float)
        rated = 1 / (1 + np.exp(-(features @ weights - 2.5)))
        columns = [
            batch.column("window"),
            batch.column("machine"),
            batch.column("alarms"),
            pa.array(np.round(rated, 6)),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["window", "machine", "alarms", "severity"])
