"""Break an SLO while a deployment runs: the policy changes the deployment, and the sinks equal the batch run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import pytest

import headwater as hw
from headwater.adapt.slo import SLO
from headwater.app import deployments, objectives
from headwater.continuum.model import Continuum
from headwater.control.records import Decision
from headwater.control.store import StoreReader
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, apply, running, sink_rows, story
from tests.patience import PATIENCE

CONTINUUM = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 2, memory: 1GiB}}}
""")
NAME = "loop"
SCHEMA = "id bigint, ts timestamp, k string, ballast string"
LIMIT = 6_000.0
"""Bytes/s into the cloud: the ballast of every row exceeds this by far, and counts by window never do."""


def planned(path: str, address: str) -> DeploymentPlan:
    """Plan rows sent up unfiltered, and counted in the cloud; all operators but the sink could be at the edge.

    ``address`` is the Spark of both zones.
    """
    builder = hw.flow(NAME, locations=["L1"])
    rows = builder.read.json(path, SCHEMA).with_watermark("ts", "1 second").named("rows")
    counts = (
        rows.to_layer("cloud")
        .group_by(hw.window("ts", "5 seconds"), "k")
        .agg(n="count(*)", most="max(id)", length="sum(length(ballast))")
        .named("counts")
    )
    counts.select("window.end AS until", "k", "n", "most", "length").named("told").write.memory("out")
    return build(builder.build(), on_spark(CONTINUUM, address))


class Feed(threading.Thread):
    """Write rows twice a second; their event time is that of the clock."""

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self._place, self._over = place, threading.Event()
        place.mkdir(parents=True)

    def run(self) -> None:
        number = 0
        while not self._over.wait(0.5):
            number += 1
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            rows = (
                {
                    "id": number * 100 + n,
                    "ts": now,
                    "k": f"k{n % 3}",
                    "ballast": token_hex(150),
                }
                for n in range(50)
            )
            draft = self._place / f".{number:06d}"
            draft.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            draft.rename(self._place / f"{number:06d}.json")

    def end(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def controller(tmp_path: Path, spark_address: str) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=3) as started:
        yield started


def decided(place: Path, fits: Callable[[Decision], bool]) -> Decision:
    """Wait for a decision."""
    store, deadline = str(place / "store.db"), time.monotonic() + PATIENCE
    while True:
        found = [d for d in objectives.decisions(NAME, store) if fits(d)]
        if found:
            return found[0]
        assert time.monotonic() < deadline, f"{objectives.decisions(NAME, store)}\n{story(place)}"
        time.sleep(0.2)


def wait_until_learned(place: Path) -> None:
    """Wait until the few rows of the counts are measured."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with closing(StoreReader.open(str(place / "store.db"))) as store:
            counts = store.known(NAME).profile.operators.get("counts")
        if counts is not None and counts.selectivity < 0.5:
            return
        time.sleep(0.5)
    raise AssertionError(f"nothing was learned\n{story(place)}")


def test_a_limit_that_is_broken_moves_what_can_be_moved(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    """Rows with ballast move to the edge to be counted when they exceed the link's capacity; no row is lost.

    The move is proposed first, and approved; the controller is killed while it executes the move.
    """
    store, feed = str(tmp_path / "store.db"), Feed(tmp_path / "in" / "L1")
    feed.start()
    try:
        plan = planned(str(tmp_path / "in" / "{location}"), spark_address)
        controller.carry_out(apply(plan, store), kill=False)
        wait_until_learned(tmp_path)
        # A busy machine is full, so the load of hosts is no limit.
        slo = SLO(mode="advise", max_bandwidth=LIMIT, headroom=None, settle=8.0)
        objectives.set_slo(NAME, slo, store)
        found = decided(tmp_path, lambda d: d.state == "proposed")
        assert "max_bandwidth" in found.trigger
        assert found.data["measured"]["bandwidth_bytes_per_s"] > LIMIT
        chosen = found.data["alternatives"][found.data["chosen"]]
        assert chosen["layers"]["counts"] == "edge" and chosen["bandwidth_bytes_per_s"] < LIMIT
        version = objectives.approve(found.id, store)
        controller.carry_out(version, kill=True)
        ended = decided(tmp_path, lambda d: d.id == found.id and d.state in ("kept", "undone"))
        assert ended.state == "kept" and ended.after is not None, ended
        assert ended.after["bandwidth_bytes_per_s"] < LIMIT
        objectives.set_slo(NAME, SLO(mode="off"), store)
    finally:
        feed.end()
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), plan.dataflow, CONTINUUM)["out"]
    difference = compare(expected, sink_rows(tmp_path, NAME, "out"))
    assert (difference.lost, difference.duplicated) == (0, 0), difference
