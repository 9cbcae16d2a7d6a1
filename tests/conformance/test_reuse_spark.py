"""Generated chains of filters and projections, as one pool: each sink equals its dataflow's run alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.reuse.pool import Pool
from headwater.spark.endpoint import LocalEndpoint
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


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_gives_what_its_dataflows_give(seed: int, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    place = tmp_path / "in"
    place.mkdir()
    rows = [{"id": i} | {name: drawn.choice(of) for name, of in VALUES.items()} for i in range(300)]
    (place / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flows = [made_up(drawn, f"f{number}", place) for number in range(24)]
    pool = Pool("commons", ("here",))
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
