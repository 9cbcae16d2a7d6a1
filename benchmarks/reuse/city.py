"""The 21 dataflows of a city with real task logic, and the streams of packs that they read.

Three streams: urban sensing (five readings a pack), taxis (eight) and smart meters (one). Tasks are those of
``headwater.iot`` with the configuration that the workload names; where several streams meet they are brought
to the same columns first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks.reuse.feed import Feed
from benchmarks.reuse.workloads import Graph
from headwater import iot
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream

LOCATION = "city"
DEVICES = 20
FIELDS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "urban-sensing": {
        "temperature": (-12.5, 43.1), "humidity": (10.7, 95.2), "light": (1345.0, 26282.0),
        "dust": (186.61, 5188.21), "airquality_raw": (17.0, 363.0),
    },
    "nyc-taxi": {
        "trip_time_in_secs": (140.0, 3155.0), "trip_distance": (0.5, 29.86), "fare_amount": (6.0, 201.0),
        "surcharge": (0.0, 1.0), "mta_tax": (0.0, 0.5), "tip_amount": (0.65, 38.55),
        "tolls_amount": (2.5, 18.0), "total_amount": (3.75, 240.0),
    },
    "smart-power-grid": {"energyconsumed": (0.2, 10.0)},
}  # fmt: skip
"""For each stream the fields of a pack, and the range in which values are good."""
_BAD = 0.04  # share of readings out of their range


class LinearModel:
    """The attributes of a fitted model that `predict_linear` needs."""

    coef_ = (0.6,)
    intercept_ = 1.5


def dataflow(graph: Graph, place: Path) -> Dataflow:
    """Build one of the workload's dataflows; packs are read from, and results written below, a directory."""
    builder = hw.flow(graph.name, locations=[LOCATION])
    streams: dict[str, Stream] = {}
    for task in graph.order:
        kind, config = graph.tasks[task]
        if kind.startswith("source:"):
            name = kind.removeprefix("source:")
            streams[task] = builder.read.json(str(place / "in" / name), iot.PACK).named(f"packs-{task}")
            continue
        parents = [streams[p] for p in graph.inputs(task)]
        source = _source_of(graph, task)
        given = parents[0] if len(parents) == 1 else _together(parents)
        made = _TASKS[kind](given, config if isinstance(config, dict) else {}, source, place)
        streams[task] = made if isinstance(made, Stream) else made.stream
    return builder.build()


def _source_of(graph: Graph, task: str) -> str:
    """Return the first stream that leads to a task."""
    while inputs := graph.inputs(task):
        task = inputs[0]
    return graph.tasks[task][0].removeprefix("source:")


def _together(parents: list[Stream]) -> Stream:
    """Bring streams to the same columns, and merge them."""
    alike = [_alike(parent) for parent in parents]
    return alike[0].union(*alike[1:])


def _alike(stream: Stream) -> Stream:
    found = set(stream.columns)
    value = next(
        text
        for name, text in (
            ("forecast", "element_at(forecast, 1)"),
            ("distinct", "`distinct`"),
            ("moment", "moment"),
            ("value", "value"),
        )
        if name in found
    )
    return stream.select("ts", "id", "obs", f"{value} AS value")


def _tree() -> Any:
    """Fit a small decision tree to generated readings; always the same."""
    from sklearn.tree import DecisionTreeClassifier  # type: ignore[import-untyped]

    drawn = random.Random(1)
    rows = [[drawn.uniform(0, 100)] for _ in range(200)]
    classes = ["low" if x < 20 else "usual" if x < 70 else "high" for (x,) in rows]
    return DecisionTreeClassifier(max_depth=3, random_state=1).fit(rows, classes)


def _members() -> iot.Bloom:
    """Return a Bloom filter of nine of ten devices."""
    return iot.Bloom.of([f"device-{n}" for n in range(DEVICES) if n % 10], false_positives=0.01)


_TASKS: Mapping[str, Callable[[Stream, dict[str, Any], str, Path], Any]] = {
    "SenMLParse": lambda s, c, source, place: iot.parse_senml(
        s, id="source", fields=tuple(FIELDS[source]), delay="2 seconds"
    ),
    "RangeFilter": lambda s, c, source, place: iot.range_filter(s, FIELDS[source]),
    "BloomFilter": lambda s, c, source, place: iot.bloom_filter(s, _members()),
    "Interpolation": lambda s, c, source, place: iot.interpolate(s, window=c["window"]),
    "Annotate": lambda s, c, source, place: iot.annotate(
        s, {f"device-{n}": f"district {n % 5}" for n in range(DEVICES)}
    ),
    "BlockWindowAverage": lambda s, c, source, place: iot.block_average(s, size=c["window"]),
    "KalmanFilter": lambda s, c, source, place: iot.kalman(
        s, process_noise=c["q"], sensor_noise=c["r"], estimated_error=c["p0"]
    ),
    "SlidingLinearRegression": lambda s, c, source, place: iot.sliding_regression(
        s, train=c["train"], predict=c["predict"]
    ),
    "DistinctApproxCount": lambda s, c, source, place: iot.distinct_count(s, buckets=c["buckets_log2"]),
    "SecondOrderMoment": lambda s, c, source, place: iot.second_moment(s, tracked=c["max_items"]),
    "LinearRegressionPredict": lambda s, c, source, place: iot.predict_linear(s, LinearModel(), features=("value",)),
    "DecisionTreeClassify": lambda s, c, source, place: iot.classify_tree(s, _tree(), features=("value",)),
    "MultiLinePlot": lambda s, c, source, place: iot.plot_lines(s, size=c["tuples"]),
    "MQTTPublish": lambda s, c, source, place: s.write.json(str(place / "out" / "messages")),
    "TableInsert": lambda s, c, source, place: iot.insert_table(
        s, "readings", database=str(place / "out" / "tables.db"), writer="city"
    ),
    "BlobUpload": lambda s, c, source, place: iot.upload_blobs(s, container=str(place / "out" / "blobs")),
}


class PackFeed(Feed):
    """Packs of all three streams."""

    def __init__(self, place: Path, rate: float) -> None:
        super().__init__(place, FIELDS, rate)

    def row(self, name: str, at: float) -> dict[str, Any]:
        """Draw a pack with a reading of each of the stream's fields."""
        draw = self._drawn
        entries: list[dict[str, Any]] = [{"n": "source", "u": "string", "sv": f"device-{draw.randrange(DEVICES)}"}]
        for field, (low, high) in FIELDS[name].items():
            value = draw.uniform(low, high) * (10 if draw.random() < _BAD else 1)
            entries.append({"n": field, "u": "", "v": f"{value:.2f}"})
        return {"e": entries, "bt": int(at * 1000)}
