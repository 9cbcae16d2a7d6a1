"""The steps from one plan to another: their order, their texts, and their result."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from headwater.core.errors import DeploymentError, ErrorList
from headwater.core.jsonform import dump_json, load_json
from headwater.plan.diff import PlanDiff, diff
from headwater.plan.document import from_document, plan_id, to_document
from headwater.plan.explain import explain
from headwater.plan.model import DeploymentPlan
from headwater.plan.order import steps_to
from headwater.plan.steps import (
    AnyStep,
    CanarySettings,
    Check,
    Drain,
    Finish,
    Forget,
    FormerOutput,
    Prepare,
    Start,
    Step,
    Stop,
    Switch,
    UnitStatus,
    WarmUp,
    Watch,
    begun,
    done,
    incarnation,
    side_by_side,
    unit_statuses_of,
)
from headwater.testing.nodes import SimulatedNodes
from tests.unit.changes import FIRST, Version, carry_out, steps_of, versions
from tests.unit.test_diff import between

EDGES = ("E1", "E2", "E4")


def test_steps_in_words() -> None:
    new = replace(FIRST, wider=True, locations=("L1", "L4", "L5"))
    text = "\n".join(explain(steps_of(between(FIRST, new))))
    for part in (
        "check in their zones, before anything stops: FP@E1, FP@E4, FP@E5, AD@S1, AD@S2",
        "stop FP@E2 at a batch boundary: it is not in the new plan; it keeps no state",
        "start FP@E5: it is new",
        "replace FP@E1: 'FP' changed; it pauses for about 5 s, and its input is buffered; it keeps no",
        "replace AD@S1: the columns of its input 'FP' changed; it pauses",
        "its state is kept",
        "wait until AD@S1 has read its old input",
        "delete the stored data of FP@E2, once it has been read: it is not in the new plan",
    ):
        assert part in text, text


def test_former_output_is_settled_before_a_deployment_first_writes_to_a_sink() -> None:
    plan = FIRST.plan()
    id_ = plan_id(plan)
    fresh, sinks = diff(None, plan), [u.id for u in plan.units if "out" in u.outputs]
    assert sinks
    for choice, at in (("refuse", 0), ("append", len(plan.units)), ("overwrite", len(plan.units))):
        steps = steps_to(fresh, {}, {}, former_output=choice)
        wanted = [FormerOutput(plan=id_, unit=unit, choice=choice, sinks=("out",)) for unit in sinks]
        assert list(steps[at : at + len(sinks)]) == wanted and steps.count(wanted[0]) == 1
    some = {incarnation(plan.unit(unit)): UnitStatus(plan=id_, runs=False) for unit in sinks}
    same = replace(FIRST, path=f"{FIRST.path}/")
    for again in (steps_to(fresh, some, {id_: plan}), steps_of(between(FIRST, replace(same, above=1)))):
        assert not [s for s in again if isinstance(s, FormerOutput)]
    ahead = {key: replace(s, ahead=True) for key, s in some.items()}
    assert {s.unit for s in steps_to(fresh, ahead, {id_: plan}) if isinstance(s, FormerOutput)} == set(sinks)
    other = between(FIRST, replace(FIRST, path="/other/{zone}"))
    steps = steps_of(other)
    wanted = [FormerOutput(plan=plan_id(other.wanted), unit=unit, sinks=("out",)) for unit in sinks]
    assert [s for s in steps if isinstance(s, FormerOutput)] == wanted
    first = min(n for n, s in enumerate(steps) if not isinstance(s, FormerOutput | Check))
    assert max(steps.index(s) for s in wanted) < first, "a change is refused before it stops a unit"
    pool = replace(plan, pooled=True)
    joined = diff(pool, replace(other.wanted, pooled=True))
    settled = [s.sinks for s in steps_of(joined) if isinstance(s, FormerOutput)]
    assert settled == [("out",)] * len(sinks), "a dataflow that joins a pool is treated alike"


def test_a_stopped_reader_reads_the_rows_left_before_a_change_removes_it() -> None:
    decided = between(FIRST, replace(FIRST, upper="site"))
    plan = FIRST.plan()
    old = plan_id(plan)
    stopped = {key: replace(s, runs=False) for key, s in unit_statuses_of(plan).items()}
    steps = steps_to(decided, stopped, {old: plan, plan_id(decided.wanted): decided.wanted})
    found = [(s.kind, s.unit) for s in steps if s.plan == old and isinstance(s, Start | Drain | Stop | Forget)]
    assert found == [
        *(("start", "out@C1"), ("drain", "out@C1"), ("stop", "out@C1"), ("forget", "out@C1")),
        *(("forget", "AD@S2"), ("forget", "AD@S1")),
    ]


def test_what_is_prepared_before_the_switch_is_owned_from_the_switch_on() -> None:
    decided = between(FIRST, replace(FIRST, windows="edge", shape="every"))
    assert decided.running is not None
    plans = {plan_id(p): p for p in (decided.running, decided.wanted)}
    steps, found = steps_of(decided), unit_statuses_of(decided.running)
    at = next(n for n, s in enumerate(steps) if isinstance(s, Switch))
    for step in steps[:at]:
        found = done(step, begun(step, found, plans[step.plan]), plans[step.plan])
    ahead = {key for key, s in found.items() if s.ahead}
    assert {key[0] for key in ahead} == {f"{name}@{e}" for name in ("watermark", "where", "AD") for e in EDGES} | {
        "ML@C1"
    }
    assert not any(s.ahead for s in begun(steps[at], found, decided.wanted).values())
    taken = begun(Prepare(plan=plan_id(decided.wanted), unit="watermark@E1"), found, decided.wanted)
    assert ahead - {key for key, s in taken.items() if s.ahead} == {
        incarnation(decided.wanted.unit(u)) for u in ("watermark@E1", "where@E1")
    }

    # The change is given up: the next one only deletes these units, even where that is given up in the middle.
    for key in sorted(ahead):
        forget = Forget(plan=found[key].plan, unit=key[0])
        found = begun(forget, found, decided.wanted)
    back = steps_to(between(FIRST, replace(FIRST, alarm=3)), found, plans)
    given = {s.kind for s in back if s.plan == plan_id(decided.wanted)}
    assert given == {"forget"}
    assert {s.unit for s in back if s.plan == plan_id(decided.wanted)} == {key[0] for key in ahead}


def test_a_unit_of_a_change_that_was_given_up_leaves_the_channels_that_the_next_change_does_not_let_it_read() -> None:
    first = replace(FIRST, locations=("L1", "L2", "L4"), wider=True)
    given_up, wanted = (replace(first, wider=False, more=more) for more in (True, False))
    running = diff(None, first.plan()).wanted
    before, after = (diff(running, v.plan(), generation=n) for n, v in ((2, given_up), (3, wanted)))
    unit = "AD@S2"
    key = incarnation(after.wanted.unit(unit))
    assert key == incarnation(before.wanted.unit(unit))
    inputs = [{c.id for c in d.wanted.inputs(d.wanted.unit(unit))} for d in (before, after)]
    assert inputs[0] - inputs[1], "both give it the same name and epoch, and other inputs"
    plans = {plan_id(p): p for p in (running, before.wanted, after.wanted)}

    def steps(plan: DeploymentPlan) -> list[Step]:
        left = UnitStatus(plan=plan_id(plan), runs=False, ahead=True)
        return [s for s in steps_to(after, {**unit_statuses_of(running), key: left}, plans) if not isinstance(s, Check)]

    forget = Forget(plan=plan_id(before.wanted), unit=unit, why="a change that was given up prepared it")
    assert steps(before.wanted)[0] == forget
    assert all(s.plan != plan_id(before.wanted) for s in steps(before.wanted)[1:])
    assert not isinstance(steps(after.wanted)[0], Forget), "it is prepared again as it was"


def test_gates_are_where_no_channel_is_half_changed() -> None:
    canary = CanarySettings(seconds=9, factor=3)
    gates = [
        (s.nodes, s.units) for s in steps_of(between(FIRST, replace(FIRST, above=1)), canary=canary)
        if isinstance(s, Watch)
    ]  # fmt: skip
    assert gates == [(("E1",), ("FP@E1",)), (("E2",), ("FP@E2",)), (("E4",), ("FP@E4",))]
    (gate,) = [s for s in steps_of(between(FIRST, replace(FIRST, wider=True)), canary=canary) if isinstance(s, Watch)]
    assert (gate.nodes, gate.units) == (
        ("E1", "E2", "E4", "S1", "S2"),
        ("FP@E1", "FP@E2", "FP@E4", "AD@S1", "AD@S2"),
    )


def test_zones_are_checked_and_started_at_once_and_each_one_by_one() -> None:
    def of(kind: type[Check | Finish | Start | Stop], *units: str) -> list[Step]:
        return [kind(plan="p", unit=u) for u in units]

    checks = of(Check, "A@E1", "B@E1", "A@E2")
    assert side_by_side([*checks, *of(Start, "C@C1")]) == (0, 2)
    assert side_by_side([*of(Start, "A@E1"), *checks]) == (0,)
    assert side_by_side(of(Finish, "A@E1", "A@E2", "B@S1")) == (0, 1, 2)  # readers see the end of their input
    assert side_by_side([*of(Finish, "A@E1", "B@E1", "C@C1", "D@C1"), *of(Stop, "E@C1")]) == (0, 1, 2, 3)
    assert side_by_side(of(Stop, "A@E1", "B@E2")) == (0,)  # writers stop before their readers


def test_a_unit_is_warmed_up_beside_its_check_where_no_other_check_of_its_node_is_left() -> None:
    def of(kind: type[Check | WarmUp | Stop], *units: str) -> list[Step]:
        return [kind(plan="p", unit=u) for u in units]

    behind = of(WarmUp, "A@E1", "B@E1", "A@E2")
    assert side_by_side([*of(Check, "A@E1", "B@E1", "A@E2"), *behind]) == (0, 2, 5)
    assert side_by_side([*of(Check, "B@E1"), *behind]) == (0, 2)
    assert side_by_side([*of(Check, "A@E2"), *of(Stop, "A@E1"), *behind]) == (0,)


def test_no_canary_where_there_is_no_way_back() -> None:
    decided = between(FIRST, replace(FIRST, aggregate="max(v)"), "AD@S1", "AD@S2")
    with pytest.raises(DeploymentError, match="AD@S1, AD@S2 starts with new state"):
        steps_of(decided, canary=CanarySettings())


@settings(max_examples=60, deadline=None)
# A unit loses an operator and keeps its inputs: the units that write these need not stop.
@example([replace(FIRST, upper="site", more=True), replace(FIRST, upper="cloud")])
# A location ends below a site, another one begins there, and the reader above the site moves into it.
@example([replace(FIRST, locations=("L1", "L5")), replace(FIRST, upper="site", shape="every")])
@given(st.lists(versions(), min_size=2, max_size=4))
def test_steps_lead_to_the_wanted_plan(history: list[Version]) -> None:
    zones = SimulatedNodes()
    running: DeploymentPlan | None = None
    unit_statuses: Any = {}
    for number, version in enumerate(history, start=1):
        wanted = version.plan()
        known = {u.id for p in (running, wanted) if p for u in p.units}
        try:
            decided = diff(running, wanted, reset_state=_needed_consent(running, wanted), generation=2 * number - 1)
        except ErrorList:
            event("refused")
            assume(number > 1)
            continue
        steps = steps_of(decided)
        event(f"{len(steps)} steps")
        assert steps_of(decided) == tuple(load_json(AnyStep, dump_json(s), what="a step") for s in steps)
        first_stop = next((n for n, s in enumerate(steps) if isinstance(s, Stop)), len(steps))
        assert not any(isinstance(s, Check) for s in steps[first_stop:])
        begin, kept = len(zones.calls), zones.kept("f")
        unit_statuses = carry_out(steps, zones, decided, unit_statuses)
        check_state(decided, kept, zones.kept("f"))
        assert zones.differences(decided.wanted, "f") == []
        left_alone = {u.unit for u in decided.units if u.action in ("unchanged", "update_inputs")}
        touched = {c.unit for c in zones.calls[begin:] if c.name in ("stop", "start", "forget")}
        assert not left_alone & touched and touched <= known
        assert diff(decided.wanted, decided.wanted).empty
        assert from_document(to_document(decided.wanted)) == decided.wanted
        assert unit_statuses.keys() == unit_statuses_of(decided.wanted).keys()
        running = decided.wanted
        unit_statuses = unit_statuses_of(running)


def check_state(decided: PlanDiff, before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> None:
    """Compare the states in a diff with the states after the change."""
    for change in decided.units:
        for operator, begun_by in after.get(change.unit, {}).items():
            known = {kept[operator] for kept in before.values() if operator in kept}
            if change.state in ("kept", "transferred") and change.action != "start":
                assert all(one in " ".join(known) for one in begun_by.split(" + ")), (change, begun_by, known)
            if change.state == "given up":
                assert begun_by not in known, (change, operator, begun_by)
    for transfer in decided.transfers:
        event("transferred" if transfer.shares else "read on")
        for share in transfer.shares:
            event("divided" if share.by else "whole" if len(share.source_units) == 1 else "made one")
            for source_unit in share.source_units:
                assert before[source_unit.unit][share.operator] in after[transfer.unit][share.operator]
    _check_shares(decided)


def _check_shares(decided: PlanDiff) -> None:
    """Check that each location's state of a unit goes to exactly one unit, also where the location ends."""
    taken: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for transfer in decided.transfers:
        for share in transfer.shares:
            for source in share.source_units:
                assert decided.running is not None
                locations = decided.running.unit(source.unit).locations
                found = [x for x in share.values if x in locations] if share.by else locations
                taken[source.unit, share.operator] += found
                event("an ended location" if not set(locations) <= set(decided.wanted.locations) else "none ended")
    for (unit, _), values in taken.items():
        assert decided.running is not None
        assert sorted(values) == sorted(decided.running.unit(unit).locations), (unit, values)


def _needed_consent(running: DeploymentPlan | None, wanted: DeploymentPlan) -> frozenset[str]:
    """Return the units whose loss of state the diff asks consent for."""
    if running is None:
        return frozenset()
    try:
        diff(running, wanted)
    except ErrorList as errors:
        asked = {str(e.where).removeprefix("unit ") for e in errors.errors}
        known = {u.id for p in (running, wanted) for u in p.units}
        return frozenset(asked & known)
    return frozenset()
