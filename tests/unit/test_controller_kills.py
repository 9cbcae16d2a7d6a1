"""Controllers killed at every call and write, also with newer desired states: all reach the desired state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.control import tables
from headwater.control.store import Store
from headwater.core.errors import RuntimeFailure
from headwater.testing.nodes import NodeCall, SimulatedNodes
from tests.unit.changes import FIRST, Version, calls_of, versions
from tests.unit.controlled import WIDER, Killed, Site, kill_at


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not sync to disk: a killed process loses no data that the kernel has."""
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[str], Site]:
    """Return a function that copies a site where the first version runs."""
    site = Site(tmp_path / "first", SimulatedNodes(tmp_path / "first" / "zones.json"))
    site.apply(FIRST)
    site.store.close()

    def copy(name: str) -> Site:
        shutil.copytree(tmp_path / "first", tmp_path / name)
        return Site(tmp_path / name, SimulatedNodes(tmp_path / name / "zones.json"))

    return copy


def until_killed(site: Site) -> None:
    """Let the controller work until it is killed; then start it again, to be killed no more."""
    with pytest.raises(Killed):
        site.settle()
    site.zones.before = site.zones.after = lambda call: None
    site.restart()


EVERY = [pytest.param(1, marks=pytest.mark.long), 5]
"""Calls or writes between two kills."""


@pytest.mark.parametrize("every", EVERY)
def test_a_kill_before_or_after_every_call_ends_in_the_wanted_plan(copies: Callable[[str], Site], every: int) -> None:
    site = copies("count")
    begin = len(site.zones.calls)
    site.check(site.apply(WIDER), WIDER)
    calls = len(site.zones.calls) - begin
    assert calls > 25
    for point in range(0, calls, every):
        for moment in ("before", "after"):
            site = copies(f"{point}-{moment}")
            kill_at(site.zones, moment, len(site.zones.calls) + point)
            site.store.want("f", "run", WIDER.plan())
            until_killed(site)
            site.check(site.settle(), WIDER)
            untouched = [c for c in calls_of(site.zones, "stop") if c == "stop out@C1"]
            assert untouched == []
            site.store.close()


@pytest.mark.long
@pytest.mark.parametrize("then", [FIRST, replace(FIRST, more=True, locations=("L4", "L5"))])
def test_a_newer_wish_after_a_kill_at_every_call(copies: Callable[[str], Site], then: Version) -> None:
    first = replace(FIRST, above=1, more=True, locations=("L2", "L4", "L5"))
    site = copies("count")
    begin = len(site.zones.calls)
    site.check(site.apply(first), first)
    for number in range(begin, len(site.zones.calls)):
        for moment in ("before", "after"):
            site = copies(f"{number}-{moment}")
            kill_at(site.zones, moment, number)
            site.store.want("f", "run", first.plan())
            until_killed(site)
            site.store.want("f", "run", then.plan())
            site.check(site.settle(), then)
            site.store.close()


class Dying(Store):
    """A store that kills its user before or after the n-th write."""

    left: int | None = None
    before = True

    @contextmanager
    def _acting(self, holder: str) -> Iterator[Any]:
        dies = False
        if self.left is not None:
            self.left -= 1
            dies = self.left == 0
        if dies and self.before:
            raise Killed
        with super()._acting(holder) as connection:
            yield connection
        if dies:
            raise Killed


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_every_write_ends_in_the_wanted_plan(
    tmp_path: Path, copies: Callable[[str], Site], before: bool, every: int
) -> None:
    wanted = replace(FIRST, above=1, locations=("L1", "L4"))
    point = 0
    while True:
        point += every
        site = copies(str(point))
        dying = Dying(tmp_path / str(point) / "store.db")
        dying.left, dying.before = point, before
        healthy, site.store = site.store, dying
        site.restart()
        site.store.want("f", "run", wanted.plan())
        try:
            site.settle()
        except Killed:
            pass
        else:
            assert point > 30
            break
        finally:
            dying.close()
        site.store = healthy
        site.restart()
        site.check(site.settle(), wanted)
        healthy.close()


HISTORY = given(st.lists(versions(), min_size=2, max_size=4), st.lists(st.integers(0, 30), max_size=3), st.data())
USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(USUAL, max_examples=8)
@HISTORY
def test_any_history_with_kills_and_newer_wishes(
    tmp_path_factory: pytest.TempPathFactory, history: list[Version], kills: list[int], data: st.DataObject
) -> None:
    check_history(tmp_path_factory.mktemp("site"), history, kills, data)


@pytest.mark.long
@settings(USUAL, max_examples=200)
@HISTORY
def test_many_histories_with_kills_and_newer_wishes(
    tmp_path_factory: pytest.TempPathFactory, history: list[Version], kills: list[int], data: st.DataObject
) -> None:
    check_history(tmp_path_factory.mktemp("site"), history, kills, data)


def check_history(place: Path, history: list[Version], kills: list[int], data: st.DataObject) -> None:
    """Let controllers carry out one version after another; each kill ends one before or after a call."""
    site = Site(place)
    everything = frozenset(u.id for v in history for u in v.plan().units)
    for version in history:
        base = site.store.active_plan("f")
        known = {u.id for p in (version.plan(), base) if p is not None for u in p.units}
        agreed = frozenset(data.draw(st.sets(st.sampled_from(sorted(everything & known)), max_size=1)))
        site.store.want("f", "run", version.plan(), reset_state=agreed)
        far = data.draw(st.integers(0, 25))  # steps before the next desired state
        for _ in range(far):
            site.now += site.controller.advance("f")
        if version is not history[-1] and data.draw(st.booleans()):
            continue
        if kills:
            kill_at(
                site.zones,
                data.draw(st.sampled_from(["before", "after"])),
                len(site.zones.calls) + kills.pop(),
            )
        try:
            record = site.settle()
        except Killed:
            site.zones.before = site.zones.after = lambda call: None
            site.restart()
            record = site.settle()
        site.zones.before = site.zones.after = lambda call: None
        if record.phase == "running":
            site.check(record, version)
        else:
            assert "refused, nothing was changed" in record.message
    site.store.close()


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 4])
def test_a_unit_that_was_to_be_replaced_does_not_run_beside_the_one_that_was_to_replace_it(
    tmp_path: Path, every: int
) -> None:
    """A change that fuses units is given up at each of its steps; the next change goes back."""
    three = replace(FIRST, locations=("L1", "L2", "L4"))
    fused = replace(FIRST, locations=("L1",), windows="cloud")
    for far in range(every, 16, every):
        site = Site(tmp_path / str(far))
        site.check(site.apply(three), three)
        site.store.want("f", "run", fused.plan(), reset_state=frozenset({"out@C1"}))
        for _ in range(far):
            site.now += site.controller.advance("f")
        site.check(site.apply(three), three)
        site.store.close()


def test_state_is_given_up_before_what_was_taken_out_is_read(tmp_path: Path) -> None:
    """A location is removed and added again; the unit that still reads its old rows restarts without state."""
    both = replace(FIRST, locations=("L1", "L2"))
    for far in range(3, 9):
        site = Site(tmp_path / str(far))
        site.check(site.apply(both), both)
        site.store.want("f", "run", replace(FIRST, locations=("L1",)).plan())
        for _ in range(far):
            site.now += site.controller.advance("f")
        site.check(site.apply(both, reset_state=frozenset({"AD@S1"})), both)
        site.store.close()


# ---------------------------------------------------------------- state that moves between units

APART = replace(FIRST, locations=("L1", "L4"))
LOWER = replace(APART, windows="edge")
LOWER_APART = replace(LOWER, shape="every")
"""Each operator has a unit of its own: a unit that takes over writes to one that does not, and this one to another."""


def begun_by(site: Site) -> set[str]:
    """Return the units that began the state of the running windows."""
    return {kept["AD"] for kept in site.zones.kept("f").values() if "AD" in kept}


@pytest.fixture
def apart(tmp_path: Path) -> Callable[[str], Site]:
    """Return a function that copies a site where windows run at the sites, with one location each."""
    site = Site(tmp_path / "apart", SimulatedNodes(tmp_path / "apart" / "zones.json"))
    site.apply(APART)
    site.store.close()

    def copy(name: str) -> Site:
        shutil.copytree(tmp_path / "apart", tmp_path / name)
        return Site(tmp_path / name, SimulatedNodes(tmp_path / name / "zones.json"))

    return copy


def test_state_goes_down_and_up_again(apart: Callable[[str], Site]) -> None:
    site = apart("there and back")
    begun = begun_by(site)
    assert len(begun) == 2
    for version in (LOWER, APART, LOWER):
        site.check(site.apply(version), version)
        assert begun_by(site) == begun


@pytest.mark.parametrize(
    ("then", "every"),
    [
        pytest.param(LOWER, 5, id="on at some"),
        pytest.param(LOWER, 1, id="on", marks=pytest.mark.long),
        pytest.param(APART, 1, id="back", marks=pytest.mark.long),
        pytest.param(replace(LOWER, alarm=3), 1, id="elsewhere", marks=pytest.mark.long),
    ],
)
def test_a_kill_at_every_call_of_a_hand_over_loses_no_state(
    apart: Callable[[str], Site], then: Version, every: int
) -> None:
    site = apart("count")
    first, begun = len(site.zones.calls), begun_by(site)
    site.check(site.apply(LOWER), LOWER)
    calls = calls_of(site.zones, "save", "load")
    assert sorted(calls[:4]) == ["save AD@S1", "save AD@S2", "save FP@E1", "save FP@E4"]
    assert {"load AD@E1", "load AD@E4"} <= set(calls[4:])
    for number in range(first, len(site.zones.calls), every):
        for moment in ("before", "after"):
            copy = apart(f"{number}-{moment}")
            kill_at(copy.zones, moment, number)
            copy.store.want("f", "run", LOWER.plan())
            with pytest.raises(Killed):
                copy.settle()
            copy.zones.before = copy.zones.after = lambda call: None
            copy.restart()
            if then is not LOWER:
                copy.store.want("f", "run", then.plan())
            copy.check(copy.settle(), then)
            assert begun_by(copy) == begun, (number, moment)
            copy.store.close()


@pytest.mark.parametrize(
    ("former", "wanted"),
    [
        pytest.param(APART, LOWER, id="moved"),
        pytest.param(APART, LOWER_APART, id="moved and divided"),
        pytest.param(replace(APART, shape="every"), APART, id="made one"),
    ],
)
@pytest.mark.parametrize("step", ["save", "load"])
def test_a_hand_over_that_cannot_be_done_goes_back_to_what_ran(
    apart: Callable[[str], Site], step: str, former: Version, wanted: Version
) -> None:
    site = apart("fails")
    site.check(site.apply(former), former)
    begun, ran, first = begun_by(site), site.running(), len(site.zones.calls)

    def fail(call: NodeCall) -> None:
        if call.name == step and call.unit in ("AD@E4", "AD@S2", "watermark@E4", "FP@E4"):
            raise RuntimeFailure("the disk is full", where=call.unit)

    site.zones.before = fail
    record = site.apply(wanted)
    assert (record.phase, "the disk is full" in record.message) == ("running", True), record
    assert site.zones.differences(site.running(), "f") == []
    assert site.running() == ran
    assert begun_by(site) == begun
    assert started_since(site, first) <= {u.id for u in ran.units}


def started_since(site: Site, first: int) -> set[str]:
    """Return the units that were started by the call of a number and later ones."""
    return {call.unit for call in site.zones.calls[first:] if call.name == "start"}


@pytest.mark.long
@pytest.mark.parametrize("then", [APART, replace(APART, alarm=3)], ids=["back", "elsewhere"])
def test_a_unit_of_a_hand_over_that_is_given_up_never_runs(apart: Callable[[str], Site], then: Version) -> None:
    """The hand-over is given up after each of its steps: units of the former plan read all rows and keep all state."""
    phases: list[str] = []
    while phases[-1:] != ["changing"]:
        site = apart(f"{len(phases)}")
        begun = begun_by(site)
        site.store.want("f", "run", LOWER_APART.plan())
        while site.store.deployment("f").phase in ("running", "wanted", "checking"):
            site.now += site.controller.advance("f")
        for _ in phases:
            site.now += site.controller.advance("f")
        phases.append(site.store.deployment("f").phase)
        if phases[-1] == "handing_over":
            first = len(site.zones.calls)
            site.check(site.apply(then), then)
            assert started_since(site, first) <= {u.id for u in then.plan().units}
            assert begun_by(site) == begun
        site.store.close()
    assert len(phases) > 10


def test_a_hand_over_that_was_given_up_is_done_in_the_end(apart: Callable[[str], Site]) -> None:
    """A hand-over is given up twice, the second time for itself: units of the first attempt are only deleted."""
    site = apart("again")
    begun = begun_by(site)
    for _ in range(2):
        site.store.want("f", "run", LOWER_APART.plan())
        while not any(s.ahead for s in site.store.unit_statuses("f").values()):
            site.now += site.controller.advance("f")
    site.check(site.apply(LOWER_APART), LOWER_APART)
    assert begun_by(site) == begun


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["start", "stop"])
def test_a_unit_that_perhaps_runs_is_started_before_it_has_to_read_its_input(
    apart: Callable[[str], Site], name: str, moment: str
) -> None:
    """The controller is killed as it starts or stops a unit that the next version restarts at the end of its input."""
    site = apart("killed")
    wider = replace(APART, wider=True)

    def kill(call: NodeCall) -> None:
        if (call.name, call.unit) == (name, "AD@S1"):
            raise Killed

    setattr(site.zones, moment, kill)
    site.store.want("f", "run", wider.plan())
    until_killed(site)
    site.check(site.apply(APART), APART)
