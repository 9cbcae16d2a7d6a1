"""Tables and partitioned files in dataflows: what is refused when they are written, permissions, names, small files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.connectors.permitted import AgentPermissions, check_unit, table_directories, uses_of
from headwater.connectors.postgreswriter import PostgresTable
from headwater.connectors.tablefiles import TARGET_BYTES, bytes_to_compact
from headwater.connectors.writers import open_sink_writer
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, DeploymentError, HeadwaterError, Unavailable
from headwater.core.permissions import Permissions
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.tablesinks import PostgresSink
from headwater.plan.build import build
from headwater.plan.spec import UnitSpec, spec_of
from headwater.query.checkedfiles import CheckedFiles

SCHEMA = (
    "id bigint, ts timestamp, day date, v double, st struct<a:int>, deep array<struct<a:int>>, "
    "m map<string,int>, items array<string>, `a b` string, wide map<string,array<struct<b:int>>>"
)
LAKE = {"catalog": "sqlite:////data/c.db", "warehouse": "/data/w"}


def stream(*columns: str) -> Any:
    read = hw.flow("f", locations=["L1"]).read.json("/in", SCHEMA)
    return read.select(*columns) if columns else read


def refused(write: Callable[[], Any]) -> DataflowError:
    with pytest.raises(DataflowError) as caught:
        write()
    assert caught.value.hint and caught.value.where
    return caught.value


@pytest.mark.parametrize("method", ["parquet", "delta"])
def test_partition_columns_are_checked(method: str) -> None:
    write = getattr(stream("id", "day", "v", "ts").write, method)
    assert "'dya', which is no column" in refused(lambda: write("/o", partition_by="dya")).what
    assert "did you mean 'day'?" in str(refused(lambda: write("/o", partition_by="dya")).hint)
    assert "'v' of type double" in refused(lambda: write("/o", partition_by=["day", "v"])).what
    assert "to_date(ts)" in str(refused(lambda: write("/o", partition_by="ts")).hint)
    assert "'day' twice" in refused(lambda: write("/o", partition_by=["day", "DAY"])).what
    only = stream("id").write
    assert "names all columns" in refused(lambda: getattr(only, method)("/o", partition_by="id")).what


def test_types_and_names_that_a_table_lacks_are_refused() -> None:
    assert "no column 'a b'" in refused(lambda: stream("`a b`").write.delta("/o")).what
    assert "is not a directory" in refused(lambda: stream("id").write.delta("s3://bucket/x")).what
    for column in ("deep", "wide"):
        error = refused(lambda column=column: stream(column, "id").write.iceberg("n.t", **LAKE))
        assert f"'{column}'" in error.what and "NULL" in error.what
    for column in ("st", "m", "deep"):
        error = refused(lambda column=column: stream(column).write.postgres("postgresql://h/d", "t"))
        assert f"no type for '{column}'" in error.what and "to_json" in str(error.hint)
    assert stream("st", "m", "id").write.iceberg("n.t", **LAKE)
    assert stream("deep", "m", "st").write.delta("/o")
    assert stream("items", "id").write.postgres("postgresql://h/d", "t", keys="id")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"table": "alone"}, "'alone' is no name of a table"),
        ({"table": "a/b.c"}, "is no name of a table"),
        ({"catalog": "https://h/v1"}, "a catalog behind 'https:' is not supported"),
        ({"catalog": "sqlite:///relative.db"}, "is not accepted"),
        ({"catalog": "sqlite:////c.db?mode=x"}, "is not allowed"),
        ({"catalog": "postgresql://user:word@h/d"}, "is not accepted"),
        ({"catalog": "postgresql://h/d?passfile=/etc/x"}, "is not allowed"),
        ({"catalog": "postgresql://h/d?ssl=true"}, "the URL has 'ssl=true'"),
        ({"warehouse": "s3://bucket"}, "is not a directory"),
    ],
)
def test_the_address_of_an_iceberg_table_is_checked(settings: dict[str, str], says: str) -> None:
    given = {"table": "n.t", **LAKE, **settings}
    assert says in refused(lambda: stream("id").write.iceberg(**given)).what
    assert says in refused(lambda: hw.flow("f").read.iceberg(schema="id int", **given)).what


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        ("postgresql://h/d", {"table": "a.b.c"}, "is no name of a table"),
        ("postgresql://h/d", {"table": "x" * 64}, "takes no name"),
        ("postgresql://h/d", {"keys": "no"}, "keys names 'no', which is no column"),
        ("postgresql://h/d", {"keys": ["id", "ID"]}, "keys names 'id' twice"),
        ("postgresql://h/d", {"keys": "items"}, "an array"),
        ("postgresql://h/d", {"order_by": "v"}, "there are no keys"),
        ("postgresql://h/d", {"keys": "id", "order_by": "no"}, "order_by names 'no'"),
        ("mysql://h/d", {}, "'mysql' is not PostgreSQL"),
        ("postgresql://u:p@h/d", {}, "is not accepted"),
        ("postgresql://h/d?sslkey=/etc/x", {}, "is not allowed"),
        ("postgresql://h/d?sslmode=require&ssl=true", {}, "the only parameter"),
    ],
)
def test_a_table_of_postgresql_is_checked(url: str, settings: dict[str, Any], says: str) -> None:
    rows = stream("id", "v", "items")
    error = refused(lambda: rows.write.postgres(url, **{"table": "t", **settings}))
    assert says in error.what or says in str(error.hint)


def newest_by(write: Callable[[Any], Any]) -> tuple[str, ...]:
    flow: Dataflow = write(stream("ID AS k", "ts AS At", "v").with_watermark("at", "5 s")).stream.builder.build()
    (sink,) = flow.sinks
    assert isinstance(sink, PostgresSink)
    return sink.newest_by(flow.types[sink.inputs[0]])


def test_the_event_time_says_which_row_is_the_newest() -> None:
    url = "jdbc:postgresql://h/d"
    assert newest_by(lambda rows: rows.write.postgres(url, "t", keys="K")) == ("At",)
    assert newest_by(lambda rows: rows.write.postgres(url, "t", keys="K", order_by=["V"])) == ("v",)
    assert newest_by(lambda rows: rows.write.postgres(url, "t", keys="K", order_by=[])) == ()
    assert newest_by(lambda rows: rows.select("k", "v").write.postgres(url, "t", keys="k")) == ()


def test_statements_of_a_table() -> None:
    columns = (("k", "text"), ('o"dd', "bigint"))
    table = PostgresTable(url="u", table="s.t", columns=columns, keys=("k",))
    assert list(table.statements()) == [
        'INSERT INTO "s"."t" AS old ("k", "o""dd") SELECT DISTINCT ON ("k") "k", "o""dd" FROM headwater_rows '
        'ORDER BY "k", headwater_row DESC ON CONFLICT ("k") DO UPDATE SET "o""dd" = excluded."o""dd"'
    ]
    assert table.batches == '"s"."headwater_batches"'


# -- permissions ---------------------------------------------------------------------------------


def spec(write: Callable[[Any], Any], read: Callable[[Any], Any] | None = None) -> UnitSpec:
    builder = hw.flow("f", locations=["L1"])
    rows = builder.read.csv("/data/in", "id bigint, k string") if read is None else read(builder.read)
    write(rows)
    plan = build(builder.build(), Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}"))
    return spec_of(plan, plan.units[0].id)


def used(unit: UnitSpec) -> set[tuple[str, str]]:
    return {(str(use.kind), use.target) for use in uses_of(unit)} - {("read", "/data/in")}


def test_tables_use_what_a_zone_permits() -> None:
    secret = {"user_env": "HEADWATER_SECRET_U", "password_env": "HEADWATER_SECRET_P"}
    secrets = {("secrets", "HEADWATER_SECRET_U"), ("secrets", "HEADWATER_SECRET_P")}
    assert used(spec(lambda rows: rows.write.delta("/data/{zone}/t"))) == {("write", "/data/E1/t")}
    assert used(spec(lambda rows: rows.write.parquet("/data/f", partition_by="k"))) == {("write", "/data/f")}
    lake = {"catalog": "sqlite:////data/c.db", "warehouse": "/data/w"}
    assert used(spec(lambda rows: rows.write.iceberg("n.t", **lake))) == {("write", "/data/w"), ("write", "/data/c.db")}
    lake["catalog"] = "postgresql://db.plant/x"
    found = used(spec(lambda rows: rows.write.iceberg("n.t", **lake, **secret)))
    assert found == {("write", "/data/w"), ("connect", "db.plant:5432"), *secrets}
    found = used(spec(lambda rows: rows.write.postgres("postgresql://a,b:5433/x", "t", **secret)))
    assert found == {("connect", "a:5432"), ("connect", "b:5433"), *secrets}
    memory = lambda rows: rows.write.memory("m")  # noqa: E731
    found = used(spec(memory, lambda read: read.delta("/data/{location}", "id int")))
    assert found == {("read", "/data/L1")}
    found = used(spec(memory, lambda read: read.iceberg("n.t", "id int", **lake, **secret)))
    assert found == {("read", "/data/w"), ("connect", "db.plant:5432"), *secrets}


@pytest.mark.parametrize(
    "write",
    [
        lambda rows: rows.write.delta("/etc/table"),
        lambda rows: rows.write.parquet("/etc/files", partition_by="k"),
        lambda rows: rows.write.iceberg("n.t", catalog="sqlite:////data/c.db", warehouse="/etc/w"),
        lambda rows: rows.write.iceberg("n.t", catalog="sqlite:////etc/c.db", warehouse="/data/w"),
        lambda rows: rows.write.iceberg("n.t", catalog="postgresql://evil/d", warehouse="/data/w"),
        lambda rows: rows.write.postgres("postgresql://evil/d", "t"),
    ],
)
def test_tables_outside_of_the_permissions_are_refused(write: Callable[[Any], Any]) -> None:
    agent = AgentPermissions(own=Permissions(read=("/data",), write=("/data",), connect=("good",)))
    with pytest.raises(HeadwaterError, match="may not"):
        check_unit(spec(write), agent)


# -- small files, missing packages ---------------------------------------------------------------


def test_only_files_of_similar_size_are_compacted() -> None:
    small, large = [("p", 1000 + n) for n in range(8)], [("p", 5_000_000)]
    assert bytes_to_compact([*small, *large], 9) is None
    assert bytes_to_compact([*small, *large], 8) == sum(size for _, size in small)
    assert bytes_to_compact([("p", 1000)] * 4 + [("q", 1000)] * 4, 8) is None
    assert bytes_to_compact([("p", TARGET_BYTES)] * 50, 8) is None
    assert bytes_to_compact([("p", TARGET_BYTES - 1)] * 50, 8) == TARGET_BYTES
    assert bytes_to_compact([], 0) is None


def test_rows_are_written_again_a_few_times_only() -> None:
    files: list[tuple[str, int]] = []
    written = 0
    for _ in range(5000):
        files.append(("p", 10_000))
        most = bytes_to_compact(files, 32)
        if most is not None:
            taken = [size for _, size in files if size < most]
            files = [(p, size) for p, size in files if size >= most] + [("p", sum(taken))]
            written += sum(taken)
    assert len(files) < 150
    assert written < 5 * 5000 * 10_000


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_missing_package_is_named(kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == package] + [package]:
        monkeypatch.setitem(sys.modules, name, None)
    spec_ = {"kind": kind, "id": "headwater-1-a", "path": str(tmp_path), "table": str(tmp_path / "t")}
    more = {"catalog": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path), "table": "n.t"}
    writer = open_sink_writer({**spec_, **(more if kind == "iceberg" else {})}, 1)
    with pytest.raises(Unavailable, match=f"the package {package} is missing") as error:
        writer.newest()
    assert "headwater[tables]" in str(error.value.hint)


def test_the_directory_of_a_table_is_checked_with_each_batch(tmp_path: Path) -> None:
    place = tmp_path.resolve()
    (place / "in").mkdir()
    (place / "secret").mkdir()
    agent = AgentPermissions(own=Permissions(read=(f"{place}/in",), write=(f"{place}/in",)))
    unit = spec(lambda rows: rows.write.delta(f"{place}/in/out"), lambda r: r.delta(f"{place}/in/t", "id int"))
    read, written = table_directories(unit)
    assert (read, written) == ([f"{place}/in/t"], [f"{place}/in/out"])
    checked = CheckedFiles(place / "checkpoint", check_unit(unit, agent), tuple(written), tuple(read))
    assert CheckedFiles.from_data(checked.to_data()) == checked
    (place / "checkpoint" / "offsets").mkdir(parents=True)
    (place / "checkpoint" / "offsets" / "0").write_text("v2\n{}\n")
    checked.check_batch(0)
    (place / "in" / "t").symlink_to(place / "secret")
    with pytest.raises(DeploymentError, match="outside the directories that the zone lets dataflows read"):
        checked.check_batch(0)
