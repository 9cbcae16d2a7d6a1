"""Row counts of operators from Spark's metrics: required observations, and counts derived from known ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import headwater as hw
from headwater.core.jsonform import dump, load
from headwater.core.metrics import OperatorProgress
from headwater.dataflow.graph import Dataflow
from headwater.query.counting import Counting, Read, Tally, completed, points, rejects_of, rows_of, time_of


def forked() -> Dataflow:
    """Build two sources, a filter each, one union, a projection and a sink."""
    f = hw.flow("forked", locations=["L1", "L2"])
    a = f.read.parquet("/a/{location}", "id bigint").named("a").where("id > 0").named("a_kept")
    b = f.read.parquet("/b/{location}", "id bigint").named("b").where("id > 1").named("b_kept")
    a.union(b).named("both").select("id + 1 AS id").named("more").write.memory("out")
    return f.build()


EVERY = ("a", "a_kept", "b", "b_kept", "both", "more", "out")


def test_what_keeps_rows_tells_of_its_neighbours() -> None:
    flow = forked()
    assert completed(flow, EVERY, {"a_kept": 3, "b_kept": 4}) == {
        "a_kept": 3,
        "b_kept": 4,
        "both": 7,
        "more": 7,
        "out": 7,
    }
    # Backward from the sink: the filter without a count gave the remaining rows.
    assert completed(flow, EVERY, {"out": 9, "a_kept": 3})["b_kept"] == 6
    assert "a_kept" not in completed(flow, EVERY, {"out": 9})


def test_no_more_is_observed_than_is_needed() -> None:
    flow = forked()
    assert points(flow, EVERY, EVERY, {"a", "b", "out"}) in ({"a_kept"}, {"b_kept"})
    assert points(flow, EVERY, EVERY, {"a", "b"}) == {"a_kept", "b_kept"}
    assert points(flow, EVERY, {"a", "a_kept"}, {"b"}) == {"a", "a_kept"}
    assert points(flow, EVERY, (), {"a", "b"}) == frozenset()


def test_operators_of_another_unit_are_inputs() -> None:
    flow = forked()
    inside = ("both", "more", "out")
    assert points(flow, inside, {*inside, "a_kept", "b_kept"}, {"out"}) in ({"a_kept"}, {"b_kept"})
    assert points(flow, inside, {*inside, "a_kept", "b_kept"}, {"a_kept", "b_kept", "out"}) == frozenset()


def test_rows_of_a_watermark_that_is_read_from_a_channel_are_observed() -> None:
    """With punctuation, Spark's count of rows read is not the watermark's row count."""
    f = hw.flow("timed", locations=["L1"])
    rows = f.read.parquet("/a/{location}", "ts timestamp").with_watermark("ts", "1 second").named("rows")
    rows.select("ts").named("more").write.memory("out")
    flow = f.build()
    assert points(flow, ("more", "out"), {"rows", "more", "out"}, ()) == {"rows"}
    assert points(flow, tuple(flow.order), set(flow.order), {"source", "out"}) == frozenset()


def batch(
    *read: int, written: int | None = None, observed: Mapping[str, Sequence[int | None]] | None = None
) -> dict[str, Any]:
    """Return Spark's report of a batch."""
    return {
        "sources": [{"numInputRows": n} for n in read],
        "sink": {"numOutputRows": -1 if written is None else written},
        "observedMetrics": {name: [values, {}] for name, values in (observed or {}).items()},
    }


def counting() -> Counting:
    reads = [Read("a", "L1"), Read("a", "L2"), Read("b", "L1"), Read("b", "L2"), Read("end", counts=False)]
    return Counting(reads, ["b_kept"], [("a", "L2")], ["out"])


def test_batches_add_up_and_malformed_records_are_told_apart() -> None:
    tally = Tally(load(Counting, dump(counting()), what="what was counted"))
    for _ in range(2):
        tally.take(
            batch(10, 20, 1, 2, 9, written=15, observed={rows_of("b_kept"): [3], rejects_of("a", "L2"): [4]}), 0.0
        )
    told = {(o.operator, o.location): (o.rows_in, o.rows_out) for o in tally.operators(forked(), EVERY)}
    assert told == {
        ("a", "L1"): (20, 20),
        ("a", "L2"): (40, 32),
        ("a_kept", None): (52, 16),
        ("b", "L1"): (2, 2),
        ("b", "L2"): (4, 4),
        ("b_kept", None): (6, 6),
        ("both", None): (22, 22),
        ("more", None): (22, 22),
        ("out", None): (22, 22),
    }


def test_rows_of_several_outlets_are_told_by_tag() -> None:
    tally = Tally(Counting([Read("a", "L1")], [], [], ["a_kept", "out"]))
    tally.take(batch(10, written=12, observed={"tags": [7, 5]}), 0.0)
    tally.take(batch(1, written=1, observed={"tags": [0, 1]}), 0.0)
    assert tally.known() == {"a": 11, "a_kept": 7, "out": 6}


def test_what_nobody_tells_stays_unknown() -> None:
    tally = Tally(Counting([Read("a", "L1")], ["a_kept"], [], ["out"]))
    assert [(o.rows_in, o.rows_out) for o in tally.operators(forked(), ("a", "a_kept"))] == [
        (None, None),
        (None, None),
    ]
    tally.take(batch(10, 11), 0.0)  # the number of reads does not fit the query
    tally.take(batch(5, observed={rows_of("a_kept"): [4]}), 0.0)
    assert tally.operators(forked(), ("a", "a_kept")) == (
        OperatorProgress(operator="a", rows_in=5, rows_out=5),
        OperatorProgress(operator="a_kept", rows_in=5, rows_out=4),
    )
    assert Tally(Counting()).operators(forked(), EVERY) == ()


def test_counts_go_on_from_what_was_noted() -> None:
    tally = Tally(counting())
    tally.take(batch(10, 20, 1, 2, 9, written=15, observed={rows_of("b_kept"): [3]}), 0.0)
    again = Tally(counting(), dict(tally.rows))
    again.take(batch(1, 0, 0, 0, 0, written=1, observed={rows_of("b_kept"): [0]}), 0.0)
    assert again.known()["a"] == 31
    assert again.known()["out"] == 16


@pytest.mark.parametrize("damaged", [{}, {"reads": []}])
def test_a_note_of_before_counts_nothing(damaged: dict[str, Any]) -> None:
    assert Tally(load(Counting, damaged, what="what was counted")).operators(forked(), EVERY) == ()


def test_newest_event_times_and_when_reads_had_rows() -> None:
    tally = Tally(counting())
    tally.take(batch(10, 0, 0, 0, 0, observed={time_of("t_a_L1"): [70], time_of("t_a_L2"): [None]}), 5.0)
    tally.take(batch(0, 2, 0, 0, 0, observed={time_of("t_a_L1"): [40]}), 6.0)
    assert (tally.times, tally.heard) == ({"t_a_L1": 70}, {0: 5.0, 1: 6.0})
