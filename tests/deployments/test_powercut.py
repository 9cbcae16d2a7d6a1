"""After a power cut the sinks hold what one batch run gives, or the unit says what is missing."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.errors import DeploymentError
from headwater.dataflow.builder import DataflowBuilder
from headwater.disk.checkpoint import cut_off
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.conftest import start_endpoint
from tests.deployments.flows import FLOWS, SCHEMA, rows
from tests.deployments.powercut import DAMAGES, Damage, cut_power
from tests.powercuts.deployment import CONTINUUM as ONE_LOCATION
from tests.powercuts.deployment import SETTINGS

CONTINUUM = Continuum.from_text("""
name: small
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1, L2, L4]}
""")
ROWS = 60


@pytest.fixture(scope="module")
def own_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    """Yield a Spark that tests may kill and then start again."""
    started = start_endpoint(tmp_path_factory.mktemp("spark"))
    yield started
    started.stop()


def run(plan: DeploymentPlan, directory: Path, endpoint: LocalEndpoint) -> LocalRun:
    found = LocalRun(plan, directory, endpoint, SETTINGS)
    found.start()
    return found


def results(deployment: LocalRun, plan: DeploymentPlan) -> dict[str, pa.Table]:
    return {sink.id: deployment.sink_rows(sink.id) for sink in plan.dataflow.sinks}


def await_batch(directory: Path) -> None:
    """Wait until a batch of any unit is planned and not done, or all seem to be done for good."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(cut_off(checkpoint) for checkpoint in (directory / "checkpoints").iterdir()):
            return


def windows(path: str) -> DataflowBuilder:
    """Clean the rows of one location at the edge, count them in windows at the site: two units, one with state."""
    builder = hw.flow("test", locations=["L1"])
    clean = builder.read.json(path, SCHEMA, location_as="location").where("v IS NOT NULL")
    timed = clean.with_watermark("ts", "5 seconds").to_layer("site")
    timed.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", best="max_by(id, v)").write.memory("counts")
    return builder


def check(
    flow: Callable[[str], DataflowBuilder],
    continuum: Continuum,
    damages: list[Damage],
    endpoint: LocalEndpoint,
    directory: Path,
    *,
    seed: int,
) -> None:
    """Run a dataflow, cut the power after each input file, and compare its sinks with the batch run."""
    rng = random.Random(seed)
    given = {location: made for location, made in rows(ROWS, seed=seed).items() if location in continuum.locations}
    count = -(-min(map(len, given.values())) // (len(damages) + 1))
    source = BoundedSource(directory / "in", given, rows_per_file=count)
    plan = build(flow(source.path).build(), continuum)
    deployment = run(plan, directory / "run", endpoint)
    cuts, gone = iter(damages), []
    try:
        for _ in source.release():
            if (damage := next(cuts, None)) is not None:
                # In the middle of a batch, or when all have ended and the newest are not synced.
                await_batch(directory / "run") if rng.random() < 0.5 else deployment.settle()
                endpoint.kill()
                gone += cut_power(directory / "run", damage, rng)
                endpoint.restart()
                deployment = run(plan, directory / "run", endpoint)
        assert next(cuts, None) is None, "not every cut was made"
        assert gone, "all was synced at every cut: the test shows nothing"
        deployment.drain()
        found = results(deployment, plan)
    finally:
        deployment.stop()
    expected = batch_result(endpoint.session(), plan.dataflow, continuum)
    for name in expected:
        difference = compare(expected[name], found[name])
        assert not difference, (name, difference)


@pytest.mark.parametrize(
    "damages", [["emptied"], pytest.param(["emptied", "any of it"], marks=pytest.mark.long)], ids="-".join
)
def test_a_power_cut_loses_no_rows(own_endpoint: LocalEndpoint, tmp_path: Path, damages: list[str]) -> None:
    check(windows, ONE_LOCATION, [DAMAGES[name] for name in damages], own_endpoint, tmp_path, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("flow", ["acme", "keyed", "joined", "stateless", "together"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seed", range(3))
def test_power_cuts_again_and_again(
    flow: str, damage: str, seed: int, own_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    check(FLOWS[flow], CONTINUUM, [DAMAGES[damage]] * 3, own_endpoint, tmp_path, seed=seed)


@pytest.mark.long
def test_a_checkpoint_that_was_put_back_is_refused(own_endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """Put back the checkpoint of the unit in the middle, whose input and output have gone on."""
    source = BoundedSource(tmp_path / "in", rows(ROWS, seed=2), rows_per_file=15)
    plan = build(FLOWS["acme"](source.path).build(), CONTINUUM)
    deployment = run(plan, tmp_path / "run", own_endpoint)
    (unit,) = (u for u in plan.units if u.zone == "S1")
    checkpoint = deployment.layout.checkpoint(unit)
    try:
        files = iter(source.release())
        for _ in range(3):
            next(files)
            deployment.settle()
        deployment.stop()
        shutil.copytree(checkpoint, tmp_path / "backup")
        deployment = run(plan, tmp_path / "run", own_endpoint)
        for _ in files:
            deployment.settle()
    finally:
        deployment.stop()
    now = checkpoint.rename(tmp_path / "now")
    shutil.copytree(tmp_path / "backup", checkpoint)
    again = LocalRun(plan, tmp_path / "run", own_endpoint, SETTINGS)
    try:
        with pytest.raises(DeploymentError, match="missing") as caught:
            again.start()
        assert unit.id in str(caught.value.where)
    finally:
        again.stop()
    # With the newer one it goes on.
    shutil.rmtree(checkpoint)
    now.rename(checkpoint)
    again = run(plan, tmp_path / "run", own_endpoint)
    try:
        again.drain()
        found = results(again, plan)
    finally:
        again.stop()
    expected = batch_result(own_endpoint.session(), plan.dataflow, CONTINUUM)
    differences = [compare(expected[name], found[name]) for name in expected]
    assert not any(differences), differences
