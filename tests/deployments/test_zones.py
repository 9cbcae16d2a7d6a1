"""Zones with an agent, a Spark and a disk of their own, under failures: the sinks equal the batch run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, ZoneRun, batch_result, compare
from tests.conftest import on_spark
from tests.deployments.flows import FLOWS, SCHEMA, rows

CONTINUUM = """
name: small
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  S1: {layer: site, parent: C1, hosts: {s1: {n_cpu: 1, memory: 1GiB}}, locations: [L4]}
  E1: {layer: edge, parent: S1, locations: [L1, L2], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
"""


def prepared(directory: Path, name: str, *, count: int, per_file: int) -> tuple[DeploymentPlan, BoundedSource]:
    """Plan one of the tests' dataflows over three zones."""
    made = {k: v for k, v in rows(count, seed=5).items() if k != "L4"}
    source = BoundedSource(directory / "in", made, rows_per_file=per_file)
    builder = FLOWS[name](source.path)
    builder.locations = ("L1", "L2")
    return build(builder.build(), Continuum.from_text(CONTINUUM)), source


@pytest.mark.long
def test_what_befalls_zones_loses_nothing(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    plan, source = prepared(tmp_path, "acme", count=80, per_file=10)
    with ZoneRun(plan, tmp_path / "home") as run:
        run.start()
        harm: Iterator[object] = iter(
            (
                lambda: run.kill_agent("S1"),
                lambda: run.links["E1"].cut(),
                lambda: run.kill_spark("S1"),
                lambda: run.links["E1"].mend(),
                lambda: run.kill_agent("E1"),
            )
        )
        for number, _ in enumerate(source.release()):
            step = next(harm, None) if number else None
            if callable(step):
                step()
            elif number == 0:
                run.settle()
        run.finish()
        got = run.rows()
        seen = {zone: run.node(zone).progress(plan.dataflow.name) for zone in ("C1", "S1", "E1")}
    for zone, progress in seen.items():
        (host,) = progress.hosts
        assert (host.host, host.zone) == (zone.lower(), zone)
        assert 0 < host.cores <= (2 if zone == "C1" else 1)
        assert host.cpu_s > 0 and host.agent_s > 0 and host.memory > 0
        assert all(u.operators for u in progress.units)
    # Neither the cloud's agent nor its Spark was killed: the rows of its units are a part of Spark's rows.
    assert 0 < sum(u.cpu_s for u in seen["C1"].units) <= seen["C1"].hosts[0].cpu_s
    expected = batch_result(endpoint.session(), plan.dataflow, plan.continuum)
    assert {s: compare(expected[s], t) for s, t in got.items() if compare(expected[s], t)} == {}
    assert all(t.num_rows for t in got.values())


def test_zones_over_tls_with_a_new_certificate(endpoint: LocalEndpoint, spark_address: str, tmp_path: Path) -> None:
    """The certificate of the writer's agent is replaced while rows flow: its reader is told the new fingerprint."""
    source = BoundedSource(tmp_path / "in", {"L1": rows(120, seed=7)["L1"]}, rows_per_file=10)
    f = hw.flow("sealed", locations=["L1"])
    read = f.read.json(source.path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    read.to_layer("cloud").group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", v="sum(v)").write.memory(
        "out"
    )
    zones = "layers: [edge, cloud]\nzones:\n  C1: {layer: cloud}\n  E1: {layer: edge, parent: C1, locations: [L1]}\n"
    plan = build(f.build(), on_spark(Continuum.from_text(zones), spark_address))
    home = tmp_path / "home" / "zones"

    def known() -> tuple[str, str]:
        """Return the fingerprint of E1's certificate, and the address that C1 knows."""
        record, peers = (json.loads((home / file).read_text()) for file in ("E1/agent.json", "C1/peers.json"))
        assert record["address"].startswith("grpc+tls://") and len(record["certificate"]) == 71
        return record["certificate"], peers["E1"]

    with ZoneRun(plan, tmp_path / "home", options=("--quick", "--tls")) as run:
        run.start()
        for number, _ in enumerate(source.release()):
            if number == 0:
                run.settle()
                first, peer = known()
                assert peer == f"grpc+tls://{run.links['E1'].address}#{first}"
                run.kill_agent("E1")
                shutil.rmtree(home / "E1" / "tls")
        run.finish()
        second, peer = known()
        assert second != first and peer.endswith(f"#{second}")
        (link,) = run.node("E1").progress("sealed").links
        assert link.sent_share is not None and 0 < link.sent_share < 1, "its streams are measured"
        got = run.rows()
    expected = batch_result(endpoint.session(), plan.dataflow, plan.continuum)
    assert not compare(expected["out"], got["out"]) and got["out"].num_rows
