"""A location goes, another one comes below the same site, and operators move: one change, and each row counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, apply, check_sinks
from tests.deployments.flows import SCHEMA, rows
from tests.deployments.test_handover import (
    NAME,
    controller,  # noqa: F401
    wait_until_read,
)

CONTINUUM = """
name: exchange
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  S1: {layer: site, parent: C1, hosts: {s1: {n_cpu: 1, memory: 1GiB}}}
  S2: {layer: site, parent: C1, hosts: {s2: {n_cpu: 1, memory: 1GiB}}}
  E1: {layer: edge, parent: S2, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: S1, locations: [L2], hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
  E4: {layer: edge, parent: S2, locations: [L4], hosts: {e4: {n_cpu: 1, memory: 1GiB}}}
"""


def flow_of(path: str, locations: list[str], windows: str, upper: str) -> Dataflow:
    """Filter at the edge; windows by location, and windows of windows, each in a layer."""
    builder = hw.flow(NAME, locations=locations)
    timed = builder.read.json(path, SCHEMA, location_as="location").named("read").with_watermark("ts", "5 seconds")
    warm = timed.where("v > 5").named("warm").to_layer(windows)
    counts = warm.group_by(hw.window("ts", "10 seconds"), "location", "k").agg(n="count(*)").named("counts")
    above = counts.to_layer(upper)
    above.where("n > 0").select("window.start AS begin", "location", "k", "n").named("kept").write.memory("rows")
    total = above.group_by(hw.window("window", "40 seconds"), "location").agg(n="sum(n)").named("total")
    total.write.memory("windows")
    return builder.build()


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("site", "cloud"), ("site", "site")),
        (("cloud", "cloud"), ("site", "site")),
        (("site", "site"), ("cloud", "cloud")),
        (("cloud", "cloud"), ("site", "cloud")),
    ],
)
def test_no_row_is_lost_or_doubled(
    before: tuple[str, str], after: tuple[str, str], spark_address: str, endpoint: LocalEndpoint, tmp_path: Path,
    controller: Controller,  # noqa: F811
) -> None:  # fmt: skip
    made = rows(60, seed=7)
    later = made["L4"][len(made["L4"]) // 2 :]
    source = BoundedSource(tmp_path / "in", {"L1": made["L1"], "L2": made["L2"], "L4": later}, rows_per_file=7)
    released = iter(source.release())
    continuum = on_spark(Continuum.from_text(CONTINUUM), spark_address)
    plans = [
        build(flow_of(source.path, ["L1", "L2"], *before), continuum),
        build(flow_of(source.path, ["L2", "L4"], *after), continuum),
    ]
    store = str(tmp_path / "store.db")
    controller.carry_out(apply(plans[0], store), kill=False)
    for _ in range(5):
        next(released)
    wait_until_read(tmp_path, plans[0], len(made["L1"]))  # a location goes with the rows that were not read
    controller.carry_out(apply(plans[1], store), kill=True)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=True)
    whole = flow_of(source.path, ["L1", "L2", "L4"], *after)
    check_sinks(tmp_path, NAME, batch_result(endpoint.session(), whole, continuum))
