"""Generated chains of filters and projections, as one pool: each sink equals its dataflow's run alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stateful import Aggregate
from headwater.dataflow.stream import Stream
from headwater.reuse.pool import Pool
from headwater.reuse.regroup import shorter_windows
from headwater.spark.endpoint import LocalEndpoint
from headwater.sql.conditions import implied, parts_of
from headwater.sql.schema import Schema
from headwater.testing import batch_result, compare

ONE = Continuum.from_text("""
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [here]}
""")
SCHEMA = "id bigint, v double, n int, s string"
VALUES = {
    "v": [None, float("nan"), float("inf"), -0.0, 0.0, 0.5, 1.0, 1.5, -2.0, 3.0],
    "n": [None, *range(-3, 4)],
    "s": [None, "", "a", "A", "b", "a'b"],
}


GROUPED = "id bigint, ts timestamp, k string, n int, v double, d decimal(10,2)"
GROUP_VALUES: dict[str, list[Any]] = {
    "k": [None, "", "a", "A", "b", "ab"],
    "n": [None, *range(-2, 3)],
    "v": [None, -0.0, 0.0, 0.5, 1.5, -2.25],
    "d": [None, "0.10", "-1.25", "3.00"],
}
AGGREGATES = [
    "count(*)", "count(v)", "sum(n)", "sum(d)", "avg(n)", "avg(d)", "min(v)", "max(n)", "max_by(id, v)",
    "count_if(n > 0)", "sum(v) FILTER (WHERE k = 'a')", "count(DISTINCT n)", "bool_or(n > 1)",
    "sum(n) + count(*)", "stddev(n)",
]  # fmt: skip


EDGES = {
    "b": "bigint", "n": "int", "t": "smallint", "f": "float", "v": "double", "d": "decimal(5,2)", "w": "decimal(38,18)",
}  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "2", "1.5", "0.1", "16777216", "16777217", "16777218", "9007199254740991", "9007199254740992",
    "9007199254740993", "9223372036854775807", "1.05", "1.049999999999999999", "0.100000001490116119",
]  # fmt: skip
LITERALS = [
    *NUMBERS, *(f"{n}D" for n in NUMBERS),
    "0.1F", "1F", "16777216F", "16777217F", "16777218F", "1.05F", "9007199254740993F",
]  # fmt: skip


def test_a_condition_follows_as_spark_compares(endpoint: LocalEndpoint) -> None:
    """Each comparison of edge values holds in all rows of those that imply it, in each type of number."""
    spark = endpoint.session()
    casts = ", ".join(f"try_cast(x AS {type_}) AS {name}" for name, type_ in EDGES.items())
    drawn = random.Random(17)
    values = ", ".join(f"('{n}')" for n in [*NUMBERS, "NaN", "Infinity", "-Infinity", "-0.0", "1e300"])
    near = "SELECT x FROM VALUES " + values + " AS t(x) UNION ALL SELECT CAST(CAST(x AS float) AS string) FROM VALUES "
    rows = spark.sql(f"SELECT {casts} FROM ({near}{values} AS u(x))")
    schema = Schema.parse(", ".join(f"{name} {type_}" for name, type_ in EDGES.items()))
    signs = ["<", "<=", ">", ">=", "=", "!="]
    for name in EDGES:
        conditions = [f"{name} {sign} {literal}" for sign in signs for literal in LITERALS]
        conditions += [f"{name} IN ({', '.join(drawn.sample(LITERALS, 3))})" for _ in range(40)]
        wanted = [f"coalesce({text}, false) AS c{n}" for n, text in enumerate(conditions)]
        found = rows.selectExpr(*wanted).toArrow()
        held = [np.array(found.column(n)) for n in range(len(conditions))]
        parts = [parts_of(text, schema) for text in conditions]
        follows = 0
        for one in range(len(conditions)):
            for other in range(len(conditions)):
                if one != other and all(implied(part, parts[one]) for part in parts[other]):
                    follows += 1
                    assert not np.any(held[one] & ~held[other]), f"{conditions[one]} implies {conditions[other]}"
        assert follows > 1000


PLAIN = {
    "n": [None, -3, -1, 0, 1, 2, 3, 4, 2147483647],
    "b": [None, 0, 3, 9007199254740992, 9007199254740993],
    "v": [None, "NaN", "-Infinity", "-0.0", "0", "0.5", "2", "3", "9007199254740992"],
    "s": [None, "", "a", "A", "ab", "abc", "ab\ncd", "b", "ä", "\U0001f600", "a%"],
    "d": [None, "1969-12-31", "2024-02-29", "2024-03-01", "9999-12-31"],
    "t": [
        None,
        "1969-12-31 23:59:59.999999",
        "2024-02-29 00:00:00",
        "2024-02-29 00:00:00.000001",
        "2024-03-01 12:00:00",
    ],
}
PLAIN_TYPES = {"n": "int", "b": "bigint", "v": "double", "s": "string", "d": "date", "t": "timestamp"}
CONSTANTS = {
    "n": ["-1", "0", "1", "2", "3", "2.5", "3D"],
    "b": ["0", "3", "9007199254740993", "9007199254740992D"],
    "v": ["0", "0.5D", "2", "3", "-2"],
    "s": ["''", "'a'", "'ab'", "'b'", "'ä'"],
    "d": ["DATE '2024-02-29'", "DATE '2024-03-01'", "TIMESTAMP '2024-02-29 12:00:00'"],
    "t": ["DATE '2024-02-29'", "TIMESTAMP '2024-02-29 00:00:00.000001'", "TIMESTAMP '2024-03-01 12:00:00'"],
}


def drawn_condition(drawn: random.Random, depth: int = 2) -> str:
    """Draw a condition of comparisons, lists, ranges, prefixes, AND and OR over ``PLAIN``'s columns."""
    if depth and drawn.random() < 0.55:
        parts = [drawn_condition(drawn, depth - 1) for _ in range(drawn.randint(2, 3))]
        return "(" + f" {drawn.choice(['AND', 'OR'])} ".join(parts) + ")"
    name = drawn.choice(["n", "v", "s", "s", *PLAIN])
    one, other = drawn.choices(CONSTANTS[name], k=2)
    forms = [f"{name} {sign} {one}" for sign in ("<", "<=", ">", ">=", "=", "!=")]
    forms += [f"{name} IN ({one}, {other})", f"{name} BETWEEN {one} AND {other}", f"{name} IS NOT NULL"]
    if name == "s":
        forms += [f"s LIKE '{prefix}%'" for prefix in ("a", "ab", "ä", "a_", "abc")] * 2
    return drawn.choice(forms)


@pytest.mark.parametrize("count", [250, pytest.param(700, marks=pytest.mark.long)])
def test_drawn_conditions_follow_as_spark_evaluates_them(count: int, endpoint: LocalEndpoint) -> None:
    drawn = random.Random(29)
    rows = [{name: drawn.choice(of) for name, of in PLAIN.items()} for _ in range(600)]
    casts = [f"CAST({name} AS {type_}) AS {name}" for name, type_ in PLAIN_TYPES.items()]
    texts = [{name: None if value is None else str(value) for name, value in row.items()} for row in rows]
    table = endpoint.session().createDataFrame(texts, ", ".join(f"{name} string" for name in PLAIN)).selectExpr(*casts)
    schema = Schema.parse(", ".join(f"{name} {type_}" for name, type_ in PLAIN_TYPES.items()))
    conditions = list(dict.fromkeys(drawn_condition(drawn) for _ in range(count)))
    columns = [f"coalesce({text}, false) AS c{n}" for n, text in enumerate(conditions)]
    found = table.selectExpr(*columns).toArrow()
    held = [np.array(found.column(n)) for n in range(len(conditions))]
    parts = [parts_of(text, schema) for text in conditions]
    follows = 0
    for one, mine in enumerate(parts):
        for other, wanted in enumerate(parts):
            if one != other and all(implied(part, mine) for part in wanted):
                follows += 1
                assert not np.any(held[one] & ~held[other]), f"{conditions[one]} implies {conditions[other]}"
    assert follows > 1000


def condition(drawn: random.Random, numbers: list[str], words: list[str]) -> str:
    """Draw a condition over columns of numbers and of words."""
    number, value = drawn.choice(numbers), drawn.choice([-2, -1, 0, 0.5, 1, 2])
    more = drawn.choice(numbers)
    parts = [
        f"{number} {drawn.choice(['<', '<=', '>', '>=', '=', '!='])} {value}",
        f"{value} {drawn.choice(['<', '>='])} {number}",
        f"{number} IN (0, {value})",
        f"{number} BETWEEN {value} AND {value + 2}",
        f"{number} IS NOT NULL",
        f"NOT ({number} = {value})",
        f"({number} > {value} OR {more} IS NULL)",
        f"{number} <= {more}",
        f"abs({number}) > {value}",
    ]
    if words:
        parts += [f"{drawn.choice(words)} >= 'a'", f"upper({drawn.choice(words)}) = 'A'"]
    return drawn.choice([" AND ", " and "]).join(drawn.sample(parts, drawn.randint(1, 3)))


def chain(drawn: random.Random, rows: Stream) -> Stream:
    """Draw one to four filters and projections over rows."""
    numbers, words = ["v", "n"], ["s"]
    for _ in range(drawn.randint(1, 4)):
        if drawn.random() < 0.6:
            rows = rows.where(condition(drawn, numbers, words))
            continue
        given = {"id": "id"}
        new_numbers, new_words = [], []
        for old in drawn.sample(numbers, drawn.randint(1, len(numbers))):
            name = drawn.choice([old, f"{old}_{drawn.randrange(2)}"])
            given[name] = drawn.choice([old, old, f"{old} * 2", f"coalesce({old}, 0)"])
            new_numbers.append(name)
        for old in drawn.sample(words, drawn.randint(0, len(words))):
            given[old] = old
            new_words.append(old)
        rows = rows.select(*(f"{text} AS {name}" for name, text in given.items()))
        numbers, words = new_numbers, new_words
    return rows


def made_up(drawn: random.Random, name: str, path: Path) -> Dataflow:
    builder = hw.flow(name, locations=["here"])
    rows = builder.read.json(str(path), SCHEMA)
    chain(drawn, rows).write.memory("out")
    return builder.build()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_pool_gives_what_its_dataflows_give(seed: int, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    place = tmp_path / "in"
    place.mkdir()
    rows = [{"id": i} | {name: drawn.choice(of) for name, of in VALUES.items()} for i in range(300)]
    (place / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flows = [made_up(drawn, f"f{number}", place) for number in range(24)]
    pool = Pool("commons")
    for flow in flows:
        pool = pool.submit(flow, "team")
        pool.check()
    alone = sum(len(flow.operators) for flow in flows)
    assert len(pool.dataflow.operators) < 0.9 * alone
    spark = endpoint.session()
    together = batch_result(spark, pool.dataflow, ONE)
    filled = 0
    for flow in flows:
        wanted, got = batch_result(spark, flow, ONE)["out"], together[pool[flow.name].sinks["out"]]
        assert not compare(wanted, got), (flow.name, [getattr(o, "condition", "") for o in flow.operators])
        filled += wanted.num_rows > 0
    assert filled > len(flows) / 2


def grouped(drawn: random.Random, rows: Stream) -> Stream:
    """Draw an aggregate over filtered or projected rows, with some of few groups, windows and values, or with all."""
    if drawn.random() < 0.2:
        return _aggregated(rows, ["1 minute"], ["k", "n", "v"], AGGREGATES)
    filters = ["k LIKE 'a%'", "n > 0", "n IN (1, 2) AND k = 'a'", "v > 0"]
    keys = drawn.sample(["k", "n", "v"], drawn.choice([0, 1, 2, 3, 3]))
    if drawn.random() < 0.4:
        rows = rows.where(drawn.choice(filters))
    if drawn.random() < 0.3:
        rows = rows.select("id", "ts", "k", "n", "v", "d", "coalesce(n, 0) % 2 AS odd", "upper(k) AS name")
        keys = drawn.sample(["k", "odd", "name"], drawn.randint(1, 2))
    window = drawn.choice([["1 minute"], ["60 seconds"], ["2 minutes", "1 minute"], ["2 minutes"], ["1 hour"]])
    wanted = drawn.sample(AGGREGATES, drawn.choice([1, 2, len(AGGREGATES)]))
    return _aggregated(rows, window, keys, wanted)


def _aggregated(rows: Stream, window: list[str], keys: list[str], wanted: list[str]) -> Stream:
    return rows.group_by(hw.window("ts", *window), *keys).agg(**{f"x{n}": text for n, text in enumerate(wanted)})


def grouping(name: str, path: Path, drawn: dict[str, random.Random]) -> Dataflow:
    """Write one aggregate to each sink."""
    builder = hw.flow(name, locations=["here"])
    rows = builder.read.json(str(path), GROUPED).with_watermark("ts", "10 seconds")
    for sink, one in drawn.items():
        grouped(one, rows).write.memory(sink)
    return builder.build()


@pytest.mark.parametrize("count", [8, pytest.param(80, marks=pytest.mark.long)])
def test_aggregates_of_a_pool_are_those_of_each_dataflow(count: int, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    drawn = random.Random(11)
    place = tmp_path / "in"
    place.mkdir()
    rows: list[dict[str, Any]] = [
        {"id": i, "ts": f"{drawn.choice(['1969-12-31T23:59', '2026-01-01T00:01'])}:{i % 60:02}Z"}
        if i % 5 == 0
        else {"id": i, "ts": f"2026-01-01T00:0{i % 4}:{i % 60:02}Z"}
        | {name: drawn.choice(of) for name, of in GROUP_VALUES.items()}
        for i in range(400)
    ]
    (place / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sinks = [f"m{number}" for number in range(count)]
    alone = grouping("alone", place, {sink: random.Random(sink) for sink in sinks})
    pool = Pool("commons")
    for sink in sinks:
        pool = pool.submit(grouping(f"f{sink}", place, {sink: random.Random(sink)}), "team")
        pool.check()
    served = [
        o for o in pool.dataflow.operators if isinstance(o, Aggregate) and o.window and o.window.column == "window"
    ]
    assert len(served) > 3, "too few aggregates are computed from others"
    assert sum(bool(shorter_windows(one.written, one.runs)) for one in pool.submissions) > count / 10
    wanted, got = (batch_result(endpoint.session(), flow, ONE) for flow in (alone, pool.dataflow))
    for sink in sinks:
        assert not compare(wanted[sink], got[pool[f"f{sink}"].sinks[sink]]), alone[alone[sink].inputs[0]]
    assert sum(table.num_rows > 0 for table in wanted.values()) > 0.7 * count
