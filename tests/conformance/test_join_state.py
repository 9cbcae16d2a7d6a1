"""The state of joins in Spark's own stores, divided by the columns of the dataflow and merged again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.errors import RuntimeFailure
from headwater.plan.transfer import KeyPart, OperatorTransfer, Reading, StateTransfer, TransferSource
from headwater.query import compile
from headwater.state.assembly import InputPosition, assemble
from headwater.state.joinkeys import key_columns, side_of
from headwater.state.savedstate import StateStore, describe

PATIENCE_S = 120
LEFT = "id bigint, ts timestamp, k string, day date, location string"
RIGHT = "location string, at timestamp, day date, other bigint, k string"
KEYS = ("location", "day", "k")
Row = dict[str, Any]


def made(count: int, *, null: int | None = None) -> tuple[list[Row], list[Row]]:
    """Return the rows of both sides; the key ``k`` of one row of the left side is NULL."""
    left, right = [], []
    for i in range(count):
        keys = {"k": f"L{i % 3}", "location": f"L{i % 2}", "day": f"2024-01-0{1 + i % 5}"}
        time = f"2024-01-01T00:00:{i:02d}Z"
        left.append({"id": i, "ts": time, **keys, "k": None if i == null else keys["k"]})
        right.append({"other": i, "at": time, **keys})
    return left, right


def ran(spark: Any, place: Path, left: Iterable[Row], right: Iterable[Row], how: str) -> Path:
    """Let a join as a unit runs it read both sides; return its checkpoint."""
    builder = hw.flow("pairs", locations=["L0", "L1"])
    frames, streams = [], []
    for name, schema, rows, time in (("left", LEFT, left, "ts"), ("right", RIGHT, right, "at")):
        (place / name).mkdir(parents=True)
        (place / name / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        reader = spark.readStream.name(name).schema(schema)
        frames.append(reader.json(str(place / name)).withWatermark(time, "10 seconds"))
        streams.append(builder.read.json(str(place / name), schema).with_watermark(time, "10 seconds"))
    streams[0].join(streams[1], KEYS, within="30 seconds", how=how).named("join").write.memory("out")
    flow = builder.build()
    join = flow["join"]
    types = [flow.types[i] for i in join.inputs]
    frame = compile.apply(join, frames, types, streaming=True, locations=("L0", "L1"))
    writer = compile.whole(frame, flow.types["join"]).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(place / "c")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()
    return place / "c"


def saved(checkpoints: Iterable[Path], store: StateStore) -> dict[str, Any]:
    """Save each unit's state; return the records by the units' names."""
    found = {}
    for n, checkpoint in enumerate(checkpoints):
        found[f"U{n}"], files = describe(checkpoint, {}, rows_in=0, late_rows=0)
        store.put(f"U{n}", files)
    return found


def taken(place: Path, found: dict[str, Any], store: StateStore, **share: Any) -> Path:
    """Assemble a checkpoint from the share of all units' state; return it."""
    units = tuple(found)
    transfer = StateTransfer(
        unit="new",
        source_units=units,
        shares=(
            OperatorTransfer(
                operator="join",
                number=0,
                source_units=tuple(TransferSource(unit=u, number=0) for u in units),
                **share,
            ),
        ),
        readings=(Reading(operator="left", source_units=units), Reading(operator="right", source_units=units)),
    )
    places = [InputPosition(name=n, like=n) for n in ("left", "right")]
    assemble(place, transfer, store, {u: u for u in units}, found, places, lambda: place)
    return place


def held(spark: Any, checkpoint: Path, side: str) -> list[Row]:
    """Return the rows that a join's state holds of a side, and check that it counts them."""
    reader = spark.read.format("statestore").option("path", str(checkpoint)).option("operatorId", 0)
    rows = [row.asDict(recursive=True)["value"] for row in reader.option("joinSide", side).load().collect()]
    counts = spark.read.format("statestore").option("path", str(checkpoint)).option("operatorId", 0)
    counted = counts.option("storeName", f"{side}-keyToNumValues").load().collect()
    assert sum(row["value"]["value"] for row in counted) == len(rows)
    return rows


def by_id(rows: Iterable[Row]) -> list[int]:
    return sorted(row.get("id", row.get("other")) for row in rows)


@pytest.mark.parametrize(
    ("how", "column", "type_"),
    [
        ("left", "K", "string"),
        pytest.param("inner", "location", None, marks=pytest.mark.long),
        pytest.param("left", "day", "date", marks=pytest.mark.long),
    ],
)
def test_state_is_divided_by_any_key_and_merged_again(
    spark: Any, tmp_path: Path, how: str, column: str, type_: str | None
) -> None:
    """The two keys of one type have values in common: the wrong field would be noticed."""
    first, second = StateStore(str(tmp_path / "store")), StateStore(str(tmp_path / "again"))
    whole = ran(spark, tmp_path, *made(24, null=7 if how == "left" else None), how)
    found = saved([whole], first)
    if type_ is None:
        shares: list[dict[str, Any]] = [{"by": column, "values": (location,)} for location in ("L0", "L1")]
    else:
        shares = [{"part": KeyPart(column=column, type=type_, index=n, count=2)} for n in (0, 1)]
    parts = [taken(tmp_path / f"part{n}", found, first, **share) for n, share in enumerate(shares)]
    merged = taken(tmp_path / "merged", saved(parts, second), second)
    for side in ("left", "right"):
        rows, expected = [held(spark, part, side) for part in parts], by_id(held(spark, whole, side))
        assert by_id([*rows[0], *rows[1]]) == expected == by_id(held(spark, merged, side))
        assert all(rows), "all rows are in one part"
        for n, of_it in enumerate(rows):
            for value in {row[column.lower()] for row in of_it}:
                assert value == f"L{n}" if type_ is None else hashed(spark, value, type_) == n


def hashed(spark: Any, value: Any, type_: str) -> int:
    """Return the part, of two, to which a channel's reader gives rows with a value."""
    literal = "NULL" if value is None else f"'{value}'"
    return int(spark.sql(f"SELECT pmod(xxhash64(CAST({literal} AS {type_})), 2) AS n").first()["n"])


@pytest.mark.long
def test_an_empty_side_is_divided_too(spark: Any, tmp_path: Path) -> None:
    store = StateStore(str(tmp_path / "store"))
    left, _ = made(6)
    found = saved([ran(spark, tmp_path, left, [], "left")], store)
    part = taken(tmp_path / "part", found, store, by="location", values=("L1",))
    assert by_id(held(spark, part, "left")) == [1, 3, 5]
    assert not held(spark, part, "right")


@pytest.mark.long
def test_a_column_that_is_no_key_divides_nothing(spark: Any, tmp_path: Path) -> None:
    store = StateStore(str(tmp_path / "store"))
    found = saved([ran(spark, tmp_path, *made(6), "inner")], store)
    with pytest.raises(RuntimeFailure, match=r"no field of the join's keys equals 'id' in all rows") as refused:
        taken(tmp_path / "part", found, store, part=KeyPart(column="id", type="bigint", index=0, count=2))
    assert refused.value.hint
    assert not (tmp_path / "part").exists()


def frame(spark: Any, *rows: tuple[str | None, str | None, str | None, str | None], more: str = "string") -> Any:
    """Return entries as Spark's reader shows them: two fields of the key, then two columns of the row."""
    made = [{"key": {"field0": a, "field1": b}, "value": {"K": c, "l": d}} for a, b, c, d in rows]
    return spark.createDataFrame(
        made, f"key struct<field0: string, field1: {more}>, value struct<K: string, l: string>"
    )


def column(spark: Any, frames: list[Any], name: str) -> Any:
    """Return what stands for a column in a key whose fields are 0 and 1."""
    keys = spark.sql("SELECT named_struct('field0', 0, 'field1', 1) AS partition_key")
    return keys.select(key_columns(frames, [name], side="left").alias("found")).first()["found"][name]


def test_a_field_stands_for_a_column_that_it_equals_in_all_rows_of_all_units(spark: Any) -> None:
    usual = frame(spark, ("a", "b", "a", "b"), (None, "a", None, "a"))
    assert [column(spark, [usual], name) for name in ("k", "l")] == [0, 1]
    alike = frame(spark, ("a", "a", "a", "a"))
    assert column(spark, [alike], "l") == 0, "both fields decide alike"
    assert column(spark, [alike, usual, frame(spark)], "l") == 1
    assert column(spark, [frame(spark)], "l") is None, "no entry depends on it"
    turned = frame(spark, ("b", "a", "a", "b"))
    other = frame(spark, ("b", None, "a", "a"), (None, "c", "c", "c"))
    for frames in ([usual, turned], [other], [frame(spark, ("a", 1, "b", "1"), more="int")]):
        with pytest.raises(RuntimeFailure, match="no field of the join's keys equals 'l'"):
            column(spark, frames, "l")


def test_a_store_of_both_sides_is_refused() -> None:
    assert side_of("right-keyWithIndexToValue") == "right"
    with pytest.raises(RuntimeFailure, match="of no side"):
        side_of("default")
