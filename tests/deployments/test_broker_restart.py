"""A Kafka broker that is killed under a running deployment and started again: units wait and continue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.metrics import Progress
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, Difference, ZoneRun, batch_result, compare
from tests.conftest import running_broker
from tests.deployments.flows import SCHEMA, rows
from tests.faults import until

CONTINUUM = """
name: small
layers: [edge, cloud]
zones:
  C1: {{layer: cloud, broker: '{broker}', hosts: {{c1: {{n_cpu: 1, memory: 1GiB}}}}}}
  E1: {{layer: edge, parent: C1, locations: [L1], hosts: {{e1: {{n_cpu: 1, memory: 1GiB}}}}}}
"""


@contextlib.contextmanager
def restarted(broker: LocalBroker) -> Iterator[None]:
    """Start a killed broker again, on its port and with its data."""
    again = LocalBroker.start(broker.directory, port=broker.port)
    try:
        yield
    finally:
        again.stop()


def prepared(directory: Path, broker: LocalBroker) -> tuple[DeploymentPlan, BoundedSource]:
    """Plan rows and windows whose only channel is a topic of the broker."""
    source = BoundedSource(directory / "in", {"L1": rows(160, seed=11)["L1"]}, rows_per_file=10)
    builder = hw.flow("restart", locations=["L1"])
    read = builder.read.json(source.path, SCHEMA, location_as="location")
    clean = read.where("v IS NOT NULL").with_watermark("ts", "5 seconds").named("clean")
    cloud = clean.to_layer("cloud")
    cloud.select("id", "k", "v").write.memory("rows")
    cloud.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", best="max_by(id, v)").write.memory("windows")
    plan = build(builder.build(), Continuum.from_text(CONTINUUM.format(broker=broker.address)))
    assert [c.broker for c in plan.channels] == ["C1"]
    return plan, source


def waits_for_broker(progress: Progress, *, ended: bool = False) -> bool:
    """Return whether all units say that they wait for the broker; ``ended``: and Spark has ended their queries."""
    assert not progress.failed and not any(u.error for u in progress.units), progress.units
    said = all("no Kafka broker" in (u.waits or "") for u in progress.units)
    return said and (not ended or all(u.status == "starting" for u in progress.units))


@contextlib.contextmanager
def outage(
    broker: LocalBroker, source: BoundedSource, run: LocalRun | ZoneRun, seen: Callable[[], Progress], *, ended: bool
) -> Iterator[None]:
    """Kill the broker under a run and start it again; release input before, meanwhile and after."""
    files = iter(source.release())
    next(files)
    run.settle()
    broker.kill()
    next(files)
    until(lambda: waits_for_broker(seen(), ended=ended), "the wait")
    next(files)
    with restarted(broker):
        until(lambda: not any(u.waits for u in seen().units), "the end of the wait")
        list(files)
        yield


def differences(plan: DeploymentPlan, endpoint: LocalEndpoint, got: Mapping[str, pa.Table]) -> dict[str, Difference]:
    assert set(got) == {"rows", "windows"} and all(t.num_rows for t in got.values()), "an empty result proves nothing"
    expected = batch_result(endpoint.session(), plan.dataflow, plan.continuum)
    return {sink: found for sink, table in got.items() if (found := compare(expected[sink], table))}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ended", [pytest.param(ended, marks=pytest.mark.long) for ended in (False, True)])
def test_a_run_waits_for_its_broker(ended: bool, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """``ended``: the broker is away until Spark has ended the queries."""
    with running_broker(tmp_path / "kafka") as broker:
        plan, source = prepared(tmp_path, broker)
        run = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))

        def seen() -> Progress:
            run.look()
            return run.progress()

        run.start()
        try:
            with outage(broker, source, run, seen, ended=ended):
                run.drain()
                got = {sink: run.sink_rows(sink) for sink in ("rows", "windows")}
                assert run.progress().finished
        finally:
            run.stop()
    assert differences(plan, endpoint, got) == {}


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_zones_wait_for_their_broker(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """Each zone has an agent and a Spark, and no one tells them that the broker is back."""
    with running_broker(tmp_path / "kafka") as broker:
        plan, source = prepared(tmp_path, broker)
        name = plan.dataflow.name
        with ZoneRun(plan, tmp_path / "home") as run:

            def seen() -> Progress:
                return run.node("E1").progress(name).joined(run.node("C1").progress(name))

            run.start()
            with outage(broker, source, run, seen, ended=True):
                run.finish()
                got = run.rows()
    assert differences(plan, endpoint, got) == {}
