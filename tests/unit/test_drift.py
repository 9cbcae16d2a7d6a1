"""Drift: the controller ends units that should not run, and restarts units that should."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.control import tables
from headwater.control.controller import Controller
from headwater.control.stamps import Stamps
from headwater.core.errors import Unavailable
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import NodeReport
from headwater.plan.spec import UnitSpec, spec_of
from headwater.testing.nodes import NodeCall, SimulatedNode
from tests.unit.changes import FIRST
from tests.unit.controlled import Site

LATER = replace(FIRST, size="2 minutes", locations=("L1", "L2", "L4"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    made = Site(tmp_path)
    yield made
    made.store.close()


def until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not happen within 20 s")


def look(site: Site) -> None:
    """Poll all nodes, and wait until the actions that follow have ended."""
    site.controller._poller.poll()
    until(lambda: not site.controller._acting.began)


def told(site: Site) -> list[str]:
    return [e.text for e in site.store.events("f") if e.text.startswith("drift")]


def behind(site: Site, spec: UnitSpec) -> SimulatedNode:
    """Return the port of a unit's node for a controller of another store."""
    node = site.running().continuum.node(spec.unit.node)
    return site.zones.open(node, Stamps("another store", 1))


def spec(plan: DeploymentPlan, unit: str) -> UnitSpec:
    return spec_of(plan, unit)


def running(site: Site) -> set[str]:
    return set(site.zones.kept("f"))


def test_without_a_difference_nothing_is_ordered(site: Site) -> None:
    site.apply(FIRST)
    before = site.zones.calls
    look(site)
    assert site.zones.calls == before and told(site) == []


def test_what_was_ended_is_started_again(site: Site) -> None:
    site.apply(FIRST)
    one = spec(site.running(), "AD@S1")
    behind(site, one).stop(one)
    assert running(site) == {u.id for u in site.running().units} - {"AD@S1"}
    look(site)
    site.check(site.store.deployment("f"), FIRST)
    assert told(site) == ["drift: AD@S1 did not run on S1; started"]
    look(site)
    assert len(told(site)) == 1


def test_what_was_stopped_and_runs_is_ended(site: Site) -> None:
    site.apply(FIRST)
    site.store.want("f", "stop")
    site.settle()
    one = spec(site.running(), "AD@S1")
    port = behind(site, one)
    port.prepare(one)
    port.start(one)
    assert running(site) == {"AD@S1"}
    look(site)
    assert running(site) == set()
    assert told(site) == ["drift: AD@S1 ran on S1 although it was to be stopped; stopped again"]


def test_what_a_former_plan_had_and_runs_is_ended(site: Site) -> None:
    """A unit of the former plan still runs, left by a paused controller; the new unit has the same id."""
    site.apply(FIRST)
    former = spec(site.running(), "AD@S1")
    site.apply(LATER, reset_state=frozenset({"AD@S1", "AD@S2"}))
    assert spec(site.running(), "AD@S1").unit.tag != former.unit.tag
    with site.zones.world() as world:
        now = world["units"][f"f/{spec(site.running(), 'AD@S1').unit.checkpoint}"]
        left = {**now, "tag": former.unit.tag, "epoch": former.unit.epoch, "outputs": []}
        key = f"f/{former.unit.checkpoint}"
        world["units"][key] = left
        world["nodes"]["S1"][key] = True
    assert "f/" + former.unit.checkpoint + " was left" in site.zones.differences(site.running(), "f")
    look(site)
    assert told(site)[0] == "drift: AD@S1 ran on S1 although it was to be stopped; stopped again"
    look(site)  # the new unit has the same id, and ended with the former unit
    with site.zones.world() as world:
        assert not world["units"][key]["runs"]
        world["units"].pop(key)
        world["nodes"]["S1"].pop(key)
    site.check(site.store.deployment("f"), LATER)


def test_what_a_node_does_not_know_any_more_is_told_once(site: Site) -> None:
    """The node has no state of the unit either: a restart would begin without state."""
    site.apply(FIRST)
    key = f"f/{spec(site.running(), 'AD@S1').unit.checkpoint}"
    with site.zones.world() as world:
        world["units"].pop(key)
        world["nodes"]["S1"].pop(key)
    before = site.zones.calls
    look(site)
    look(site)
    assert told(site) == ["drift: AD@S1 is no longer known on S1"] and site.zones.calls == before


def test_a_change_under_way_is_not_disturbed(site: Site) -> None:
    site.apply(FIRST)
    one = spec(site.running(), "AD@S1")
    site.store.want("f", "run", replace(FIRST, alarm=2).plan())
    site.controller.advance("f")
    behind(site, one).stop(one)
    look(site)
    assert told(site) == []
    site.settle()
    look(site)
    site.check(site.store.deployment("f"), replace(FIRST, alarm=2))
    assert told(site) == ["drift: AD@S1 did not run on S1; started"]


def test_an_answer_of_before_a_change_is_not_acted_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node reports that a unit does not run; before the report is processed, a newer unit replaces it."""
    site.apply(FIRST)
    one = spec(site.running(), "AD@S1")
    behind(site, one).stop(one)
    answered = threading.Event()
    report = SimulatedNode.report

    def late(port: SimulatedNode) -> NodeReport:
        found = report(port)
        if port.name == "S1" and not answered.is_set():
            answered.set()
            site.apply(LATER, reset_state=frozenset({"AD@S1", "AD@S2"}))
        return found

    monkeypatch.setattr(SimulatedNode, "report", late)
    look(site)
    assert answered.is_set() and told(site) == []
    site.check(site.store.deployment("f"), LATER)


def test_a_node_that_cannot_be_reached_is_put_right_when_it_can(site: Site) -> None:
    site.apply(FIRST)
    one = spec(site.running(), "AD@S1")
    behind(site, one).stop(one)

    def away(call: NodeCall) -> None:
        if call.node == "S1" and call.name == "start":
            raise Unavailable("cannot be reached", where=call.node)

    site.zones.before = away
    look(site)
    assert told(site) == [] and "AD@S1" not in running(site)
    site.zones.before = lambda call: None
    look(site)
    site.check(site.store.deployment("f"), FIRST)


def test_the_running_controller_finds_it_by_itself(site: Site) -> None:
    site.controller.lease.release()
    stop = threading.Event()
    controller = Controller(site.store, site.zones.open, lease=60, poll=0.05)
    thread = threading.Thread(target=controller.run, args=(stop,))
    thread.start()
    try:
        site.store.want("f", "run", FIRST.plan())
        until(lambda: site.store.deployment("f").observed_version == 1)
        one = spec(site.running(), "AD@S1")
        for _ in range(3):
            behind(site, one).stop(one)
            until(lambda: "AD@S1" in running(site))
        site.store.want("f", "stop")
        until(lambda: site.store.deployment("f").observed_version == 2)
        behind(site, one).start(one)
        until(lambda: not running(site))
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
