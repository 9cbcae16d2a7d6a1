"""Windows of makers, and pairs by position, against their definitions over whole lists."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.core.errors import DataflowError
from headwater.dataflow.pairs import pair_fold, pairing
from headwater.dataflow.stream import Stream
from headwater.dataflow.windowmakers import Maker, RowWindows, step_of, window_fold
from headwater.query.statetext import state_text, state_value

BEGIN = datetime(2026, 1, 1)
STEPS = st.lists(st.integers(0, 7), max_size=30)


def rows(gaps: list[int]) -> list[dict[str, Any]]:
    """Return rows in the order of time, with these seconds between them."""
    found, at = [], BEGIN
    for n, gap in enumerate(gaps):
        at += timedelta(seconds=gap)
        found.append({"n": n, "ts": at, "last": gap == 7})
    return found


def windows(maker: Maker | RowWindows, column: str, given_: list[dict[str, Any]], cuts: list[int]) -> list[list[int]]:
    """Return the numbers of the rows of each window; at the cuts the state is written and read again."""
    step, state = step_of(maker, column)
    found: list[list[int]] = []
    for row in given_:
        if row["n"] in cuts:
            state = state_value(state_text(state))
        state, closed = step(state, dict(row))
        found += [[r["n"] for r in window] for window in closed]
    return found


CUTS = st.lists(st.integers(0, 30), max_size=3)


@given(STEPS, CUTS, st.integers(1, 5), st.data())
def test_windows_of_a_number_of_rows(gaps: list[int], cuts: list[int], size: int, data: st.DataObject) -> None:
    slide = data.draw(st.integers(1, size))
    numbers = [r["n"] for r in rows(gaps)]
    wanted = [numbers[i : i + size] for i in range(0, len(numbers) - size + 1, slide)]
    assert windows(RowWindows(size, slide), "ts", rows(gaps), cuts) == wanted


@given(STEPS, CUTS)
def test_windows_until_a_condition(gaps: list[int], cuts: list[int]) -> None:
    given_ = rows(gaps)
    ends = [r["n"] + 1 for r in given_ if r["last"]]
    wanted = [list(range(a, b)) for a, b in zip([0, *ends], ends, strict=False)]
    assert windows(hw.complete("v > 1"), "last", given_, cuts) == wanted
    step, state = step_of(hw.complete("v > 1"), "last")
    for row in given_:
        state, closed = step(state, row)
        assert all("last" not in r for window in closed for r in window), "the condition's column is not a row's"


@given(STEPS, CUTS, st.integers(1, 5))
def test_windows_that_slide_over_time(gaps: list[int], cuts: list[int], size: int) -> None:
    given_, length = rows(gaps), timedelta(seconds=size)
    last = given_[-1]["ts"] if given_ else BEGIN
    wanted = [
        [r["n"] for r in given_[i:] if r["ts"] < one["ts"] + length]
        for i, one in enumerate(given_)
        if one["ts"] + length <= last
    ]
    assert windows(hw.sliding_time(f"{size} seconds"), "ts", given_, cuts) == wanted


@given(STEPS, CUTS, st.integers(1, 5), st.booleans())
def test_windows_of_a_time_from_the_first_row(gaps: list[int], cuts: list[int], size: int, empty: bool) -> None:
    given_ = rows(gaps)
    places = [(r["ts"] - given_[0]["ts"]) // timedelta(seconds=size) for r in given_]
    closed = range(places[-1] if places else 0)
    every = [[r["n"] for r, at in zip(given_, places, strict=True) if at == place] for place in closed]
    maker = hw.chop_time(f"{size} seconds", empty=empty)
    assert windows(maker, "ts", given_, cuts) == [w for w in every if w or empty]


def test_a_function_may_change_its_rows() -> None:
    def spoil(window: list[dict[str, Any]]) -> Any:
        for row in window:
            row["n"] += 100
            yield {"n": row["n"], "of": len(window)}

    step, initial = step_of(RowWindows(2, 1), "ts")
    fold, state = window_fold(step, ("last",), "rows", spoil), {"state": initial}
    found = []
    for row in rows([0, 1, 1]):
        state, out = fold(state, row)
        found.append(out and [r["n"] for r in out["rows"]])
    assert found == [None, [100, 101], [101, 102]]


def test_a_maker_may_change_its_state_later() -> None:
    def growing(state: list[Any], row: dict[str, Any]) -> Any:
        state.append(row)
        state[0]["seen"] = len(state)
        return state, [state]

    fold, state = window_fold(growing, (), "rows", None), {"state": []}
    outputs = []
    for row in rows([0, 1, 1]):
        state, out = fold(state, row)
        outputs.append(out)
    assert [[(r["n"], r.get("seen")) for w in out["rows"] for r in w] for out in outputs if out] == [
        [(0, 1)], [(0, 2), (1, None)], [(0, 3), (1, None), (2, None)]
    ]  # fmt: skip


def test_an_output_row_is_a_dict() -> None:
    step, initial = step_of(RowWindows(1, 1), "ts")
    fold = window_fold(step, (), "rows", lambda window: window[0])
    with pytest.raises(TypeError, match="is given str as an output row"):
        fold({"state": initial}, rows([0])[0])


def test_states_hold_values_of_rows() -> None:
    state = {
        "rows": [{"t": datetime(2026, 1, 2, 3, 4, 5, 6), "d": date(2026, 1, 2), "m": Decimal("1.50"), "b": b"\0\xff"}],
        "aware": datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC")), "nested": {"of": {"d": [date(1, 1, 1)], "none": None}},
    }  # fmt: skip
    again = state_value(state_text(state))
    assert again == state and type(again["rows"][0]["d"]) is date and type(again["rows"][0]["t"]) is datetime
    assert repr(again) == repr(state), "a function sees the same values before and after"
    with pytest.raises(TypeError, match="Object of type object"):
        state_text({"a": object()})


# ---------------------------------------------------------------- pairs


def read(columns: str = "id bigint, ts timestamp, k string, v double", delay: str | None = "1 second") -> Stream:
    stream = hw.flow("f", locations=["L1"]).read.json("in/{location}", columns)
    return stream if delay is None else stream.with_watermark("ts", delay)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"))), CUTS)
def test_rows_are_paired_by_position(sides: list[tuple[bool, str]], cuts: list[int]) -> None:
    stream = read("ts timestamp, k string, n int")
    other = stream.select("ts", "k", "n AS m")
    fold, initial = pair_fold(pairing(stream.shape, other.shape, ("k",), ("ts",), where="here"))
    found, states = [], {}
    for n, (is_left, k) in enumerate(sides):
        row = {"k": k, "left": {"n": n} if is_left else None, "right": None if is_left else {"m": n}}
        state = states.get(k, initial)
        states[k], out = fold(state_value(state_text(state)) if n in cuts else state, row)
        if out is not None:
            found.append((out["k"], out["left"]["n"], out["right"]["m"]))
        initial = pair_fold(pairing(stream.shape, other.shape, ("k",), ("ts",), where="here"))[1]
    wanted = []
    for k in "ab":
        lefts = [n for n, side in enumerate(sides) if side == (True, k)]
        rights = [n for n, side in enumerate(sides) if side == (False, k)]
        wanted += [(k, a, b) for a, b in zip(lefts, rights, strict=False)]
    assert sorted(found) == sorted(wanted)


# ---------------------------------------------------------------- types, keys and errors


def test_types_of_windows_and_pairs() -> None:
    stream = read()
    made = stream.windowed(hw.complete("v > 3"), keys="K", order_by=["ts", "id"])
    assert (
        made.agg("sum(id) AS s", n="count(*)", m="avg(v) / 2").schema.text == "k string, s bigint, n bigint, m double"
    )
    out = made.apply(len, "x int, more struct<a:string>")
    assert out.schema.text == "k string, x int, more struct<a:string>" and out.shape.event_time is None
    assert (
        stream.count_window(3, order_by="id").apply(len, "windows int, row int").schema.text == "windows int, row int"
    )
    right = stream.select("ts", "k", "id AS other", "v AS left")
    pairs = stream.zip(right, keys="k", order_by="TS")
    assert pairs.schema.text == "id bigint, ts timestamp, k string, v double, other bigint, `left` double"
    assert pairs.shape.event_time is None


def test_windows_and_pairs_keep_locations() -> None:
    read_ = hw.flow("f", locations=["L1"]).read.json("in/{location}", "ts timestamp, v int", location_as="at")
    stream = read_.with_watermark("ts", "1 second")
    assert stream.windowed(hw.chop_time("1 second"), keys="at", order_by="ts").agg(n="count(*)").shape.located_by == {
        "at"
    }
    assert stream.count_window(3, keys="at", order_by="ts").apply(len, "x int").shape.located_by == {"at"}
    assert stream.zip(stream.select("ts", "at", "v AS w"), keys="at", order_by="ts").shape.located_by == {"at"}


def test_equal_windows_have_equal_keys() -> None:
    def keyed(stream: Stream) -> str:
        builder: Any = stream.write.memory("out").stream.builder
        return str(builder.build().keys["out"])

    def counted(maker: Maker, **how: Any) -> str:
        return keyed(read().windowed(maker, **{"keys": "k", "order_by": "ts", **how}).agg(n="count(*)"))

    def applied(size: int, more: int) -> str:
        return keyed(read().count_window(size, order_by="ts").apply(lambda rows: rows[more:], "id bigint"))

    assert counted(hw.complete("v>1")) == counted(hw.complete("v > 1"))
    makers = [hw.complete("v > 1"), hw.complete("v > 2"), hw.chop_time("1 s"), hw.chop_time("2 s"),
              hw.chop_time("1 s", empty=True), hw.sliding_time("1 s")]  # fmt: skip
    assert len({counted(m) for m in makers} | {counted(makers[0], keys=()), counted(makers[0], order_by="id")}) == 8
    assert applied(2, 1) == applied(2, 1) and len({applied(2, 1), applied(3, 1), applied(2, 0)}) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda s: s.windowed(hw.chop_time("1 s"), order_by="id").agg(n="count(*)"), ["order of the event time"]),
        (lambda s: s.windowed(hw.sliding_time("1 s"), order_by=[]).agg(n="count(*)"), ["order of the event time"]),
        (lambda s: s.windowed(hw.complete("v"), order_by="id").agg(n="count(*)"), ["windowed.agg", "condition"]),
        (lambda s: s.windowed(hw.complete("w > 1"), order_by="id").agg(n="count(*)"), ["'w'", "id, ts, k, v"]),
        (lambda s: s.windowed("3", order_by="id"), ["maker is '3'", "WindowMaker"]),
        (lambda s: s.windowed(hw.WindowMaker(len), order_by="id").agg(n="count(*)"), ["2 argument(s)", "(state, row)"]),
        (lambda s: s.windowed(hw.WindowMaker(lambda a, b: a, {1}), order_by="id").agg(n="count(*)"), ["not JSON"]),
        (lambda s: s.windowed(hw.complete("true"), order_by="id").agg(), ["computes nothing"]),
        (lambda s: s.windowed(hw.complete("true"), order_by="id").agg(n="v"), ["'v' is not aggregated"]),
        (lambda s: s.windowed(hw.complete("true"), order_by="id").agg(n="stddev(v)"), ["stddev", "collect_list"]),
        (lambda s: s.windowed(hw.complete("true"), keys="w", order_by="id").agg(n="count(*)"), ["no column w"]),
        (lambda s: s.windowed(hw.complete("true"), order_by=[]).agg(n="count(*)"), ["without order_by"]),
        (lambda s: s.with_columns(m="map(k, v)").windowed(hw.complete("true"), order_by="id").agg(n="count(*)"),
         ["no maps: m", "map_entries"]),
        (lambda s: s.count_window(2, 3, order_by="id").apply(len, "x int"), ["every 3", "slide <= size"]),
        (lambda s: s.count_window(2, keys="k", order_by="id").apply(len, "K int"), ["names of keys: k", "before"]),
        (lambda s: s.count_window(2, order_by="id").apply(lambda: [], "x int"), ["apply after", "1 argument(s)"]),
        (lambda s: s.count_window(2, order_by="id").apply(len, "x intt"), ["count_window.apply", "intt"]),
        (lambda s: s.zip(s, order_by="ts"), ["zip", "both streams have: id, k, v", "another name"]),
        (lambda s: s.zip(s.select("ts"), order_by="ts"), ["only the columns"]),
        (lambda s: s.zip(s.select("ts", "v AS w"), keys="k", order_by="ts"), ["the other stream has no column 'k'"]),
        (lambda s: s.zip(s.select("ts", "id AS k", "v AS w"), keys="k", order_by="ts"), ["string", "bigint", "cast"]),
        (lambda s: s.zip(s.select("k", "id AS n", "ts AS t"), order_by="k"), ["time is ts in this", "t in the other"]),
        (lambda s: s.zip(s.select("ts", "map(k, v) AS m"), order_by="ts"), ["no maps: m"]),
        (lambda s: s.zip(s.select("ts", "v AS w"), order_by=[]), ["without order_by"]),
        (lambda s: s.zip(read().select("ts", "v AS w"), order_by="ts"), ["two dataflows"]),
    ],
)  # fmt: skip
def test_wrong_windows_and_pairs(make: Any, words: list[str]) -> None:
    with pytest.raises(DataflowError) as caught:
        make(read())
    assert all(word in str(caught.value) for word in words), str(caught.value)
