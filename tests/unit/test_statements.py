"""A SELECT statement becomes the operators of the fluent API, with the same keys, or is refused with its position."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.core.errors import DataflowError
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.sql.statement import StatementError

SCHEMA = "id bigint, ts timestamp, machine string, celsius double, tags array<string>, part struct<kind:string,no:int>"
ORDERS = "id bigint, at timestamp, machine string, amount int"
Sources = dict[str, Stream]


def begin() -> tuple[DataflowBuilder, Sources]:
    builder = hw.flow("f", locations=["L1"])
    readings = builder.read.json("in/{location}", SCHEMA, location_as="location")
    orders = builder.read.json("orders/{location}", ORDERS, location_as="location")
    streams = {
        "raw": readings,
        "readings": readings.with_watermark("ts", "10 seconds"),
        "orders": orders.with_watermark("at", "5 seconds"),
    }
    return builder, streams


def keyed(make: Callable[[DataflowBuilder, Sources], Stream]) -> tuple[str, list[str], Dataflow]:
    """Return the key, and the columns, of the stream that is made."""
    builder, streams = begin()
    stream = make(builder, streams)
    stream.write.memory("out")
    flow = builder.build()
    return flow.keys["out"], stream.columns, flow


def same(text: str, fluent: Callable[[Sources], Stream], args: Any = None) -> None:
    by_sql = keyed(lambda builder, streams: builder.sql(text, args, **streams))
    by_hand = keyed(lambda builder, streams: fluent(streams))
    kinds = [[o.kind for o in flow.operators] for flow in (by_sql[2], by_hand[2])]
    assert kinds[0] == kinds[1]
    assert by_sql[:2] == by_hand[:2]


def hourly(s: Stream) -> Any:
    return s.group_by(hw.window("ts", "1 hour"), "machine")


FORMS: dict[str, tuple[str, Callable[[Sources], Stream]]] = {
    "star": ("SELECT * FROM readings", lambda s: s["readings"]),
    "where": ("select * from readings r where r.celsius > 50", lambda s: s["readings"].where("celsius > 50")),
    "columns": (
        "SELECT id, Celsius * 2 AS twice, part.kind FROM readings",
        lambda s: s["readings"].select("id", "celsius * 2 AS twice", "part.kind"),
    ),
    "star and more": (
        "SELECT *, celsius * 2 twice FROM readings",
        lambda s: s["readings"].with_columns(twice="celsius * 2"),
    ),
    "fields of a struct": ("SELECT id, part.* FROM readings", lambda s: s["readings"].select("id", "part.*")),
    "star of a stream": ("SELECT r.* EXCEPT (tags) FROM readings AS r", lambda s: s["readings"].drop("tags")),
    "aliases of earlier items": (
        "SELECT celsius + 273 AS kelvin, kelvin * 2 AS twice FROM raw",
        lambda s: s["raw"].select("celsius + 273 AS kelvin", "(celsius + 273) * 2 AS twice"),
    ),
    "lambda": (
        "SELECT transform(tags, id -> upper(id)) AS names FROM raw",
        lambda s: s["raw"].select("transform(tags, id -> upper(id)) AS names"),
    ),
    "watermark": (
        "SELECT * FROM STREAM raw WATERMARK ts DELAY OF INTERVAL 10 SECONDS AS r WHERE celsius > 5",
        lambda s: s["raw"].with_watermark("ts", "10 seconds").where("celsius > 5"),
    ),
    "window": (
        "SELECT window, machine, avg(celsius) AS mean, count(*) AS n FROM readings "
        "GROUP BY window(ts, '1 hour'), machine",
        lambda s: hourly(s["readings"]).agg(mean="avg(celsius)", n="count(*)"),
    ),
    "window and columns of it": (
        "SELECT window.start AS hour, machine, avg(celsius) AS mean FROM readings "
        "GROUP BY window(ts, '1 hour'), machine",
        lambda s: hourly(s["readings"]).agg(mean="avg(celsius)").select("window.start AS hour", "machine", "mean"),
    ),
    "window in an item": (
        "SELECT window(ts, '1 hour').start AS hour, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine",
        lambda s: hourly(s["readings"]).agg(n="count(*)").select("window.start AS hour", "n"),
    ),
    "sliding": (
        "SELECT window, count(*) AS n FROM readings GROUP BY window(ts, '1 hour', '5 minutes')",
        lambda s: s["readings"].group_by(hw.window("ts", "1 hour", "5 minutes")).agg(n="count(*)"),
    ),
    "session": (
        "SELECT session_window, machine, count(*) AS n FROM readings GROUP BY session_window(ts, '5 minutes'), machine",
        lambda s: s["readings"].group_by(hw.session_window("ts", "5 minutes"), "machine").agg(n="count(*)"),
    ),
    "groups by number, alias and all": (
        "SELECT ts, machine AS m, count(*) AS n FROM readings GROUP BY 1, m",
        lambda s: s["readings"].group_by("ts", "machine").agg(n="count(*)").select("ts", "machine AS m", "n"),
    ),
    "group by all": (
        "SELECT ts, machine, max(celsius) AS top FROM readings GROUP BY ALL",
        lambda s: s["readings"].group_by("ts", "machine").agg(top="max(celsius)"),
    ),
    "group by an expression": (
        "SELECT window, floor(celsius / 10) AS bucket, count(*) AS n FROM readings "
        "GROUP BY window(ts, '1 hour'), floor(celsius / 10)",
        lambda s: (
            s["readings"]
            .with_columns(bucket="floor(celsius / 10)")
            .group_by(hw.window("ts", "1 hour"), "bucket")
            .agg(n="count(*)")
        ),
    ),
    "having": (
        "SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine HAVING n > 5",
        lambda s: hourly(s["readings"]).agg(n="count(*)").where("n > 5"),
    ),
    "having the aggregate": (
        "SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine "
        "HAVING count(*) > 5 AND machine <> 'x'",
        lambda s: hourly(s["readings"]).agg(n="count(*)").where("n > 5 AND machine <> 'x'"),
    ),
    "having another aggregate": (
        "SELECT window, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine HAVING max(celsius) > 5",
        lambda s: (
            hourly(s["readings"])
            .agg(n="count(*)", aggregate_1="max(celsius)")
            .where("aggregate_1 > 5")
            .select("window", "n")
        ),
    ),
    "aggregates and groups in one item": (
        "SELECT window, concat(machine, count(*)) AS m FROM readings GROUP BY window(ts, '1 hour'), machine",
        lambda s: (
            hourly(s["readings"])
            .agg(aggregate_1="count(*)")
            .select("window", "concat(machine, aggregate_1) AS m")
        ),
    ),
    "an aggregate of the name of a group": (
        "SELECT window, max(machine) AS machine FROM readings GROUP BY window(ts, '1 hour'), machine",
        lambda s: (
            hourly(s["readings"]).agg(aggregate_1="max(machine)").select("window", "aggregate_1 AS machine")
        ),
    ),
    "names of Spark": (
        "SELECT window, avg(celsius), count(*) FROM readings GROUP BY window(ts, '1 hour'), machine",
        lambda s: (
            hourly(s["readings"])
            .agg("avg(celsius)", "count(*)")
            .select("window", "`avg(celsius)`", "`count(1)`")
        ),
    ),
    "no aggregates": (
        "SELECT window, machine FROM readings GROUP BY window(ts, '1 hour'), machine",
        lambda s: hourly(s["readings"]).agg(rows="count(*)").select("window", "machine"),
    ),
    "window of windows": (
        "WITH hours AS (SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine) "
        "SELECT window, sum(n) AS n FROM hours GROUP BY window(window, '1 day')",
        lambda s: hourly(s["readings"]).agg(n="count(*)").group_by(hw.window("window", "1 day")).agg(n="sum(n)"),
    ),
    "join": (
        "SELECT id, celsius, amount FROM readings JOIN (SELECT at, machine, amount FROM orders) o "
        "ON readings.machine = o.machine AND o.at BETWEEN ts - INTERVAL 10 SECONDS AND ts + INTERVAL 1 MINUTE",
        lambda s: (
            s["readings"]
            .join(s["orders"].select("at", "machine", "amount"), "machine", between=("-10 seconds", "1 minute"))
            .select("id", "celsius", "amount")
        ),
    ),
    "join, turned, with conditions": (
        "SELECT r.id, o.id AS order, amount FROM readings r LEFT JOIN orders o ON o.id = r.id AND amount > 5 "
        "AND r.ts >= at - INTERVAL '1' HOUR AND r.ts <= at + INTERVAL 30 MINUTES WHERE o.machine IS NULL",
        lambda s: (
            s["readings"]
            .join(
                s["orders"].where("amount > 5").select(
                    "id", "at", "machine AS o_machine", "amount", "location AS o_location"
                ),
                "id",
                between=("-30 minutes", "1 hour"),
                how="left",
            )
            .where("o_machine IS NULL")
            .select("id", "CASE WHEN at IS NOT NULL THEN id END AS order", "amount")
        ),
    ),
    "join of strict bounds, with a condition of both": (
        "SELECT r.id, o.amount FROM readings r INNER JOIN orders o ON r.id = o.id AND r.machine = o.machine "
        "AND o.at > r.ts AND o.at < r.ts + INTERVAL 1 HOUR AND o.amount > r.celsius AND r.celsius > 5",
        lambda s: (
            s["readings"].where("celsius > 5")
            .join(s["orders"].select("id", "at", "machine", "amount", "location AS o_location"), ["id", "machine"],
                  between=("1 microsecond", "1 hour -1 microsecond"))
            .where("amount > celsius")
            .select("id", "amount")
        ),
    ),
    "join of windows": (
        "WITH n AS (SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine), "
        "top AS (SELECT window, max(n) AS most FROM n GROUP BY window), "
        "named AS (SELECT window, machine, n FROM n) "
        "SELECT named.window, machine, n FROM named JOIN (SELECT window AS w, most FROM top) top "
        "ON named.window = w AND n = most",
        lambda s: (
            (counts := hourly(s["readings"]).agg(n="count(*)"))
            .select("window", "machine", "n")
            .join(
                counts.group_by("window")
                .agg(most="max(n)")
                .select("window AS w", "most")
                .select("w AS window", "most AS n"),
                ["window", "n"],
            )
            .select("window", "machine", "n")
        ),
    ),
    "left join of windows": (
        "WITH n AS (SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine), "
        "high AS (SELECT * FROM n WHERE n > 5) "
        "SELECT n.machine, h.machine AS other FROM n LEFT JOIN high h ON n.window = h.window AND n.machine = h.machine",
        lambda s: (
            (counts := hourly(s["readings"]).agg(n="count(*)"))
            .join(
                counts.where("n > 5").select(
                    "window", "window AS h_window", "machine", "machine AS h_machine", "n AS h_n"
                ),
                ["window", "machine"],
                how="left",
            )
            .select("machine", "h_machine AS other")
        ),
    ),
    "union all by position": (
        "SELECT id, celsius AS v FROM readings UNION ALL SELECT id, CAST(amount AS double) FROM orders",
        lambda s: s["readings"].select("id", "celsius AS v").union(
            s["orders"].select("id", "CAST(amount AS double) AS v")
        ),
    ),
    "distinct": (
        "SELECT DISTINCT ts, machine FROM readings",
        lambda s: s["readings"].select("ts", "machine").drop_duplicates(),
    ),
    "top list": (
        "SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY window ORDER BY n DESC) <= 3",
        lambda s: hourly(s["readings"]).agg(n="count(*)").top_k(3, "n").select("window", "machine", "n"),
    ),
    "top list of a query": (
        "WITH counts AS (SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine) "
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window ORDER BY n DESC) AS rank FROM counts) "
        "WHERE rank <= 3 AND n > 1",
        lambda s: hourly(s["readings"]).agg(n="count(*)").top_k(3, "n").where("n > 1"),
    ),
    "top list with ties, the lowest first": (
        "SELECT *, RANK() OVER (PARTITION BY window ORDER BY n, machine ASC) AS place FROM "
        "(SELECT window, machine, count(*) AS n FROM readings GROUP BY window(ts, '1 hour'), machine) "
        "QUALIFY place < 4",
        lambda s: (
            hourly(s["readings"])
            .agg(n="count(*)")
            .top_k(3, ["n", "machine"], ties="rank", ascending=True, rank="place")
        ),
    ),
    "last row of a key and window": (
        "SELECT * FROM readings "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY window(ts, '1 hour'), machine ORDER BY ts DESC) = 1",
        lambda s: (
            s["readings"]
            .top_k(1, "ts", per=[hw.window("ts", "1 hour"), "machine"])
            .select("id", "ts", "machine", "celsius", "tags", "part", "location")
        ),
    ),
    "lateral view": (
        "SELECT id, tag, i FROM readings LATERAL VIEW OUTER posexplode(tags) t AS i, tag WHERE t.tag <> 'x'",
        lambda s: (
            s["readings"].explode("tags", "tag", position="i", outer=True).where("tag <> 'x'").select("id", "tag", "i")
        ),
    ),
    "explode": (
        "SELECT id, explode(tags) AS tag FROM readings",
        lambda s: s["readings"].explode("tags", "tag").select("id", "tag"),
    ),
    "layers": (
        "WITH m AS (SELECT /*+ LAYER(site) */ window, machine, count(*) AS n FROM readings "
        "GROUP BY window(ts, '1 hour'), machine) "
        "SELECT /*+ LAYER(cloud), REQUIRE('gpu = true') */ * FROM m WHERE n > 1",
        lambda s: (
            hourly(s["readings"].to_layer("site"))
            .agg(n="count(*)")
            .to_layer("cloud")
            .require("gpu = true")
            .where("n > 1")
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "fluent"), [pytest.param(*form, id=name) for name, form in FORMS.items()])
def test_a_statement_is_its_fluent_form(text: str, fluent: Callable[[Sources], Stream]) -> None:
    same(text, fluent)


def test_layers_and_requirements_are_those_of_the_hints() -> None:
    text, _ = FORMS["layers"]
    flow = keyed(lambda builder, streams: builder.sql(text, **streams))[2]
    places = {o.kind: (o.layer, o.requires.text) for o in flow.operators}
    assert places["aggregate"] == ("site", "")
    assert places["where"] == ("cloud", "gpu = true")


def test_a_query_that_is_used_twice_runs_once() -> None:
    text = "WITH hot AS (SELECT * FROM readings WHERE celsius > 5) SELECT * FROM hot UNION ALL SELECT * FROM hot"
    flow = keyed(lambda builder, streams: builder.sql(text, **streams))[2]
    assert [o.kind for o in flow.operators].count("where") == 1


def test_streams_have_the_names_that_they_were_given() -> None:
    builder, streams = begin()
    hot = streams["readings"].where("celsius > 5").named("Hot")
    builder.sql("SELECT id FROM hot").write.memory("a")
    builder.sql("SELECT id FROM {x}", x=hot).write.memory("b")
    cold = streams["readings"].where("celsius < 0")
    builder.sql("SELECT id FROM `hot`", hot=cold).write.memory("c")
    keys = builder.build().keys
    assert keys["a"] == keys["b"] != keys["c"]
    written = streams["readings"].write.memory("sink").named("stored")
    assert written.stream.operator.id == "stored"
    with pytest.raises(StatementError, match="there is no stream 'stored'"):
        builder.sql("SELECT * FROM stored")


@pytest.mark.parametrize(
    ("text", "args", "condition"),
    [
        ("celsius > :low AND machine = :m", {"low": -1.5, "m": "it's"}, "celsius > -1.5D AND machine = 'it\\'s'"),
        ("id = ? OR id = ?", [1, -(2**40)], "id = 1 OR id = -1099511627776"),
        ("ts > :t", {"t": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)},
         "ts > TIMESTAMP '2026-01-02 03:04:05.000006+00:00'"),
        ("ts > :t", {"t": date(2026, 1, 2)}, "ts > DATE '2026-01-02'"),
        ("celsius > :d", {"d": Decimal("1.50")}, "celsius > 1.50BD"),
        ("machine <=> :n AND :b", {"n": None, "b": True}, "machine <=> NULL AND TRUE"),
    ],
)  # fmt: skip
def test_parameters_are_constants(text: str, args: Any, condition: str) -> None:
    same(f"SELECT * FROM readings WHERE {text}", lambda s: s["readings"].where(condition), args)


WINDOW = "GROUP BY window(ts, '1 hour'), machine"
REFUSED: list[tuple[str, str, str, str]] = [
    ("SELECT id\nFROM readings\nORDER BY id", "line 3, column 1 ", "ORDER BY does not run", "QUALIFY ROW_NUMBER()"),
    ("SELECT id FROM readings LIMIT 5", "line 1, column 25 ", "LIMIT does not run", "QUALIFY"),
    ("SELECT id FROM readings, orders", "column 24 ", "a comma pairs", "a JOIN b ON"),
    ("SELECT id FROM readings CROSS JOIN orders", "column 25 ", "CROSS JOIN", "BETWEEN"),
    ("SELECT id FROM readings RIGHT JOIN orders ON TRUE", "column 25 ", "RIGHT JOIN", "swap the streams"),
    ("SELECT id FROM readings LEFT ANTI JOIN orders ON TRUE", "column 30 ", "ANTI JOIN", "IS NULL"),
    ("SELECT id FROM readings JOIN orders", "column 36 ", "needs a condition", "a JOIN b ON"),
    ("SELECT id FROM readings EXCEPT SELECT id FROM orders", "column 25 ", "EXCEPT does not run", "LEFT JOIN"),
    ("SELECT id FROM readings TABLESAMPLE (5 ROWS)", "column 25 ", "TABLESAMPLE", "pmod(xxhash64(id)"),
    ("SELECT count(*) AS n FROM readings", "column 8 ", "no window and not the event time 'ts'",
     "window(ts, '1 minute')"),
    ("SELECT machine, count(*) AS n FROM readings GROUP BY machine", "column 54 ", "so none ever ends",
     "window(ts, '1 minute'), machine"),
    ("SELECT count(*) AS n FROM raw GROUP BY window(ts, '1 hour')", "column 40 ", "without event time",
     "WATERMARK ts DELAY"),
    (f"SELECT id, count(*) AS n FROM readings {WINDOW}", "column 8 ", "neither in GROUP BY nor", "max(id)"),
    (f"SELECT count(*) + 1 FROM readings {WINDOW}", "column 8 ", "count(*) + 1 has no name", "AS result"),
    ("SELECT id + 1 FROM readings", "column 8 ", "id + 1 has no name", "id + 1 AS result"),
    (f"SELECT window FROM readings {WINDOW}, window(ts, '1 day')", "column 69 ", "more than one window", "keep one"),
    ("SELECT machine FROM readings GROUP BY CUBE(machine)", "column 39 ", "CUBE does not run", "UNION ALL"),
    ("SELECT id FROM readings WHERE count(*) > 5", "column 31 ", "WHERE has an aggregate", "HAVING"),
    ("SELECT sum(celsius) OVER (PARTITION BY id) AS s FROM readings", "column 44 ", "does not run", "group by window"),
    ("SELECT *, ROW_NUMBER() OVER (PARTITION BY machine ORDER BY id DESC) AS r FROM readings", "column 11 ",
     "without a bound", "QUALIFY"),
    ("SELECT DISTINCT machine FROM readings", "column 1 ", "DISTINCT without the event time", "GROUP BY window"),
    ("SELECT id FROM readings WHERE id IN (SELECT id FROM orders)", "column 38 ", "all rows of its stream", "JOIN"),
    ("SELECT id FROM readings r JOIN orders o ON r.id = o.id", "column 44 ", "has no bound on the time",
     "o.at BETWEEN a.ts -"),
    ("SELECT id FROM readings r JOIN orders o ON r.id = o.id AND o.at > r.ts", "column 44 ", "no second bound",
     "BETWEEN"),
    ("SELECT id FROM readings r JOIN orders o ON r.id = o.id AND o.at BETWEEN r.ts AND r.ts", "column 8 ",
     "the column 'id' is in r and o", "r.id"),
    ("SELECT * FROM readings r JOIN orders o ON r.id = o.id AND o.at BETWEEN r.ts AND r.ts", "column 8 ",
     "two columns are called 'id'", "a.id AS a_id"),
    ("SELECT r.id FROM readings r JOIN orders o ON o.at BETWEEN r.ts AND r.ts", "column 46 ", "no equal columns",
     "a.k = b.k"),
    ("SELECT r.id FROM readings r LEFT JOIN orders o ON r.id = o.id AND o.at BETWEEN r.ts AND r.ts AND celsius > 1",
     "column 51 ", "LEFT JOIN", "filter the left stream first"),
    ("SELECT r.zz FROM readings r", "column 8 ", "no column 'zz'", "the columns are id"),
    ("SELECT\n  celsius + tags AS x FROM readings", "line 2, column 3 ", "+ combines it with array<string>", ""),
    ("SELECT id FROM reading", "column 16 ", "there is no stream 'reading'", "did you mean readings?"),
    ("SELECT id FROM readings WHERE id = :x", "column 36 ", "the parameter :x has no value", 'sql(text, {"x": 5})'),
    ("SELECT id FROM readings WHERE id = ?", "column 36 ", "the parameter ? has no value", "sql(text, [5])"),
    ("SELECT id, FROM readings", "column 12 ", "expected a column, found 'FROM'", "back-quotes"),
    ("INSERT INTO x SELECT 1", "column 1 ", "INSERT is no query", "SELECT columns FROM"),
    ("SELECT id FROM readings; DROP TABLE x", "", "unexpected ';'", "semicolon"),
    ("SELECT id FROM range(5)", "column 16 ", "table function range", "window(ts"),
    ("SELECT /*+ BROADCAST(x) */ id FROM readings", "column 12 ", "hint 'BROADCAST' is unknown", "LAYER(site)"),
    ("SELECT id FROM readings UNION ALL SELECT id, at FROM orders", "column 25 ", "1 and 2 columns", "same columns"),
    ("SELECT window, avg(celsius) AS m FROM readings GROUP BY window(ts, 5)", "column 57 ", "interval is needed",
     "INTERVAL"),
    ("SELECT " + "(" * 400 + "id" + ")" * 400 + " AS x FROM readings", "column", "nested", "with_columns"),
    ("SELECT * FROM " + "(SELECT * FROM " * 100 + "readings" + ")" * 100, "column", "more than 40 deep", "WITH"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "what", "hint"), REFUSED)
def test_refusals_have_a_position_a_reason_and_a_line(text: str, place: str, what: str, hint: str) -> None:
    builder, streams = begin()
    with pytest.raises(DataflowError) as raised:
        builder.sql(text, **streams)
    error = raised.value
    assert what in error.what
    assert place in (error.where or "")
    assert hint in (error.hint or "")


CONDITIONS = ("celsius > 5", "machine LIKE 'a%'", "id % 2 = 0 OR celsius IS NULL", "size(tags) BETWEEN 1 AND 3")
ITEMS = {
    "id": "id", "t": "ts", "k": "machine", "warm": "celsius > 20", "n": "length(machine) * 2",
    "kind": "part.kind", "low": "CASE WHEN celsius < 5 THEN 'x' ELSE machine END",
}  # fmt: skip
AGGREGATES = {"mean": "avg(celsius)", "n": "count(*)", "top": "max_by(id, celsius)", "share": "sum(celsius) / count(*)"}
KEYS = ("machine", "location", "id")
WINDOWS = {
    "window(ts, '1 hour')": hw.window("ts", "1 hour"),
    "window(ts, '1 hour', '10 minutes')": hw.window("ts", "1 hour", "10 minutes"),
    "session_window(ts, '5 minutes')": hw.session_window("ts", "5 minutes"),
}


def noisy(draw: Any, text: str) -> str:
    """Return the text with other spaces, comments and letters, which mean the same."""
    words = re.split(r" (?=(?:[^']*'[^']*')*[^']*\Z)", text)  # not inside strings
    spaces = [draw(st.sampled_from([" ", "  ", "\n", " /* x */ ", " -- x\n"])) for _ in words]
    changed = [w.lower() if w.isupper() and draw(st.booleans()) else w for w in words]
    return "".join(w + s for w, s in zip(changed, spaces, strict=True))


@st.composite
def rows_of(draw: Any) -> tuple[str, Callable[[Stream], Stream]]:
    """Draw a SELECT without groups, and its fluent form."""
    conditions = draw(st.lists(st.sampled_from(CONDITIONS), max_size=1))
    names = draw(st.lists(st.sampled_from(list(ITEMS)), min_size=1, unique=True))
    items = [f"{ITEMS[n]} AS {n}" for n in names]
    text = f"SELECT {' , '.join(items)} FROM readings"
    text += "".join(f" WHERE {c}" for c in conditions)

    def fluent(stream: Stream) -> Stream:
        for condition in conditions:
            stream = stream.where(condition)
        return stream.select(*items)

    return noisy(draw, text), fluent


@st.composite
def groups_of(draw: Any) -> tuple[str, Callable[[Stream], Stream]]:
    """Draw a SELECT with groups, and its fluent form."""
    window = draw(st.sampled_from(list(WINDOWS)))
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True))
    names = draw(st.lists(st.sampled_from(list(AGGREGATES)), min_size=1, unique=True))
    having = draw(st.booleans())
    plain = draw(st.booleans())
    made = WINDOWS[window]
    column = "session_window" if "session" in window else "window"
    items = [column if plain else f"{column}.start AS begin", *keys, *(f"{AGGREGATES[n]} AS {n}" for n in names)]
    text = f"SELECT {', '.join(items)} FROM readings GROUP BY {', '.join([window, *keys])}"
    text += f" HAVING {names[0]} > 1" if having else ""

    def fluent(stream: Stream) -> Stream:
        stream = stream.group_by(made, *keys).agg(**{n: AGGREGATES[n] for n in names})
        stream = stream.where(f"{names[0]} > 1") if having else stream
        return stream if plain else stream.select(f"{column}.start AS begin", *keys, *names)

    return noisy(draw, text), fluent


@given(st.data())
def test_drawn_statements_are_their_fluent_forms(data: st.DataObject) -> None:
    text, fluent = data.draw(rows_of() | groups_of())
    how = data.draw(st.sampled_from(["as it is", "query", "named", "union"]))
    if how == "query":
        text = f"SELECT * FROM ({text}) AS q"
    if how == "named":
        text = f"WITH q AS ({text}) SELECT q.* FROM q"
    if how == "union":
        text = f"{text} UNION ALL {text}"
    whole: Callable[[Sources], Stream] = lambda s: fluent(s["readings"])  # noqa: E731
    if how == "named":
        whole = lambda s: (made := fluent(s["readings"])).select(*made.columns)  # noqa: E731
    if how == "union":
        whole = lambda s: fluent(s["readings"]).union(fluent(s["readings"]))  # noqa: E731
    same(text, whole)


WORDS = """
    SELECT FROM WHERE GROUP BY HAVING QUALIFY WITH AS JOIN LEFT ON USING UNION ALL DISTINCT OVER PARTITION ORDER
    LATERAL VIEW explode EXCEPT STREAM WATERMARK DELAY OF INTERVAL ROW_NUMBER window readings orders r o
    id ts machine celsius tags at rank n count avg 1 5 '1 hour' 10 SECONDS * ( ) ( ) , , . = <= > :x ? { } /*+ */
"""


@given(st.lists(st.sampled_from(WORDS.split()), max_size=30))
def test_any_words_are_a_stream_or_an_error_of_the_dataflow(words: list[str]) -> None:
    builder, streams = begin()
    try:
        builder.sql("SELECT " + " ".join(words), {"x": 1}, **streams)
    except DataflowError as error:
        assert error.where or "position" in error.what
