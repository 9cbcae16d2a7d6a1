"""The data of a rewritten deployment changes: the loop reorders its filters, and the sinks equal the batch run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import pytest

import headwater as hw
from headwater.adapt.slo import SLO
from headwater.app import deployments, objectives
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.control.records import Decision
from headwater.control.store import StoreReader
from headwater.dataflow.graph import Dataflow
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import OperatorProfile, Profile
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests.deployments.controllers import Controller, running, sink_rows, story
from tests.patience import PATIENCE

CONTINUUM = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 2, memory: 1GiB}}}
""")
NAME = "filters"
SCHEMA = "id bigint, ts timestamp, k string, a int, b int, ballast string"
LONG = ", ".join(["ballast"] * 40)
COSTLY = f"NOT contains(initcap(initcap(concat({LONG}))), ' ')"
"""True of every row, after half a millisecond."""


def written(path: str) -> Dataflow:
    """Build two costly filters, and counts by window in the cloud, which are split over zones."""
    builder = hw.flow(NAME, locations=["L1"])
    rows = builder.read.json(path, SCHEMA).with_watermark("ts", "1 second").named("rows")
    kept = rows.where(f"{COSTLY} AND a = 0").named("first").where(f"{COSTLY} AND b = 0").named("second")
    counts = kept.to_layer("cloud").group_by(hw.window("ts", "5 seconds"), "k").agg(n="count(*)", most="max(id)")
    counts.named("counts").select("window.end AS until", "k", "n", "most").named("told").write.memory("out")
    return builder.build()


PROFILE = Profile(
    dataflow=NAME,
    operators={
        "first": OperatorProfile(cpu_s=4e-4, selectivity=0.1),
        "second": OperatorProfile(cpu_s=4e-4, selectivity=0.9),
        "counts": OperatorProfile(cpu_s=5e-6, selectivity=0.1),
    },
)


class Feed(threading.Thread):
    """Write rows twice a second; at first ``a`` is rarely 0, later ``b`` is.

    Each filter drops rows that the other keeps.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self._place, self._over, self.drifted = place, threading.Event(), threading.Event()
        place.mkdir(parents=True)

    def run(self) -> None:
        number = 0
        while not self._over.wait(0.5):
            number += 1
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            rare, often = ("b", "a") if self.drifted.is_set() else ("a", "b")
            draft = self._place / f".{number:06d}"
            with draft.open("w") as file:
                for n in range(60):
                    row = {"id": number * 100 + n, "ts": now, "k": f"k{n % 3}", "ballast": token_hex(150)}
                    file.write(f"{json.dumps({**row, rare: int(n % 10 != 0), often: int(n % 4 == 0)})}\n")
            draft.rename(self._place / f"{number:06d}.json")

    def end(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=5) as started:
        yield started


def order(plan: DeploymentPlan) -> list[str]:
    return [id_ for id_ in plan.dataflow.order if id_ in ("first", "second")]


def wait_until_learned(place: Path) -> None:
    """Wait until the selectivities before the change are measured."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with closing(StoreReader.open(str(place / "store.db"))) as store:
            known = store.learned(NAME)
        if known is not None and known.written is not None and "rows" in known.profile.operators:
            return
        time.sleep(0.5)
    raise AssertionError(f"nothing was learned\n{story(place)}")


def reordered(place: Path) -> Decision:
    """Wait for the verdict on another rewriting."""
    store, deadline = str(place / "store.db"), time.monotonic() + PATIENCE
    while True:
        found = [d for d in objectives.decisions(NAME, store) if d.trigger == "rewriting"]
        if found and found[0].state in ("kept", "undone", "failed", "expired"):
            return found[0]
        assert time.monotonic() < deadline, f"{objectives.decisions(NAME, store)}\n{story(place)}"
        time.sleep(0.2)


@pytest.mark.long
def test_filters_are_reordered_while_rows_flow(endpoint: LocalEndpoint, tmp_path: Path, controller: Controller) -> None:
    """The filters are in the best order for the first data; other data come; no row and no open window is lost."""
    store, feed = str(tmp_path / "store.db"), Feed(tmp_path / "in" / "L1")
    flow, client = written(str(tmp_path / "in" / "{location}")), Client(store)
    feed.start()
    try:
        proposal = client.propose(
            PlanRequest(dataflow=flow, continuum=CONTINUUM, rewrite=True, profiles={NAME: PROFILE})
        )
        assert order(proposal.plan) == ["first", "second"] and "counts.partial" in proposal.plan.dataflow
        controller.carry_out(client.apply(proposal), kill=False)
        wait_until_learned(tmp_path)
        # A busy machine is full and slow, so neither load nor latency is a limit.
        objectives.set_slo(NAME, SLO(mode="auto", headroom=None, settle=8.0, cool_down=5.0), store)
        feed.drifted.set()
        found = reordered(tmp_path)
        assert found.state == "kept" and found.after is not None, found
        assert "filter-order at 'second'" in found.why
        if found.after["work"]["source_rows_per_s"]:  # else a busy machine took longer for a batch than it was judged
            assert "of the load of rows" in found.after["text"]
        active = client.in_force(NAME)
        assert order(active) == ["second", "first"] and "counts.partial" in active.dataflow
        assert active.written is not None and active.written.dataflow == flow
        objectives.set_slo(NAME, SLO(mode="off"), store)
    finally:
        feed.end()
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), flow, CONTINUUM)["out"]
    difference = compare(expected, sink_rows(tmp_path, NAME, "out"))
    assert (difference.lost, difference.duplicated) == (0, 0), difference
