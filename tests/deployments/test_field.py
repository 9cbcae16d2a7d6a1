"""The comparison's dataflows mean the same to Headwater and to plain Spark; its quick form runs to the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import flinkenv
from benchmarks.common import ROOT
from benchmarks.field import report
from benchmarks.field.feed import make_feed
from benchmarks.field.variants import SHAPE
from benchmarks.field.workloads import WORKLOADS
from benchmarks.flowunits.storage import Storage
from benchmarks.flowunits.workload import continuum_text
from headwater.continuum.model import Continuum
from headwater.core.errors import Unavailable
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests.conformance.labs import running
from tests.missing import skip

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


_PLAN = """
import json, sys
from pyflink.datastream import StreamExecutionEnvironment
from benchmarks.field import flink_query

def execute_async(streams, name):
    nodes = streams._j_stream_execution_environment.getStreamGraph(False).getStreamNodes().toArray()
    for node in nodes:
        above = [edge.getSourceId() for edge in node.getInEdges()]
        where = [node.getSlotSharingGroup(), node.getParallelism()]
        print(json.dumps([node.getId(), node.getOperatorName(), *where, above]))

StreamExecutionEnvironment.execute_async = execute_async
settings = flink_query.Settings({"parallelism.default": "5"}, 4, {"heap": 128, "managed": 32})
flink_query.submit(settings, json.loads(sys.argv[1]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "at_the_end"),
    [("routes", ("results", 1)), ("means", ("default", 5))],
    ids=["routes", "means"],
)
def test_tasks_of_flink_are_beside_their_files_and_their_results(name: str, at_the_end: tuple[str, int]) -> None:
    try:
        python = flinkenv.python(flinkenv.directory(), install=False)
    except Unavailable:
        skip("PyFlink is not installed")
    inputs = {location: f"file:///in/{location}" for location in LOCATIONS}
    query = {"inputs": inputs, **asdict(WORKLOADS[name].flink), "results": "file:///out", "poll_ms": 200}
    command = [str(python), "-c", _PLAN, json.dumps(query)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    tasks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    kinds = {number: kind.split("[")[0].removeprefix("Source: ") for number, kind, *_ in tasks}
    placed: dict[str, list[tuple[str, int]]] = {}
    for number, _, group, parallelism, _ in tasks:
        placed.setdefault(kinds[number], []).append((group, parallelism))
    assert [placed[f"in_{location}"] for location in LOCATIONS] == [[(f"files-{at}", 1)] for at in LOCATIONS]
    assert sorted(placed["LocalWindowAggregate"]) == [(f"files-{at}", 1) for at in LOCATIONS]
    assert placed["GlobalWindowAggregate"] == [("default", 5)]
    assert placed["StreamingFileWriter"] == [at_the_end]
    # Both partial aggregates go to the whole one, and each reads one location.
    above = {kinds[number]: sorted(kinds[one] for one in inputs_of) for number, *_, inputs_of in tasks}
    assert above["GlobalWindowAggregate"] == ["LocalWindowAggregate"] * 2
    assert above["LocalWindowAggregate"] == ["Calc"]


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
        for system in ("flink-cloud", "flink-stretched"):
            if "failed" in found[system]:  # without a network there is no PyFlink
                assert found.pop(system)["failed"] == "not installed"
        figures = {system: report.figures(run) for system, run in found.items()}
        assert all(value > 0 for those in figures.values() for value in those.values()), name
        assert all(those["p50_s"] <= those["p99_s"] for those in figures.values())
        # Headwater sends partial results over the edges' links, what is shipped to the cloud are all rows.
        assert all(figures["headwater"][link] < figures["spark-cloud"][link] / 2 for link in report.LINKS)
