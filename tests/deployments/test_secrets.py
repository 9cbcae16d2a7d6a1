"""Secrets of agents that run with their own credentials: out of reach of functions, and of other zones' agents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.channels.credential import TOKEN_ENV, Grant, SiteSecret
from headwater.channels.flight import FlightLog
from headwater.channels.wire import Credentials, Wire
from headwater.continuum.model import Continuum
from headwater.core.errors import DeploymentError
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, ZoneRun, batch_result, compare
from tests.deployments.agents import AgentProcess
from tests.deployments.flows import SCHEMA, rows

SITE = "site-secret-3f81c0a97d52e6b4"
SECRETS = {
    "HEADWATER_OWNER_TOKEN": "owner-token-5512aa",
    "HEADWATER_STORE": "postgresql://hw:store-password-77@localhost/none",
    "HEADWATER_SECRET_OTHER": "secret-of-others-91",
}
GRANTED, CONF = "secret-that-is-granted-13", "secret-of-spark-code-29"


def seen_by_a_function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return for each place the text that this process finds there."""
    found = {"os.environ": "\n".join(f"{k}={v}" for k, v in os.environ.items())}
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{process}/{name}", errors="replace") as file:
                    found[f"{process}/{name}"] = file.read()
            except OSError:
                continue
    process = os.getpid()
    parents = []
    while process > 1:
        with open(f"/proc/{process}/stat") as file:
            process = int(file.read().rpartition(")")[2].split()[1])
        parents.append(str(process))
    found["parents"] = " ".join(parents)
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": list(found), "text": list(found.values())})


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(TOKEN_ENV, SITE)
    return SITE


def test_a_function_finds_no_secret_in_environments_and_command_lines(tmp_path: Path, site: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("1\n")
    (tmp_path / "secrets.conf").write_text(f"spark.hadoop.test.password={CONF}\n")
    (tmp_path / "secrets.conf").chmod(0o600)
    options = ("--conf-file", str(tmp_path / "secrets.conf"), "--allow-secret", "GRANTED")
    environment = {**SECRETS, "HEADWATER_SECRET_GRANTED": GRANTED}
    agent = AgentProcess(tmp_path / "far", "E1", site, *options, environment=environment)
    builder = hw.flow("spy", locations=["L1"])
    stream = builder.read.csv(f"{tmp_path}/in", "id bigint").map_batches(
        seen_by_a_function, "place string, text string"
    )
    # Spark must not replace the variable either.
    stream.with_columns(name="'${env:HEADWATER_SECRET_GRANTED}'").write.memory("out")
    zones = f"layers: [edge]\nzones: {{E1: {{layer: edge, locations: [L1], at: '{agent.address}'}}}}"
    pid = agent.start()
    try:
        with ZoneRun(build(builder.build(), Continuum.from_text(zones)), tmp_path / "home") as run:
            run.start()
            run.settle()
            found = run.rows()["out"].to_pylist()
            (spark,) = agent.directory.glob("spark/*/server.json")
            record = json.loads(spark.read_text())
    finally:
        agent.end()
    texts = {row["place"]: row["text"] for row in found}
    assert GRANTED in texts["os.environ"], "the function reads its environment"
    parents = texts["parents"].split()
    assert str(pid) in parents and f"{pid}/environ" in texts, "and that of the agent, which is a parent"
    assert f"{record['pid']}/environ" in texts and f"{record['pid']}/cmdline" in texts, "and that of Spark"
    assert {row["name"] for row in found} == {"${env:HEADWATER_SECRET_GRANTED}"}
    credential = SiteSecret.parse(site, where="test").of("E1").text.rpartition(":")[2]
    secrets = {**SECRETS, "site": site, "credential": credential, "conf": CONF, "token of Spark": record["token"]}
    assert record["start"]["extra_conf"] == {"spark.hadoop.test.password": CONF}, "Spark has the setting"
    leaks = [(name, place) for name, secret in secrets.items() for place, text in texts.items() if secret in text]
    assert not leaks


@pytest.mark.long
def test_a_killed_agent_goes_on_with_its_credential_and_refuses_that_of_another_zone(
    endpoint: LocalEndpoint, tmp_path: Path, site: str
) -> None:
    source = BoundedSource(tmp_path / "in", {"L1": rows(40, seed=5)["L1"]}, rows_per_file=10)
    agents = {zone: AgentProcess(tmp_path / "far", zone, site) for zone in ("C1", "E1")}
    builder = hw.flow("means", locations=["L1"])
    timed = builder.read.json(source.path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    timed.to_layer("cloud").group_by(hw.window("ts", "5 seconds"), "k").agg(n="count(*)").write.memory("counts")
    at = {zone: f"at: '{agent.address}'" for zone, agent in agents.items()}
    zones = f"C1: {{layer: cloud, {at['C1']}}}, E1: {{layer: edge, parent: C1, locations: [L1], {at['E1']}}}"
    plan = build(builder.build(), Continuum.from_text(f"layers: [edge, cloud]\nzones: {{{zones}}}"))
    channel = next(c for c in plan.channels if c.node == "E1")
    log = f"{plan.dataflow.name}/{channel.id}"
    secret = SiteSecret.parse(site, where="test")

    def length(token: str) -> int:
        return FlightLog(Wire(agents["E1"].address, Credentials(token), "E1"), log).latest()

    try:
        for agent in agents.values():
            agent.start()
        with ZoneRun(plan, tmp_path / "home") as run:
            for zone, agent in agents.items():
                run.links[zone].lead_to(agent.address)
            run.start()
            for number, _ in enumerate(source.release()):
                run.settle()
                if number < 2:
                    agents["E1" if number else "C1"].kill()
                    agents["E1" if number else "C1"].start()
                    before = length(secret.of("E1").granted(Grant(log, "C1")))
                    for token in (secret.of("C1").order_token, secret.of("C1").granted(Grant(log, "C1"))):
                        with pytest.raises(DeploymentError, match="refuses the token"):
                            length(token)
                    assert before > 0
            run.finish()
            got = run.rows()
    finally:
        for agent in agents.values():
            agent.end()
    expected = batch_result(endpoint.session(), plan.dataflow, plan.continuum)
    assert {s: compare(expected[s], t) for s, t in got.items() if compare(expected[s], t)} == {}
    assert all(t.num_rows for t in got.values())
