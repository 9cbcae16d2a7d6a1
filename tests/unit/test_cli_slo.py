"""SLOs, metrics and decisions from the command line and over HTTP, from a store that a test fills."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwater.adapt.slo import SLO
from headwater.app import deployments, storecache
from headwater.app.client import Client, PlanRequest
from headwater.app.metrics import MOMENTS, metrics_of
from headwater.control import tables
from headwater.control.records import ReportRecord
from headwater.control.store import Store
from headwater.control.tables import STORE, resolved_url
from headwater.core.errors import DeploymentError
from headwater.core.jsonform import dump
from headwater.core.metrics import (
    ChannelProgress,
    HostProgress,
    Latency,
    LinkProgress,
    OperatorProgress,
    Progress,
    UnitProgress,
)
from headwater.plan.edit import Move
from headwater.plan.profile import OperatorProfile, Profile
from headwater.serving.listening import address
from headwater.web.prometheus import serving
from tests.conftest import free_port
from tests.unit.changes import FIRST
from tests.unit.test_cli_control import controller, invoke, tiny
from tests.unit.test_memory import OTHER, running


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setattr(storecache, "RECENT", 600.0)  # so that a slow machine does not fail the test
    monkeypatch.delenv(STORE, raising=False)
    made = Store(resolved_url(None))
    yield made
    made.close()


def seen(second: int, *, p95: float = 1.5) -> Progress:
    """Return the progress of all zones after some seconds of 100 rows/s; the upper unit was restarted after 5 s."""
    upper = second if second < 5 else second - 5
    return Progress(
        seconds=float(second),
        units=(
            UnitProgress(
                unit="FP@E1", zone="E1", layer="edge", status="running", rows_in=100 * second,
                rows_out=50 * second, batches=second, busy_s=0.25 * second, cpu_s=0.2 * second, run="a",
                operators=(
                    _read(second, "L1", 75),
                    _read(second, "L2", 25),
                    OperatorProgress(operator="FP", rows_in=100 * second, rows_out=50 * second),
                ),
            ),
            UnitProgress(
                unit="out@C1", zone="C1", layer="cloud", status="running", rows_in=50 * second, lag=7,
                rows_out=10 * second, batches=upper, busy_s=0.5 * upper, cpu_s=0.1 * upper, run="b",
                state_rows=4, state_bytes=2048, latency=Latency(p50=0.5, p95=p95, rows=9, over_s=60.0),
                oldest_s=0.75, idle=("E1", "L2"), batch_ms=250.0, dead_letters=3,
                operators=(
                    OperatorProgress(operator="ML", rows_in=50 * upper, rows_out=10 * upper),
                    OperatorProgress(operator="out"),
                ),
            ),
        ),
        hosts=(
            HostProgress(
                host="gw1", zone="E1", cores=2.0, seconds=second, cpu_s=second, others_s=0.2 * second
            ),
        ),
        links=(
            LinkProgress(
                link="S1-C1", rows=50 * second, bytes=5000 * second, up=True, delay_s=0.02, capacity=1e6,
                bytes_per_s=4900.0,
            ),
        ),
        channels=(ChannelProgress(channel="FP@E1", rows=9, bytes=900, unread=2, unread_bytes=200),),
    )  # fmt: skip


def _read(second: int, location: str, rate: int) -> OperatorProgress:
    rows = rate * second
    return OperatorProgress(operator="read", rows_in=rows, rows_out=rows, location=location)


def measured(store: Store, **how: Any) -> str:
    """Make a plan active, with one report of its units per second; return the plan's id."""
    base = running(store, FIRST.plan())
    now = time.time()
    for second in range(11):
        store.report("me", now - 10 + second, samples={"f": seen(second, **how)})
    reports = {"E1": seen(10), "C1": seen(10, **how)}
    for zone, progress in reports.items():
        own = tuple(u for u in progress.units if u.zone == zone)
        part = replace(progress, units=own) if zone == "E1" else Progress(seconds=1.0, units=own)
        store.report("me", now, {"f": [ReportRecord(node=zone, at=now, progress=part)]})
    return base


OPTION = {
    "layers": {"FP": "edge"}, "at": {}, "latency_s": 2.0, "load": {"gw1 (E1)": 0.5, "s1a (S1)": 0.25},
    "bandwidth_bytes_per_s": 20480.0, "cost": 0.125, "moved": 2, "keeps": True, "breaks": [], "why_not": "",
}  # fmt: skip
DATA = {
    "slo": dump(SLO(mode="advise", max_latency=3.0)),
    "measured": {
        "latency_s": 4.2, "latency_p50_s": 1.0, "bandwidth_bytes_per_s": 1024.0, "cost": 0.5, "oldest_s": 3.0,
        "load": {"gw1 (E1)": 0.9}, "rates": {"read": {"L1": 100.0}},
        "capacity": {"S1-C1": 1e6, "E1-S1": None},
    },
    "forecast": {"rates": {"read": {"L1": 250.0}}},
    "current": {**OPTION, "name": "as now", "latency_s": None, "breaks": ["max_latency: 4.2 s > 3 s"]},
    "alternatives": [
        {**OPTION, "name": "FP to cloud", "why_not": "'AD to cloud' costs less"},
        {**OPTION, "name": "AD to cloud", "latency_s": 1.25},
    ],
    "chosen": 1,
}  # fmt: skip


def decided(store: Store, before: str | None, data: Any = DATA, **values: Any) -> int:
    given: dict[str, Any] = {"mode": "advise", "trigger": "max_latency", "state": "proposed", "plan": OTHER}
    why = "max_latency: 4.2 s > 3 s; AD to cloud keeps to all limits"
    return store.record_decision("me", "f", before=before, data=data, **{"why": why, **given, **values})


def test_an_slo_is_set_changed_and_lifted(store: Store) -> None:
    assert invoke("slo", "f")[0] == 6  # no such deployment
    running(store)
    assert invoke("slo", "f") == (0, "f: no SLO is set\n", "")
    code, out, err = invoke("slo", "f", "--max-latency", "3s", "--max-bandwidth", "200kB/s", "--headroom", "25%")
    assert (code, err) == (0, "")
    assert out.startswith("f: latency up to 3s, up to 200kB/s into the top layer, headroom 25%; mode advise")
    assert invoke("slo", "f", "--max-latency", "none", "--mode", "auto", "--gain", "0.05", "--max-cost", "2")[0] == 0
    assert store.slo("f") == SLO(mode="auto", max_bandwidth=2e5, max_cost=2.0, headroom=0.25, gain=0.05)
    code, out, err = invoke("slo", "f", "--headroom", "none")
    assert (code, err) == (0, "") and "no headroom" in out
    assert store.slo("f") == SLO(mode="auto", max_bandwidth=2e5, max_cost=2.0, headroom=None, gain=0.05)
    data = json.loads(invoke("slo", "f", "--settle", "5s", "--cool-down", "2min", "--json")[1])
    assert (data["settle"], data["cool_down"], data["max_latency"], data["max_bandwidth"]) == (
        5,
        120,
        None,
        2e5,
    )
    for wrong, code in (
        (("--max-latency", "soon"), 3), (("--headroom", "lots"), 2), (("--headroom", "120%"), 4),
        (("--max-cost", "x"), 2), (("--max-latency", "0s"), 4), (("--mode", "on"), 2), (("--gain", "nan"), 2),
    ):  # fmt: skip
        assert invoke("slo", "f", *wrong)[0] == code, wrong
    assert store.slo("f").settle == 5.0  # type: ignore[union-attr]


def test_apply_keeps_the_profile(store: Store) -> None:
    def apply(rate: float) -> tuple[int, str, str]:
        given = Profile(dataflow="tiny", operators={"low": OperatorProfile(cpu_s=rate)})
        Path("p.json").write_text(given.to_json())
        return invoke("apply", *tiny(), "--strategy", "annotated", "--profile", "p.json", "--yes", "--wait")

    with controller():
        for cost in (1e-5, 2e-5):  # the second time only the profile differs
            code, _, err = apply(cost)
            assert code == 0, err
            kept = store.profile("tiny")
            assert kept is not None and kept.operators["low"].cpu_s == cost
        assert store.deployment("tiny").version == 1
        invoke("apply", *tiny(above=2), "--yes", "--wait")
        assert store.profile("tiny") == kept and store.deployment("tiny").version == 2


def test_status_tells_of_the_slo(store: Store) -> None:
    base = measured(store)
    data = json.loads(invoke("status", "f", "--json")[1])
    assert (data["slo"], data["kept"], data["decisions"]) == (None, None, [])
    store.set_slo("f", SLO(max_latency=3.0))
    out = invoke("status", "f")[1]
    assert "SLO kept, latency 1.5s of at most 3s; mode advise" in out and "1.5s" in out
    store.set_slo("f", SLO(max_latency=1.0, mode="auto"))
    number = decided(store, base)
    decided(store, base, state="nothing", plan=None)
    out = invoke("status", "f")[1]
    assert "SLO broken: max_latency: 1.5 s > 1 s; mode auto" in out
    assert f"decision {number} proposed: max_latency: 4.2 s > 3 s" in out and f"headwater approve {number}" in out
    data = json.loads(invoke("status", "f", "--json")[1])
    assert (data["kept"], data["broken"]) == (False, ["max_latency: 1.5 s > 1 s"])
    assert data["measured"]["latency_s"] == 1.5 and data["measured"]["load"] == {"gw1 (E1)": pytest.approx(0.6)}
    assert [d["id"] for d in data["decisions"]] == [number]


def test_what_is_not_measured_is_not_called_kept(store: Store) -> None:
    running(store)
    store.set_slo("f", SLO(max_latency=3.0))
    for second in (1, 2):
        store.report("me", time.time() - 3600 + second, samples={"f": seen(second)})
    assert "SLO: not measured yet; mode advise" in invoke("status", "f")[1]
    assert json.loads(invoke("status", "f", "--json")[1])["kept"] is None


def test_metrics_are_rates_over_restarts(store: Store) -> None:
    measured(store)
    data = json.loads(invoke("metrics", "f", "--since", "1min", "--json")[1])
    units = {u["unit"]: u for u in data["units"]}
    first, upper = units["FP@E1"], units["out@C1"]
    assert first["rows_in_per_s"] == pytest.approx(100) and first["selectivity"] == pytest.approx(0.5)
    assert first["cpu_s_per_row"] == pytest.approx(0.002) and first["busy"] == pytest.approx(0.25)
    own = {(o["operator"], o["location"]): o["rows_in_per_s"] for o in first["operators"]}
    assert own == pytest.approx({("read", None): 100, ("read", "L1"): 75, ("read", "L2"): 25, ("FP", None): 100})
    # Its counters restarted after 5 s: 4 batches before that, 5 after.
    assert upper["batch_s"] == pytest.approx(0.5) and upper["operators"][0]["rows_in_per_s"] == pytest.approx(45)
    assert (upper["lag"], upper["latency_p95_s"], upper["oldest_s"]) == (7, 1.5, 0.75)
    (host,), (link,) = data["hosts"], data["links"]
    assert (host["load"], host["spark"], host["others"]) == pytest.approx((0.6, 1.0, 0.2))
    assert link["bytes_per_s"] == pytest.approx(5000) and link["capacity_bytes_per_s"] == 1e6
    assert [m["rows_per_s"] for m in data["course"]] == pytest.approx([100] * 10)
    code, out, _ = invoke("metrics", "f")
    assert code == 0 and "f, over the last 10s" in out and "FP@E1" in out and "read at L1" in out
    assert "Latency p95  ██████████  1.5s to 1.5s, now 1.5s" in out and "4 rows, 2KiB" in out
    assert len(metrics_of("f", 3.5).course) <= 3
    assert invoke("metrics", "nobody")[0] == 6 and invoke("metrics", "f", "--since", "x")[0] == 3


def test_a_long_course_is_drawn_in_few_bars(store: Store) -> None:
    running(store)
    end = time.time()
    assert "nothing was measured yet" in invoke("metrics", "f")[1]
    for second in range(0, 301):
        store.report("me", end - 300 + second, samples={"f": seen(second, p95=9.0 if second == 152 else 1.0)})
    course = metrics_of("f", 600).course
    assert 35 <= len(course) <= MOMENTS
    assert [m.rows_per_s for m in course] == pytest.approx([100] * len(course))
    assert max(m.latency_s or 0 for m in course) == 9.0  # a short peak stays visible


def test_a_decision_is_explained(store: Store) -> None:
    number = decided(store, running(store))
    code, out, _ = invoke("explain", str(number))
    assert code == 0
    for text in (
        f"decision {number} on f: proposed", "because of max_latency",
        "SLO: latency up to 3s, headroom 20%",
        "measured: latency p95 4.2s, p50 1s; the oldest row waits for 3s; 1KiB/s into the top layer",
        "loads: gw1 (E1) 90%", "rates: read at L1 100 rows/s", "links bear: S1-C1 1MB/s",
        "expected: read at L1 250 rows/s",
    ):  # fmt: skip
        assert text in out, (text, out)
    rows = {line.strip("-> ").split("  ")[0]: line for line in out.splitlines()}
    assert "without end" in rows["as it is"] and "50%" in rows["FP to cloud"] and "20KiB/s" in rows["FP to cloud"]
    assert rows["AD to cloud"].startswith("->") and "1.25s" in rows["AD to cloud"]
    for reason in (
        "as it is: max_latency: 4.2 s > 3 s", "FP to cloud: 'AD to cloud' costs less", "AD to cloud: chosen",
    ):  # fmt: skip
        assert reason in out.splitlines()
    assert json.loads(invoke("explain", str(number), "--json")[1])["data"]["chosen"] == 1
    store.want_decided("me", number)
    store.settle_decision("me", number, "watched")
    after = {
        "latency_s": 1.0,
        "verdict": "better",
        "seconds_out": 12.0,
        "text": "all limits are kept",
        "load": {},
    }
    store.settle_decision("me", number, "kept", after)
    out = invoke("explain", str(number))[1]
    assert "version 2 was wanted for it" in out and "kept: better: all limits are kept" in out
    assert "measured after it: latency p95 1s" in out and "limits were broken for 12s" in out
    assert (
        f"decision {number}: max_latency: 4.2 s > 3 s; AD to cloud keeps to all limits: kept, version 2"
        in (invoke("history", "f")[1])
    )
    assert [d["state"] for d in json.loads(invoke("history", "f", "--json")[1])["decisions"]] == ["kept"]
    assert invoke("explain", "99")[0] == 6


@pytest.mark.parametrize(
    "data",
    [
        {},
        {
            "slo": {"mode": "?"},
            "measured": 3,
            "alternatives": [{}, None, "x"],
            "chosen": 7,
            "current": [],
        },
        {"measured": {"latency_s": "much", "load": [1], "rates": {"a": 3}}, "forecast": {"rates": None}},
        {"alternatives": [{"load": {"h": None}, "breaks": "[bold]x", "name": "[red]"}], "chosen": None},
    ],
)
def test_what_is_missing_does_not_keep_a_decision_from_being_explained(store: Store, data: Any) -> None:
    number = decided(store, running(store), data, state="nothing", plan=None)
    code, out, _ = invoke("explain", str(number))
    assert code == 0 and f"decision {number} on f: nothing" in out


def test_a_person_approves(store: Store) -> None:
    with controller() as zones:
        assert invoke("apply", *tiny(), "--yes", "--wait")[0] == 0
        base = store.deployment("tiny").active_plan
        assert base is not None
        moved = Client().propose(PlanRequest(of="tiny", edits=(Move(operator="low", to="cloud"),))).plan
        with store._writing() as connection:  # the controller holds the lease, and makes no decision itself
            holder = connection.exec_driver_sql("SELECT holder FROM headwater_leases").scalar()
        given: dict[str, Any] = {
            "mode": "advise", "trigger": "gain", "why": "less is used", "state": "proposed", "data": {},
        }  # fmt: skip
        first = store.record_decision(holder, "tiny", plan=moved, before=base, **given)
        second = store.record_decision(holder, "tiny", plan=moved, before=base, **given)
        code, _, err = invoke("approve", str(first))
        assert code == 2 and "--yes" in err and store.decision(first).state == "proposed"
        code, out, err = invoke("reject", str(second))
        assert code == 0 and store.decision(second).state == "rejected"
        code, out, err = invoke("approve", str(first), "--yes", "--wait")
        assert code == 0, err
        assert "replace" in out or "start" in out
        assert "version 2: done" in err
        assert store.decision(first).version == 2
        assert zones.differences(store.active_plan("tiny"), "tiny") == []
        for command in ("approve", "reject"):
            code, _, err = invoke(command, str(second), *(["--yes"] if command == "approve" else []))
            assert code == (6 if command == "approve" else 0)
        code, _, err = invoke("reject", str(first))
        assert code == 6 and f"decision {first}" in err


def test_what_nobody_may_approve_any_more(store: Store) -> None:
    base = running(store)
    number = decided(store, base)
    store.want("f", "stop")
    code, _, err = invoke("approve", str(number), "--yes")
    assert code == 6 and "no longer active" in err and "headwater history f" in err
    assert store.deployment("f").version == 2


# ---------------------------------------------------------------- Prometheus


def scrape(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_a_scrape_gives_what_zones_said_last(store: Store) -> None:
    base = measured(store)
    store.set_slo("f", SLO(max_latency=1.0, max_bandwidth=2e5))
    decided(store, base)
    decided(store, base)
    with serving(None, "127.0.0.1", 0) as url:
        found = scrape(url)

        def value(name: str, **labels: str) -> float:
            return found[f"headwater_{name}", frozenset({"deployment": "f", **labels}.items())]

        unit = {"zone": "C1", "unit": "out@C1"}
        assert value("unit_rows_in_total", **unit) == 500 and value("unit_rows_out_total", **unit) == 100
        assert value("unit_batch_seconds", **unit) == 0.25 and value("unit_lag_rows", **unit) == 7
        assert value("unit_busy_seconds_total", **unit) == 2.5 and value("unit_state_bytes", **unit) == 2048
        assert value("unit_latency_seconds", **unit, quantile="0.95") == 1.5
        assert value("unit_latency_seconds", **unit, quantile="0.5") == 0.5
        assert value("unit_oldest_seconds", **unit) == 0.75 and value("dead_letters_total", **unit) == 3
        assert value("unit_idle_inputs", **unit) == 2
        own = {"zone": "E1", "unit": "FP@E1", "operator": "read", "location": "L1"}
        assert value("operator_rows_out_total", **own) == 750
        uncounted = {"deployment": "f", **unit, "operator": "out", "location": ""}
        assert ("headwater_operator_rows_in_total", frozenset(uncounted.items())) not in found
        assert value("host_cpu_seconds_total", host="gw1", zone="E1", of="spark") == 10
        assert value("link_bytes_total", link="S1-C1") == 50_000 and value("link_up", link="S1-C1") == 1
        assert value("link_capacity_bytes_per_second", link="S1-C1") == 1e6
        assert value("channel_unread_bytes", channel="FP@E1") == 200
        assert value("slo_limit", of="max_latency") == 1 and value("slo_kept") == 0
        assert ("headwater_slo_limit", frozenset({("deployment", "f"), ("of", "max_cost")})) not in found
        assert value("decisions", state="proposed") == 2
        assert 0 <= value("zone_report_age_seconds", zone="C1") < 600 and value("zone_up", zone="C1") == 1
        assert found["headwater_store_up", frozenset()] == 1


def test_a_store_that_is_away_breaks_no_scrape(store: Store) -> None:
    with serving("none.db", "127.0.0.1", 0) as url:
        assert scrape(url) == {("headwater_store_up", frozenset()): 0}
        Store("none.db").close()
        assert scrape(url) == {("headwater_store_up", frozenset()): 1}
        Path("none.db").write_text("no database, " * 100)
        assert scrape(url) == {("headwater_store_up", frozenset()): 0}


def test_names_follow_the_rules(store: Store) -> None:
    measured(store)
    with serving(None, "127.0.0.1", 0) as url, urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    kinds = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    assert len(kinds) > 25
    for name, kind in kinds.items():
        assert name.startswith("headwater_") and (kind == "counter") == name.endswith("_total"), name
        assert not name.endswith(("_ms", "_kb", "_percent")), name
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))  # no series twice


def test_up_serves_metrics_while_it_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    port, found = free_port(), {}
    url = f"http://127.0.0.1:{port}/metrics"
    monkeypatch.setattr(deployments, "up", lambda *given, **options: found.update(scrape(url)))
    code, _, err = invoke("up", "--listen", "none", "--metrics", str(port))
    assert code == 0 and f"metrics at {url}" in err
    assert found == {("headwater_store_up", frozenset()): 1}
    with pytest.raises(OSError):
        scrape(url)


def test_where_it_listens(store: Store) -> None:
    assert address("9095", option="--metrics") == ("127.0.0.1", 9095)
    for wrong in ("", "x", ":9095", "h:", "h:70000", "1:2:x"):
        with pytest.raises(DeploymentError, match=r"not a \[HOST:\]PORT"):
            address(wrong, option="--metrics")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = invoke("up", "--listen", "none", "--metrics", f"127.0.0.1:{port}")
        assert code == 6 and f"cannot listen at 127.0.0.1:{port}" in err


# ---------------------------------------------------------------- the model


def test_status_holds_the_model_against_what_is_measured(store: Store) -> None:
    measured(store)
    data = json.loads(invoke("status", "f", "--model", "--json")[1])
    (latency,) = data["latency"]
    assert (latency["what"], latency["measured"]) == ("out@C1", 0.5)
    assert latency["error"] == pytest.approx(abs(latency["predicted"] - 0.5) / 0.5)
    assert [one["what"] for one in data["load"]] == ["gw1 (E1)"]
    shown = invoke("status", "f", "--model")[1]
    assert "latency of out@C1" in shown and "500ms" in shown


def test_status_says_when_too_little_was_measured(store: Store) -> None:
    running(store, FIRST.plan())
    assert "too little was measured" in invoke("status", "f", "--model")[1]
