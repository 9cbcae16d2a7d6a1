"""The controller with simulated zones: changes, failures, canaries, newer desired states."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.adapt.slo import SLO
from headwater.control import poller, tables
from headwater.control.controller import PROVING, PROVING_SECONDS, WATCHED, Controller
from headwater.control.heldlease import holder_label
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable
from headwater.core.metrics import UnitProgress
from headwater.plan.build import build, in_layers
from headwater.plan.steps import CanarySettings, Finish
from headwater.testing.nodes import NodeCall
from tests.unit.changes import ACME, FIRST, calls_of
from tests.unit.controlled import WIDER, Site


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not sync to disk: a killed process loses no data that the kernel has."""
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.store.close()


# ---------------------------------------------------------------- changes


def test_apply_change_stop_and_go_on(site: Site) -> None:
    site.check(site.apply(FIRST), FIRST)
    begin = len(calls_of(site.zones))
    site.check(site.apply(replace(FIRST, alarm=2)), replace(FIRST, alarm=2))
    assert calls_of(site.zones)[begin:] == [
        "stop out@C1", "prepare out@C1", "start out@C1", "forget out@C1",
    ]  # fmt: skip
    site.check(site.apply(WIDER), WIDER)
    before = len(calls_of(site.zones))
    site.check(site.apply(WIDER), WIDER)
    assert len(calls_of(site.zones)) == before
    site.store.want("f", "stop")
    assert site.settle().phase == "stopped"
    assert len(site.zones.differences(site.running(), "f")) == len(site.running().units)
    site.check(site.apply(WIDER), WIDER)  # with the same names: the units continue with their state
    outcomes = [c.outcome for c in site.store.changes("f")]
    assert outcomes == ["done"] * 6


def test_zones_check_at_once(site: Site) -> None:
    """Each edge waits for the check of the other; sequential checks would time out."""
    met = threading.Barrier(2, timeout=10.0)

    def wait(call: NodeCall) -> None:
        if (call.name, call.node[0]) == ("check", "E"):
            met.wait()

    site.zones.before = wait
    wanted = replace(FIRST, locations=("L1", "L4"))
    site.check(site.apply(wanted), wanted)


def test_forget_leaves_nothing_and_a_new_beginning_has_new_names(site: Site) -> None:
    site.apply(FIRST)
    first = site.running()
    site.store.want("f", "forget")
    assert site.settle().phase == "stopped"
    assert site.zones.differences(None, "f") == [] and site.store.unit_statuses("f") == {}
    assert site.store.active_plan("f") is None and site.store.reports("f") == ()
    site.check(site.apply(FIRST), FIRST)
    assert not {u.tag for u in first.units} & {u.tag for u in site.running().units}
    assert min(u.epoch for u in site.running().units) > 1


def test_finish_uses_up_the_input(site: Site) -> None:
    site.apply(FIRST)
    site.store.want("f", "finish")
    record = site.settle()
    assert (record.phase, record.message) == ("stopped", "all input is used up")
    journal = site.store.journal(site.store.changes("f")[-1].id)
    assert [(e.step.kind, e.step.unit) for e in journal if isinstance(e.step, Finish)] == [
        ("finish", id_) for id_ in ("FP@E1", "FP@E2", "FP@E4", "AD@S1", "AD@S2", "out@C1")
    ]
    asked = [c.unit for c in site.zones.calls if c.name == "finish"]  # all nodes at once
    assert sorted(asked[:6]) == sorted(asked[6:]) == sorted(u.id for u in site.running().units)


def test_what_is_refused_is_refused_before_anything_is_touched(site: Site) -> None:
    site.apply(FIRST)
    begin = len(site.zones.calls)
    record = site.apply(replace(FIRST, aggregate="max(v)"))
    assert record.phase == "failed" and "--reset-state AD@S1" in record.message
    assert "nothing was changed" in record.message
    assert len(site.zones.calls) == begin and site.zones.differences(site.running(), "f") == []
    agreed = frozenset({"AD@S1", "AD@S2"})
    wanted = replace(FIRST, aggregate="max(v)")
    site.check(site.apply(wanted, reset_state=agreed), wanted)


# ---------------------------------------------------------------- failures


def test_a_failed_check_leaves_everything_running(site: Site) -> None:
    site.apply(FIRST)
    begin = len(calls_of(site.zones))
    site.zones.before = _raising("check", "AD@S2", RuntimeFailure("it does not compile", hint="correct it"))
    record = site.apply(WIDER)
    assert record.phase == "failed"
    assert record.message.startswith("nothing was stopped or started: it does not compile\n  -> correct it")
    assert calls_of(site.zones)[begin:] == []
    site.zones.before = lambda call: None
    site.check(site.apply(FIRST), FIRST)
    assert calls_of(site.zones)[begin:] == []
    site.check(site.apply(WIDER), WIDER)


def _raising(name: str, unit: str, error: BaseException) -> Callable[[NodeCall], None]:
    def before(call: NodeCall) -> None:
        if (call.name, call.unit) == (name, unit):
            raise error

    return before


def test_a_fatal_error_after_the_first_stop_says_how_things_stand(site: Site) -> None:
    site.apply(FIRST)
    site.zones.before = _raising("start", "AD@S1", RuntimeFailure("no memory", hint="add some"))
    record = site.apply(WIDER)
    assert (record.phase, record.message) == ("failed", "no memory\n  -> add some")
    assert any("AD@S1 does not run" in d or "AD" in d for d in site.zones.differences(site.running(), "f"))
    site.zones.before = lambda call: None
    site.check(site.apply(WIDER), WIDER)


def test_a_defect_of_a_port_ends_the_change_not_the_controller(site: Site) -> None:
    site.zones.before = _raising("prepare", "AD@S1", KeyError("oops"))
    record = site.apply(FIRST)
    assert record.phase == "failed" and "KeyError" in record.message and "S1: " in record.message


def test_a_zone_away_is_waited_for_and_told_of_once(site: Site) -> None:
    site.apply(FIRST)
    away = {"calls": 0}

    def before(call: NodeCall) -> None:
        if call.node == "S1" and call.name == "stop" and away["calls"] < 6:
            away["calls"] += 1
            raise Unavailable("no answer", hint="wait")

    site.zones.before = before
    begin = site.now
    site.check(site.apply(WIDER), WIDER)
    told = [e.text for e in site.store.events("f")]
    assert told.count("S1: no answer; trying again") == 1
    assert site.now - begin >= 1 + 2 + 4 + 8 + 8 + 8  # growing pauses, up to a limit


def test_a_zone_away_during_checks_ends_the_change(site: Site) -> None:
    site.apply(FIRST)
    site.zones.before = lambda call: _away(call) if call.node == "S2" else None
    record = site.apply(WIDER)
    assert record.phase == "failed" and record.message.startswith("nothing was stopped or started: S2: ")
    assert "for " in record.message and "apply again" in record.message
    # A change that does not need the zone does not wait for it.
    site.check(site.apply(replace(FIRST, alarm=2)), replace(FIRST, alarm=2))


def _away(call: NodeCall) -> None:
    raise Unavailable("no answer", hint="wait")


def test_progress_is_polled_and_failures_are_told_once(site: Site) -> None:
    site.apply(FIRST)
    wrong = {"AD@S1": {"error": "disk full"}, "AD@S2": {"waits": "no broker"}}
    site.zones.seen = lambda u: replace(u, **wrong.get(u.unit, {}))
    site.zones.before = lambda call: _away(call) if call.node == "E1" else None
    site.controller.poll()
    site.controller.poll()
    reports = {r.node: r for r in site.store.reports("f")}
    assert reports["E1"].error == "no answer" and reports["E1"].progress is None
    shown = reports["S1"].progress
    assert shown is not None and [u.unit for u in shown.units] == ["AD@S1"]
    told = [e.text for e in site.store.events("f")]
    assert (told.count("AD@S1 failed: disk full"), told.count("AD@S2 waits: no broker")) == (1, 1)


def test_each_poll_keeps_a_sample_of_the_zones_that_answered(site: Site) -> None:
    site.apply(FIRST)
    rows = itertools.count()
    site.zones.seen = lambda unit: replace(unit, rows_in=next(rows))  # a new value each time
    site.zones.before = lambda call: _away(call) if call.node == "E1" else None
    usual = pytest.approx(500.0, abs=90.0)
    site.controller._poll = 500.0
    assert site.controller.poll() == usual
    site.store.set_slo("f", SLO(mode="off"))
    assert site.controller.poll() == usual
    site.store.set_slo("f", SLO(mode="advise"))
    assert site.controller.poll() == WATCHED
    samples = site.store.samples("f")
    assert len(samples) == 3
    zones = {u.zone for u in site.running().units}
    assert {u.zone for u in samples[0].progress.units} == zones - {"E1"}
    site.zones.before = lambda call: None
    site.controller.poll()
    site.zones.before = lambda call: _away(call) if call.node == "E1" else None
    site.controller.poll()
    samples = site.store.samples("f")
    assert [{u.zone for u in s.progress.units} for s in samples[3:]] == [zones, zones - {"E1"}]
    site.zones.before = lambda call: _away(call)
    site.controller.poll()
    assert len(site.store.samples("f")) == 5  # no node answered
    site.zones.before = lambda call: None
    site.store.want("f", "stop")
    site.settle()
    assert site.controller.poll() == usual  # nothing runs


def test_a_deployment_that_has_just_changed_is_polled_until_its_units_have_done_a_batch(site: Site) -> None:
    site.controller._poll = 500.0
    begins = {"AD@S1"}
    site.zones.seen = lambda unit: replace(unit, unproven=unit.unit in begins)
    site.apply(FIRST)
    site.settle()
    assert [site.controller.poll() for _ in range(3)] == [PROVING] * 3
    shown = {u.unit for r in site.store.reports("f") if r.progress for u in r.progress.units if u.unproven}
    assert shown == begins
    begins.clear()
    assert site.controller.poll() > PROVING
    assert not any(u.unproven for r in site.store.reports("f") if r.progress for u in r.progress.units)


def test_a_poll_that_a_step_overtakes_proves_nothing(site: Site) -> None:
    site.controller._poll = 500.0
    site.apply(FIRST)
    site.settle()
    site.zones.before = lambda call: site.controller._poller.moved("f")
    assert site.controller.poll() == PROVING
    site.zones.before = lambda call: None
    assert site.controller.poll() > PROVING


def test_a_deployment_that_never_begins_is_polled_often_for_a_while_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.controller._poll = 500.0
    site.zones.seen = lambda unit: replace(unit, unproven=True)
    site.apply(FIRST)
    site.settle()
    assert site.controller.poll() == PROVING
    began = time.monotonic()
    monkeypatch.setattr("headwater.control.controller.time.monotonic", lambda: began + PROVING_SECONDS + 1.0)
    assert site.controller.poll() > PROVING


def test_what_is_no_news_is_stored_now_and_then(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.apply(FIRST)
    for _ in range(3):
        site.controller.poll()
    (sample,), reports = site.store.samples("f"), site.store.reports("f")
    assert len(reports) == len({u.node for u in site.running().units})
    site.zones.seen = lambda u: replace(u, rows_in=7) if u.unit == "AD@S1" else u
    site.controller.poll()
    assert [s.at for s in site.store.samples("f")[:-1]] == [sample.at]
    changed = {now.node for was, now in zip(reports, site.store.reports("f"), strict=True) if was != now}
    assert changed == {"S1"}
    reports = site.store.reports("f")
    monkeypatch.setattr(poller, "STALE", 0.0)
    site.controller.poll()
    assert len(site.store.samples("f")) == 3
    assert all(was.at < now.at for was, now in zip(reports, site.store.reports("f"), strict=True))


# ---------------------------------------------------------------- canary

CANARY = CanarySettings(seconds=10, factor=2)


def _unwell(**changes: Any) -> Callable[[UnitProgress], UnitProgress]:
    """Make the units in zone E2 perform badly."""
    return lambda u: replace(u, **changes) if u.zone == "E2" else u


def test_a_canary_goes_zone_by_zone_and_takes_its_time(site: Site) -> None:
    site.apply(FIRST)
    begin = site.now
    site.check(site.apply(replace(FIRST, above=1), canary=CANARY), replace(FIRST, above=1))
    assert site.now - begin >= 30
    order = [c for c in calls_of(site.zones, "start")][6:]
    assert order == ["start FP@E1", "start FP@E2", "start FP@E4"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"status": "failed", "error": "division by zero"}, "FP@E2 failed: division by zero"),
        ({"status": "stopped"}, "FP@E2 has stopped"),
        ({"status": "starting"}, "FP@E2 is still starting after 10 s"),
        ({"lag": 9, "batch": 4}, "FP@E2 makes no batches, with a lag of 9 rows"),
    ],
)
def test_a_canary_that_does_badly_is_rolled_back(site: Site, changes: dict[str, Any], why: str) -> None:
    site.apply(FIRST)
    before = site.running()
    site.zones.seen = _unwell(**changes)
    record = site.apply(replace(FIRST, above=1), canary=CANARY)
    assert record.phase == "running" and record.message.startswith(why)
    assert site.store.changes("f")[-1].outcome == "rolled back"
    after = site.running()
    assert after.dataflow == before.dataflow and site.zones.differences(after, "f") == []
    # Only units that were replaced have a third writer.
    assert {u.id: u.epoch for u in after.units} == {
        **{u.id: 1 for u in before.units}, "FP@E1": 3, "FP@E2": 3,
    }  # fmt: skip
    assert {u.id: u.tag for u in after.units} == {u.id: u.tag for u in before.units}
    site.zones.seen = lambda u: u
    wanted = replace(FIRST, above=2, locations=("L1", "L2", "L4", "L5"))
    site.check(site.apply(wanted, canary=CANARY), wanted)
    assert site.running().unit("FP@E1").epoch == 4


@pytest.mark.parametrize("field", ["dead_letters", "late_rows"])
def test_a_canary_compares_shares_with_those_of_before(site: Site, field: str) -> None:
    site.apply(FIRST)
    count = {"rows": 1000, "bad": 20}

    def seen(unit: UnitProgress) -> UnitProgress:
        count["rows"] += 100
        count["bad"] += count["per_look"]
        return replace(unit, rows_in=count["rows"], **{field: count["bad"]})

    site.zones.seen = seen
    count["per_look"] = 2
    site.controller.poll()
    count["per_look"] = 3  # 1.5 times as many: within the factor
    assert site.apply(replace(FIRST, alarm=2), canary=CANARY).message == ""
    site.controller.poll()
    count["per_look"] = 9
    record = site.apply(replace(FIRST, alarm=3), canary=CANARY)
    assert "out@C1 has 9.00%" in record.message and "are allowed" in record.message


def test_a_canary_undoes_what_it_added_and_took_out(site: Site) -> None:
    site.apply(FIRST)
    before = site.running()
    site.zones.seen = lambda u: replace(u, status="failed", error="no") if u.zone == "E5" else u
    wanted = replace(FIRST, locations=("L1", "L4", "L5"))
    record = site.apply(wanted, canary=CANARY)
    assert record.message.startswith("FP@E5 failed: no")
    assert site.zones.differences(site.running(), "f") == []
    assert site.running().dataflow == before.dataflow
    # A unit whose inputs were updated gets its old inputs, and has not stopped.
    assert not [c for c in calls_of(site.zones, "stop") if "@S" in c]


def test_a_way_back_does_not_take_the_deployments_own_output_for_anothers(site: Site) -> None:
    site.apply(FIRST)
    # The former unit of the sink is forgotten by then.
    site.zones.before = _raising("forget", "FP@E2", RuntimeFailure("no answer", hint="wait"))
    before = len(calls_of(site.zones, "former_output"))
    site.apply(replace(FIRST, path="/other/{zone}", locations=("L1", "L4")), canary=CANARY)
    assert site.store.changes("f")[-1].outcome == "rolled back"
    assert calls_of(site.zones, "former_output")[before:] == ["former_output out@C1"], "of the change alone"
    assert "forget out@C1" in calls_of(site.zones, "forget")


def test_no_way_back_from_a_half_changed_channel(site: Site) -> None:
    site.apply(FIRST)
    site.zones.before = _raising("start", "FP@E2", RuntimeFailure("no memory", hint="add some"))
    record = site.apply(replace(FIRST, wider=True), canary=CANARY)
    assert record.phase == "failed" and "can only be read by units of the new plan" in record.message
    site.zones.before = lambda call: None
    site.check(site.apply(replace(FIRST, wider=True)), replace(FIRST, wider=True))


def test_a_way_back_over_a_changed_form_loses_nothing(site: Site) -> None:
    site.apply(FIRST)
    site.zones.seen = lambda u: replace(u, status="failed", error="no") if u.unit == "AD@S2" else u
    record = site.apply(replace(FIRST, wider=True), canary=CANARY)
    assert record.message.startswith("AD@S2 failed: no")
    site.zones.seen = lambda u: u
    assert site.running().dataflow == FIRST.flow() and site.zones.differences(site.running(), "f") == []
    # The upper units read all data of the new form before they returned to their old plan.
    assert calls_of(site.zones, "drained")[-2:] == ["drained AD@S2", "drained AD@S2"]


# ---------------------------------------------------------------- newer desired states


def test_a_newer_wish_does_not_wait_for_a_change_that_is_stuck(site: Site) -> None:
    site.apply(FIRST)
    site.zones.before = lambda call: _away(call) if call.node == "S1" and call.name == "stop" else None
    site.store.want("f", "run", WIDER.plan())
    for _ in range(60):
        site.now += site.controller.advance("f")
    assert "S1: no answer" in site.store.deployment("f").message
    wanted = replace(FIRST, above=2, locations=("L4",), wider=True)
    site.store.want("f", "run", wanted.plan())
    site.controller.advance("f")
    assert site.store.changes("f")[-1].outcome == "superseded"
    site.zones.before = lambda call: None
    site.check(site.settle(), wanted)


# ---------------------------------------------------------------- the loop


def test_after_a_step_that_took_long_the_next_is_not_waited_for(site: Site) -> None:
    site.store.want("f", "run", FIRST.plan())
    assert site.controller.look() == 0.0  # the change is journaled
    site.zones.before = lambda call: time.sleep(0.05)
    assert site.controller.look() == 0.0


def test_the_loop_acts_until_told_and_hands_the_lease_on(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.controller.lease.release()
    site.store.want("f", "run", FIRST.plan())
    stop, said = threading.Event(), list[str]()
    first = Controller(site.store, site.zones.open, holder="one", lease=60, poll=0.05)
    thread = threading.Thread(target=first.run, args=(stop,), kwargs={"say": said.append})
    thread.start()
    _until(lambda: site.store.deployment("f").phase == "running")
    _until(lambda: len(site.store.reports("f")) == 6)
    second = Controller(site.store, site.zones.open, holder="two", lease=60, poll=0.05)
    waiting, told = threading.Event(), list[str]()
    other = threading.Thread(target=second.run, args=(waiting,), kwargs={"say": told.append})
    other.start()
    _until(lambda: bool(told))
    assert told == [f"waiting: {holder_label()} acts on {site.store.where}"]
    stop.set()
    thread.join(10)
    site.store.want("f", "run", replace(FIRST, alarm=2).plan())
    _until(lambda: site.store.deployment("f").observed_version == 2)
    lease = site.store.lease()
    assert lease is not None and (lease.holder, lease.term) == ("two", 3)
    waiting.set()
    other.join(10)
    assert site.store.lease() is None and not thread.is_alive() and not other.is_alive()
    site.store.close()


def test_a_controller_that_lost_its_lease_ends(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.controller.lease.release()
    controller = Controller(site.store, site.zones.open, holder="one", lease=0.3, poll=5)
    errors: list[HeadwaterError] = []

    def run() -> None:
        try:
            controller.run(threading.Event())
        except HeadwaterError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    _until(lambda: site.store.lease() is not None)
    with site.store._writing() as connection:
        connection.exec_driver_sql(
            "UPDATE headwater_leases SET holder = 'two', term = term + 1, beat = 0, seconds = 600"
        )
    thread.join(10)
    assert [e.what for e in errors] == ["another controller has taken over"]
    site.store.close()


def _until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not happen within 20 s")


def test_a_channel_that_another_unit_takes_over_to_write_stays(site: Site) -> None:
    builder = hw.flow("f", locations=["L1"])
    first = builder.read.json("/in/{location}", "id bigint, v double").where("v > 0").named("first")
    second = first.with_columns(v="v * 2").named("second")
    second.write.parquet("/out").named("out")
    first.write.parquet("/tap").named("tap")
    flow = builder.build()
    layers = {**dict.fromkeys(flow.order, "edge"), "out": "cloud"}
    together = build(flow, ACME, in_layers(flow, ACME, layers, cuts=frozenset({(flow.order[0], "first")})))
    apart = build(flow, ACME, in_layers(flow, ACME, {**layers, "tap": "site"}, cuts=together.deployment.cuts))
    names = [{u.id for u in plan.units if "second" in u.operators} for plan in (together, apart)]
    assert names[0] != names[1], "the unit that writes for 'out' changes its name"

    for plan in (together, apart, together):
        site.store.want("f", "run", plan)
        assert site.settle().phase == "running"
        assert site.zones.differences(site.running(), "f") == []


# ---------------------------------------------------------------- trials


def test_a_plan_is_tried_beside_what_runs(site: Site) -> None:
    """Zones check the plan and warm it up; running units and the desired state stay unchanged."""
    site.check(site.apply(FIRST), FIRST)
    before, begin = site.store.deployment("f"), len(site.zones.calls)
    assert site.controller.try_out("f", replace(FIRST, alarm=2).plan())
    made = {call.name for call in site.zones.calls[begin:]}
    assert made and made <= {"check", "preflight", "warm_up"}
    assert site.store.deployment("f") == before
    assert site.store.changes("f")[-1].version == before.version


def test_a_desired_state_that_comes_while_a_step_fails_is_carried_out(tmp_path: Path) -> None:
    site = Site(tmp_path)

    def fail(call: NodeCall) -> None:
        if call.name == "check":
            site.zones.before = lambda call: None
            site.store.want("f", "run", FIRST.plan())
            raise RuntimeFailure("it does not compile", where=call.unit)

    site.zones.before = fail
    site.check(site.apply(FIRST), FIRST)
    assert [c.outcome for c in site.store.changes("f")] == ["failed", "done"]
    site.store.close()
