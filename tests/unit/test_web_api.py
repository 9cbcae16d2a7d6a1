"""Every route over real HTTP: a store, a controller over simulated zones, and the server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app import objectives, observe
from headwater.app.client import Client as StoreClient
from headwater.continuum.model import Continuum
from headwater.control.store import Store
from headwater.control.tables import resolved_url
from headwater.core.jsonform import dump
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.web.server import serving
from tests.unit.served import ZONES, Client, flow, place, until, world

TRACE = "time,source,location,rate\n0,{source},L1,10\n1,{source},L1,500\n2,{source},L1,20\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with world(tmp_path_factory.mktemp("web"), compute_limit=300.0) as (url, _), Client(url) as made:
        yield made


@pytest.fixture
def tiny(client: Client) -> Iterator[dict[str, Any]]:
    """Yield a running deployment's dataflow; forget the deployment afterwards."""
    document = flow()
    applied(client, document, continuum=ZONES)
    yield document
    client.settled("tiny", client.ask("/deployments/tiny/stop", {"how": "forget"})["wanted"])


def applied(client: Client, document: Any, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.ask("/deployments", {"dataflow": document, **more})
    client.settled(found["deployment"], found["wanted"])
    return found


def test_the_server_tells_of_itself(client: Client) -> None:
    assert client.see("/health") == {"status": "ok", "store": True, "controller": True}
    assert client.see("/version") == {"name": "headwater", "version": hw.__version__, "api": "v1"}
    assert client.see("/me") == {"name": None, "role": "owner", "on_trial": True}


def test_a_dataflow_is_planned_and_nothing_is_stored(client: Client) -> None:
    document = flow()
    asked = {"dataflow": document, "continuum": ZONES, "strategy": "optimal", "compare": True}
    found = client.ask("/plans", asked, 200)
    assert found["dataflow"] == "tiny" and found["change"]["version"] == 0 and not found["same"]
    assert {u["action"] for u in found["change"]["units"]} == {"start"}
    assert any(line.startswith("start out@C1: it is new") for line in found["change"]["steps"])
    assert found["prediction"]["strategy"] == "optimal" and found["prediction"]["latency_s"] > 0
    assert {"annotated", "cloud_only"} <= found["strategies"].keys()
    assert not StoreClient().holds("tiny")
    plain = client.ask("/plans", {"dataflow": document, "continuum": ZONES}, 200)
    assert plain["prediction"] is None and plain["strategies"] == {}
    named = {
        "strategy": "tsoo_exact",
        "limits": {"max_latency_s": 0.001},
        "weights": {"cpu": 1, "network": 0},
    }
    missed = client.ask("/plans", {"dataflow": document, "continuum": ZONES, **named}, 200)
    assert missed["prediction"]["limit_check"]["kept"] is False and missed["warnings"]


def test_what_takes_too_long_to_compute_is_ended(tmp_path: Path) -> None:
    with place(tmp_path), serving(None, "127.0.0.1", 0, compute_limit=0.001) as url, Client(url) as own:
        asked = {"dataflow": flow(), "continuum": ZONES}
        for path, form in (
            ("/plans", {**asked, "strategy": "optimal"}),
            ("/deployments", {**asked, "strategy": "tsoo_exact"}),
            ("/simulations", {**asked, "trace": TRACE.format(source=asked["dataflow"]["operators"][0]["id"])}),
            ("/pools/commons/dataflows", {**asked, "owner": "ann"}),
        ):
            refused = own.ask(path, form, 422)
            assert refused["detail"] == "it was not computed within 1ms" and "--compute-limit" in refused["hint"]
        assert own.see("/health")["status"] == "ok"
        assert not StoreClient().holds("tiny") and own.see("/pools", 404)["detail"] == "no store here"


def test_zones_may_come_as_yaml_or_json(client: Client) -> None:
    checked = client.ask("/continuum/check", {"continuum": ZONES}, 200)
    assert client.ask("/continuum/check", {"continuum": checked}, 200) == checked
    assert client.ask("/plans", {"dataflow": flow(), "continuum": checked}, 200)["units"]
    found = client.ask("/continuum/check", {"continuum": ZONES.replace("layers:", "layer:")}, 422)
    assert found["type"] == "urn:headwater:problem:continuum" and "continuum:" in found["where"]
    assert found["hint"] and found["errors"]


def test_a_deployment_is_applied_looked_at_and_stopped(client: Client, tiny: dict[str, Any]) -> None:
    (listed,) = client.see("/deployments")
    assert (listed["name"], listed["phase"]) == ("tiny", "running")
    until(lambda: len(client.see("/deployments/tiny")["units"]) == 5)
    status = client.see("/deployments/tiny")
    assert status.keys() == dump(observe.status("tiny")[0]).keys(), "what the command line gives, and no more"
    assert status["change"]["done"] == status["change"]["steps"] > 10 and status["controller"]
    plan = client.see("/deployments/tiny/plan")
    assert {u["id"] for u in plan["units"]} == {u["unit"] for u in status["units"]}
    assert client.see("/deployments/tiny/continuum") == Continuum.from_text(ZONES).to_data()
    told = client.see("/deployments/tiny/explain")
    assert told["outcome"] == "done" and told["words"] and all(s["state"] == "done" for s in told["steps"])
    history = client.see("/deployments/tiny/history")
    assert history["desired_states"][-1]["goal"] == "run" and history["events"] and history["changes"]
    version = client.ask("/deployments/tiny/stop")["wanted"]
    client.settled("tiny", version)
    assert client.see("/deployments")[0]["phase"] == "stopped"
    again = applied(client, "tiny")  # with the dataflow from the store
    assert again["wanted"] == version + 1
    assert client.see("/deployments/tiny")["phase"] == "running"
    by_id = client.see("/deployments")[0]["plan"]
    same = client.ask("/deployments", {"dataflow": by_id}, 200)
    assert (same["stored"], same["wanted"]) == (False, None)


def test_of_two_who_apply_the_second_is_told(client: Client, tiny: dict[str, Any]) -> None:
    shown = client.ask("/plans", {"dataflow": flow(above=2)}, 200)
    first = client.ask("/deployments", {"dataflow": flow(above=2), "after": shown["change"]["version"]})
    client.settled("tiny", first["wanted"])
    late = client.ask("/deployments", {"dataflow": flow(above=3), "after": shown["change"]["version"]}, 409)
    assert late["type"] == "urn:headwater:problem:conflict"
    assert f"version {first['wanted']} was stored meanwhile" in late["detail"] and "again" in late["hint"]
    assert client.see("/deployments/tiny")["version"] == first["wanted"]


def test_state_is_given_up_only_where_that_is_said(client: Client, tiny: dict[str, Any]) -> None:
    found = client.ask("/deployments", {"dataflow": flow(agg="max(v)")}, 409)
    assert len(found["errors"]) == 2 and "--reset-state high@S1" in found["hint"]
    agreed = {"reset_state": ["high@S1", "high@S2"]}
    assert applied(client, flow(agg="max(v)"), **agreed)["stored"]
    refused = client.ask("/deployments", {"dataflow": flow(), **agreed, "canary": {"seconds": 1}}, 409)
    assert "canary" in str(refused["hint"])


def test_operators_are_moved_and_units_split_and_fused(client: Client, tiny: dict[str, Any]) -> None:
    of = "/deployments/tiny"
    shown = client.ask(f"{of}/move", {"operator": "high", "to": "edge", "at": "L1", "preview": True}, 200)
    assert not shown["stored"] and any("high@E1" in line for line in shown["steps"])
    before = client.see(of)["version"]
    assert shown["version"] == before
    for what, body in (
        ("move", {"operator": "high", "to": "edge", "after": before}),
        ("split", {"unit": "high@E1", "after_operator": "low"}),
        ("fuse", {"first": "low", "second": "high"}),
        ("move", {"operator": "high", "to": "site"}),
        ("spread", {"unit": "high@S1", "over": ["s1b"]}),
    ):
        found = client.ask(f"{of}/{what}", body)
        client.settled("tiny", found["wanted"])
        assert client.see(of)["change"]["outcome"] == "done", what
    assert client.ask(f"{of}/move", {"operator": "high", "to": "edge", "after": before}, 409)
    wrong = client.ask(f"{of}/move", {"operator": "hihg", "to": "site"}, 422)
    assert wrong["hint"] == "did you mean 'high'?"
    wrong = client.ask(f"{of}/spread", {"unit": "out", "over": ["vm2"]}, 422)
    assert wrong["hint"] == "did you mean 'vm1'?" and "no host of zone C1" in wrong["detail"]
    assert client.ask(f"{of}/spread", {"unit": "out", "over": []}, 422)


def test_slos_metrics_and_the_model(client: Client, tiny: dict[str, Any]) -> None:
    of = "/deployments/tiny"
    assert client.see(f"{of}/slo") is None
    set_ = client.patch(f"{of}/slo", json={"max_latency": 3.0, "mode": "auto"})
    assert set_.status_code == 200 and set_.json()["max_latency"] == 3.0
    changed = client.patch(f"{of}/slo", json={"max_latency": None, "headroom": 0.3}).json()
    assert (changed["max_latency"], changed["headroom"], changed["mode"]) == (None, 0.3, "auto")
    assert client.see(f"{of}/slo") == changed
    assert client.see(f"{of}/metrics", params={"since_s": 60}).keys() >= {"units", "hosts", "course"}
    assert client.see(f"{of}/model").keys() == {"latency", "load", "bytes"}
    assert client.see(f"{of}/metrics", 422, params={"since_s": "inf"})
    assert client.patch(f"{of}/slo", json={"headroom": 1}).status_code == 422
    assert client.patch(f"{of}/slo", json={"headroom": None}).json()["headroom"] is None
    assert client.patch(f"{of}/slo", json={"gain": False}).status_code == 422
    mistyped = client.see(f"{of}/metrics", 422, params={"since": "5"})
    assert mistyped["where"] == "query.since" and "did you mean 'since_s'?" in mistyped["detail"]
    assert "it takes none" in client.see("/health", 422, params={"deep": "1"})["detail"]


def test_dead_letters_name_the_zones_that_cannot_be_asked(client: Client, tiny: dict[str, Any]) -> None:
    found = client.see("/deployments/tiny/dead-letters")
    assert found["letters"] == [] and len(found["unreached"]) == 5
    letter = {"id": "0123456789abcdef", "record": "1,2.5"}
    again = client.ask("/deployments/tiny/dead-letters/replay", {"letters": [letter]}, 200)
    (answer,) = again["letters"]
    assert answer["outcome"] == "unknown" and len(again["unreached"]) == 5
    wrong = client.ask("/deployments/tiny/dead-letters/replay", {"letters": [{"id": "../x"}]}, 422)
    assert wrong["where"] == "body.letters.0.id"


def test_decisions_are_listed_shown_and_answered(client: Client, tiny: dict[str, Any]) -> None:
    name = "tiny"
    first, second, gone = (propose(above) for above in (4, 5, 6))
    found = client.see("/decisions", params={"deployment": name, "state": ["proposed"]})
    assert [d["id"] for d in found][-3:] == [first, second, gone]
    assert client.see(f"/decisions/{first}")["why"] == "it was wanted by a test"
    shown = client.see(f"/decisions/{first}/plan")
    assert [u["action"] for u in shown["change"]["units"]] == ["replace", "replace"]
    assert client.ask(f"/decisions/{second}/reject", None, 200)["state"] == "rejected"
    wanted = client.ask(f"/decisions/{first}/approve")
    client.settled(name, wanted["wanted"])
    late = client.ask(f"/decisions/{gone}/approve", None, 409)
    assert "no longer active" in late["detail"]
    assert client.ask(f"/decisions/{second}/approve", None, 409)
    assert client.see("/decisions", params={"state": "rejected"})[-1]["id"] == second
    assert client.see(f"/decisions/{gone + 1}", 404)["type"] == "urn:headwater:problem:missing"


def propose(above: int) -> int:
    """Record a decision as the controller does, under its lease."""
    store = Store(resolved_url(None))
    base = store.active_plan("tiny")
    assert base is not None
    plan = build(Dataflow.from_data(flow(above=above)), base.continuum)
    lease = store.lease()
    assert lease is not None
    number = store.record_decision(
        lease.holder, "tiny", mode="advise", trigger="gain", why="it was wanted by a test", state="proposed",
        plan=plan, before=store.deployment("tiny").active_plan, data={"load": {"gw1": float("inf")}},
    )  # fmt: skip
    store.close()
    return number


def test_dataflows_are_submitted_shared_and_removed(client: Client) -> None:
    shared = {**flow("L1"), "name": "one"}
    joined = client.ask("/pools/commons/dataflows", {"dataflow": shared, "continuum": ZONES, "owner": "team-a"})
    client.settled("commons", joined["version"])
    more = client.ask("/pools/commons/dataflows", {"dataflow": {**shared, "name": "two"}, "owner": "team-b"})
    client.settled("commons", more["version"])
    assert more["reused"] and more["new"] == ["two.out"]
    (pool,) = client.see("/pools")
    assert [(d["name"], d["owner"]) for d in pool["dataflows"]] == [("one", "team-a"), ("two", "team-b")]
    assert client.see("/pools/commons") == pool
    costs = client.see("/pools/commons/costs")
    assert {a["name"] for a in costs} <= {"one", "two"}  # no costs before rows flow
    own = "/pools/commons/dataflows/one"
    assert client.see(own, params={"owner": "team-a"})["name"] == "one"
    refused = client.see(own, 403, params={"owner": "team-b"})
    assert "may not read it" in refused["detail"]
    right = {"owner": "team-a", "other": "team-b", "what": "read"}
    assert client.put("/rights", json=right).status_code == 204
    assert client.see(own, params={"owner": "team-b"})["name"] == "one"
    assert client.request("DELETE", "/rights", json=right).status_code == 204
    client.see(own, 403, params={"owner": "team-b"})
    assert client.see(own, 422)["detail"].startswith("owner: ")
    assert client.delete(own, params={"owner": "team-b"}).status_code == 403
    gone = client.delete(own, params={"owner": "team-a"})
    assert gone.status_code == 202 and gone.json()["new"] == ["one.out"]
    client.settled("commons", gone.json()["version"])
    put = client.ask("/pools/commons/defragment")
    client.settled("commons", put["version"])
    client.see("/pools/other", 404)
    client.see("/pools/commons/dataflows/one", 404, params={"owner": "team-a"})
    assert client.patch("/owners/team-b", json={"role": "owner", "dataflows": 1}).json()["limits"]["dataflows"] == 1
    over = {"dataflow": {**shared, "name": "three"}, "owner": "team-b"}
    assert "dataflows 2, 1 are allowed" in client.ask("/pools/commons/dataflows", over, 403)["detail"]
    cleared = client.patch("/owners/team-b", json={"dataflows": None, "role": "operator"}).json()
    assert cleared["limits"]["dataflows"] is None
    assert client.see("/owners") == [cleared]
    assert "has the role operator" in client.ask("/pools/commons/dataflows", over, 403)["detail"]


def test_rates_are_simulated(client: Client) -> None:
    document = flow("L1")
    asked = {
        "dataflow": document,
        "continuum": ZONES,
        "trace": TRACE.format(source=document["operators"][0]["id"]),
    }
    found = client.ask("/simulations", {**asked, "strategies": ["annotated", "atsoo_h"]}, 200)
    assert found["strategies"].keys() == {"annotated", "atsoo_h"}
    assert [len(steps) for steps in found["steps"].values()] == [3, 3]
    wrong = client.ask("/simulations", {**asked, "trace": "time\n1"}, 422)
    assert "the trace begins with time" in wrong["detail"]
    assert client.ask("/simulations", {**asked, "trace": "time\rb"}, 422)["where"] == "trace"


def test_a_world_is_supposed(client: Client, tiny: dict[str, Any]) -> None:
    source = tiny["operators"][0]["id"]
    found = client.ask("/deployments/tiny/what-if", {"rates": [f"{source}=50000"], "links": ["E1=10kbit/s"]}, 200)
    assert found["supposed"] == [f"{source}: 50000 rows/s", "the link of E1: 10kbit/s"]
    assert found["current"]["links"]["E1-S1"]["capacity_bytes_per_s"] == 1250.0 and found["why"]
    assert "is not a rate" in client.ask("/deployments/tiny/what-if", {"rates": ["many"]}, 422)["detail"]
    assert "no source" in client.ask("/deployments/tiny/what-if", {"rates": ["x=5"]}, 409)["detail"]


def test_all_is_seen_at_a_look(client: Client, tiny: dict[str, Any]) -> None:
    found = client.see("/view")
    assert [z["name"] for z in found["zones"]][:1] == ["C1"] and len(found["zones"]) == 8
    assert "tiny" in [d["name"] for d in found["deployments"] if d["phase"] == "running"]
    streamed = client.get("/events", params={"seconds": 1.5, "views": True}).text
    (line,) = [x for x in streamed.splitlines() if x.startswith("data: ")][:1]
    assert "event: view" in streamed and json.loads(line[6:])["layers"] == found["layers"]


def test_what_happens_is_told_as_it_happens(client: Client) -> None:
    heartbeat: list[str] = []
    begun = threading.Event()

    def listen() -> None:
        with client.stream("GET", "/events", params={"seconds": 20, "deployment": "heartbeat"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for line in stream.iter_lines():
                begun.set()
                heartbeat.append(line)
                if "outcome" in line or "done" in line:
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    assert begun.wait(20)
    time.sleep(1.0)  # the stream has found the newest event
    applied(client, {**flow("L1"), "name": "heartbeat"}, continuum=ZONES)
    applied(client, {**flow("L1"), "name": "unheard"}, continuum=ZONES)
    thread.join(30)
    assert not thread.is_alive()
    told = [line for line in heartbeat if line.startswith("data:")]
    assert told and all('"heartbeat"' in line for line in told)
    first = next(int(line[4:]) for line in heartbeat if line.startswith("id: "))
    again = client.get("/events", params={"seconds": 1.5}, headers={"Last-Event-ID": str(first)}).text
    numbers = [int(line[4:]) for line in again.splitlines() if line.startswith("id: ")]
    assert numbers == sorted(numbers) and numbers[0] > first and '"unheard"' in again
    assert "event: told" in again and again.startswith(": ")


def test_a_stream_says_when_the_store_is_gone(tmp_path: Path) -> None:
    with place(tmp_path), serving(None, "127.0.0.1", 0) as url, Client(url) as client:
        store = Path(resolved_url(None))
        Store(str(store)).close()
        assert objectives.told(None) == (0, ())
        store.rename("elsewhere.db")
        found = client.get("/events", params={"seconds": 1.2}).text
        assert found.count("event: problem") == 1 and '"status": 404' in found
        Path("elsewhere.db").rename(store)
