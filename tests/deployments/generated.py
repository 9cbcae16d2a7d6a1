"""Dataflows made up by hypothesis: chains and branches of every kind of operator, over three layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

import headwater as hw
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.stream import Stream
from tests.deployments.flows import LOCATIONS, SCHEMA

LAYERS = ("edge", "site", "cloud")
ROW = "id bigint, ts timestamp, location string, k string, v double"

Draw = st.DrawFn


@dataclass(frozen=True)
class Part:
    """A stream under construction: where it has come to and what may follow."""

    stream: Stream
    layer: int = 0
    timed: bool = False

    @property
    def has(self) -> set[str]:
        return set(self.stream.columns)

    def then(self, stream: Stream, **changes: Any) -> Part:
        return replace(self, stream=stream, **changes)


@st.composite
def dataflows(draw: Draw, path: str, name: str = "generated", out: str | None = None) -> DataflowBuilder:
    """Make a dataflow over JSON files of the columns of ``flows.SCHEMA`` at its locations.

    It writes to memory, or into Parquet files in subdirectories of ``out``.
    """
    builder = hw.flow(name, locations=LOCATIONS)
    read = builder.read.json(path, SCHEMA, location_as="location")
    part = Part(read)
    for _ in range(draw(st.integers(0, 2))):
        # Where zones come together before rows have a time, those of a slow one may be late, as plans warn.
        made = STATELESS if part.layer == 0 else (_where, _compute, _explode)
        part = _hop(draw, draw(st.sampled_from(made))(draw, part))
    part = _hop(draw, part.then(part.stream.with_watermark("ts", "5 seconds"), timed=True))
    tapped = None
    for _ in range(draw(st.integers(1, 4))):
        if tapped is None and draw(st.booleans()):
            tapped = part
        part = _hop(draw, draw(st.sampled_from(_possible(part)))(draw, part))
    for sink, stream in (("out", part.stream), ("tap", tapped.stream if tapped else None)):
        if stream is not None and out is not None:
            stream.write.parquet(f"{out}/{sink}").named(sink)
        elif stream is not None:
            stream.write.memory(sink)
    return builder


def _possible(part: Part) -> list[Any]:
    if {"id", "ts", "v", "k", "location"} <= part.has:
        return [*STATEFUL, *STATEFUL, *STATELESS] if part.timed else list(STATELESS)
    return list(WINDOWED) if "window" in part.has else [_count_filter]


def _hop(draw: Draw, part: Part) -> Part:
    """Perhaps go on in a later layer."""
    layer = draw(st.sampled_from([part.layer, part.layer, min(2, part.layer + 1), 2]))
    if layer == part.layer:
        return part
    return part.then(part.stream.to_layer(LAYERS[layer]), layer=layer)


def _keys(draw: Draw, part: Part, *others: str) -> tuple[str, ...]:
    """Choose keys; where several zones run, the location is among them."""
    chosen = [k for k in others if draw(st.booleans())]
    if part.layer < 2 or not chosen or draw(st.booleans()):
        chosen.insert(0, "location")
    return tuple(chosen)


# ---------------------------------------------------------------- row by row


def _where(draw: Draw, part: Part) -> Part:
    conditions = ["v IS NOT NULL", "v < 71.37", "id % 3 <> 1", "k IN ('k0', 'k1', 'k3')", "location <> 'L2'"]
    return part.then(part.stream.where(draw(st.sampled_from(conditions))))


def _compute(draw: Draw, part: Part) -> Part:
    values = [
        "v * 2",
        "coalesce(v, -1.0D)",
        "if(id % 2 = 0, v, NULL)",
        "round(v, 1)",
        "cast(id % 7 AS double)",
    ]
    return part.then(part.stream.with_columns(v=draw(st.sampled_from(values))))


def _branches(draw: Draw, part: Part) -> Part:
    bound = draw(st.sampled_from(["id % 2 = 0", "v > 33.3", "k = 'k2'"]))
    one = part.stream.where(f"coalesce({bound}, false)")
    two = part.stream.where(f"NOT coalesce({bound}, false)").with_columns(v="-v")
    return part.then(one.union(two))


def _explode(draw: Draw, part: Part) -> Part:
    if "tags" in part.has:
        exploded = part.stream.explode("tags", "tag", outer=draw(st.booleans()))
        return part.then(exploded.with_columns(k="coalesce(tag, k)").drop("tag", "tags"))
    return part.then(part.stream.explode("array('x', k)", "letter").with_columns(k="letter").drop("letter"))


def _batches(draw: Draw, part: Part) -> Part:
    def negated(batches: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            columns = [batch[n] for n in ("id", "ts", "location", "k")]
            yield pa.RecordBatch.from_arrays(
                [*columns, pc.negate(batch["v"])], names=["id", "ts", "location", "k", "v"]
            )

    return part.then(part.stream.map_batches(negated, ROW))


STATELESS = (_where, _compute, _branches, _explode, _batches)


# ---------------------------------------------------------------- with state


def _unique(draw: Draw, part: Part) -> Part:
    # Whole rows: which of several that differ would stay is up to their arrival.
    return part.then(part.stream.drop_duplicates())


def _fold(draw: Draw, part: Part) -> Part:
    def total(state: Any, row: Mapping[str, Any]) -> Any:
        state = (state * 31 + row["id"] * 7 + (1 if row["v"] is None else 2)) % 1_000_003
        out = {c: row[c] for c in ("id", "ts", "location", "k")}
        return state, {**out, "v": float(state)}

    keys = _keys(draw, part, "k")
    return part.then(part.stream.scan(total, ROW, keys=keys, order_by=["ts", "id"], initial=1))


def _changes(draw: Draw, part: Part) -> Part:
    kept = part.stream.filter_acc(
        lambda last, row: row["v"],
        lambda last, row: last is None or row["v"] is None or row["v"] > last,
        keys=_keys(draw, part, "k"),
        order_by=["ts", "id"],
    )
    return part.then(kept)


def _pairs(draw: Draw, part: Part) -> Part:
    left = part.stream.where("id % 2 = 0").select("id", "ts", "location", "k", "v")
    right = part.stream.where("id % 2 = 1").select("id AS other", "location", "k", "ts AS at", "v AS w")
    how = draw(st.sampled_from(["inner", "left"]))
    between = draw(st.sampled_from([("-2 seconds", "2 seconds"), ("0 seconds", "4 seconds")]))
    on = _keys(draw, part, "k")
    if "k" not in on:
        right = right.drop("k")
    if "location" not in on:
        right = right.drop("location")
    return part.then(left.join(right, on, between=between, how=how))


def _windows(draw: Draw, part: Part) -> Part:
    window = draw(
        st.sampled_from(
            [
                hw.window("ts", "10 seconds"),
                hw.window("ts", "20 seconds", "5 seconds"),
                hw.session_window("ts", "2 seconds"),
            ]
        )
    )
    keys = _keys(draw, part, "k")
    made = part.stream.group_by(window, *keys).agg(
        n="count(*)", newest="max_by(id, struct(ts, id))", mean="avg(v)", top="max(v)"
    )
    if "session_window" in made.columns:
        return part.then(made.select("session_window.start AS start", *keys, "n", "newest", "mean", "top"))
    return part.then(made)


def _counted(draw: Draw, part: Part) -> Part:
    size, slide = draw(st.sampled_from([(4, None), (5, 2), (1, None)]))
    made = part.stream.count_window(size, slide, keys=_keys(draw, part, "k"), order_by=["ts", "id"]).agg(
        n="count(v)",
        first="first(id)",
        mean="avg(v)",
        least="min(v)",
        most="max(k)",
        total="sum(if(k = 'k1', NULL, id))",
        last="max(ts)",
    )
    return part.then(made)


STATEFUL = (_windows, _unique, _fold, _pairs, _changes, _windows, _counted)


# ---------------------------------------------------------------- after windows


def _many(draw: Draw, part: Part) -> Part:
    return part.then(part.stream.where("n > 1"))


def _wider(draw: Draw, part: Part) -> Part:
    keys = [k for k in ("location", "k") if k in part.has]
    if part.layer == 2 and len(keys) > 1:
        keys.remove(draw(st.sampled_from(keys)))
    made = part.stream.group_by(hw.window("window", "1 minute"), *keys).agg(
        n="sum(n)", newest="max(newest)", mean="avg(mean)", top="max(top)"
    )
    return part.then(made)


def _best(draw: Draw, part: Part) -> Part:
    if "rank" in part.has:
        return _many(draw, part)
    per = ("window", "location") if "location" in part.has else ("window",)
    return part.then(part.stream.top_k(draw(st.integers(1, 3)), "n", per=per))


def _points(draw: Draw, part: Part) -> Part:
    """Take each window as a row at its end."""
    columns = ["newest AS id", "window_time(window) AS ts", "top AS v"]
    columns.append("location" if "location" in part.has else "'everywhere' AS location")
    columns.append("k" if "k" in part.has else "'all' AS k")
    return part.then(part.stream.select(*columns))


WINDOWED = (_wider, _points, _best, _many)


def _count_filter(draw: Draw, part: Part) -> Part:
    return part.then(part.stream.where("n > 1"))
