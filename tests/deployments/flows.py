"""Dataflows of the oracle's tests, each over JSON files with a few columns at some locations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.deployment import Edge
from headwater.plan.model import DeploymentPlan

CONTINUUM = """
name: test
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  S2: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
  E4: {layer: edge, parent: S2, locations: [L4]}
"""

TWO_EDGES = """
name: two
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2, L4]}
"""
"""The same locations in fewer zones, for tests that do not depend on the number of sites."""


def lifted(flow: Dataflow, continuum: Continuum, first: str, *cuts: Edge) -> DeploymentPlan:
    """Plan a dataflow of which the cloud runs the operators from one on, with further cuts."""
    above = flow.order[flow.order.index(first) :]
    layers = {**marked_layers(flow, continuum), **dict.fromkeys(above, "cloud")}
    return build(flow, continuum, in_layers(flow, continuum, layers, cuts=frozenset(cuts)))


LOCATIONS = ("L1", "L2", "L4")
SCHEMA = "id bigint, ts timestamp, k string, v double, tags array<string>"
BEGIN = 1_700_000_000


def write_names(table: Path) -> Path:
    """Write a table of names by ``k``, in which a key occurs twice, one is in no row, and one is NULL; return it."""
    names = [("k1", "one"), ("k1", "uno"), ("k2", "two"), (None, "nothing"), ("k99", "none")]
    table.write_text("".join(json.dumps({"k": k, "name": name}) + "\n" for k, name in names))
    return table


def rows(count: int, *, seed: int, disorder: float = 3.0) -> dict[str, list[Any]]:
    """Return rows of every location: one a second, up to ``disorder`` seconds out of order, uneven in pace."""
    found: dict[str, list[Any]] = {}
    for n, location in enumerate(LOCATIONS):
        rng = random.Random(f"{seed}-{location}")
        made = []
        for i in range(count * (n + 1) // 2):
            made.append(
                {
                    "id": n * 1_000_000 + i,
                    "ts": _text(BEGIN + i + round(rng.uniform(0, disorder), 3)),
                    "k": f"k{rng.randrange(4)}",
                    "v": rng.choice([None, float(rng.randrange(50)), rng.uniform(-10, 100)]),
                    "tags": rng.sample(["a", "b", "c", "d"], rng.randrange(4)),
                }
            )
        found[location] = made
    return found


def _text(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(path: str) -> tuple[DataflowBuilder, Stream]:
    builder = hw.flow("test", locations=LOCATIONS)
    return builder, builder.read.json(path, SCHEMA, location_as="location")


def stateless(path: str) -> DataflowBuilder:
    """Filter, project, explode, merge of two branches."""
    builder, stream = _read(path)
    clean = stream.where("v IS NOT NULL").named("clean")
    low = clean.where("v < 20").select("id", "location", "'low' AS kind", "v * 2 AS w")
    high = clean.where("v >= 20").to_layer("site").select("id", "location", "'high' AS kind", "v AS w")
    low.to_layer("site").union(high).to_layer("cloud").write.memory("merged")
    clean.to_layer("site").explode("tags", "tag", position="at").select("id", "tag", "at").write.memory("tags")
    return builder


def acme(path: str) -> DataflowBuilder:
    """Clean at the edge, windows at the site, windows of windows and a top list in the cloud."""
    builder, stream = _read(path)
    clean = stream.where("v BETWEEN -5 AND 90").with_watermark("ts", "5 seconds").named("fp")
    means = (
        clean.to_layer("site")
        .group_by(hw.window("ts", "20 seconds"), "location", "k")
        .agg(n="count(*)", mean="avg(v)", best="max_by(id, v)")
        .named("ad")
    )
    cloud = means.to_layer("cloud")
    cloud.group_by(hw.window("window", "1 minute"), "location").agg(n="sum(n)", peak="max(mean)").write.memory("ml")
    cloud.top_k(2, "n").write.memory("top")
    return builder


def keyed(path: str) -> DataflowBuilder:
    """Duplicates dropped at the edge, ordered folds at the site, sliding count windows in the cloud."""
    builder, stream = _read(path)

    def trend(state: Any, row: Mapping[str, Any]) -> Any:
        level = row["v"] if state is None else 0.8 * state + 0.2 * row["v"]
        return level, {
            "id": row["id"],
            "ts": row["ts"],
            "location": row["location"],
            "k": row["k"],
            "level": level,
        }

    unique = stream.where("v IS NOT NULL").with_watermark("ts", "5 seconds").drop_duplicates("location", "id")
    levels = unique.to_layer("site").scan(
        trend,
        "id bigint, ts timestamp, location string, k string, level double",
        keys=["location", "k"],
        order_by=["ts", "id"],
    )
    changed = levels.filter_acc(
        lambda last, row: row["level"],
        lambda last, row: last is None or abs(row["level"] - last) > 1,
        keys=["location", "k"],
        order_by=["ts", "id"],
    )
    changed.write.memory("changed")
    levels.to_layer("cloud").count_window(5, 2, keys="k", order_by=["ts", "id"]).agg(
        n="count(*)", mean="avg(level)", span="max(level) - min(level)", first="first(id)"
    ).write.memory("counted")
    return builder


def joined(path: str) -> DataflowBuilder:
    """Pairs of rows of one location near in time, inner and left, and a session per key."""
    builder, stream = _read(path)
    timed = stream.with_watermark("ts", "5 seconds")
    left = timed.where("v < 30").select("id", "ts", "location", "k", "v")
    right = timed.where("v >= 30").select("id AS other", "ts AS at", "location", "k", "v AS w")
    site = left.to_layer("site")
    site.join(right.to_layer("site"), ["location", "k"], within="4 seconds").write.memory("inner")
    site.join(right.to_layer("site"), ["location", "k"], between=("-1 second", "2 seconds"), how="left").to_layer(
        "cloud"
    ).write.memory("left")
    site.to_layer("cloud").group_by(hw.session_window("ts", "3 seconds"), "k").agg(n="count(*)").write.memory(
        "sessions"
    )
    return builder


def python(path: str) -> DataflowBuilder:
    """Arrow batches and an opaque DataFrame function."""
    builder, stream = _read(path)

    def double(batches: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [batch["id"], batch["ts"], pc.multiply(batch["v"], 2.0)], names=["id", "ts", "v"]
            )

    def shout(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.withColumn("word", F.concat(F.lit("#"), F.col("id").cast("string")))

    doubled = stream.with_watermark("ts", "5 seconds").map_batches(double, "id bigint, ts timestamp, v double")
    doubled.to_layer("cloud").transform(shout, "id bigint, ts timestamp, v double, word string").write.memory("words")
    doubled.to_layer("cloud").group_by(hw.window("ts", "30 seconds", "10 seconds")).agg(s="sum(v)").write.memory("sums")
    return builder


def flowunits(path: str) -> DataflowBuilder:
    """The FlowUnits paper's pipeline: keep a third, average ten per key, count Collatz steps."""
    builder, stream = _read(path)
    o1 = stream.where("id % 3 = 0").named("O1")
    o2 = (
        o1.with_columns(key="id % 10")
        .to_layer("site")
        .count_window(10, keys=["location", "key"], order_by="id")
        .agg(mean="avg(id)")
        .named("O2")
    )
    n = "cast(mean AS bigint) % 1000 + 1"
    steps = (
        f"aggregate(sequence(1, 200), named_struct('n', {n}, 's', 0), (a, i) -> IF(a.n <= 1, a, "
        "named_struct('n', IF(a.n % 2 = 0, a.n div 2, 3 * a.n + 1), 's', a.s + 1))).s"
    )
    o2.to_layer("cloud").with_columns(steps=steps).where("steps < 100").named("O3").write.memory("out")
    return builder


def together(path: str) -> DataflowBuilder:
    """Folds by several keys and a fold of a fold, in one pass, beside rows that pass no fold.

    The rows and the output of a fold are merged again.
    """
    builder, stream = _read(path)

    def most(state: Any, row: Mapping[str, Any]) -> Any:
        found = row["v"] if state is None else max(state, row["v"])
        return found, {**{n: row[n] for n in ("id", "ts", "location", "k")}, "most": found}

    def steps(state: int, row: Mapping[str, Any]) -> Any:
        return state + 1, {"id": row["id"], "k": row["k"], "n": state + 1, "most": row["most"]}

    def counted(state: int, row: Mapping[str, Any]) -> Any:
        return state + 1, {
            "id": row["id"],
            "location": row["location"],
            "n": state + 1,
        } if state % 2 else None

    order, keys = ["ts", "id"], ["location", "k"]
    timed = stream.where("v IS NOT NULL").with_watermark("ts", "5 seconds").named("timed").to_layer("site")
    schema = "id bigint, ts timestamp, location string, k string, most double"
    highest = timed.where("v > -5").scan(most, schema, keys=keys, order_by=order, keeps_keys=True).named("highest")
    stepped = highest.scan(
        steps, "id bigint, k string, n int, most double", keys=keys, order_by=order, initial=0
    ).named("stepped")
    count = timed.scan(counted, "id bigint, location string, n int", keys="location", order_by=order, initial=0).named(
        "count"
    )
    high = highest.where("most > 20").select("id", "k", "most")
    high.write.memory("high")
    low = timed.where("v < 0").select("v AS most", "k", "id")
    low.union(high.where("most > 30"), low).named("brought").where("most < 90").write.memory("both")
    stepped.write.memory("steps")
    count.to_layer("cloud").select("id", "location", "n + 1 AS n").write.memory("counts")
    timed.where("k = 'k1'").select("id", "v * 2 AS w").write.memory("passed")
    timed.write.memory("all")
    return builder


def windows(path: str) -> DataflowBuilder:
    """Windows that a condition, a time or a function ends, aggregated or given to functions."""
    builder, stream = _read(path)
    timed = stream.with_watermark("ts", "5 seconds")
    order = ["ts", "id"]

    def rises(state: Any, row: Mapping[str, Any]) -> Any:
        """End a window where the value falls."""
        fell = bool(state) and row["v"] is not None and state[-1]["v"] > row["v"]
        kept = [] if fell else state
        return [*kept, row] if row["v"] is not None else kept, [state] if fell else []

    def ends(window: Any) -> Any:
        for row in (window[0], window[-1]):
            tags = {"day": row["ts"].date(), "at": str(row["ts"]), "tags": row["tags"]}
            yield {"id": row["id"], "ts": row["ts"], "n": len(window), "more": tags}

    def median(window: Any) -> Any:
        values = sorted(row["v"] for row in window if row["v"] is not None)
        return [{"id": window[0]["id"], "median": values[len(values) // 2]}] if values else []

    made = timed.to_layer("site").windowed(hw.complete("v > 60"), keys=["location", "k"], order_by=order)
    made.agg(n="count(*)", first="first(id)", mean="avg(v)", ids="collect_list(id)").write.memory("complete")
    cloud = timed.to_layer("cloud")
    more = "id bigint, ts timestamp, n int, more struct<day:date,at:string,tags:array<string>>"
    cloud.windowed(hw.WindowMaker(rises, []), keys="k", order_by=order).apply(ends, more).write.memory("rises")
    cloud.windowed(hw.sliding_time("4 seconds"), keys="k", order_by=order).agg(
        n="count(v)", span="max(v) - min(v)", last="last(ts)"
    ).write.memory("sliding")
    cloud.count_window(5, 2, keys="location", order_by=order).apply(median, "id bigint, median double").write.memory(
        "medians"
    )
    return builder


def zipped(path: str) -> DataflowBuilder:
    """Rows of two streams paired by position, by key at the site and all of them in the cloud; chopped times."""
    builder, stream = _read(path)
    timed = stream.with_watermark("ts", "5 seconds").named("timed")
    left = timed.where("v < 30").select("id", "ts", "location", "v", "tags")
    right = timed.where("v >= 30").select("ts", "location", "id AS other", "named_struct('at', ts, 'v', v) AS w")
    pairs = left.to_layer("site").zip(right.to_layer("site"), keys="location", order_by="ts")
    pairs.to_layer("cloud").write.memory("pairs")
    all_ = left.drop("location").to_layer("cloud").zip(right.drop("location").to_layer("cloud"), order_by="ts")
    all_.write.memory("all")
    chopped = timed.to_layer("cloud").windowed(hw.chop_time("2 seconds", empty=True), keys="k", order_by=["ts", "id"])
    chopped.agg(n="count(*)", ids="collect_list(id)").write.memory("chopped")
    return builder


def patterns(path: str) -> DataflowBuilder:
    """Row patterns by key and of all rows; windows count the matches by the time that decided them."""
    builder, stream = _read(path)
    timed = stream.where("v IS NOT NULL").with_watermark("ts", "5 seconds")
    rises = timed.to_layer("site").match_recognize(
        "low up+ (down{2} | under)",
        keys=["location", "k"],
        order_by=["ts", "id"],
        define={"up": "v > PREV(v)", "down": "v < PREV(v)", "under": "v < FIRST(low.v) AND id % 2 = 0"},
        measures={
            "since": "first(ts)",
            "until": "last(ts)",
            "n": "count(*)",
            "high": "max(up.v)",
            "mean": "avg(v)",
            "depth": "low.v - coalesce(under.v, min(down.v))",
            "last_id": "id",
        },
        within="40 seconds",
    )
    rises.write.memory("rises")
    counts = (
        rises.to_layer("cloud").group_by(hw.window("ts", "30 seconds"), "location").agg(n="count(*)", most="max(n)")
    )
    counts.write.memory("counts")
    timed.to_layer("cloud").match_recognize(
        "a b{,3} a",
        define={"a": "k = 'k1'", "b": "k <> 'k1' AND v <> PREV(v)"},
        measures={"first_id": "first(id)", "last_id": "last(id)", "others": "count(b.v)", "least": "min(b.k)"},
        order_by=["ts", "id"],
    ).write.memory("pairs")
    return builder


FLOWS: Mapping[str, Callable[[str], DataflowBuilder]] = {
    f.__name__: f for f in (stateless, acme, keyed, joined, python, flowunits, together, windows, zipped, patterns)
}
