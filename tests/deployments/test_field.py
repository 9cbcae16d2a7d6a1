"""The dataflows of the comparison mean the same to Headwater and as queries of plain Spark."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.field.feed import make_feed
from benchmarks.field.variants import SHAPE
from benchmarks.field.workloads import WORKLOADS
from benchmarks.flowunits.storage import Storage
from benchmarks.flowunits.workload import continuum_text
from headwater.continuum.model import Continuum
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare

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
