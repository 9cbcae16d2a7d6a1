"""Two versions of Headwater in one deployment: an older agent with a newer controller, and the reverse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headwater as hw
from headwater.agent.agents import AgentClient
from headwater.app.loading import load_dataflow
from headwater.channels.credential import TOKEN_ENV, SiteSecret
from headwater.channels.wire import Credentials, Wire
from headwater.continuum.model import Continuum
from headwater.control.stamps import Stamps
from headwater.core.metrics import Progress
from headwater.plan.build import build
from headwater.plan.document import to_document
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.agents import AgentProcess
from tests.deployments.flows import rows
from tests.deployments.test_handover import written
from tests.deployments.test_replay import until
from tests.deployments.versions import (
    NEWER_VERSION,
    OLDER_VERSION,
    ROOT,
    installed_wheel,
    numbered_tree,
    older_tree,
    run,
)

SITE = "a-site-secret-of-two-versions"

FLOW = """
import headwater as hw


def most(state, row):
    highest = row["v"] if state is None else max(state, row["v"])
    return highest, {{**{{n: row[n] for n in ("id", "ts", "location", "k")}}, "most": highest}}


flow = hw.flow("moving", locations=["L1"])
schema = "id bigint, ts timestamp, k string, v double, tags array<string>"
read = flow.read.json({read!r}, schema, location_as="location").named("read")
clean = read.with_watermark("ts", "10 seconds").where("v IS NOT NULL").named("clean")
once = clean.drop_duplicates("id", "location").named("once")
rising = once.scan(
    most, "id bigint, ts timestamp, location string, k string, most double", keys=["location", "k"],
    order_by=["ts", "id"],
).named("rising")
windows = rising.to_layer("cloud").group_by(hw.window("ts", "10 seconds"), "location", "k")
counted = windows.agg(n="count(*)", most="max(most)").named("counted")
counted.select("window.start AS begin", "location", "k", "n", "most").named("list").write.parquet({out!r})
"""


def continuum(agents: dict[str, AgentProcess]) -> str:
    at = {zone: f"at: '{agent.address}'" for zone, agent in agents.items()}
    zones = f"C1: {{layer: cloud, {at['C1']}}}, E1: {{layer: edge, parent: C1, locations: [L1], {at['E1']}}}"
    return f"layers: [edge, cloud]\nzones: {{{zones}}}\n"


HOLD = f"""
import json, sys
from headwater.agent.agents import AgentClient
from headwater.channels.credential import SiteSecret
from headwater.channels.wire import Credentials, Wire
from headwater.control.stamps import Stamps
from headwater.core.jsonform import dump
from headwater.plan.document import from_document
from headwater.plan.spec import spec_of
address, document = sys.argv[1:]
wire = Wire(address, Credentials(SiteSecret.parse({SITE!r}, where="test").of("E1").order_token), "E1")
client = AgentClient("E1", lambda call, body, seconds: wire.ask(call, body, seconds=seconds), Stamps("older", 1))
client.hello()
plan = from_document(json.loads(open(document).read()))
(unit,) = [u for u in plan.units if u.node == "E1"]
spec = spec_of(plan, unit.id)
held = wire.ask("hold", {{"spec": dump(spec)}})
print(json.dumps([held == spec.digest, sorted(client.report().progress)]))
"""
"""A client of any version: hold a unit at an agent, and read its report."""


@pytest.mark.parametrize("older", ["agent", "client"])
def test_an_agent_and_a_client_of_two_versions_understand_each_other(tmp_path: Path, older: str) -> None:
    """Without Spark: what they say of themselves, a unit's description, and a report."""
    trees = {"older": older_tree(tmp_path / "older"), "present": ROOT}
    agent = AgentProcess(tmp_path, "E1", SITE, tree=trees["older" if older == "agent" else "present"])
    f = hw.flow("tiny", locations=["L1"])
    timed = f.read.csv("/in/{location}", "id bigint, ts timestamp").with_watermark("ts", "5 seconds")
    timed.group_by(hw.window("ts", "10 seconds")).agg(n="count(*)").to_layer("cloud").write.memory("out")
    zones = "layers: [edge, cloud]\nzones: {C1: {layer: cloud}, E1: {layer: edge, parent: C1, locations: [L1]}}"
    plan = build(f.build(), Continuum.from_text(zones))
    (tmp_path / "plan.json").write_text(json.dumps(to_document(plan)))
    agent.start()
    try:
        command = ("-c", HOLD, agent.address, str(tmp_path / "plan.json"))
        tree = trees["older" if older == "client" else "present"]
        assert json.loads(run(tree, *command, cwd=tmp_path)) == [True, ["tiny"]]
        token = SiteSecret.parse(SITE, where="test").of("E1").order_token
        wire = Wire(agent.address, Credentials(token), "E1")
        client = AgentClient("E1", lambda call, body, s: wire.ask(call, body, seconds=s), Stamps("newer", 1))
        assert client.hello().get("version") == (hw.__version__ if older == "client" else OLDER_VERSION)
        assert isinstance(client.progress("tiny"), Progress)
    finally:
        agent.end()


@contextmanager
def controller(tree: Path, place: Path) -> Iterator[None]:
    """Run `headwater up` of a version."""
    environment = {**os.environ, "PYTHONPATH": str(tree), TOKEN_ENV: SITE}
    command = ("up", "--listen", "none", "--store", str(place / "store.db"), "--home", str(place / "home"))
    with (place / "up.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater", *command], cwd=place, env=environment, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.long
@pytest.mark.parametrize("older", ["agents", "edge agent", "controller"])
def test_a_unit_is_moved_between_versions(endpoint: LocalEndpoint, tmp_path: Path, older: str) -> None:
    """A unit is moved up and down while rows flow; in between, the older side is upgraded."""
    place = tmp_path.resolve()
    old = installed_wheel(older_tree(place / "older"), place / "old-wheel")
    new = installed_wheel(numbered_tree(place / "newer", NEWER_VERSION), place / "new-wheel")
    upgraded = {"agents": ("C1", "E1"), "edge agent": ("E1",), "controller": ()}[older]
    options = ("--state-store", str(place / "state"), "--trigger", "100 milliseconds")
    agents = {
        zone: AgentProcess(place / "agents", zone, SITE, *options, tree=old if zone in upgraded else new)
        for zone in ("C1", "E1")
    }
    source = BoundedSource(place / "in", {"L1": rows(160, seed=31)["L1"]}, rows_per_file=20)
    flow, zones = place / "flow.py", place / "zones.yaml"
    flow.write_text(FLOW.format(read=source.path, out=str(place / "out")))
    zones.write_text(continuum(agents))
    acting = old if older == "controller" else new

    def headwater(*command: str) -> str:
        return run(acting, "-m", "headwater", *command, "--store", str(place / "store.db"), cwd=place)

    def hosts() -> dict[str, str]:
        status = json.loads(headwater("status", "moving", "--json"))
        return {host["zone"]: host.get("version", "") for host in status["hosts"]}

    files = iter(source.release())

    def feed(count: int) -> None:
        for _ in range(count):
            next(files, None)

    try:
        for agent in agents.values():
            agent.start()
        with controller(acting, place):
            feed(2)
            headwater("apply", str(flow), "-c", str(zones), "--yes", "--wait")
            feed(2)
            headwater("move", "rising", "--to", "cloud", "--yes", "--wait")
            feed(1)
            if older != "controller":
                expected = {zone: OLDER_VERSION if zone in upgraded else NEWER_VERSION for zone in agents}
                until(lambda: hosts() == expected, f"the versions {expected}")
        acting = new
        for zone in upgraded:
            agents[zone].end()
            agents[zone].tree = new
        feed(1)
        for zone in upgraded:
            agents[zone].start()
        with controller(acting, place):
            until(lambda: hosts() == dict.fromkeys(agents, NEWER_VERSION), "both agents of the newer version")
            headwater("move", "once", "--to", "edge", "--yes", "--wait")
            headwater("move", "rising", "--to", "edge", "--yes", "--wait")
            feed(99)
            headwater("stop", "moving", "--finish", "--wait")
    finally:
        for agent in agents.values():
            agent.end()
    dataflow = load_dataflow(str(flow)).dataflow
    expected_rows = batch_result(endpoint.session(), dataflow, Continuum.from_text(zones.read_text()))
    (sink,) = expected_rows
    assert not compare(expected_rows[sink], written(place / "out"))
    assert expected_rows[sink].num_rows > 10
