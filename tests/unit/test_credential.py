"""Credentials of agents and grants: what each of them admits, with agents and log servers as in production."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.agent.agent import Agent
from headwater.agent.agents import AgentClient, Agents
from headwater.agent.relays import Relays
from headwater.channels.credential import (
    TOKEN_ENV,
    TOKEN_FILE_ENV,
    Grant,
    SiteSecret,
    ZoneCredential,
    own_credential,
    read_token,
)
from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.logserver import LogServer
from headwater.channels.wire import Credentials, Wire
from headwater.cli.app import app
from headwater.control.stamps import Stamps
from headwater.core.errors import Denied, DeploymentError
from headwater.disk.credentials import code_environment
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.spec import spec_of
from headwater.spark.sparks import Sparks
from tests.conformance.conftest import ids, table
from tests.conftest import SITE, SITE_TEXT, free_port
from tests.unit.test_replay_of_dead_letters import planned

OTHER = "another-site-secret-of-tests"


class Site:
    """The agents of two zones with the servers of production; each has a log that another zone reads."""

    def __init__(self, place: Path, secret: SiteSecret = SITE) -> None:
        self.place = place
        self.agents: dict[str, Agent] = {}
        self.servers: dict[str, LogServer] = {}
        for zone in ("E1", "E2"):
            self.serve(zone, secret.of(zone))
            log = FileLog(place / zone / "deployments/f/channels" / f"a-1@{zone}")
            log.create()
            log.append(table([1, 2]), epoch=1, batch=0)

    def serve(self, zone: str, credential: ZoneCredential) -> None:
        """Start the agent of a zone, or start it again."""
        home, listen = self.place / zone, "127.0.0.1:0"
        if (former := self.servers.pop(zone, None)) is not None:
            listen = f"127.0.0.1:{former.port}"
            former.shutdown()
        agent = self.agents[zone] = Agent(zone, home, Sparks(home / "spark"))
        self.servers[zone] = LogServer(listen, credential=credential, find=agent.find_log, actions=agent.actions())

    def wire(self, zone: str, token: str) -> Wire:
        return Wire(f"127.0.0.1:{self.servers[zone].port}", Credentials(token), zone)

    def log(self, zone: str, token: str) -> FlightLog:
        return FlightLog(self.wire(zone, token), f"f/a-1@{zone}")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for server in made.servers.values():
        server.shutdown()


def test_a_grant_reads_one_channel_and_nothing_else(site: Site) -> None:
    token = SITE.of("E1").granted(Grant("f/a-1@E1", "relay@C1"))
    log = site.log("E1", token)
    assert ids(log) == [1, 2] and log.register("relay@C1") == 0
    log.advance("relay@C1", 1)
    with pytest.raises(Denied, match="may only read"):
        log.append(table([3]), epoch=1, batch=1)
    for call in (lambda: log.fence(9), lambda: log.end(1), lambda: log.advance("relay@C2", 1)):
        with pytest.raises(Denied, match="may only read"):
            call()
    with pytest.raises(Denied, match="may only read"):
        site.wire("E1", token).ask("report", {"stamp": {"store": "s", "term": 9, "number": 1}})
    other = FileLog(site.place / "E1/deployments/f/channels/b-1@E1")
    other.create()
    with pytest.raises(Denied, match="may read f/a-1@E1 alone"):
        FlightLog(site.wire("E1", token), "f/b-1@E1").latest()
    with pytest.raises(Denied, match="alone"):
        list(FlightLog(site.wire("E1", token), "f/b-1@E1").read(0, 0))
    with pytest.raises(Denied, match="alone"):
        list(FlightLog(site.wire("E1", token), "f/b-1@E1").follow(0))


def test_the_credential_of_a_stolen_agent_opens_no_other_agent(site: Site) -> None:
    stolen = SITE.of("E1")
    tokens = {
        "its orders": stolen.order_token,
        "its credential": stolen.text,
        "a grant that it signs": stolen.granted(Grant("f/a-1@E2", "relay@E1")),
        "its orders, for the other": replace(stolen, node="E2").order_token,
        "the site secret": SITE_TEXT,
        "none": "",
    }
    for name, token in tokens.items():
        with pytest.raises(DeploymentError, match="refuses the token"):
            site.log("E2", token).latest()
            pytest.fail(name)
        with pytest.raises(DeploymentError, match="refuses the token"):
            AgentClient("E2", lambda c, b, s, t=token: site.wire("E2", t).ask(c, b, seconds=s), Stamps("s", 1)).report()
    assert site.log("E2", SITE.of("E2").order_token).latest() == 1


def test_a_changed_grant_is_refused(site: Site) -> None:
    good = SITE.of("E1").granted(Grant("f/a-1@E1", "relay@C1"))
    kind, content, mac = good.split(".")
    wider = SITE.of("E1").granted(Grant("f/b-1@E1", "relay@C1")).split(".")[1]
    for token in (
        f"{kind}.{wider}.{mac}",
        f"order.{mac}",
        f"order..{mac}",
        f"{kind}.{content}.",
        f"{kind}..{mac}",
        "é.",
    ):
        with pytest.raises(Denied):
            SITE.of("E1").verified(token)
    assert SITE.of("E1").verified(good) == Grant("f/a-1@E1", "relay@C1")
    assert SITE.of("E1").verified(SITE.of("E1").order_token) is None


def test_two_secrets_are_valid_while_one_replaces_the_other(site: Site) -> None:
    """Agents get both credentials, then the controller the new secret, then the agents only the new ones."""
    old, new = SITE, SiteSecret((OTHER,))
    both = SiteSecret.parse(f"{SITE_TEXT},{OTHER}", where="test")
    grant = Grant("f/a-1@E1", "relay@C1")
    parsed, derived = own_credential("E1", {TOKEN_ENV: both.of("E1").text})
    assert parsed == both.of("E1") and not derived
    site.serve("E1", parsed)
    for secret in (old, new):
        assert site.log("E1", secret.of("E1").granted(grant)).latest() == 1
        assert site.wire("E1", secret.of("E1").order_token).ask("hello", {})["node"] == "E1"
    site.serve("E1", new.of("E1"))
    assert site.log("E1", new.of("E1").granted(grant)).latest() == 1
    for token in (old.of("E1").granted(grant), old.of("E1").order_token):
        with pytest.raises(DeploymentError, match="refuses the token"):
            site.log("E1", token).latest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0123456789abcdef", "at most 64 bits"),
        ("p7Rk2mZq9xW4", "at most 72 bits"),
        ("0123456789012345678901234567890123", "at most 112 bits"),
        ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "different characters"),
        ("a site secret of several words, too", "visible ASCII|too weak"),
        (f"{SITE_TEXT},short", "too weak"),
        (SITE.of("E1").text, "credential of one zone"),
    ],
)
def test_weak_secrets_are_refused_with_the_way_to_make_one(text: str, message: str) -> None:
    with pytest.raises(DeploymentError, match=message) as refused:
        SiteSecret.read({TOKEN_ENV: text})
    assert "headwater token --new" in str(refused.value.hint) and text not in str(refused.value)


def test_tokens_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SITE.of("E1").text + "\n")
    assert own_credential("E1", {TOKEN_FILE_ENV: str(file)}) == (SITE.of("E1"), False)
    assert own_credential("E1", {TOKEN_ENV: SITE_TEXT}) == (SITE.of("E1"), True), "as agents of older versions have it"
    with pytest.raises(DeploymentError, match="credential of E1, but this is the agent of E2"):
        own_credential("E2", {TOKEN_FILE_ENV: str(file)})
    with pytest.raises(DeploymentError, match="not a whole credential"):
        own_credential("E1", {TOKEN_ENV: SITE.of("E1").text[:-1]})
    for environment, message in (({}, "no token"), ({TOKEN_FILE_ENV: str(tmp_path / "none")}, "cannot read the token")):
        with pytest.raises(DeploymentError, match=message):
            read_token(environment)
    with pytest.raises(TypeError):
        str(SITE.of("E1"))
    assert SITE_TEXT not in repr(SITE) and SITE.of("E1").text not in repr(SITE.of("E1"))


def test_the_command_prints_the_credential_of_one_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_ENV, SITE_TEXT)
    assert CliRunner().invoke(app, ["token", "E1"]).stdout == SITE.of("E1").text + "\n"
    told = json.loads(CliRunner().invoke(app, ["token", "E2", "--json"]).stdout)
    assert told == {"name": "E2", "token": SITE.of("E2").text}
    made = CliRunner().invoke(app, ["token", "--new"]).stdout.strip()
    assert SiteSecret.parse(made, where="test").of("E1") != SITE.of("E1")
    monkeypatch.setenv(TOKEN_ENV, "short")
    assert CliRunner().invoke(app, ["token", "E1"]).exit_code != 0


def test_the_controller_sends_grants_and_the_reader_keeps_them(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that restarts without a controller still reads, and only the channels of its units."""
    monkeypatch.setenv(TOKEN_ENV, SITE_TEXT)
    plan = planned(tmp_path, {zone: server.port for zone, server in site.servers.items()})
    home = tmp_path / "C1"
    port = free_port()
    agent = Agent("C1", home, Sparks(home / "spark"))
    server = LogServer(f"127.0.0.1:{port}", credential=SITE.of("C1"), find=agent.find_log, actions=agent.actions())
    try:
        reader = next(u for u in plan.units if u.node == "C1")
        spec = spec_of(plan, reader.id)
        node = replace(plan.continuum.node("C1"), at=f"127.0.0.1:{port}")
        agents = Agents(tmp_path / "controller")
        for zone in ("E1", "E2"):
            agents.open(plan.continuum.node(zone))
        agents._introduce(node, [(c.node, f"f/{c.id}") for c in spec.inputs])
        file = home / "grants.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        grants, peers = json.loads(file.read_text()), json.loads((home / "peers.json").read_text())
        assert grants.keys() == {f"f/{c.id}" for c in spec.inputs} and SITE_TEXT not in file.read_text()
        relays = Relays("f", "C1", Layout(home), UnitSettings(), peers, grants)
        for channel in spec.inputs:
            log = FileLog(tmp_path / channel.node / "deployments/f/channels" / channel.id)
            log.create()
            assert relays.latest(spec, channel) == 0
    finally:
        server.shutdown()


def test_processes_with_code_of_dataflows_get_no_other_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "HEADWATER_TOKEN": "t",
        "HEADWATER_STORE": "postgresql://u:p@h/d",
        "HEADWATER_SECRET_DB": "granted",
        "HEADWATER_SECRET_OTHER": "of others",
        "HEADWATER_SECRETS_DIR": "/run/secrets",
        "AWS_REGION": "eu",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = code_environment(("D*",))
    assert {name for name in given if name in found} == {"HEADWATER_SECRET_DB", "HEADWATER_SECRETS_DIR", "AWS_REGION"}
    assert found.keys() <= os.environ.keys()


def test_the_environment_is_out_of_sight_and_still_known() -> None:
    code = """
import os, subprocess, sys
from headwater.core.environment import hide_environment
hide_environment()
seen = open("/proc/self/environ").read()
child = subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('HEADWATER_TOKEN'))"], stdout=-1)
print("hide-me" in seen, "see-me" in seen, os.environ["HEADWATER_TOKEN"], child.stdout.decode().strip())
"""
    environment = {**os.environ, "HEADWATER_TOKEN": "hide-me", "OTHER": "see-me"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    hidden = sys.platform == "linux"
    assert done.stdout.split() == [str(not hidden), "True", "hide-me", "None" if hidden else "hide-me"]
