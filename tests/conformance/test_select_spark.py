"""A SELECT statement means what it means to Spark: the rows of its operators are those of ``spark.sql``."""

from __future__ import annotations

import json
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater as hw
from headwater.connectors.sparksql import expression
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.plan import build
from headwater.sql.distinct import without_distinct
from headwater.sql.expressions import check_aggregate
from headwater.sql.schema import Schema
from headwater.testing import batch_result, check_equivalent, compare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.endpoint import LocalEndpoint


CONTINUUM = Continuum.from_text("""
name: test
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
""")
READINGS = "id bigint, ts timestamp, machine string, celsius double, tags array<string>"
ORDERS = "id bigint, at timestamp, machine string, amount int"
MACHINES = "name string, machine string, most int, id bigint"
ROWS_OF_MACHINES = [
    ("press", "m1", 50, 3), ("drill", "m2", 20, 4), ("second drill", "m2", 80, 9), ("saw", "m9", 10, 1),
    ("unknown", None, 10, None), (None, "m3", None, 7), ("m1", "m1", 30, 6),
]  # fmt: skip
"""With a machine of two rows, machines without readings, readings without a machine, and NULLs."""

HOURS = """
    SELECT window, machine, avg(celsius) AS mean, count(*) AS n, max(id) AS newest FROM readings
    GROUP BY window(ts, '1 minute'), machine
"""
STATEMENTS = {
    "columns": "SELECT *, celsius * 2 AS twice, twice + 1 more FROM readings r WHERE r.celsius > 5 AND id > 3",
    "names of relations": "SELECT readings.id, upper(readings.machine) AS m FROM readings WHERE NOT celsius < 9",
    "a query": "SELECT m, v FROM (SELECT machine AS m, celsius AS v, tags FROM readings) x WHERE x.v IS NOT NULL",
    "star without": "SELECT * EXCEPT (tags, celsius) FROM readings",
    "windows": HOURS,
    "parts of windows": "SELECT window.start AS begin, unix_seconds(window.end) + n AS s FROM ("
    + HOURS
    + ") WHERE n > 1",
    "window in the items": """
        SELECT window(ts, '1 minute', '20 seconds').end AS until, sum(celsius) / count(*) AS mean
        FROM readings GROUP BY window(ts, '1 minute', '20 seconds') HAVING count(*) > 2 AND max(id) > 4""",
    "sessions": """
        SELECT session_window.start AS s, machine, count(*) AS n
        FROM readings GROUP BY session_window(ts, '8 seconds'), machine""",
    "groups of expressions": """
        SELECT window, floor(celsius / 10) AS bucket, concat(machine, '-', count(*)) AS label, min(celsius) AS low
        FROM readings GROUP BY window(ts, '1 minute'), floor(celsius / 10), machine""",
    "groups by number": "SELECT ts, machine, count(*) AS n FROM readings GROUP BY 1, 2",
    "all groups": "SELECT ts, machine, count_if(celsius > 5) AS n FROM readings GROUP BY ALL",
    "no aggregates": "SELECT machine FROM readings GROUP BY window(ts, '1 minute'), machine",
    "windows of windows": f"""
        WITH minutes AS ({HOURS}) SELECT window(window_time(window), '5 minutes').start AS s, sum(n) AS n
        FROM minutes GROUP BY window(window_time(window), '5 minutes')""",
    "having an alias": "SELECT window, max(celsius) AS n FROM readings GROUP BY window(ts, '1 minute') HAVING n > 50",
    "join": """
        SELECT r.id, o.id AS order_id, r.machine, o.machine AS m, amount, o.at - r.ts > INTERVAL 1 SECOND AS late
        FROM readings r JOIN orders o
        ON r.machine = o.machine AND o.at BETWEEN r.ts - INTERVAL 3 SECONDS AND r.ts + INTERVAL 10 SECONDS""",
    "join of strict bounds": """
        SELECT r.id, o.amount FROM readings r JOIN orders o ON o.machine = r.machine AND r.ts < o.at
        AND o.at < r.ts + INTERVAL 7 SECONDS AND o.amount > r.celsius AND r.celsius > 3 AND o.amount < 70""",
    "left join": """
        SELECT r.id, r.machine, o.machine AS m, o.id AS order_id, o.amount
        FROM readings AS r LEFT OUTER JOIN orders AS o
        ON r.machine = o.machine AND o.at BETWEEN r.ts AND r.ts + INTERVAL 2 SECONDS AND o.amount > 40
        WHERE o.machine IS NULL OR o.amount > 60""",
    "join of windows": f"""
        WITH hours AS ({HOURS}), most AS (SELECT window, max(n) AS top FROM hours GROUP BY window)
        SELECT h.window.start AS s, h.machine, n FROM hours h JOIN most m ON h.window = m.window AND h.n = m.top""",
    "left join of windows": f"""
        WITH hours AS ({HOURS}) SELECT a.window.start AS s, a.machine, b.machine AS other, b.n AS m
        FROM hours a LEFT JOIN (SELECT * FROM hours WHERE n > 2) b ON b.machine = a.machine AND b.window = a.window""",
    "union all": """
        SELECT id, machine AS name, ts FROM readings
        UNION ALL SELECT amount + 1L, machine, at FROM orders
        UNION ALL (SELECT id, 'x', ts FROM readings WHERE id < 5)""",
    "union": "SELECT ts, machine FROM readings UNION SELECT ts, machine FROM readings WHERE id > 3",
    "distinct": "SELECT DISTINCT ts, substring(machine, 1, 1) AS m FROM readings",
    "distinct windows": f"SELECT DISTINCT window, n FROM ({HOURS})",
    "top list": f"""
        SELECT window.start AS s, machine, rank FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window ORDER BY newest DESC) AS rank FROM ({HOURS})
        ) WHERE rank <= 2 AND n > 1""",
    "ranks": f"""
        SELECT * FROM (
            SELECT window.end AS e, machine, n, RANK() OVER (PARTITION BY window ORDER BY n DESC) AS place
            FROM ({HOURS})
        ) WHERE place <= 2""",
    "ranks without gaps, the lowest first": """
        SELECT id, place FROM (
            SELECT *, DENSE_RANK() OVER (PARTITION BY window(ts, '1 minute') ORDER BY warm, machine) AS place
            FROM (SELECT *, celsius > 40 AS warm FROM readings)
        ) WHERE place < 4""",
    "last rows": """
        SELECT id, machine, ts FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window(ts, '20 seconds'), machine ORDER BY ts DESC, id DESC) AS r
            FROM readings
        ) WHERE r = 1""",
    "ranks of columns named like their parts": f"""
        SELECT * FROM (
            SELECT window.start AS s, best, item, position,
                RANK() OVER (PARTITION BY window, best ORDER BY item DESC, position DESC) AS a
            FROM (SELECT window, n AS best, max(id) AS item, min(id) AS position FROM (
                SELECT window, n, newest AS id FROM ({HOURS})) GROUP BY window, n)
        ) WHERE a <= 3""",
    "rows of columns named like their parts": f"""
        SELECT * FROM (
            SELECT window.start AS s, best, item, position,
                ROW_NUMBER() OVER (PARTITION BY window, best ORDER BY item DESC, position DESC) AS x
            FROM (SELECT window, n AS best, machine AS item, newest AS position FROM ({HOURS}))
        ) WHERE x <= 2""",
    "lateral view": """
        SELECT id, tag, i FROM readings LATERAL VIEW posexplode(tags) t AS i, tag
        LATERAL VIEW OUTER explode(split(t.tag, 'b')) p AS part WHERE part IS NULL OR part <> 'zz'""",
    "explode": "SELECT id, explode(tags) AS tag, celsius FROM readings",
    "table": """
        SELECT r.id, r.machine, m.name, m.id AS number, celsius - most AS over FROM readings r JOIN machines m
        ON m.machine = r.machine AND celsius > most AND r.id > 3 AND name IS NOT NULL""",
    "left join of a table": """
        SELECT r.id, r.machine, m.machine AS known, m.name, m.most + 1 AS most
        FROM readings r LEFT JOIN machines m ON r.machine = m.machine AND (m.most > 40 OR m.name IS NULL)""",
    "rows without a partner in a table": """
        SELECT r.id, upper(m.machine) AS none FROM readings r LEFT JOIN machines m ON r.machine = m.machine
        WHERE m.machine IS NULL OR m.most < 30""",
    "semi join": """
        SELECT id FROM readings r LEFT SEMI JOIN machines m ON m.machine = r.machine AND most > 20 AND r.id > 5""",
    "anti join": "SELECT * FROM readings r ANTI JOIN machines m ON r.machine = m.machine AND m.most > 20",
    "the table first": "SELECT m.*, r.id AS reading FROM machines m JOIN readings r ON r.machine = m.machine",
    "two keys of a table": """
        SELECT r.id, m.name FROM (SELECT id, machine, id % 5 + 2 AS no FROM readings) r JOIN machines m
        ON r.no = m.id AND m.machine = r.machine""",
    "a column of a table with two keys": """
        SELECT r.id, m.most FROM (SELECT id, machine, upper(lower(machine)) AS again, machine AS same FROM readings) r
        JOIN machines m ON r.machine = m.machine AND m.machine = r.same""",
    "two columns of a table with one key": """
        SELECT r.id, m.most FROM readings r JOIN machines m ON r.machine = m.machine AND r.machine = m.name""",
    "a query of a table": """
        WITH big AS (SELECT machine AS of, upper(name) AS label, most * 2 AS twice FROM machines WHERE most > 20)
        SELECT r.id, b.label, o.name, twice FROM readings r JOIN big b ON r.machine = b.of
        LEFT JOIN (SELECT name, id FROM (SELECT * FROM machines m WHERE m.name <> 'saw') x) o ON o.id = r.id
        WHERE twice > 60 OR o.name IS NULL""",
    "windows behind a table": """
        SELECT window.start AS s, name, count(*) AS n FROM readings r JOIN machines m ON r.machine = m.machine
        GROUP BY window(ts, '1 minute'), name""",
    "with": """
        WITH hot AS (SELECT * FROM readings WHERE celsius > 30), named AS (SELECT id, machine FROM hot)
        SELECT n.id FROM named n UNION ALL SELECT h.id FROM hot h;""",
}


def _at(seconds: float) -> str:
    from datetime import UTC, datetime

    return (
        datetime.fromtimestamp(1_700_000_000 + seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _write(place: Path, count: int) -> None:
    rng = random.Random(11)
    for name in ("readings", "orders"):
        for location in ("L1", "L2"):
            rows = []
            for n in range(count):
                row: dict[str, Any] = {"id": n * 2 + (location == "L2"), "machine": f"m{rng.randrange(4)}"}
                time = _at(n * 3 + rng.randrange(5))
                if name == "readings":
                    row |= {
                        "ts": time,
                        "celsius": rng.choice([None, rng.uniform(0, 90)]),
                        "tags": rng.sample("abc", n % 4),
                    }
                else:
                    row |= {"at": time, "amount": rng.randrange(100)}
                rows.append(row)
            target = place / name / location
            target.mkdir(parents=True)
            (target / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = Schema.parse(MACHINES).names
    lines = (json.dumps(dict(zip(names, row, strict=True))) for row in ROWS_OF_MACHINES)
    (place / "machines.json").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("select")
    _write(found, 60)
    return found


@pytest.fixture(scope="module")
def views(spark: SparkSession, place: Path) -> None:
    for name, schema in (("readings", READINGS), ("orders", ORDERS)):
        spark.read.schema(schema).json(f"{place}/{name}/*").createOrReplaceTempView(name)
    spark.read.schema(MACHINES).json(f"{place}/machines.json").createOrReplaceTempView("machines")


def _flow(place: Path, text: str) -> DataflowBuilder:
    builder = hw.flow("select", locations=["L1", "L2"])
    builder.read.json(f"{place}/readings/{{location}}", READINGS).with_watermark("ts", "10 seconds").named("readings")
    builder.read.json(f"{place}/orders/{{location}}", ORDERS).with_watermark("at", "10 seconds").named("orders")
    builder.sql(text, machines=builder.table.json(f"{place}/machines.json", MACHINES)).write.memory("out")
    return builder


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in STATEMENTS.items()])
def test_rows_are_those_of_spark_sql(text: str, spark: SparkSession, place: Path, views: None) -> None:
    wanted = spark.sql(text.rstrip(";")).toArrow()
    found = batch_result(spark, _flow(place, text).build(), CONTINUUM)["out"]
    assert wanted.num_rows > 0, "an empty result proves nothing"
    assert not compare(wanted, found), compare(wanted, found).examples


DISTINCT = (
    "count(DISTINCT v)", "count(DISTINCT k, v)", "count(DISTINCT k) FILTER (WHERE v > 0)", "sum(DISTINCT v)",
    "avg(DISTINCT v)", "sum(DISTINCT i)", "avg(DISTINCT i)", "sum(DISTINCT d)", "sum(DISTINCT CAST(v AS float))",
    "min(DISTINCT k)", "sum(DISTINCT i) / count(DISTINCT i) + count(*)", "count(DISTINCT k, i, d)",
)  # fmt: skip
VALUES = [
    ("a", 0.0, 1, "1.50"), ("a", -0.0, 1, "1.5"), ("b", 2.5, None, None), (None, 2.5, 7, "-3.25"),
    ("b", None, 7, "9.75"), ("c", 0.1, -7, "1.50"), ("c", 0.1, 2_000_000_000, "0.00"), ("b", 1e12, 2_000_000_000, None),
]  # fmt: skip


def test_distinct_values_in_sets_are_those_of_spark(spark: SparkSession) -> None:
    """A stream aggregates sets in place of DISTINCT; groups without values, and with NaN, are among the groups."""
    columns = "k string, v double, i int, d decimal(9,2), part int"
    rows = [(k, v, i, Decimal(d) if d else None, n % 2) for n, (k, v, i, d) in enumerate(VALUES)]
    rows += [(None, None, None, None, 5), ("n", math.nan, 3, None, 6), ("n", math.nan, 3, None, 6)]
    frame = spark.createDataFrame(rows, columns).groupBy("part")
    schema = Schema.parse(columns)
    plain = frame.agg(*(expression(t).alias(f"x{n}") for n, t in enumerate(DISTINCT))).toArrow()
    texts = [without_distinct(check_aggregate(t, schema).text, schema) for t in DISTINCT]
    assert not any("DISTINCT" in text for text in texts)
    over_sets = frame.agg(*(expression(t).alias(f"x{n}") for n, t in enumerate(texts))).toArrow()
    assert plain.schema == over_sets.schema
    assert not compare(plain, over_sets), compare(plain, over_sets).examples


LAYERED = """
    WITH clean AS (
        SELECT /*+ LAYER(edge) */ id, ts, machine, celsius FROM readings WHERE celsius IS NOT NULL
    ), minutes AS (
        SELECT /*+ LAYER(cloud) */ window, machine, max(id) AS newest,
            avg(DISTINCT celsius) + count(DISTINCT substring(machine, 1, 1), id % 3) + sum(DISTINCT id % 5) AS mean
        FROM clean GROUP BY window(ts, '30 seconds'), machine
    ), paired AS (
        SELECT /*+ LAYER(cloud) */ c.ts, c.machine, o.amount FROM clean c
        JOIN orders o ON c.machine = o.machine AND o.at BETWEEN c.ts - INTERVAL 2 SECONDS AND c.ts + INTERVAL 2 SECONDS
    )
    SELECT window.start AS at, machine, mean AS value FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY window ORDER BY newest DESC) AS rank FROM minutes
    ) WHERE rank <= 2
    UNION ALL SELECT DISTINCT ts, machine, CAST(amount AS double) FROM paired
"""


def test_a_statement_over_zones_equals_spark_sql(
    endpoint: LocalEndpoint, spark: SparkSession, place: Path, views: None, tmp_path: Path
) -> None:
    flow = _flow(place, LAYERED).build()
    outcome = check_equivalent(flow, CONTINUUM, endpoint, tmp_path / "run")
    assert {u.layer for u in outcome.plan.units} >= {"edge", "cloud"}
    wanted = spark.sql(LAYERED).toArrow()
    assert outcome.rows["out"] == wanted.num_rows > 20
    assert not compare(wanted, batch_result(spark, flow, CONTINUUM)["out"])


JOINED = """
    WITH counts AS (
        SELECT /*+ LAYER(cloud) */ window, machine, count(*) AS n, max(id) AS newest FROM readings
        GROUP BY window(ts, '30 seconds'), machine
    ), most AS (SELECT window, max(n) AS top FROM counts GROUP BY window),
    asked AS (
        SELECT /*+ LAYER(cloud) */ window, machine, sum(amount) AS amount FROM orders
        GROUP BY window(at, '30 seconds'), machine
    )
    SELECT c.window.start AS s, c.machine, a.machine AS asked, c.newest, a.amount
    FROM counts c JOIN most m ON c.window = m.window AND c.n = m.top
    LEFT JOIN asked a ON a.window = c.window AND a.machine = c.machine
"""


@pytest.mark.long
@pytest.mark.parametrize("decision", ["as marked", "unit per operator"])
def test_a_join_of_windows_equals_spark_sql(
    decision: str, endpoint: LocalEndpoint, spark: SparkSession, place: Path, views: None, tmp_path: Path
) -> None:
    flow = _flow(place, JOINED).build()
    wanted = build.unit_per_operator(flow, CONTINUUM) if decision == "unit per operator" else None
    outcome = check_equivalent(flow, CONTINUUM, endpoint, tmp_path / "run", decision=wanted)
    found = spark.sql(JOINED).toArrow()
    assert outcome.rows["out"] == found.num_rows > 5
    assert not compare(found, batch_result(spark, flow, CONTINUUM)["out"])
