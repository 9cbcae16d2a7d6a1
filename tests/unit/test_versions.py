"""Versions side by side: what one may add, and what the other refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.agent import Agent
from headwater.agent.agents import AgentClient
from headwater.channels.entry import Entry
from headwater.channels.wire import PROTOCOL
from headwater.continuum.model import Continuum
from headwater.control.stamps import Stamps
from headwater.core.errors import DeploymentError
from headwater.core.jsonform import dump
from headwater.plan.build import build
from headwater.plan.document import from_document
from headwater.plan.spec import UnitSpec, spec_of
from headwater.plan.upgrade import upgraded
from headwater.spark.sparks import Sparks

GOLDEN = Path(__file__).parents[1] / "golden"


def test_descriptions_of_units_are_those_of_the_first_version_of_the_protocol() -> None:
    """An agent of any version of the protocol computes the same digest: a field added since is left out by default."""
    golden = json.loads((GOLDEN / "unit-digests.json").read_text())
    for file in sorted((GOLDEN / "plans").glob("*.json")):
        plan = from_document(upgraded(json.loads(file.read_text())["document"]))
        assert {u.id: spec_of(plan, u.id).digest for u in plan.units} == golden[file.stem], file.stem


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent("E1", tmp_path / "E1", Sparks(tmp_path / "E1/spark"))


@pytest.fixture
def spec() -> UnitSpec:
    f = hw.flow("tiny", locations=["L1"])
    f.read.csv("/in/{location}", "id bigint").where("id > 1").write.memory("out")
    zones = "layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}"
    plan = build(f.build(), Continuum.from_text(zones))
    return spec_of(plan, plan.units[0].id)


def client(agent: Agent, **changed: Any) -> AgentClient:
    """Return a client whose requests carry other values."""

    def ask(call: str, body: Mapping[str, Any], seconds: float) -> Any:
        request = {k: v for k, v in json.loads(json.dumps({**body, **changed})).items() if v is not None}
        return json.loads(json.dumps(agent.actions()[call](request)))

    return AgentClient("E1", ask, Stamps("test", 1))


def test_an_agent_states_its_version(agent: Agent) -> None:
    found = client(agent).hello()
    assert (found["protocol"], found["version"]) == (PROTOCOL, hw.__version__)


def test_an_agent_obeys_a_client_that_states_no_version(agent: Agent, spec: UnitSpec) -> None:
    """Older clients of the same protocol state none."""
    assert client(agent, protocol=None, version=None)._ask("hold", {"spec": dump(spec)}, 1.0) == spec.digest


@pytest.mark.parametrize("call", ["report", "check", "end"])
def test_an_agent_refuses_a_client_of_another_protocol(agent: Agent, spec: UnitSpec, call: str) -> None:
    other = client(agent, protocol=PROTOCOL + 1, version="99.0")
    calls = {"report": other.report, "check": lambda: other.check(spec), "end": lambda: other.end("tiny", spec.id)}
    with pytest.raises(DeploymentError, match=rf"speaks protocol {PROTOCOL + 1} \(version 99.0\)") as caught:
        calls[call]()
    assert "same protocol on both sides" in (caught.value.hint or "")


@pytest.mark.parametrize("call", ["hello", "report"])
def test_a_client_refuses_an_agent_of_another_protocol(call: str) -> None:
    told = {"node": "E1", "protocol": PROTOCOL - 1, "progress": {}, "units": {}}
    other = AgentClient("E1", lambda *_: told, Stamps("test", 1))
    with pytest.raises(DeploymentError, match=f"speaks protocol {PROTOCOL - 1}"):
        getattr(other, call)()


def test_an_agent_refuses_what_it_does_not_know_of_a_unit(agent: Agent, spec: UnitSpec) -> None:
    data = dump(spec)
    data["unit"]["urgency"] = 3
    with pytest.raises(DeploymentError, match=r"does not know unit\.urgency"):
        client(agent)._ask("hold", {"spec": data}, 1.0)


def test_a_stored_description_of_a_newer_version_is_refused(agent: Agent, spec: UnitSpec, tmp_path: Path) -> None:
    """As after a downgrade of the agent: the unit does not run on as another one."""
    assert client(agent)._ask("hold", {"spec": dump(spec)}, 1.0) == spec.digest
    (file,) = tmp_path.glob("E1/deployments/tiny/specs/*.json")
    file.write_text(json.dumps({**dump(spec), "urgency": 3}))
    other = Agent("E1", tmp_path / "E1", Sparks(tmp_path / "E1/spark"))
    (tmp_path / "E1/deployments/tiny/tasks.json").write_text('{"tasks": []}')
    other.begin()
    try:
        deployed = other.deployed("tiny")
        assert deployed is not None
        with pytest.raises(DeploymentError, match="urgency") as caught:
            deployed.stored.spec(spec.digest)
        assert caught.value.where == str(file)
    finally:
        other.end(units=False)


def test_an_agent_that_understood_another_unit_is_not_ordered_to_run_it(agent: Agent, spec: UnitSpec) -> None:
    """An agent of an older version skips unknown fields; the digest in its answer tells."""
    asked: list[str] = []

    def ask(call: str, body: Mapping[str, Any], seconds: float) -> Any:
        asked.append(call)
        answer = agent.actions()[call](json.loads(json.dumps(dict(body))))
        return f"another {answer}" if call == "hold" else answer

    with pytest.raises(DeploymentError, match="does not know all of the unit's description") as caught:
        AgentClient("E1", ask, Stamps("test", 1)).prepare(spec)
    assert "upgrade the agent" in (caught.value.hint or "")
    assert asked == ["prepare", "hold"]


def test_an_entry_of_a_newer_version_is_read() -> None:
    entry = Entry(seq=1, epoch=1, batch=0, rows=2)
    record = {**entry.to_record(), "colour": "red"}
    record["segments"] = [{"file": "a", "rows": 2, "bytes": 9, "crc32": 5, "frontier": None, "shape": "flat"}]
    found = Entry.from_record(json.loads(json.dumps(record)))
    assert (found.rows, found.segments[0].file) == (2, "a")
