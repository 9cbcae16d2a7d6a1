"""Commands over a store, with a controller over simulated zones."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater import cli
from headwater.agent.agents import Agents
from headwater.app import deployments, loading, observe
from headwater.app.client import Client, PlanRequest
from headwater.cli import control
from headwater.cli.sparkoptions import spark_settings
from headwater.continuum.model import Continuum, Node
from headwater.control import tables
from headwater.control.store import Store
from headwater.control.tables import STORE, resolved_url
from headwater.core.errors import DeploymentError, Unavailable
from headwater.core.metrics import UnitProgress
from headwater.testing.nodes import SimulatedNodes

ROOT = Path(__file__).parents[2]
CONTINUUM = str(ROOT / "tests/unit/acme.yaml")
FLOW = """
import headwater as hw
f = hw.flow("tiny", locations=[{places}])
rows = f.read.csv("in/{{location}}", "id int, ts timestamp, v double", location_as="location")
low = rows.with_watermark("ts", "1 second").where("v > {above}").named("low").to_layer("site")
window = low.group_by(hw.window("ts", "1 minute"), "location").agg(m="{agg}").named("high")
window.to_layer("cloud").write.memory("out")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(STORE, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def invoke(*arguments: str, given: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(arguments), input=given)
    return result.exit_code, result.stdout, result.stderr


def tiny(*places: str, above: int = 1, agg: str = "avg(v)") -> list[str]:
    text = FLOW.format(places=", ".join(repr(p) for p in places or ("L1", "L4")), above=above, agg=agg)
    Path("flow.py").write_text(text)
    return ["flow.py", "-c", CONTINUUM]


@contextmanager
def controller(zones: SimulatedNodes | None = None) -> Iterator[SimulatedNodes]:
    """Run `up` with simulated zones; it reads the store more often than a controller of real zones."""
    zones, stop = zones or SimulatedNodes(), threading.Event()
    thread = threading.Thread(target=deployments.up, kwargs={"open_node": zones.open, "stop": stop})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater.control.controller.IDLE", 0.3)
        thread.start()
        try:
            yield zones
        finally:
            stop.set()
            thread.join(20)
            assert not thread.is_alive()


def test_apply_shows_stores_and_waits() -> None:
    with controller() as zones:
        code, out, err = invoke("apply", *tiny(), "--yes", "--wait")
        assert code == 0, err
        assert "tiny: 5 units change, 0 stay as they are" in out and "start low@E1: it is new" in out
        assert "tiny: version 1 is wanted" in err and "version 1: done" in err
        code, out, err = invoke("apply", *tiny(above=2), "--yes", "--wait", "--json")
        data = json.loads(out)
        assert (code, data["stored"], data["version"], data["unchanged"]) == (0, True, 2, 3)
        assert [u["action"] for u in data["units"]] == ["replace", "replace"]
        code, out, _ = invoke("apply", *tiny(above=2))
        assert code == 0 and "nothing to do" in out  # and no question is asked
        store = Store(resolved_url(None))
        assert zones.differences(store.active_plan("tiny"), "tiny") == [] and store.deployment("tiny").version == 2
        store.close()


def test_plan_shows_what_would_change() -> None:
    code, before, _ = invoke("plan", *tiny())
    assert code == 0 and "units change" not in before
    with controller():
        invoke("apply", *tiny(), "--yes", "--wait")
    _, after, _ = invoke("plan", *tiny("L1", "L4", "L5"))
    assert (
        "tiny: 2 units change, 4 stay as they are" in after
        and "update the inputs of high@S2 without a restart" in after
    )
    assert "low@E5 on gw5" in after
    _, text, _ = invoke("plan", *tiny("L1"), "--json")
    data = json.loads(text)
    assert data["dataflow"] == "tiny"
    assert {u["unit"]: u["action"] for u in data["change"]["units"]} == {
        "low@E4": "stop", "high@S2": "stop", "out@C1": "update_inputs",
    }  # fmt: skip
    code, out, err = invoke("plan", *tiny(agg="max(v)"))
    assert code == 6 and "high@S1 on s1a" in out and "--reset-state high@S1" in err


def test_operators_are_moved_and_units_split_by_name() -> None:
    with controller() as zones:
        invoke("apply", *tiny("L1"), "--yes", "--wait")
        code, out, err = invoke("move", "high", "--to", "edge", "--yes", "--wait")
        assert code == 0, err
        assert "give high@E1 the state of high from high@S1" in out and "version 2: done" in err
        begun = zones.kept("tiny")["high@E1"]
        code, out, err = invoke("split", "high@E1", "--after", "low", "--yes", "--wait", "--json")
        data = json.loads(out)
        assert code == 0 and data["stored"], err
        assert data["transferred"] == [{"unit": "low@E1", "from": ["high@E1"]}]  # the windows stay in their unit
        code, out, err = invoke("fuse", "low", "high", "--of", "tiny", "--yes", "--wait")
        assert code == 0, err
        assert zones.kept("tiny")["high@E1"] == begun
        code, out, err = invoke("fuse", "low", "high", "--yes")
        assert code != 0 and "low and high are in one unit" in err
        code, out, err = invoke("move", "high", "--to", "cloud", "--of", "small", "--yes")
        assert code != 0 and "small" in err


def test_an_operator_is_moved_for_one_location() -> None:
    with controller() as zones:
        invoke("apply", *tiny(), "--yes", "--wait")
        stays = zones.kept("tiny")["high@S2"]
        code, out, err = invoke("move", "high", "--to", "edge", "--at", "L1", "--yes", "--wait")
        assert code == 0, err
        assert "give high@E1 the state of high from high@S1" in out and "E4" not in out
        assert zones.kept("tiny")["high@S2"] == stays
        code, _, err = invoke("move", "high", "--to", "edge", "--at", "L3", "--yes")
        assert code != 0 and "no location is called 'L3'" in err


def test_a_unit_is_spread_over_hosts_with_agents_of_their_own() -> None:
    text = Path(CONTINUUM).read_text()
    for host in ("s1a", "s1b"):
        text = text.replace(f"{host}: {{n_cpu: 4", f"{host}: {{at: local, n_cpu: 4")
    Path("nodes.yaml").write_text(text)
    given = [tiny()[0], "-c", "nodes.yaml"]
    with controller() as zones:
        code, out, err = invoke("apply", *given, "--yes", "--wait")
        assert code == 0, err
        begun = {id_: kept["high"] for id_, kept in zones.kept("tiny").items() if "high" in kept}
        assert set(begun) == {"high.1of2@s1a", "high.2of2@s1b", "high@S2"}
        code, out, err = invoke("spread", "high.2of2@s1b", "--over", "s1b", "--yes", "--wait")
        assert code == 0, err
        assert "give high@s1b the state of high from high.1of2@s1a, high.2of2@s1b" in out
        joined = zones.kept("tiny")["high@s1b"]["high"]
        assert joined == " + ".join(sorted((begun["high.1of2@s1a"], begun["high.2of2@s1b"])))
        code, out, err = invoke("spread", "high@s1b", "--over", "s1a, s1b", "--of", "tiny", "--yes", "--wait")
        assert code == 0, err
        now = zones.kept("tiny")
        assert {now[id_]["high"] for id_ in ("high.1of2@s1a", "high.2of2@s1b")} == {joined}
        assert now["high@S2"]["high"] == begun["high@S2"]
        store = Store(resolved_url(None))
        assert zones.differences(store.active_plan("tiny"), "tiny") == []
        store.close()
        code, _, err = invoke("spread", "high@S2", "--over", "s1a", "--yes")
        assert code == 4 and "no host of zone S2 is called 's1a'" in err


def test_nobody_is_asked_without_a_terminal() -> None:
    code, _, err = invoke("apply", *tiny())
    assert code == 2 and "--yes" in err
    assert not Client().holds("tiny")


@pytest.mark.parametrize(("answer", "stored"), [("y\n", True), ("n\n", False)])
def test_a_terminal_is_asked(answer: str, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirm(what: str, *, err: bool) -> bool:
        asked.append(what)
        return answer == "y\n"

    monkeypatch.setattr("typer.confirm", confirm)
    monkeypatch.setattr(control, "_is_terminal", lambda: True)
    code, _, err = invoke("apply", *tiny())
    assert asked == ["apply this?"] and Client().holds("tiny") is stored
    assert (code == 0) is stored and ("nothing was stored" in err) is not stored


def test_refusals_have_their_exit_code() -> None:
    with controller():
        assert invoke("apply", *tiny(), "--yes", "--wait")[0] == 0
        code, _, err = invoke("apply", *tiny(agg="max(v)"), "--yes")
        assert code == 6 and "error: its state cannot be kept" in err and "--reset-state high@S1" in err
        agreed = ["--reset-state", "high@S1", "--reset-state", "high@S2"]
        code, out, _ = invoke("apply", *tiny(agg="max(v)"), "--yes", "--wait", *agreed)
        assert code == 0 and "its state is given up" in out
        code, _, err = invoke("apply", *tiny(agg="avg(v)"), "--yes", "--canary", "1s", *agreed)
        assert code == 6 and "without --canary" in err
    assert invoke("apply", *tiny("L9"), "--yes")[0] == 4
    assert invoke("apply", *tiny(), "--yes", "--canary", "soon")[0] == 3
    assert invoke("status", "nobody")[0] == 6
    assert invoke("stop", "nobody")[0] == 6
    assert invoke("stop", "tiny", "--forget", "--finish")[0] == 2
    assert invoke("apply", *tiny(), "--yes", "--store", "mysql://a:b@c/d")[0] == 6


def test_a_failed_change_ends_the_waiting() -> None:
    zones = SimulatedNodes(seen=lambda u: u)
    with controller(zones):
        invoke("apply", *tiny(), "--yes", "--wait")
        zones.before = _broken
        code, _, err = invoke("apply", *tiny(above=3), "--yes", "--wait")
        assert code == 6 and "failed: nothing was stopped or started: it does not compile" in err
        zones.before = lambda call: None
        zones.seen = lambda u: type(u)(**{**vars(u), "error": "bad"}) if u.zone == "E4" else u
        code, _, err = invoke("apply", *tiny(above=3), "--yes", "--wait", "--canary", "0.2s")
        assert code == 5 and "rolled back: low@E4 failed: bad" in err
    code, out, _ = invoke("history", "tiny")
    assert code == 0
    for text in ("version 1: run, done", "version 2: run, failed", "version 3: run, rolled back"):
        assert text in out
    data = json.loads(invoke("history", "tiny", "--json")[1])
    assert [c["outcome"] for c in data["changes"]] == ["done", "failed", "rolled back"]
    assert any("rolling back" in e["text"] for e in data["events"])
    code, out, _ = invoke("explain", "tiny")
    assert code == 0 and "version 3: rolled back" in out and "replace low@E1: the change is rolled back" in out


def test_a_unit_that_fails_at_once_ends_the_waiting() -> None:
    looks = itertools.count()

    def seen(unit: UnitProgress) -> UnitProgress:
        if unit.unit != "low@E4":
            return unit
        if not next(looks):  # its first batch has not ended in the first report
            return replace(unit, unproven=True)
        return replace(unit, status="failed", error="unit low@E4: no column v\n  -> correct the input")

    with controller(SimulatedNodes(seen=seen)):
        code, _, err = invoke("apply", *tiny(), "--yes", "--wait")
    assert code == 5, err
    assert "error: 1 of 5 units failed: low@E4 of zone E4: no column v" in err
    assert "-> correct the input" in err and "deployment 'tiny', version 1" in err


def _broken(call: object) -> None:
    if getattr(call, "name", "") == "check":
        raise DeploymentError("it does not compile", hint="correct it")


def test_status_stop_and_go_on() -> None:
    code, _, err = invoke("status")
    assert code == 6 and "no store here" in err
    invoke("apply", *tiny(), "--yes")
    code, out, _ = invoke("status")
    assert code == 0 and "tiny  version 1  wanted" in out and "start one with `headwater up`" in out
    code, out, _ = invoke("explain", "tiny")
    assert "has not begun yet" in out
    assert json.loads(invoke("explain", "tiny", "--json")[1]) is None
    with controller() as zones:
        deployments.follow("tiny", 1, every=0.05)
        _until(lambda: len(observe.status("tiny")[0].units) == 5)
        data = json.loads(invoke("status", "tiny", "--json")[1])
        assert data["phase"] == "running" and {u["unit"] for u in data["units"]} >= {"low@E1", "out@C1"}
        assert data["change"]["done"] == data["change"]["steps"] > 10 and data["controller"]
        assert "low@E1" in invoke("status")[1]
        told = json.loads(invoke("explain", "tiny", "--json")[1])
        assert (told["version"], told["outcome"]) == (1, "done") and told["words"]
        assert all(s["state"] == "done" and s["begun"] <= s["ended"] for s in told["steps"])
        invoke("move", "low", "--to", "cloud", "--yes", "--wait")
        assert "s from the first stop to the last start" in invoke("explain", "tiny")[1]
        assert invoke("stop", "tiny", "--wait")[0] == 0
        assert observe.status("tiny")[0].phase == "stopped"
        assert invoke("apply", *tiny(), "--yes", "--wait")[0] == 0  # the same plan, which does not run now
        assert observe.status("tiny")[0].phase == "running"
        assert invoke("stop", "tiny", "--forget")[0] == 2
        assert invoke("stop", "tiny", "--forget", "--yes", "--wait")[0] == 0
        assert zones.differences(None, "tiny") == []


def _until(true: Callable[[], bool]) -> None:
    for _ in range(300):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 15 s")


def test_explain_a_file() -> None:
    code, out, _ = invoke("explain", *tiny(), "--canary", "90s")
    assert code == 0 and "watch low@E1 for" in out
    assert json.loads(invoke("explain", *tiny(), "--json")[1])["version"] == 0
    assert not Client().holds("tiny") and not Path(".headwater").exists()


def test_the_store_comes_from_option_environment_or_habit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved_url(None) == str(Path(".headwater") / "headwater.db")
    monkeypatch.setenv(STORE, "other.db")
    assert resolved_url(None) == "other.db" and resolved_url("x") == "x"
    invoke("apply", *tiny(), "--yes")
    assert Path("other.db").exists()


def test_what_was_shown_is_what_is_stored() -> None:
    flow, _, continuum = tiny()
    asked = PlanRequest(dataflow=loading.load_dataflow(flow).dataflow, continuum=Continuum.from_yaml(continuum))
    shown = Client().propose(asked)
    assert shown.change.version == 0 and Client().apply(shown) == 1
    for after in (None, 0):  # by default, the version that the proposal was made for
        with pytest.raises(DeploymentError, match="version 1 was stored meanwhile"):
            Client().apply(shown, after=after)


def test_up_reaches_nodes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, told = list[str](), list[str]()

    def reach(agents: Agents, node: Node) -> None:
        opened.append(node.name)
        if node.name == "S2":
            raise Unavailable("nobody answers")

    monkeypatch.setattr(Agents, "open", reach)
    stop = threading.Event()
    stop.set()
    deployments.up(nodes=Continuum.from_yaml(CONTINUUM).nodes, stop=stop, say=told.append)
    assert opened == ["C1", "S1", "S2", "E1", "E2", "E3", "E4", "E5"]
    assert told == ["S2: nobody answers"]


def test_settings_of_spark_reach_agents_in_a_file_and_not_on_their_command_lines(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, ...]] = []
    monkeypatch.delenv("HEADWATER_QUICK")
    monkeypatch.setattr(deployments, "up", lambda store, *, options, **_: found.append(options))
    monkeypatch.setattr(control, "served", lambda *_, **__: nullcontext())
    file = place / "secrets.conf"
    file.write_text("# of the object store\n\nspark.hadoop.fs.s3a.secret.key=in a file=\nspark.x=1\n")
    file.chmod(0o640)
    code, _, err = invoke("up", "--conf-file", str(file))
    assert code == 3 and "other users may read or change" in err and f"chmod 600 {file}" in err
    file.chmod(0o600)
    code, _, err = invoke(
        "up", "--conf-file", str(file), "--conf", "spark.x=2", "--conf", "spark.hadoop.password=seen-in-ps"
    )
    assert code == 0, err
    assert "can see the value of spark.hadoop.password in `ps`" in err and "secret.key" not in err
    (options,) = found
    written = place / ".headwater/spark.conf"
    assert options[:2] == ("--conf-file", str(written)) and "seen-in-ps" not in " ".join(options)
    assert written.stat().st_mode & 0o777 == 0o600
    settings = dict(spark_settings("", None, written).conf)
    assert settings == {
        "spark.hadoop.fs.s3a.secret.key": "in a file=",
        "spark.hadoop.password": "seen-in-ps",
        "spark.x": "2",
    }
