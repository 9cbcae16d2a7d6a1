"""Many dataflows as one graph: equality, containment, and removal without loss."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import headwater as hw
from headwater.adapt.model import Costs, Facts
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, RuntimeFailure
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan.build import build, in_layers
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import OperatorProfile, Profile
from headwater.reuse.commons import Commons, OperatorShape
from headwater.reuse.contain import served
from headwater.reuse.normal import normalized
from headwater.reuse.pool import Pool
from headwater.reuse.regroup import shorter_windows
from headwater.reuse.ways import cheapest, costs, ways
from headwater.sql.conditions import canonical, implied, parts_of
from headwater.sql.schema import Schema

SCHEMA = "id int, ts timestamp, k string, v double, n int"
TYPES = Schema.parse(
    "v double, n int, s string, d decimal(5,2), b bigint, f float, w decimal(38,18), day date, at timestamp"
)
TWO = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C: {layer: cloud, hosts: {c: {n_cpu: 2}}}
  E: {layer: edge, parent: C, locations: [here], hosts: {e: {n_cpu: 2}}}
""")


def flow(name: str, write: Callable[[Stream], Any]) -> Dataflow:
    builder = hw.flow(name, locations=["here"])
    rows = builder.read.json("/in/{location}", SCHEMA).with_watermark("ts", "10 seconds")
    write(rows)
    return builder.build()


def latest(state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return row["v"], {"k": row["k"], "ts": row["ts"], "v": row["v"]}


# ---------------------------------------------------------------- conditions


def test_the_order_of_and_says_nothing() -> None:
    assert canonical("n > 5 AND v < 1.5 and s='a'", TYPES) == canonical("s = 'a' and (1.5 > v AND 5 < n)", TYPES)
    assert canonical("n > 5 OR v < 1", TYPES) != canonical("v < 1 OR n > 6", TYPES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("v > 10", "v > 5"), ("v > 10", "v >= 10"), ("n BETWEEN 3 AND 4", "n >= 3"), ("n IN (3, 4)", "n > 2"),
        ("n = 3", "n IN (3, 5)"), ("s = 'a'", "s IS NOT NULL"), ("d > 1.05", "d > 1"), ("n > 3", "n != 3"),
        ("n != 3", "n <> 3"), ("v < 1 AND n = 2", "n < 5 AND v < 2"), ("upper(s) = 'A'", "upper(s) >= 'A'"),
        ("b > 9007199254740993", "b >= 9007199254740992D"), ("b IN (1, 2)", "b < 3D"), ("n > 5", "n > 4.5D"),
        ("s LIKE 'abc%'", "s LIKE 'ab%'"), ("s = 'abc'", "s LIKE 'ab%'"), ("s LIKE 'b%'", "s > 'a' AND s < 'c'"),
        ("day > DATE '2024-01-02'", "day >= DATE '2024-01-02'"), ("n > 2 AND n < 4", "n = 3"), ("n > 2", "n >= 3"),
        ("at = TIMESTAMP '2024-01-02 00:00:00.5'", "at > DATE '2024-01-02'"), ("n IN (1, 9) AND n < 5", "n IN (1, 2)"),
        ("n = 1 OR n = 2", "n < 3"), ("n = 1", "v > 3 OR n = 1"), ("n IN (1, 2)", "n = 2 OR n = 1"),
        ("(v > 3 OR v < -3) AND n = 1", "n < 2 AND (v > 2 OR v < -2)"),
        ("f > 0.5F", "f > 0.25"), ("d >= 1.05", "d > 1D"), ("b >= 2D", "b > 1D"), ("f > 16777216", "f > 3"),
    ],
)  # fmt: skip
def test_one_condition_follows_from_another(one: str, other: str) -> None:
    assert all(implied(part, parts_of(one, TYPES)) for part in parts_of(other, TYPES))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("v > 5", "v > 10"), ("v >= 5", "v > 5"), ("v > 5 OR n = 1", "v > 4"), ("n > '3'", "n > '2'"),
        ("n >= 3", "n != 3"), ("v > 5", "n > 5"), ("v IS NOT NULL", "v > 1"), ("n IN (1, 9)", "n > 2"),
        ("n NOT IN (1)", "n IN (1, 2)"), ("abs(v) > 5", "v > 5"), ("n = 3 OR n IS NULL", "n IS NOT NULL"),
        ("s LIKE 'ab%'", "s LIKE 'abc%'"), ("s LIKE 'b%'", "s > 'b'"), ("s LIKE 'a_%'", "s LIKE 'a%'"),
        ("v > 2 AND v < 4", "v = 3"), ("v > 2", "v >= 3"),
        ("at > TIMESTAMP '2024-01-02 01:00:00+05:00'", "at > TIMESTAMP '2024-01-02 00:00:00'"),
        ("day > '2024-01-02'", "day > '2024-01-01'"), ("n = 1 OR v > 3", "v > 2"), ("n = 1 OR n = 9", "n = 1 OR n = 8"),
        ("b >= 9007199254740993", "b > 9007199254740992D"), ("b > 9007199254740992D", "b > 9007199254740991"),
        ("b != 9007199254740993", "b != 9007199254740992D"), ("f > 0.1D", "f > 0.1F"), ("f > 0.1", "f > 0.1F"),
        ("w > 1.00000000000000000000000002", "w > 1.00000000000000000000000001"), ("b > 16777217F", "b > 16777216"),
    ],
)  # fmt: skip
def test_what_does_not_follow(one: str, other: str) -> None:
    assert not all(implied(part, parts_of(one, TYPES)) for part in parts_of(other, TYPES))


_VALUE = {"v": st.one_of(st.none(), st.integers(-4, 4)), "n": st.one_of(st.none(), st.integers(-4, 4))}
_PART = st.one_of(
    st.tuples(st.sampled_from(["v", "n"]), st.sampled_from(["<", "<=", ">", ">=", "=", "!="]), st.integers(-3, 3)),
    st.tuples(st.sampled_from(["v", "n"]), st.just("IN"), st.lists(st.integers(-3, 3), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["v", "n"]), st.just("IS NOT NULL"), st.none()),
)


def _text(part: tuple[str, str, Any]) -> str:
    name, sign, value = part
    values = f" ({', '.join(map(str, value))})" if sign == "IN" else "" if value is None else f" {value}"
    return f"{name} {sign}{values}"


def _true(part: tuple[str, str, Any], row: dict[str, int | None]) -> bool:
    name, sign, bound = part
    value = row[name]
    if value is None:
        return False
    compare: dict[str, Callable[[], bool]] = {
        "<": lambda: value < bound, "<=": lambda: value <= bound, ">": lambda: value > bound,
        ">=": lambda: value >= bound, "=": lambda: value == bound, "!=": lambda: value != bound,
        "IN": lambda: value in bound, "IS NOT NULL": lambda: True,
    }  # fmt: skip
    return compare[sign]()


@settings(max_examples=400, deadline=None)
@given(st.lists(_PART, min_size=1, max_size=3), _PART, st.fixed_dictionaries(_VALUE))
def test_what_follows_is_true(mine: list[Any], other: Any, row: dict[str, int | None]) -> None:
    condition = " AND ".join(map(_text, mine))
    (part, *_) = parts_of(_text(other), TYPES)
    if implied(part, parts_of(condition, TYPES)) and all(_true(p, row) for p in mine):
        assert _true(other, row), (condition, _text(other), row)


# ---------------------------------------------------------------- equal dataflows


def sink_key(dataflow: Dataflow) -> str:
    (sink,) = dataflow.sinks
    return normalized(dataflow).keys[sink.id]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda r: r.where("v > 1 AND n = 2"), lambda r: r.where("2 = n").where("v > 1")),
        (
            lambda r: r.select("k", "v * 2 AS x").where("x > 4"),
            lambda r: r.where("v * 2 > 4").select("k", "v * 2 AS x"),
        ),
        (lambda r: r.select("v AS a", "k").select("k", "a AS v"), lambda r: r.select("k", "v")),
        (
            lambda r: r.select("ts", "k", "v", "n + 1 AS m")
            .group_by(hw.window("ts", "1 minute"), "k")
            .agg(s="sum(v)"),
            lambda r: r.group_by(hw.window("ts", "1 minute"), "k").agg(s="sum(v)"),
        ),
        (lambda r: r.where("v > 1").select("*"), lambda r: r.where("v > 1")),
    ],
)  # fmt: skip
def test_dataflows_that_mean_the_same_are_equal(one: Any, other: Any) -> None:
    found = [flow("f", lambda r, make=make: make(r).write.json("/out")) for make in (one, other)]
    assert sink_key(found[0]) == sink_key(found[1])


def test_what_differs_is_not_equal() -> None:
    makes: list[Any] = [
        lambda r: r.where("v > 1"),
        lambda r: r.where("v >= 1"),
        lambda r: r.select("k", "v"),
        lambda r: r.select("v", "k"),
        lambda r: r.select("k", "v AS w"),
        lambda r: r.scan(latest, "k string, ts timestamp, v double", keys="k", order_by="ts"),
        lambda r: r.select("ts", "k", "v").scan(latest, "k string, ts timestamp, v double", keys="k", order_by="ts"),
    ]  # a function may use every column
    keys = [sink_key(flow("f", lambda r, make=make: make(r).write.json("/out"))) for make in makes]
    assert len(set(keys)) == len(keys)


def test_a_chain_keeps_its_place() -> None:
    """A filter at the edge does not move to the cloud because a projection follows there."""
    found = normalized(flow("f", lambda r: r.where("v > 1").to_layer("cloud").select("k", "v").write.memory("out")))
    assert [(o.kind, o.layer) for o in found.operators if o.kind in ("where", "select")] == [
        ("where", None), ("select", "cloud"),
    ]  # fmt: skip


# ---------------------------------------------------------------- containment


SIZES = ["1 minute", "20 minutes", "10 minutes", "45 minutes"]


def on_top(new: Any, running: Any) -> list[str]:
    """Return the operators that a dataflow still has to run where another one runs."""
    first = normalized(flow("a", lambda r: running(r).write.memory("x")))
    second = served(normalized(flow("b", lambda r: new(r).write.memory("y"))), first)
    known = set(first.keys.values())
    return [
        f"{o.kind} {getattr(o, 'condition', '')}".strip()
        for o in map(second.__getitem__, second.order)
        if second.keys[o.id] not in known and o.kind != "memory"
    ]


def regrouped_by(new: Any, running: Any) -> bool:
    """Return whether an aggregate is computed from a running one."""
    first = normalized(flow("a", lambda r: running(r).write.memory("x")))
    second = normalized(flow("b", lambda r: new(r).write.memory("y")))
    return served(second, first) != served(second, first, "rows")


def test_a_stricter_filter_is_served_by_a_looser_one() -> None:
    assert on_top(lambda r: r.where("v > 10"), lambda r: r.where("v > 5")) == ["where (v > 10)"]
    assert on_top(lambda r: r.where("v > 10 AND n = 1"), lambda r: r.where("n = 1")) == ["where (v > 10)"]
    found = served(
        normalized(flow("b", lambda r: r.where("v > 10").write.memory("y"))),
        normalized(flow("a", lambda r: r.where("v > 11").write.memory("x"))),
    )
    assert [o.kind for o in found.operators].count("where") == 1  # the other filter does not contain its rows


def test_columns_are_served_by_more_of_them() -> None:
    wide = lambda r: r.select("k", "v", "n", "v * 2 AS twice")  # noqa: E731
    found = served(
        normalized(flow("b", lambda r: r.select("n AS m", "v * 2 AS double", "v + n AS sum").write.memory("y"))),
        normalized(flow("a", lambda r: wide(r).write.memory("x"))),
    )
    (top,) = [o for o in found.operators if o.kind == "select" and "m" in found.types[o.id].schema.names]
    assert dict(getattr(top, "columns", ())) == {"m": "n", "double": "twice", "sum": "v + n"}
    assert found.types["y"].schema.names == ("m", "double", "sum")


FINE = lambda r: r.group_by(hw.window("ts", "1 minute"), "k", "n").agg(  # noqa: E731
    rows="count(*)", total="sum(v)", values="count(v)", most="max(v)"
)


@pytest.mark.parametrize(
    ("new", "rest"),
    [
        (lambda r: r.group_by(hw.window("ts", "1 minute"), "k").agg(m="avg(v)", c="count(*)"), ["select", "aggregate"]),
        (lambda r: r.group_by(hw.window("ts", "60 seconds"), "n", "k").agg(c="count(*)"), ["select"]),
        (lambda r: r.group_by(hw.window("ts", "1 minute")).agg(c="max(v)"), ["select", "aggregate"]),
        (
            lambda r: r.where("k = 'a' AND n > 1").group_by(hw.window("ts", "1 minute"), "k").agg(c="count(*)"),
            ["where (k = 'a') AND (n > 1)", "select", "aggregate"],
        ),
        (
            lambda r: (
                r.select("ts AS at", "n % 2 AS odd", "v").group_by(hw.window("at", "1 minute"), "odd").agg(c="sum(v)")
            ),
            ["select", "aggregate"],
        ),
    ],
)
def test_finer_groups_serve_coarser_ones(new: Any, rest: list[str]) -> None:
    assert on_top(new, FINE) == rest


@pytest.mark.parametrize(
    ("new", "rest"),
    [
        (lambda r: r.group_by(hw.window("ts", "1 hour"), "k").agg(m="avg(v)"), ["select", "aggregate"]),
        (lambda r: r.group_by(hw.window("ts", "2 minutes"), "k", "n").agg(c="count(*)"), ["select", "aggregate"]),
        (lambda r: r.group_by(hw.window("ts", "5 minutes", "2 minutes")).agg(c="max(v)"), ["select", "aggregate"]),
        (
            lambda r: r.where("n = 1").group_by(hw.window("ts", "1 day")).agg(c="sum(v)"),
            ["where (n = 1)", "select", "aggregate"],
        ),
    ],
)
def test_shorter_windows_serve_longer_ones(new: Any, rest: list[str]) -> None:
    assert on_top(new, FINE) == rest
    first = normalized(flow("a", lambda r: FINE(r).write.memory("x")))
    second = normalized(flow("b", lambda r: new(r).write.memory("y")))
    assert served(second, first, "groups") == served(second, first, "rows"), "unless it is not wanted"
    (aggregate,) = [o.id for o in second.operators if o.kind == "aggregate"]
    assert shorter_windows(second, served(second, first)) == {aggregate: "1 minute"}
    assert shorter_windows(second, second) == {}


def test_the_longest_of_shorter_windows_serves() -> None:
    by = lambda r, *window: r.group_by(hw.window("ts", *window), "k").agg(c="count(*)")  # noqa: E731
    running = flow("a", lambda r: [by(r, size).write.memory(f"x{n}") for n, size in enumerate(SIZES)])
    new = normalized(flow("b", lambda r: by(r, "1 hour").write.memory("y")))
    found = served(new, normalized(running))
    assert list(shorter_windows(new, found).values()) == ["20 minutes"]
    equal = normalized(
        flow("b", lambda r: r.group_by(hw.window("ts", "20 minutes")).agg(c="count(*)").write.memory("y"))
    )
    assert shorter_windows(equal, served(equal, normalized(running))) == {}, "equal windows serve before shorter ones"


@pytest.mark.parametrize(
    "new",
    [
        lambda r: r.group_by(hw.window("ts", "90 seconds"), "k").agg(c="count(*)"),
        lambda r: r.group_by(hw.window("ts", "2 minutes", "30 seconds"), "k").agg(c="count(*)"),
        lambda r: r.group_by(hw.session_window("ts", "2 minutes"), "k").agg(c="count(*)"),
        lambda r: r.group_by(hw.window("ts", "1 minute", "30 seconds"), "k").agg(c="count(*)"),
        lambda r: r.where("v > 0").group_by(hw.window("ts", "1 minute"), "k").agg(c="count(*)"),
        lambda r: r.group_by(hw.window("ts", "1 minute"), "id").agg(c="count(*)"),
        lambda r: r.group_by(hw.window("ts", "1 minute"), "k").agg(c="min(v)"),
        lambda r: r.group_by(hw.window("ts", "1 minute"), "k").agg(c="count(DISTINCT v)"),
        lambda r: r.select("ts", "k", "v * 2 AS v").group_by(hw.window("ts", "1 minute"), "k").agg(c="sum(v)"),
    ],
)
def test_groups_that_do_not_follow_are_computed(new: Any) -> None:
    assert on_top(new, FINE)[-1] == "aggregate"
    assert not regrouped_by(new, FINE)


def test_keys_of_floating_point_numbers_serve_only_themselves() -> None:
    by = lambda *keys: lambda r: r.group_by(hw.window("ts", "1 minute"), *keys).agg(c="count(*)")  # noqa: E731
    assert on_top(by("v"), by("v", "k")) == ["select", "aggregate"]
    of = lambda r: by("t")(r.select("ts", "CAST(v AS string) AS t"))  # noqa: E731
    assert not regrouped_by(of, by("v")), "-0.0 and 0.0 are one group, and two texts"


def test_sessions_and_sliding_windows_serve_equal_groups() -> None:
    for window in (hw.session_window("ts", "5 minutes"), hw.window("ts", "10 minutes", "5 minutes")):
        fine = lambda r, w=window: r.group_by(w, "k", "n").agg(c="count(*)", s="sum(n)")  # noqa: E731
        assert on_top(lambda r, w=window: r.group_by(w, "n", "k").agg(s="sum(n)"), fine) == ["select"]
        coarse = lambda r, w=window: r.group_by(w, "k").agg(s="sum(n)")  # noqa: E731
        assert not regrouped_by(coarse, fine)
        for longer in (hw.session_window("ts", "20 minutes"), hw.window("ts", "20 minutes")):
            assert not regrouped_by(lambda r, w=longer: r.group_by(w, "k").agg(s="sum(n)"), fine)


# ---------------------------------------------------------------- adding and removing


def pool_of(*dataflows: Dataflow) -> Pool:
    pool = Pool("commons")
    for one in dataflows:
        pool = pool.submit(one, "team")
        pool.check()
    return pool


def averages(name: str, *, strict: bool = False) -> Dataflow:
    def write(rows: Stream) -> None:
        clean = rows.where("v > 1").named("clean")
        clean.scan(latest, "k string, ts timestamp, v double", keys="k", order_by="ts").named("last").where(
            f"v > {20 if strict else 10}"
        ).write.memory("out")

    return flow(name, write)


def test_what_is_common_runs_once() -> None:
    pool = pool_of(averages("a"), averages("b"), averages("c", strict=True))
    assert len(pool.dataflow.operators) == 4 + 1 + 2 + 2  # read, mark, clean, last, where; a where; three sinks
    assert pool.users["a.last"] == ("a", "b", "c")
    assert pool["b"].sinks == {"out": "b.out"}
    plan = build(pool.dataflow, TWO, pool.deployment(TWO))
    assert len(plan.units) == 1, "one query does it all"


def test_one_goes_and_the_others_stay() -> None:
    pool = pool_of(averages("a"), averages("b"))
    before = pool.dataflow
    pool = pool.remove("a")
    pool.check()
    assert set(pool.dataflow.order) == set(before.order) - {"a.out"}
    assert pool.dataflow.keys["a.last"] == before.keys["a.last"]
    assert pool.remove("b").submissions == ()
    with pytest.raises(DataflowError, match="does not run"):
        pool.remove("a")
    with pytest.raises(DataflowError, match="is already running"):
        pool.submit(averages("b"), "team")


def test_names_are_not_used_again() -> None:
    pool = pool_of(averages("a"))
    again = pool.remove("a").submit(averages("a"), "team", used=pool.dataflow.order)
    assert not set(again.dataflow.order) & set(pool.dataflow.order)


def layers_in(pool: Pool, running: DeploymentPlan | None = None) -> Mapping[str, str]:
    return build(pool.dataflow, TWO, pool.deployment(TWO, running)).layers


def test_an_operator_is_as_low_as_anybody_wants_it() -> None:
    def in_cloud(rows: Stream) -> None:
        rows.to_layer("cloud").where("v > 1").named("clean").write.memory("out")

    pool = pool_of(flow("a", in_cloud))
    assert layers_in(pool)["a.clean"] == "cloud"
    pool = pool.submit(averages("b"), "team")
    assert layers_in(pool)["a.clean"] == "edge"


def test_what_was_moved_stays_where_it_is() -> None:
    pool = pool_of(averages("a"))
    order = pool.dataflow.order
    up = dict.fromkeys(order[order.index("a.last") :], "cloud")
    moved = build(pool.dataflow, TWO, in_layers(pool.dataflow, TWO, {**layers_in(pool), **up}))
    assert moved.layers["a.last"] == "cloud"
    strict = pool.submit(averages("b", strict=True), "team")
    layers = layers_in(strict, moved)
    assert layers["a.last"] == layers["b.out"] == "cloud" and layers["a.clean"] == "edge"

    def low(rows: Stream) -> None:
        clean = rows.where("v > 1").named("clean")
        last = clean.scan(latest, "k string, ts timestamp, v double", keys="k", order_by="ts")
        last.to_layer("edge").where("v > 30").write.memory("out")

    layers = layers_in(pool.submit(flow("c", low), "team"), moved)
    assert layers["a.last"] == "edge", "who says a layer has it, and what leads there comes down"
    assert layers["a.out"] == "cloud"


def test_the_way_that_costs_least_is_taken() -> None:
    pool = pool_of(averages("a"))
    running = build(pool.dataflow, TWO, pool.deployment(TWO))
    new = averages("b", strict=True)
    found = ways(pool, new, "team", TWO, running)
    assert [w.how for w in found] == [
        "outputs of running queries",
        "separate queries",
        "filters and projections of its own",
        "filters and projections of its own, separate queries",
    ]
    assert [len(w.plan.units) for w in found] == [1, 2, 1, 2]
    assert cheapest(found, None) is found[0] and costs(found, None) == {}
    (read,) = [o for o in pool.dataflow.order if o.startswith("a.") and not pool.dataflow[o].inputs]
    rates = Profile(dataflow="commons", rates={read: {"here": 200.0}})
    dear = Facts(profile=rates, costs=Costs(batch_cpu=0.2))
    predicted = costs(found, dear)
    assert predicted["separate queries"] > predicted["outputs of running queries"]
    assert cheapest(found, dear) is found[0]
    assert cheapest(found[1:], dear).how == "filters and projections of its own"
    measured = {o: OperatorProfile(cpu_s=9e-6) for o in pool.dataflow.order}
    known = Facts(profile=Profile(dataflow="commons", operators=measured, rates=rates.rates), costs=Costs())
    other = flow("a", lambda r: r.where("v < 0").write.memory("out"))
    assert cheapest(ways(pool, other, "team", TWO, running), known), "an update ends operators that were measured"


# ---------------------------------------------------------------- the model alone


def shapes(seed: int, count: int) -> list[OperatorShape]:
    """Draw overlapping dataflows over few sources and tasks."""
    drawn = random.Random(seed)
    found = []
    for number in range(count):
        inputs: dict[str, tuple[str, ...]] = {}
        ends = [f"source{drawn.randrange(3)}"]
        inputs[ends[0]] = ()
        for _ in range(drawn.randrange(1, 8)):
            parent = drawn.choice(ends)
            task = f"{parent}>{drawn.randrange(3)}"
            inputs[task] = (parent,)
            ends.append(task)
        read = {p for ps in inputs.values() for p in ps}
        for end in [e for e in ends if e not in read]:
            inputs[f"{end}>sink"] = (end,)
        sinks = frozenset(t for t in inputs if t.endswith("sink"))
        found.append(OperatorShape(f"d{number}", inputs, sinks))
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_any_order_of_coming_and_going(seed: int) -> None:
    drawn, commons = random.Random(seed), Commons()
    waiting, there = shapes(seed, 12), []
    for _ in range(60):
        if waiting and (not there or drawn.random() < 0.55):
            one = waiting.pop(drawn.randrange(len(waiting)))
            commons.submit(one)
            there.append(one)
        else:
            one = there.pop(drawn.randrange(len(there)))
            commons.remove(one.name)
            waiting.append(one)
        commons.check()
        assert len(commons) == len({t for s in there for t in s.inputs})
    for one in there:
        commons.remove(one.name)
    assert len(commons) == 0


def test_a_broken_invariant_is_found() -> None:
    commons = Commons()
    commons.submit(OperatorShape("a", {"s": (), "x": ("s",)}, frozenset(["x"])))
    with pytest.raises(RuntimeFailure, match="does not run"):
        commons.check(running=["s"])
    with pytest.raises(RuntimeFailure, match="no dataflow needs"):
        commons.check(running=["s", "x", "y"])
