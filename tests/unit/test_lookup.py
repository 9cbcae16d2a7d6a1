"""Joins with reference tables: their columns, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.connectors.packages import packages_for
from headwater.connectors.permitted import uses_of
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, ErrorList
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import MOST_EMBEDDED, Lookup
from headwater.dataflow.stream import Stream
from headwater.plan.build import build
from headwater.plan.spec import spec_of

SCHEMA = "id bigint, k string, ts timestamp, v double, tags array<string>"


def begin() -> tuple[hw.dataflow.builder.DataflowBuilder, Stream]:
    builder = hw.flow("f", locations=["L1"])
    return builder, builder.read.json("/d/{location}", SCHEMA, location_as="location")


def lookup(stream: Stream) -> Lookup:
    assert isinstance(stream.operator, Lookup)
    return stream.operator


def test_columns_of_the_table_follow_those_of_the_stream() -> None:
    builder, read = begin()
    timed = read.with_watermark("ts", "5 seconds")
    found = timed.join(builder.table.csv("/t.csv", "name string, K string, rank int"), "k")
    assert found.columns == ["id", "k", "ts", "v", "tags", "location", "name", "rank"]
    assert found.shape.event_time == timed.shape.event_time
    assert found.shape.located_by == {"location"}
    assert not lookup(found).stateful


def test_a_small_file_is_part_of_the_dataflow(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,1\n")

    def built(**more: Any) -> Lookup:
        builder, read = begin()
        return lookup(read.join(builder.table.csv(str(file), "k string, n int", **more), "k"))

    first = built()
    assert first.embedded == "YSwxCg=="
    assert built(refresh="1 minute").embedded is None
    file.write_text("a,2\n")
    assert built().config() != first.config(), "another table is another operator"
    moved = tmp_path / "other" / "t.csv"
    moved.parent.mkdir()
    moved.write_text("a,1\n")
    builder, read = begin()
    same = lookup(read.join(builder.table.csv(str(moved), "k string, n int"), "k"))
    assert same.config() == first.config(), "the same table from elsewhere is the same operator"
    file.write_bytes(b"x" * (MOST_EMBEDDED + 1))
    assert built().embedded is None


def test_it_is_stored_as_json(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,1\n")
    builder, read = begin()
    table = builder.table.csv(str(tmp_path / "t.csv"), "k string, n int", header="true")
    read.join(table, "k", how="left").write.memory("out")
    flow = builder.build()
    again = Dataflow.from_json(flow.to_json())
    assert again == flow and again.keys == flow.keys
    stored = json.loads(flow.to_json())
    (entry,) = [o for o in stored["operators"] if o["kind"] == "lookup"]
    assert "YSwxCg==" in json.dumps(entry)


@pytest.mark.parametrize(
    ("schema", "on", "what"),
    [
        ("k string, v int", "k", "stream and table both have: v"),
        ("k int, n int", "k", "'k' is string in the stream and int in the table"),
        ("k string, n int", "x", "the stream has no column 'x'"),
        ("n int, m int", "k", "the table has no column 'k'"),
        ("v double, n int", "v", "'v' is double: such values are no keys"),
        ("tags array<string>, n int", "tags", "such values are no keys"),
        ("k string, n int", ["k", "K"], "duplicate keys"),
        ("k string, n int", [], "needs key columns"),
    ],
)
def test_wrong_keys_and_columns_are_refused(schema: str, on: Any, what: str) -> None:
    builder, read = begin()
    with pytest.raises(DataflowError, match=what) as caught:
        read.join(builder.table.json("/t", schema), on)
    assert caught.value.hint


def test_options_are_those_of_files_that_do_not_stream() -> None:
    for name, value in {"cleanSource": "delete", "mode": "PERMISSIVE", "basePath": "/etc", "format": "text"}.items():
        builder, read = begin()
        read.join(builder.table.csv("/t", "k string, n int", **{name: value}), "k").write.memory("out")
        with pytest.raises(DataflowError, match=f"takes no option '{name}'"):
            check(builder.build())


DATABASE = "jdbc:postgresql://db.plant/plant"


@pytest.mark.parametrize(
    ("url", "given", "what"),
    [
        (DATABASE, {}, "those of a table, or of a query"),
        (DATABASE, {"table": "t", "query": "SELECT k FROM t"}, "those of a table, or of a query"),
        (DATABASE, {"table": "(SELECT 1) x"}, "is no name of a table"),
        (DATABASE, {"table": "t; DROP TABLE t"}, "is no name of a table"),
        (DATABASE, {"query": "DELETE FROM t"}, "does not begin with SELECT or WITH"),
        (DATABASE, {"query": "SELECT k FROM t; DROP TABLE t"}, "is to be one statement"),
        (DATABASE, {"query": "SELECT k FROM t) x WHERE (1=1"}, "closes a parenthesis"),
        (DATABASE, {"query": "SELECT (k FROM t"}, "opens a parenthesis"),
        (DATABASE, {"query": "SELECT k FROM t -- all"}, "has '--'"),
        (DATABASE, {"query": r"SELECT '\\'; DROP TABLE t --'"}, "has a backslash"),
        (DATABASE, {"query": "SELECT 'k FROM t"}, "without its end"),
        (f"{DATABASE}?socketFactory=x", {"table": "t"}, "'socketFactory' of a postgresql URL is not allowed"),
        (f"{DATABASE}?password=x", {"table": "t"}, "would be stored and shown"),
        ("jdbc:odbc:x", {"table": "t"}, "is not known"),
    ],
)
def test_a_database_is_asked_one_plain_statement(url: str, given: dict[str, Any], what: str) -> None:
    builder, read = begin()
    with pytest.raises(DataflowError, match=re.escape(what)) as caught:
        read.join(builder.table.jdbc(url, schema="k string", **given), "k")
    assert caught.value.hint


def test_a_table_of_a_database_is_stored_with_the_names_of_its_secrets() -> None:
    builder, read = begin()
    secrets = {"user_env": "HEADWATER_SECRET_USER", "password_env": "HEADWATER_SECRET_PASSWORD"}
    query = "WITH m AS (SELECT k, ';' AS n FROM t) SELECT * FROM m"
    table = builder.table.jdbc(DATABASE, schema="k string, n string", query=query, refresh="1 minute", **secrets)
    read.join(table, "k").write.memory("out")
    flow = builder.build()
    assert Dataflow.from_json(flow.to_json()) == flow
    check(flow)
    assert packages_for(flow) == ["org.postgresql:postgresql:42.7.4"]
    plan = build(flow, Continuum.from_text("name: p\nlayers: [c]\nzones:\n  C1: {layer: c, locations: [L1]}\n"))
    uses = {(use.kind, use.target) for use in uses_of(spec_of(plan, plan.units[0].id))}
    assert uses >= {("connect", "db.plant:5432"), *(("secrets", name) for name in secrets.values())}
    with pytest.raises(DataflowError, match="the columns of a table in a database are not known"):
        builder.table.jdbc(DATABASE, "t")
    other, stream = begin()
    stream.join(other.table.jdbc(DATABASE, "t", "k string", sessionInitStatement="x"), "k").write.memory("out")
    with pytest.raises(DataflowError, match="takes no option 'sessionInitStatement'"):
        check(other.build())


def test_a_version_of_a_delta_table_does_not_change(tmp_path: Path) -> None:
    builder, read = begin()
    assert lookup(read.join(builder.table.delta("/t", "k string, n int", version=3), "k")).version == 3
    with pytest.raises(DataflowError, match="a version of a table does not change"):
        read.join(builder.table.delta("/t", "k string, n int", version=3, refresh="1 minute"), "k")
    with pytest.raises(DataflowError, match="is not a directory"):
        read.join(builder.table.delta("s3://b/t", "k string, n int"), "k")
    with pytest.raises(DataflowError, match="the schema of the table cannot be read"):
        builder.table.delta(str(tmp_path))


def test_tables_of_files_have_the_keys_that_they_had() -> None:
    builder, read = begin()
    config = lookup(read.join(builder.table.csv("/t", "k string, n int"), "k")).config()
    assert not config.keys() & {"version", "database"}


def check(flow: Dataflow) -> None:
    from headwater.dataflow.optionlists import check_options

    for operator in flow.operators:
        check_options(operator)


MACHINES = "machine string, kind string, most double"


def test_rows_and_columns_of_a_table_are_over_those_of_its_file() -> None:
    """Later conditions and columns are rewritten in terms of the file's columns, so steps need no order."""
    table = hw.flow("f").table.json("/t/*.json", MACHINES)
    found = (
        table.where("most > 5").withColumnRenamed("machine", "k").withColumn("twice", "most * 2")
        .select("k", "twice", "concat(kind, '!') AS kind").where("twice < 90 AND kind <> 'x!'").drop("twice")
    )  # fmt: skip
    assert found.schema.text == "k string, kind string" == ", ".join(" ".join(pair) for pair in found.dtypes)
    assert found.condition == "(most > 5) AND (most * 2 < 90 AND concat(kind, '!') != 'x!')"
    assert found.projection == (("k", "machine"), ("kind", "concat(kind, '!')"))
    builder, read = begin()
    read.join(found, "k").write.memory("out")
    flow = builder.build()
    assert flow.types["out"].schema.names[-1] == "kind"
    assert Dataflow.from_data(json.loads(json.dumps(flow.to_data()))) == flow
    plain = lookup(begin()[1].join(table.toDF("k", "a", "b"), "k")).config()
    assert plain["projection"] is not None and "condition" not in plain


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (lambda t: t.where("nosuch > 1"), "where of table '/t/*.json'", "no column 'nosuch'"),
        (lambda t: t.select("machine").where("kind = 'x'"), "where of table", "no column 'kind'"),
        (lambda t: t.where("most"), "where of table", "a condition is needed"),
        (lambda t: t.where("rand() > 0.5"), "where of table", "new value"),
        (lambda t: t.select("uuid() AS machine"), "select of table", "new value"),
        (lambda t: t.select("input_file_name() AS f"), "select of table", "new value"),
        (lambda t: t.select("machine", "kind AS Machine"), "table", "two columns are called"),
        (lambda t: t.select("count(*) AS n"), "select of table", "count"),
        (lambda t: t.select("explode(array(1)) AS n"), "select of table", "explode"),
        (lambda t: t.drop("nosuch"), "drop of table", "nosuch"),
        (lambda t: t.drop("machine", "kind", "most"), "table", "no columns are left"),
        (lambda t: t.toDF("a"), "toDF of table", "1 names for 3 columns"),
        (lambda t: t.groupBy("kind"), "table", "no 'groupBy'"),
        (lambda t: t.join(t, "machine"), "table", "no 'join'"),
        (lambda t: t.nosuch, "table", "no 'nosuch'"),
    ],
)
def test_wrong_rows_and_columns_of_a_table_are_refused(change: Any, where: str, what: str) -> None:
    with pytest.raises(DataflowError, match=re.escape(what)) as raised:
        change(hw.flow("f").table.json("/t/*.json", MACHINES))
    assert where in str(raised.value.where) and raised.value.hint


def test_a_stored_table_is_checked_again() -> None:
    """A dataflow from a file or a request may hold any text as a condition or column."""
    builder, read = begin()
    read.join(builder.table.json("/t.json", "k string, n int").where("n > 1").select("k", "n"), "k").write.memory("out")
    data = builder.build().to_data()
    (stored,) = (o for o in data["operators"] if o["kind"] == "lookup")
    for change in (
        {"condition": "java_method('java.lang.Runtime', 'x')"},
        {"condition": "n"},
        {"projection": [["k", "k"], ["n", "reflect('a', 'b')"]]},
        {"projection": [["k", "k"], ["n", "n"], ["v", "n"]]},
        {"projection": []},
        {"projection": [["k", "k"], ["n", "(SELECT 1)"]]},
    ):
        changed = {**data, "operators": [{**o, **change} if o is stored else o for o in data["operators"]]}
        with pytest.raises((DataflowError, ErrorList)):
            Dataflow.from_data(json.loads(json.dumps(changed)))


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("SELECT machine FROM machines", 21, "reference table, and no stream"),
        ("SELECT id FROM read JOIN machines m ON v > most", 40, "no equal columns"),
        ("SELECT id FROM read LEFT JOIN machines m ON k = machine AND v > most", 45, "nor equal columns"),
        ("SELECT id FROM read LEFT JOIN machines m ON k = machine AND id > 1", 45, "nor equal columns"),
        ("SELECT id FROM read ANTI JOIN machines m ON k = machine AND v > most", 45, "nor equal columns"),
        ("SELECT id FROM machines m LEFT JOIN read ON k = machine", 16, "without a partner"),
        (
            "SELECT id FROM read JOIN (SELECT kind, count(*) AS n FROM machines GROUP BY kind) m ON k = kind",
            34,
            "WHERE",
        ),
        ("SELECT id FROM read JOIN (SELECT DISTINCT kind FROM machines) m ON k = kind", 43, "WHERE"),
        (
            "SELECT id FROM read JOIN (SELECT upper(kind) FROM machines WHERE most) m ON k = kind",
            66,
            "a condition is needed",
        ),
        (
            "SELECT id FROM read JOIN machines WATERMARK ts DELAY OF INTERVAL 1 SECOND m ON k = kind",
            26,
            "no event time",
        ),
        ("SELECT m.nosuch FROM read JOIN machines m ON k = machine", 8, "no column 'nosuch'"),
        ("SELECT id FROM read JOIN machines m ON v = machine", 40, "cast one of them"),
        ("SELECT id FROM read a SEMI JOIN read b ON a.id = b.id", 23, "SEMI JOIN"),
    ],
)
def test_wrong_joins_with_a_table_are_refused_at_their_place(text: str, column: int, what: str) -> None:
    builder, read = begin()
    table = builder.table.json("/t/*.json", MACHINES)
    with pytest.raises(DataflowError, match=re.escape(what)) as raised:
        builder.sql(text, read=read, machines=table)
    assert f"column {column} of the SQL text" in str(raised.value.where), raised.value


def test_a_table_has_no_time() -> None:
    builder, read = begin()
    with pytest.raises(DataflowError, match="a table's rows have no time"):
        read.join(builder.table.json("/t", "k string"), "k", within="1 minute")
