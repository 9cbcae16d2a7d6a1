"""Dataflows whose rows go down, or to zones by name, in one pool: each has the output of a run alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.app import deployments, pools
from headwater.continuum.model import Continuum
from headwater.control.store import StoreReader
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, running, sink_rows
from tests.deployments.downward import DOWNWARD
from tests.deployments.flows import rows
from tests.deployments.sideways import SIDEWAYS, TWO_CLOUDS
from tests.patience import PATIENCE

SHAPES = {**DOWNWARD, **SIDEWAYS}


@pytest.fixture
def controller(tmp_path: Path, spark_address: str) -> Iterator[Controller]:
    with running(pools.POOL, tmp_path, seed=13) as started:
        yield started


@pytest.mark.long
@pytest.mark.parametrize("shape", ["limits", "clouds"])
def test_each_has_the_output_of_a_run_alone(
    shape: str, endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    continuum = on_spark(Continuum.from_text(TWO_CLOUDS), spark_address)
    source = BoundedSource(tmp_path / "in", rows(60, seed=37), rows_per_file=20)
    flow, store = SHAPES[shape](source.path).build(), str(tmp_path / "store.db")
    for name in ("one", "two", "three"):
        change = pools.plan_submission(replace(flow, name=name), continuum, "team", store)
        controller.carry_out(change.apply().version, kill=False)
    controller.carry_out(pools.plan_removal("one", "team", store).apply().version, kill=True)
    with closing(StoreReader.open(store)) as reader:
        plan = reader.active_plan(pools.POOL)
    assert plan is not None and len(plan.dataflow.operators) < 2 * len(flow.operators), "they share operators"
    source.release_all()
    controller.carry_out(deployments.stop(pools.POOL, store, how="finish"), kill=True)
    expected = batch_result(endpoint.session(), flow, continuum)
    (pool,) = pools.pools(store)
    deadline = time.monotonic() + PATIENCE
    for name in ("two", "three"):
        for sink, wanted in expected.items():
            assert wanted.num_rows
            while found := compare(wanted, sink_rows(tmp_path, pools.POOL, pool[name].sinks[sink])):
                assert time.monotonic() < deadline and not found.duplicated, (name, sink, found)
                time.sleep(0.3)
