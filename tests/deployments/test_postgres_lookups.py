"""Joins with tables of a real PostgreSQL, read by the zones' Spark with the driver from Maven."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.connectors.jdbctable import database_rows
from headwater.connectors.packages import packages_for
from headwater.continuum.model import Continuum
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.lookup import Lookup
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, BoundedSource, check_equivalent
from tests.conformance.postgresql import server
from tests.conftest import endpoint_with
from tests.deployments.flows import CONTINUUM, LOCATIONS, SCHEMA, rows

pytestmark = pytest.mark.long

SECRETS = {"user_env": "HEADWATER_SECRET_DB_USER", "password_env": "HEADWATER_SECRET_DB_PASSWORD"}
MACHINES = """
CREATE TABLE machines (k varchar(10), name text, most numeric(6, 2), since timestamptz, seen timestamp,
  id uuid DEFAULT gen_random_uuid(), about jsonb);
INSERT INTO machines VALUES
  ('k0', 'zero', 1.5, '2026-01-31 13:00:00+01', '2026-01-31 12:00:00', DEFAULT, '{"a": 1}'),
  ('k1', 'one', 2, NULL, NULL, DEFAULT, NULL), ('k1', 'uno', NULL, NULL, NULL, DEFAULT, NULL),
  (NULL, 'nothing', 3, NULL, NULL, DEFAULT, NULL);
CREATE TABLE traces (n int);
CREATE FUNCTION written() RETURNS int AS 'INSERT INTO traces VALUES (1) RETURNING n' LANGUAGE sql VOLATILE;
"""


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Yield the URL of a separate server with a table of machines."""
    import psycopg

    for url in server():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(MACHINES)
        yield url


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    """Yield a Spark with the driver of PostgreSQL."""
    builder = hw.flow("f", locations=["L1"])
    table = builder.table.jdbc("jdbc:postgresql://db/plant", "t", "k string")
    builder.read.json("/d", "k string").join(table, "k").write.memory("out")
    with endpoint_with(packages_for(builder.build()), tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture
def url(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the JDBC URL, with user and password in the environment."""
    monkeypatch.setenv("HEADWATER_SECRET_DB_USER", "headwater")
    monkeypatch.setenv("HEADWATER_SECRET_DB_PASSWORD", "a-secret")
    return "jdbc:postgresql://" + postgresql.partition("@")[2]


def lookup(builder: DataflowBuilder, url: str, schema: str, **more: Any) -> Lookup:
    table = builder.table.jdbc(url, schema=schema, **SECRETS, **more)
    stream = builder.read.json("/d/{location}", "k string").join(table, "k")
    assert isinstance(stream.operator, Lookup)
    return stream.operator


def test_types_of_postgresql_arrive_as_declared(own: LocalEndpoint, url: str) -> None:
    schema = "k string, name string, most double, since timestamp, seen timestamp, id string, about string"
    found = database_rows(
        own.session(), lookup(hw.flow("f", locations=["L1"]), url, schema, table="machines")
    ).toArrow()
    zero = next(row for row in found.to_pylist() if row["k"] == "k0")
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (zero["most"], zero["since"], zero["seen"], zero["about"]) == (1.5, noon, noon, '{"a": 1}')
    assert len(zero["id"]) == 36


def test_a_query_cannot_write(own: LocalEndpoint, url: str, postgresql: str) -> None:
    import psycopg

    builder = hw.flow("f", locations=["L1"])
    writes = lookup(builder, url, "k string, n int", query="SELECT k, written() AS n FROM machines")
    with pytest.raises(Exception, match="read-only transaction"):
        database_rows(own.session(), writes).toArrow()
    with psycopg.connect(postgresql) as connection:
        assert connection.execute("SELECT count(*) FROM traces").fetchone() == (0,)


def test_the_secret_is_read_where_the_database_is_read(
    own: LocalEndpoint, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = hw.flow("f", locations=["L1"])
    read = lookup(builder, url, "k string", table="machines")
    monkeypatch.setenv("HEADWATER_SECRET_DB_USER", "stranger")
    with pytest.raises(RuntimeFailure, match="stranger") as caught:
        database_rows(own.session(), read)
    assert "a-secret" not in str(caught.value)
    monkeypatch.delenv("HEADWATER_SECRET_DB_USER")
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_DB_USER is not set"):
        database_rows(own.session(), read)


def test_equals_one_batch_run(own: LocalEndpoint, url: str, tmp_path: Path) -> None:
    items = rows(20, seed=3)
    items["L1"] = [*items["L1"][:6], PAUSE, *items["L1"][6:12], KILL, *items["L1"][12:]]
    source = BoundedSource(tmp_path / "in", items, rows_per_file=5)
    builder = hw.flow("joined", locations=LOCATIONS)
    machines = builder.table.jdbc(url, "public.machines", "k string, name string, most decimal(6, 2)", **SECRETS)
    query = "SELECT k, count(*) AS names FROM machines WHERE name <> 'a;b' GROUP BY k"
    names = builder.table.jdbc(url, schema="k string, names bigint", query=query, refresh="1 second", **SECRETS)
    readings = builder.read.json(source.path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    known = readings.join(machines, "k").to_layer("cloud").join(names, "k")
    known.group_by(hw.window("ts", "10 seconds"), "name").agg(n="count(*)", m="max(most)", s="max(names)").write.memory(
        "windows"
    )
    readings.select("id", "k").to_layer("site").join(machines, "k", how="left").write.memory("every")
    outcome = check_equivalent(builder.build(), Continuum.from_text(CONTINUUM), own, tmp_path / "run", source=source)
    assert all(outcome.rows.values())
