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
from headwater.core.errors import DataflowError
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


def test_a_table_has_no_time() -> None:
    builder, read = begin()
    with pytest.raises(DataflowError, match="a table's rows have no time"):
        read.join(builder.table.json("/t", "k string"), "k", within="1 minute")
