"""Results that are output as they change: seen early, and in the end equal to one batch run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.connectors.deltawriter import DeltaSinkWriter
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, BoundedSource, check_equivalent
from headwater.testing.readback import rows_in
from tests.conformance.postgresql import server
from tests.deployments.flows import CONTINUUM, LOCATIONS, SCHEMA, rows
from tests.deployments.test_oracle import DECISIONS
from tests.faults import until

pytest.importorskip("deltalake")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Yield the URL of a separate PostgreSQL server, without a user: it is that of the process."""
    import psycopg

    for url in server():
        with psycopg.connect(url, autocommit=True) as connection:
            role = psycopg.sql.Identifier(getuser())
            connection.execute(psycopg.sql.SQL("CREATE ROLE {} SUPERUSER LOGIN").format(role))
        yield f"postgresql://{url.rpartition('@')[2]}"


def results(source: str, url: str, out: Path) -> DataflowBuilder:
    """Write windows of the sites and of the cloud as they change, and those of the cloud also when they are final."""
    builder = hw.flow("updates", locations=LOCATIONS)
    read = builder.read.json(source, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    site = read.to_layer("site").drop_duplicates("id", "location").group_by(hw.window("ts", "20 seconds"), "location", "k")
    counted = site.agg(n="count(*)", most="max(v)").where("k <> 'k3'")
    start = counted.select("window.start AS start", "location", "k", "n", "most * 2 AS twice")
    start.write.output_mode("update").delta(str(out / "delta"), keys=["start", "location", "k"]).named("delta")
    start.to_layer("cloud").write.outputMode("update").postgres(
        url, "sites", keys=["start", "location", "k"]
    ).named("postgres")
    every = read.to_layer("cloud").group_by(hw.window("ts", "30 seconds", "10 seconds"))
    means = every.agg(n="count(*)", kinds="count(DISTINCT k)").named("means")
    means.write.memory("final")
    means.select("window.end AS end", "n", "kinds").write.output_mode("update").postgres(
        url, "means", keys="end"
    ).named("early")
    return builder


@pytest.mark.parametrize(
    "decision",
    [
        "unit per layer",
        pytest.param("unit per operator", marks=pytest.mark.long),
        pytest.param("one unit", marks=pytest.mark.long),
    ],
)
def test_equals_one_batch_run(decision: str, endpoint: LocalEndpoint, postgresql: str, tmp_path: Path) -> None:
    import psycopg

    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS sites, means, headwater_batches")
    items = rows(20, seed=5)
    items["L2"] = [*items["L2"][:9], PAUSE, *items["L2"][9:15], KILL, *items["L2"][15:]]
    source = BoundedSource(tmp_path / "in", items, rows_per_file=5)
    flow, continuum = results(source.path, postgresql, tmp_path / "out").build(), Continuum.from_text(CONTINUUM)
    wanted = DECISIONS[decision](flow, continuum)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=wanted, source=source)
    assert all(outcome.rows.values())
