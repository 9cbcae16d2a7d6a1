"""Dead letters replayed by zones' agents, from the use case and the command line; no unit runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.agent import Agent
from headwater.agent.agents import Agents
from headwater.agent.storedtasks import Task
from headwater.app import deadletters
from headwater.channels.credential import TOKEN_ENV
from headwater.channels.logserver import LogServer
from headwater.connectors.deadletters import read_dead_letters
from headwater.connectors.replaying import ReplayRequest
from headwater.continuum.model import Continuum
from headwater.control import tables
from headwater.control.store import Store
from headwater.control.tables import STORE, resolved_url
from headwater.core.errors import ContinuumError, DeploymentError
from headwater.core.jsonform import dump, dump_json
from headwater.disk.durable import write_atomically
from headwater.plan.build import build, one_unit
from headwater.plan.model import DeploymentPlan
from headwater.plan.spec import spec_of
from headwater.spark.sparks import Sparks
from tests.conftest import SITE, SITE_TEXT, free_port
from tests.unit.test_cli_control import invoke
from tests.unit.test_deadletters import put, rows
from tests.unit.test_memory import running

SCHEMA = "id bigint, temperature double, ts timestamp"
BAD, GOOD = "1,abc,2024-01-01", "1,2.5,2024-01-01"


def planned(place: Path, ports: dict[str, int]) -> DeploymentPlan:
    """Plan a dataflow that reads files in two zones, each with an agent at a port."""
    zones = "".join(
        f"  {z}: {{layer: edge, parent: C1, locations: [{x}], at: '127.0.0.1:{ports[z]}'}}\n"
        for z, x in (("E1", "L1"), ("E2", "L2"))
    )
    text = f"name: small\nlayers: [edge, cloud]\nzones:\n  C1: {{layer: cloud}}\n{zones}"
    builder = hw.flow("f", locations=["L1", "L2"])
    read = builder.read.csv(f"{place}/in/{{location}}", SCHEMA, location_as="at").named("files_1")
    read.where("id > 0").to_layer("cloud").write.memory("out")
    return build(builder.build(), Continuum.from_text(text))


class Zones:
    """Two agents, with servers as in production, that have a plan and run no unit."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ports = {zone: free_port() for zone in ("E1", "E2")}
        self.plan = planned(place, self.ports)
        self._up: dict[str, tuple[Agent, LogServer]] = {}

    def start(self, zone: str) -> None:
        home = self.place / zone
        specs = [spec_of(self.plan, u.id) for u in self.plan.units if u.node == zone]
        tasks = [Task(spec.id, spec.digest, "prepared") for spec in specs]
        root = home / "deployments/f"
        for spec in specs:
            write_atomically(root / "specs" / f"{spec.digest}.json", dump_json(spec).decode())
        write_atomically(root / "tasks.json", json.dumps({"tasks": [asdict(t) for t in tasks]}))
        agent = Agent(zone, home, Sparks(home / "spark"))
        listen = f"127.0.0.1:{self.ports[zone]}"
        actions = agent.actions()
        server = LogServer(listen, credential=SITE.of(zone), find=agent.find_log, actions=actions)
        # The agent has its tasks but does not begin to run them: it would start a Spark for that.
        actions["hold"]({"spec": dump(specs[0])})
        self._up[zone] = agent, server

    def stop(self, zone: str) -> None:
        agent, server = self._up.pop(zone)
        agent.end(units=False)
        server.shutdown()

    def end(self) -> None:
        for zone in list(self._up):
            self.stop(zone)

    def malformed(self, zone: str, location: str, *records: str, batch: int = 0) -> list[str]:
        """Turn records of a zone into dead letters; return their ids."""
        origin = self.place / f"in/{location}/a.csv"
        origin.parent.mkdir(parents=True, exist_ok=True)
        origin.write_text("".join(f"{r}\n" for r in records))
        home = self.place / zone / "deployments/f/deadletters"
        unit = next(u for u in self.plan.units if u.zone == zone)
        put(home / unit.checkpoint, batch, rows(*records, source=origin.as_uri(), location=location))
        return [x["id"] for x in read_dead_letters(home)]

    def new(self) -> dict[str, str]:
        """Return the files of replayed records of both agents, by the path that they have in the input."""
        assert not list((self.place / "in").rglob("*replayed*")), "a replay puts nothing into the user's directory"
        made = [f for f in self.place.glob("E*/deployments/f/replayed-records/**/*replayed-*") if f.is_file()]
        return {str(f).partition(f"{self.place}/in/")[2]: f.read_text() for f in made}


@pytest.fixture
def zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zones]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.setenv(TOKEN_ENV, SITE_TEXT)
    monkeypatch.delenv(STORE, raising=False)
    made = Zones(tmp_path)
    store = Store(resolved_url(None))
    running(store, made.plan)
    made.start("E1")
    made.start("E2")
    yield made
    made.end()
    store.close()


def test_letters_of_two_zones_are_replayed_where_they_are(zones: Zones) -> None:
    (first,), (second,) = zones.malformed("E1", "L1", BAD), zones.malformed("E2", "L2", BAD)
    said: list[str] = []
    found = deadletters.replay("f", [second, first], records={first: GOOD, second: GOOD}, say=said.append)
    assert said == []  # the cloud has no source and no agent: it gets no request
    assert [(x.id, x.zone, x.outcome) for x in found] == [
        (second, "E2", "replayed"), (first, "E1", "replayed"),
    ]  # fmt: skip
    assert zones.new() == {
        f"L1/a-replayed-{first}.csv": f"{GOOD}\n", f"L2/a-replayed-{second}.csv": f"{GOOD}\n",
    }  # fmt: skip
    assert all(x["replayed"]["done"] for x in deadletters.dead_letters("f"))
    (again,) = deadletters.replay("f", [first], records={first: GOOD})
    assert again.outcome == "refused" and "it was replayed at" in str(again.reason)
    (forced,) = deadletters.replay("f", [first], records={first: GOOD}, force=True)
    assert forced.outcome == "replayed" and len(zones.new()) == 3


def test_letters_of_nodes_that_the_source_has_left_are_found(zones: Zones) -> None:
    (first,), (second,) = zones.malformed("E1", "L1", BAD), zones.malformed("E2", "L2", BAD)
    flow, continuum = zones.plan.dataflow, zones.plan.continuum
    store = Store(resolved_url(None))
    running(store, build(flow, continuum, one_unit(flow, continuum)))
    store.close()
    said: list[str] = []
    assert {x["id"] for x in deadletters.dead_letters("f", say=said.append)} == {first, second}
    assert [text.split(":")[0] for text in said] == ["C1"]  # C1 has no agent here
    (found,) = deadletters.replay("f", [first], records={first: GOOD})
    assert found.zone == "E1", found


def test_after_a_new_start_an_agent_still_knows_what_was_replayed(zones: Zones) -> None:
    (id_,) = zones.malformed("E1", "L1", BAD)
    deadletters.replay("f", [id_], records={id_: GOOD})
    zones.stop("E1")
    zones.start("E1")
    assert deadletters.replay("f", [id_], records={id_: GOOD})[0].outcome == "refused"
    assert len(zones.new()) == 1


def test_a_zone_that_does_not_answer_is_named(zones: Zones) -> None:
    (first,), (second,) = zones.malformed("E1", "L1", BAD), zones.malformed("E2", "L2", BAD)
    zones.stop("E1")
    said: list[str] = []
    found = deadletters.replay("f", [first, second], records={first: GOOD, second: GOOD}, say=said.append)
    assert [x.outcome for x in found] == ["unknown", "replayed"]
    assert "E1, C1 did not" in str(found[0].reason) and any(s.startswith("E1: ") for s in said)


def test_what_a_zone_does_not_read_any_more_is_not_put_there(zones: Zones) -> None:
    elsewhere = zones.malformed("E1", "L2", BAD)
    (found,) = deadletters.replay("f", elsewhere, records={elsewhere[0]: GOOD})
    assert found.outcome == "refused" and "source 'files_1' at L2 is not read here" in str(found.reason)
    assert zones.new() == {}


def test_a_finished_unit_takes_no_more(zones: Zones) -> None:
    (id_,) = zones.malformed("E1", "L1", BAD)
    unit = next(u for u in zones.plan.units if u.zone == "E1")
    state = zones.place / "E1/deployments/f/units" / unit.checkpoint / "unit.json"
    write_atomically(state, json.dumps({"finished": True}))
    (found,) = deadletters.replay("f", [id_], records={id_: GOOD})
    assert found.outcome == "refused" and "has read its input to the end" in str(found.reason)
    assert zones.new() == {}


def test_mistakes_of_the_caller(zones: Zones) -> None:
    (id_,) = zones.malformed("E1", "L1", BAD)
    for ids, records, says in (
        ([], {}, "not a list of 1 to"),
        (["x"], {}, "not a dead letter's id: .*'x'"),
        ([id_], {"0" * 16: GOOD}, "which is not replayed"),
    ):
        with pytest.raises(DeploymentError, match=says):
            deadletters.replay("f", ids, records=records)
    with pytest.raises(DeploymentError, match="no deployment 'g'"):
        deadletters.replay("g", [id_])
    (found,) = deadletters.replay("f", ["0" * 16])
    assert found.outcome == "unknown" and str(found.reason).startswith("no such dead letter")


def test_more_letters_than_one_request_takes(zones: Zones, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.connectors import replaying

    ids = zones.malformed("E1", "L1", *(f"{n},x,2024-01-01" for n in range(5)))
    monkeypatch.setattr(replaying, "MOST", 2)
    found = deadletters.replay("f", ids, records=dict.fromkeys(ids, GOOD))
    assert [x.outcome for x in found] == ["replayed"] * 5 and len(zones.new()) == 5


def test_an_agent_refuses_what_is_no_request(zones: Zones) -> None:
    (id_,) = zones.malformed("E1", "L1", BAD)
    wire = Agents(zones.place)._reach(zones.plan.continuum.node("E1"))
    letter = {"id": id_, "record": BAD}
    for body in (
        {},
        {"deployment": "f"},
        {"deployment": "f", "letters": []},
        {"deployment": "f", "letters": [{"id": "../x"}]},
        {"deployment": "../f", "letters": [letter]},
        {"deployment": "g", "letters": [letter]},
    ):
        with pytest.raises(DeploymentError):
            wire.ask("replay", body)
    # Only true forces a replay.
    (found,) = wire.ask("replay", {"deployment": "f", "letters": [letter], "force": "no"})
    assert found["outcome"] == "refused" and found["zone"] == "E1" and zones.new() == {}
    with pytest.raises(ContinuumError):
        zones.plan.continuum.node("E9")


def test_a_client_gives_what_came_of_it(zones: Zones) -> None:
    (id_,) = zones.malformed("E1", "L1", BAD)
    client = Agents(zones.place).open(zones.plan.continuum.node("E1"))
    (found,) = client.replay("f", [ReplayRequest(id=id_, record=GOOD)], force=False)
    own = f"{zones.place}/E1/deployments/f/replayed-records/files_1"
    assert found.outcome == "replayed" and found.target == f"{own}{zones.place}/in/L1/a-replayed-{id_}.csv"


# ---------------------------------------------------------------- the command line


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_letters_are_listed_and_replayed_by_id(zones: Zones) -> None:
    (id_,) = zones.malformed("E1", "L1", BAD)
    code, out, err = invoke("deadletters", "f")
    assert code == 0 and out.startswith(f"{id_} ") and "'abc' is not a double" in out
    assert "1 dead letters" in err
    code, out, err = invoke("deadletters", "f", "--replay", id_)
    assert code == 1 and f"{id_} refused: it does not fit" in out and "0 of 1 replayed" in err
    code, out, err = invoke("deadletters", "f", "--replay", id_, "--record", GOOD)
    assert code == 0 and f"{id_} replayed, to " in out and "1 of 1 replayed" in err
    assert "replayed 20" in invoke("deadletters", "f")[1]
    code, out, _ = invoke("deadletters", "f", "--replay", id_, "--replay", "0" * 16, "--json")
    assert code == 1 and [x["outcome"] for x in lines(out)] == ["refused", "unknown"]
    assert invoke("deadletters", "f", "--replay", id_, "--force")[0] == 0


def test_an_edited_listing_is_replayed(zones: Zones) -> None:
    ids = zones.malformed("E1", "L1", BAD, "x,1,2024-01-01")
    listed = invoke("deadletters", "f", "--json")[1]
    assert [x["id"] for x in lines(listed)] == ids
    Path("letters.jsonl").write_text(listed.replace("1,abc,", "1,2.5,") + "\n")
    code, out, _ = invoke("deadletters", "f", "--replay-from", "letters.jsonl", "--json")
    assert code == 1 and [x["outcome"] for x in lines(out)] == ["replayed", "refused"]
    assert list(zones.new().values()) == [f"{GOOD}\n"]
    Path("letters.jsonl").write_text(f'{{"id": "{ids[1]}"}}\nno letter\n')
    code, out, err = invoke("deadletters", "f", "--replay-from", "letters.jsonl")
    assert code == 6 and "letters.jsonl:2" in err and not out


@pytest.mark.parametrize(
    "given",
    [
        ["f", "--record", "x"],
        ["f", "--force"],
        ["f", "--replay", "0" * 16, "--replay", "1" * 16, "--record", "x"],
        ["f", "--replay", "0" * 16, "--replay-from", "x"],
        ["f", "--replay-from", "nowhere.jsonl"],
        ["--replay", "0" * 16],
        ["--dir", ".", "--replay", "0" * 16],
    ],
)
def test_options_that_do_not_go_together(zones: Zones, given: list[str]) -> None:
    code, out, _ = invoke("deadletters", *given)
    assert code == 2 and not out
