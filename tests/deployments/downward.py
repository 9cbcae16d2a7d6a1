"""Dataflows whose streams go down the tree of zones, for the oracle's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import headwater as hw
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.stream import Stream
from tests.deployments.flows import LOCATIONS, SCHEMA

ALARM = "location string, k string, ts timestamp, v double, above double"


def _read(path: str) -> tuple[DataflowBuilder, Stream]:
    builder = hw.flow("down", locations=LOCATIONS)
    read = builder.read.json(path, SCHEMA, location_as="location").named("readings")
    return builder, read.with_watermark("ts", "5 seconds")


def over_limit(state: dict[str, Any] | None, row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Keep the newest mean of a key; a reading above it is an alarm."""
    if row["mean"] is not None:
        return {"mean": row["mean"]}, None
    state = state or {"mean": None}
    if state["mean"] is None or row["v"] is None or row["v"] <= state["mean"]:
        return state, None
    return state, {**row, "above": row["v"] - state["mean"]}


def _write(stream: Stream, name: str, out: str | None) -> None:
    if out is None:
        stream.write.memory(name)
    else:
        stream.write.parquet(f"{out}/{name}").named(name)


def limits(path: str, out: str | None = None) -> DataflowBuilder:
    """Give means of all locations, computed in the cloud, to each location: its readings above them are alarms."""
    builder, readings = _read(path)
    means = readings.to_layer("cloud").group_by(hw.window("ts", "10 seconds"), "k").agg(mean="avg(v)").named("means")
    _write(means.select("k", "mean", "window.end AS until"), "mean_list", out)
    below = means.to_layer("edge", location_as="location").select(
        "location", "k", "window_time(window) AS ts", "CAST(NULL AS double) AS v", "mean", "CAST(-1 AS bigint) AS id"
    )
    both = readings.select("location", "k", "ts", "v", "CAST(NULL AS double) AS mean", "id").union(below)
    alarms = both.scan(over_limit, ALARM, keys=["location", "k"], order_by=["ts", "id"]).named("alarms")
    _write(alarms, "at_edge", out)
    counts = alarms.to_layer("cloud").group_by(hw.window("ts", "20 seconds"), "k").agg(n="count(*)")
    _write(counts, "counts", out)
    return builder


def commands(path: str) -> DataflowBuilder:
    """Give each row to the location that it names; some name none."""
    builder, readings = _read(path)
    sent = readings.to_layer("cloud").select(
        "id", "ts", "v", "k", "CASE k WHEN 'k0' THEN 'L1' WHEN 'k1' THEN 'L4' WHEN 'k2' THEN 'nowhere' END AS target"
    )
    here = sent.named("sent").to_layer("edge", by="target").named("here")
    here.group_by(hw.window("ts", "10 seconds"), "target").agg(n="count(*)", most="max(v)").write.memory("windows")
    here.write.memory("all")
    return builder


def back(path: str) -> DataflowBuilder:
    """Return to each location its share of a sum over all, which a site and the cloud computed; two ways meet."""
    builder, readings = _read(path)
    sums = readings.to_layer("site").group_by(hw.window("ts", "10 seconds"), "location").agg(n="count(*)").named("sums")
    cloud = sums.to_layer("cloud").where("n > 1").named("busy")
    edge = cloud.to_layer("edge").select("window", "location", "n * 2 AS n").named("doubled")
    edge.write.memory("at_edge")
    both = edge.to_layer("cloud").union(cloud.select("window", "location", "n"))
    both.group_by("window", "location").agg(n="sum(n)", rows="count(*)").write.memory("both")
    return builder


def pairs(path: str) -> DataflowBuilder:
    """Pair rows at the edge that came down from the cloud, and count them in windows: joins pass on old rows."""
    builder, readings = _read(path)
    sent = readings.to_layer("cloud").select("id", "ts", "location", "k", "v").named("sent").to_layer("edge")
    left = sent.where("id % 2 = 0").named("even")
    right = sent.where("id % 2 = 1").select("id AS other", "location", "k", "ts AS at", "v AS w").named("odd")
    both = left.join(right, ["location", "k"], between=("-2 seconds", "2 seconds"), how="left").named("paired")
    both.write.memory("all")
    both.group_by(hw.window("ts", "20 seconds", "5 seconds"), "location").agg(n="count(*)").write.memory("windows")
    return builder


DOWNWARD: Mapping[str, Callable[[str], DataflowBuilder]] = {
    "limits": limits,
    "commands": commands,
    "back": back,
    "pairs": pairs,
}
