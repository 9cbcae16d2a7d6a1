"""The comparison's dataflows mean the same to Headwater and to plain Spark; its quick form runs to the end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.common import ROOT
from benchmarks.field import report
from benchmarks.field.feed import make_feed
from benchmarks.field.variants import SHAPE
from benchmarks.field.workloads import WORKLOADS
from benchmarks.flowunits.storage import Storage
from benchmarks.flowunits.workload import continuum_text
from headwater.continuum.model import Continuum
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests.conformance.labs import running

LOCATIONS = tuple(SHAPE.edges.values())


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_both_forms_give_the_same_rows(name: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    workload, spark = WORKLOADS[name], endpoint.session()
    make_feed(workload, tmp_path / "in", LOCATIONS, [4, 2])
    flow = workload.dataflow(f"{tmp_path}/in/{{location}}", str(tmp_path / "out"), LOCATIONS)
    wanted = batch_result(spark, flow, Continuum.from_text(continuum_text(shape=SHAPE)))["result"]
    read = {
        location: spark.read.schema(workload.schema)
        .csv(str(tmp_path / "in" / location))
        .withColumn("location", F.lit(location))
        for location in LOCATIONS
    }
    found = workload.spark(read).toArrow()
    assert wanted.num_rows > 50
    assert not compare(wanted, found.select(wanted.column_names))


def test_spark_reads_the_files_of_an_edge_over_the_network(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    workload = WORKLOADS["means"]
    make_feed(workload, tmp_path, LOCATIONS, [1, 2])
    with Storage(("127.0.0.1", 0), tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        read = endpoint.session().read.schema(workload.schema)
        found = read.csv(f"webhdfs://127.0.0.1:{server.server_address[1]}/L2").toArrow()
        server.shutdown()
    assert not compare(read.csv(str(tmp_path / "L2")).toArrow(), found)
    assert found.num_rows == 3 * workload.rows_of_step // 2


@pytest.mark.long
def test_the_quick_form_gives_every_figure_of_every_system(tmp_path: Path) -> None:
    with running(continuum_text(shape=SHAPE), "field"):
        pass  # a lab can be made here
    command = [sys.executable, "-m", "benchmarks.field", "--quick", "--json", str(tmp_path / "field.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    dataflows = json.loads((tmp_path / "field.json").read_text())["dataflows"]
    assert {name: list(found) for name, found in dataflows.items()} == {key: list(report.NAMES) for key in WORKLOADS}
    for name, found in dataflows.items():
        if "failed" in found["flink-cloud"]:  # without a network there is no PyFlink
            assert found.pop("flink-cloud")["failed"] == "not installed"
        figures = {system: report.figures(run) for system, run in found.items()}
        assert all(value > 0 for those in figures.values() for value in those.values()), name
        assert all(those["p50_s"] <= those["p99_s"] for those in figures.values())
        # Headwater sends partial results over the edges' links, what is shipped to the cloud are all rows.
        assert all(figures["headwater"][link] < figures["spark-cloud"][link] / 2 for link in report.LINKS)
