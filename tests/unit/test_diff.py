"""Units that start, stop, are replaced or get other inputs between two plans, and the fate of their state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.errors import DeploymentError, ErrorList
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.diff import PlanDiff, diff
from headwater.plan.document import from_document, plan_id, to_document
from headwater.plan.explain import explain
from headwater.plan.model import DeploymentPlan
from headwater.plan.spec import spec_of
from headwater.plan.steps import (
    Drain,
    Start,
    Stop,
    Watch,
    unit_statuses_of,
)
from headwater.query.names import names_of_source
from headwater.testing.nodes import SimulatedNodes
from tests.unit.changes import ACME, FIRST, SCHEMA, Version, calls_of, carry_out, steps_of

EVERY = ("FP@E1", "FP@E2", "FP@E4", "AD@S1", "AD@S2", "out@C1")


def actions(decided: PlanDiff) -> dict[str, str]:
    return {u.unit: f"{u.action} {u.state}" for u in decided.changed}


def between(old: Version, new: Version, *reset: str) -> PlanDiff:
    return diff(old.plan(), new.plan(), reset_state=frozenset(reset))


def refusal(old: DeploymentPlan, new: DeploymentPlan, *reset: str) -> str:
    with pytest.raises((ErrorList, DeploymentError)) as caught:
        diff(old, new, reset_state=frozenset(reset))
    return str(caught.value)


# ---------------------------------------------------------------- units


def test_the_first_plan_starts_everything() -> None:
    decided = diff(None, FIRST.plan())
    assert actions(decided) == dict.fromkeys(EVERY, "start none")
    assert [c.action for c in decided.channels] == ["begins"] * 5
    assert plan_id(decided.wanted) == plan_id(FIRST.plan())


def test_the_same_plan_changes_nothing() -> None:
    decided = between(FIRST, FIRST)
    assert decided.empty and steps_of(decided) == () and explain(()) == ["nothing to do"]
    assert plan_id(decided.wanted) == plan_id(FIRST.plan())


def test_only_the_changed_unit_restarts() -> None:
    decided = between(FIRST, replace(FIRST, alarm=2))
    assert actions(decided) == {"out@C1": "replace none"}
    assert decided.changed[0].reason == "'ML' changed"
    old, new = decided.running, decided.wanted
    assert old is not None
    assert (new.unit("out@C1").epoch, new.unit("out@C1").tag) == (2, old.unit("out@C1").tag)
    assert {c.id for c in new.channels} == {c.id for c in old.channels}


def test_a_change_below_does_not_restart_what_is_above() -> None:
    decided = between(FIRST, replace(FIRST, above=1))
    assert actions(decided) == dict.fromkeys(("FP@E1", "FP@E2", "FP@E4"), "replace none")
    # All keys above differ, but names and checkpoints stay.
    assert decided.wanted.dataflow.keys["AD"] != FIRST.plan().dataflow.keys["AD"]
    assert decided.wanted.unit("AD@S1") == replace(
        decided.wanted.unit("AD@S1"), tag=FIRST.plan().unit("AD@S1").tag, epoch=1
    )


def test_other_columns_make_a_new_channel_and_restart_its_readers() -> None:
    decided = between(FIRST, replace(FIRST, wider=True))
    assert set(actions(decided)) == {"FP@E1", "FP@E2", "FP@E4", "AD@S1", "AD@S2"}
    assert actions(decided)["AD@S1"] == "replace kept"
    assert sorted(c.action for c in decided.channels) == ["begins"] * 3 + ["continues"] * 2 + ["ends"] * 3
    steps = steps_of(decided)
    order = [f"{s.kind} {s.unit}" for s in steps if isinstance(s, Stop | Start | Drain)]
    for unit in ("AD@S1", "AD@S2"):  # the old form is read to its end before its reader stops
        assert order.index(f"drain {unit}") + 1 == order.index(f"stop {unit}")
        assert order.index("stop FP@E4") < order.index(f"drain {unit}")


def test_readers_at_different_places_are_levelled_before_they_become_one() -> None:
    builder = hw.flow("f", locations=["L1"])
    rows = builder.read.json("/d/{location}", SCHEMA).named("read")
    left, right = rows.where("v > 1").named("left"), rows.where("v < 0").named("right")
    left.write.memory("one")
    right.named("r").union(builder.read.json("/e/{location}", SCHEMA).named("other")).named("both").write.memory("two")
    flow = builder.build()
    layers = marked_layers(flow, ACME)
    apart = frozenset({("read", "left"), ("read", "r")})
    old = build(flow, ACME, in_layers(flow, ACME, layers, cuts=apart))
    new = build(flow, ACME, in_layers(flow, ACME, layers, cuts=apart | {("r", "both")}))
    readers = sorted(sorted(u.operators) for u in old.units if "read" not in u.operators)
    assert readers == [["both", "other", "r", "two"], ["left", "one"]]
    decided = diff(old, new)
    (transfer,) = [c for c in decided.transfers if any(r.level for r in c.readings)]
    assert sorted(transfer.source_units) == sorted(u.id for u in old.units if "read" not in u.operators)
    order = [f"{s.kind} {s.unit}" for s in steps_of(decided) if isinstance(s, Stop | Start | Drain)]
    for source_unit in transfer.source_units:
        assert order.index("stop read@E1") < order.index(f"drain {source_unit}") < order.index(f"stop {source_unit}")
    assert order.index(f"start {transfer.unit}") > order.index(f"drain {transfer.source_units[-1]}")
    assert "start read@E1" in order


def test_a_location_more() -> None:
    decided = between(FIRST, replace(FIRST, locations=("L1", "L2", "L4", "L5")))
    assert actions(decided) == {"FP@E5": "start none", "AD@S2": "update_inputs kept"}
    assert decided.notes == ("AD@S2: rows of L5 that are older than the event time it has reached are late",)
    zones, unit_statuses = SimulatedNodes(), unit_statuses_of(FIRST.plan())
    carry_out(steps_of(diff(None, FIRST.plan())), zones, diff(None, FIRST.plan()), {})
    begin = len(calls_of(zones))
    carry_out(steps_of(decided), zones, decided, unit_statuses)
    assert calls_of(zones)[begin:] == ["update_inputs AD@S2", "prepare FP@E5", "start FP@E5"]


def test_a_location_less() -> None:
    decided = between(FIRST, replace(FIRST, locations=("L1", "L4")))
    assert actions(decided) == {"FP@E2": "stop none", "AD@S1": "update_inputs kept"}
    assert [f"{s.kind} {s.unit}" for s in steps_of(decided) if not isinstance(s, Watch)] == [
        "stop FP@E2", "update_inputs AD@S1", "forget FP@E2",
    ]  # fmt: skip


@pytest.mark.parametrize("after", ["L0, L1, L2", "L2, L1", "L2", "L0, L2"])
@pytest.mark.parametrize("path", ["/in/all", "/in/{location}"])
def test_a_source_keeps_the_names_of_its_reads_whatever_is_the_first_location(path: str, after: str) -> None:
    def plan(locations: str, zone: str = "E1") -> DeploymentPlan:
        builder = hw.flow("f")
        read = builder.read.json(path, SCHEMA).where("v > 1").named("good").to_layer("cloud")
        read.write.memory("out")
        zones = f"{zone}: {{layer: edge, parent: C, locations: [{locations}], hosts: {{e: {{n_cpu: 1}}}}}}"
        text = f"name: c\nlayers: [edge, cloud]\nzones:\n  C: {{layer: cloud, hosts: {{c: {{n_cpu: 1}}}}}}\n  {zones}"
        return build(builder.build(), Continuum.from_text(text))

    def names(plan: DeploymentPlan) -> dict[str, str]:
        (source,) = plan.dataflow.sources
        (unit,) = (u.id for u in plan.units if source.id in u.operators)
        return names_of_source(spec_of(plan, unit), source)

    first = plan("L1, L2")
    once = diff(first, plan(after))
    again = diff(once.wanted, plan("L2, L3, L1"))
    reads = names(first)
    if path == "/in/all":
        assert reads == names(once.wanted) == names(again.wanted), "a read of another name begins at the start"
        assert reads == names(diff(first, plan(after, "E9")).wanted), "also in a zone of another name"
        assert actions(once) == actions(again) == {}
        assert from_document(to_document(once.wanted)) == once.wanted
    else:
        assert names(once.wanted).items() >= {x: n for x, n in reads.items() if x in after}.items()
        assert actions(once) == ({} if after == "L2, L1" else {"good@E1": "replace none"})


def test_what_is_new_gets_names_and_epochs_that_none_had() -> None:
    less, more = replace(FIRST, locations=("L1", "L4")), FIRST
    once = diff(diff(FIRST.plan(), less.plan(), generation=3).wanted, more.plan(), generation=5)
    assert once.wanted.unit("FP@E2").epoch == 5 > FIRST.plan().unit("FP@E2").epoch
    assert once.wanted.unit("FP@E2").tag != FIRST.plan().unit("FP@E2").tag
    twice = diff(once.wanted, replace(more, wider=True).plan(), generation=7)
    thrice = diff(twice.wanted, more.plan(), generation=9)
    assert len({p.tags["FP"] for p in (once.wanted, twice.wanted, thrice.wanted)}) == 3


def in_cloud(hosts: dict[str, dict[str, Any]]) -> Continuum:
    """Return the continuum with other hosts in its cloud."""
    data: Any = ACME.to_data()
    return Continuum.from_data({**data, "zones": {**data["zones"], "C1": {"layer": "cloud", "hosts": hosts}}})


def test_a_requirement_that_its_node_meets_is_no_restart() -> None:
    assert between(FIRST, replace(FIRST, require="n_cpu >= 4")).empty
    small = in_cloud({"vm1": {"n_cpu": 2}, "vm2": {"n_cpu": 8}})
    old = replace(FIRST, require="n_cpu <= 2").plan(small)
    new = replace(FIRST, require="n_cpu >= 4").plan(small)
    decided = diff(old, new)
    assert decided.empty  # one Spark serves all hosts of the zone
    assert (old.unit("out@C1").hosts, decided.wanted.unit("out@C1").hosts) == (("vm1",), ("vm2",))


def test_a_requirement_that_its_node_does_not_meet_is_met_by_another_one() -> None:
    small = in_cloud({"vm1": {"n_cpu": 2, "at": "local"}, "vm2": {"n_cpu": 8, "at": "local"}})
    old = replace(FIRST, require="n_cpu <= 2").plan(small)
    new = replace(FIRST, require="n_cpu >= 4").plan(small)
    decided = diff(old, new)
    assert actions(decided) == {"out@vm2": "start none", "out@vm1": "stop none"}
    assert {u.unit: u.reason for u in decided.changed} == {
        "out@vm2": "it takes over the state of out@vm1", "out@vm1": "its operators continue in out@vm2",
    }  # fmt: skip


def test_another_path_replaces_the_sinks_unit_alone() -> None:
    assert actions(between(FIRST, replace(FIRST, path="/new"))) == {"out@C1": "replace none"}


def test_a_layers_name_is_no_content() -> None:
    data = str(ACME.to_data()).replace("'site'", "'plant'")
    renamed = Continuum.from_data(eval(data))
    old, dataflow = FIRST.plan(), FIRST.flow()
    moved = dataflow.with_operators(replace(o, layer="plant") for o in dataflow.operators if o.layer == "site")
    assert diff(old, build(moved, renamed)).empty


def test_a_second_output_replaces_its_unit() -> None:
    decided = between(FIRST, replace(FIRST, tap=True))
    assert actions(decided) == dict.fromkeys(("AD@S1", "AD@S2"), "replace kept")
    assert "'tap' added" in decided.changed[0].reason


def test_a_name_inside_a_unit_is_no_content() -> None:
    def named(name: str) -> DeploymentPlan:
        builder = hw.flow("f", locations=("L1",))
        rows = builder.read.json("/d/{location}", "v double").named(f"src_{name}")
        rows.where("v > 1").named(name).select("v").named("end").write.memory("out")
        return build(builder.build(), ACME)

    decided = diff(named("a"), named("b"))
    assert decided.empty
    # The source's name is in the checkpoint: it keeps the old name.
    assert decided.wanted.tags["src_b"] == named("a").tags["src_a"]


def test_a_second_input_makes_another_query_of_a_unit_without_state() -> None:
    def plan(*locations: str) -> DeploymentPlan:
        builder = hw.flow("f", locations=locations)
        rows = builder.read.json("/d/{location}", SCHEMA_TS).with_watermark("ts", "1 s").named("low")
        passed = rows.to_layer("site").where("v > 1").named("mid")
        passed.to_layer("cloud").drop_duplicates("v").write.memory("out")
        return build(builder.build(), ACME)

    decided = diff(plan("L1"), plan("L1", "L2"))
    assert actions(decided) == {"low@E2": "start none", "mid@S1": "replace none"}
    assert "event time" in next(u.reason for u in decided.changed if u.unit == "mid@S1")
    assert actions(diff(plan("L1", "L2"), plan("L1", "L2", "L3")))["mid@S1"] == "update_inputs none"


SCHEMA_TS = "ts timestamp, v double"


# ---------------------------------------------------------------- state, operator by operator

ROWS = "id bigint, ts timestamp, k string, v double"


def with_state(write: Callable[[Stream], Stream], *, before: str = "v > 0", schema: str = ROWS) -> DeploymentPlan:
    """Plan a dataflow with state at the site."""
    builder = hw.flow("f", locations=("L1",))
    rows = builder.read.json("/d/{location}", schema).named("read").with_watermark("ts", "5 seconds")
    low = rows.where(before).named("low")
    write(low.to_layer("site")).named("top").to_layer("cloud").write.memory("out")
    return build(builder.build(), ACME)


def state(old: Callable[[Stream], Stream], new: Callable[[Stream], Stream], **changes: str) -> str:
    """Return the action and the state of the site's unit after a change, or the errors that refuse it."""
    before, after = with_state(old), with_state(new, **changes)
    try:
        decided = diff(before, after)
    except ErrorList as errors:
        return str(errors)
    (change,) = [u for u in decided.units if u.unit == "top@S1"]
    return f"{change.action} {change.state}"


WINDOW = hw.window("ts", "1 minute")


def windowed(agg: str = "avg(v)", *, size: str = "1 minute", keys: tuple[str, ...] = ("k",), above: int = 0) -> Any:
    return lambda s: s.where(f"v > {above}").group_by(hw.window("ts", size), *keys).agg(m=agg)


def counted(size: int = 3, agg: str = "avg(v)", order: str = "id") -> Any:
    return lambda s: s.count_window(size, keys="k", order_by=order).agg(m=agg)


def folded(step: int = 1, initial: Any = 0, order: str = "id", schema: str = "k string, n bigint") -> Any:
    def fold(state: Any, row: Any) -> Any:
        return state + step, {"k": row["k"], "n": step}

    return lambda s: s.scan(fold, schema, keys="k", order_by=order, initial=initial)


def joined(within: str = "1 minute", columns: tuple[str, ...] = ("id", "ts", "k"), rest: str = "w") -> Any:
    def write(s: Stream) -> Stream:
        left = s.where("v < 1").select(*columns)
        right = s.where("v > 2").select("k", "ts AS at", "v AS w", "id AS other")
        return left.join(right, on="k", within=within).select("id", rest)

    return write


def accumulated(limit: int) -> Any:
    return lambda s: s.filter_acc(lambda last, row: row["v"], lambda last, row: limit < 9, keys="k", order_by="id")


def best(k: int, by: str = "m") -> Any:
    return lambda s: s.group_by(WINDOW, "k").agg(m="avg(v)", n="count(*)").top_k(k, by)


KEPT = {
    "a filter before the window": (windowed(), windowed(above=1)),
    "what is computed of an aggregate": (windowed(), windowed("avg(v) * 2")),
    "size of count windows": (counted(3), counted(5)),
    "another function of the same value": (counted(agg="avg(v)"), counted(agg="max(v)")),
    "code of a fold": (folded(1), folded(2)),
    "columns that a fold gives": (folded(), folded(schema="k string, n bigint, m bigint")),
    "order in which a fold takes a batch": (folded(order="id"), folded(order="v")),
    "code of filter_acc": (accumulated(1), accumulated(2)),
    "length of a top list": (best(3), best(5)),
    "what is used of a join": (joined(), joined(rest="other")),
    "a filter behind duplicates": (
        lambda s: s.drop_duplicates("id"),
        lambda s: s.drop_duplicates("id").where("v > 5"),
    ),
}
LOST = {
    "another aggregate": (windowed(), windowed("max(v)"), "the aggregates"),
    "another window": (windowed(), windowed(size="2 minutes"), "the window"),
    "other keys": (windowed(), windowed(keys=("k", "id")), "the keys"),
    "windows of a session": (
        windowed(),
        lambda s: s.group_by(hw.session_window("ts", "1 minute"), "k").agg(m="avg(v)"),
        "the window",
    ),
    "another value in count windows": (counted(), counted(agg="avg(v + 1)"), "the values"),
    "rows that wait for event time": (counted(), counted(order="ts"), "the order"),
    "the form of a fold's state": (folded(initial=0), folded(initial=[]), "the form of the state"),
    "duplicates by other columns": (
        lambda s: s.drop_duplicates("id"),
        lambda s: s.drop_duplicates("k"),
        "the columns compared",
    ),
    "bounds of a join": (joined(), joined("2 minutes"), "the bounds"),
    "columns of a join": (joined(), joined(columns=("id", "ts", "k", "v")), "the streams joined"),
    "what a top list is by": (best(3), best(3, "n"), "the aggregates"),
    "another operator": (windowed(), counted(), "which has state"),
    "state that goes": (windowed(), lambda s: s.select("k", "v AS m"), "no longer in the unit"),
    "state in two places": (
        windowed(),
        lambda s: s.drop_duplicates("id").group_by(WINDOW, "k").agg(m="avg(v)"),
        "becomes stateful",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_state_is_kept(name: str) -> None:
    assert state(*KEPT[name]) == "replace kept"


@pytest.mark.parametrize("name", LOST)
def test_state_cannot_be_kept(name: str) -> None:
    old, new, why = LOST[name]
    text = state(old, new)
    assert why in text and "unit top@S1" in text and "--reset-state top@S1" in text
    assert "top@S1" in text.partition("->")[0]
    decided = diff(with_state(old), with_state(new), reset_state=frozenset({"top@S1"}))
    (change,) = [u for u in decided.units if u.unit == "top@S1"]
    assert (change.action, change.state) == ("replace", "given up")
    assert decided.wanted.unit("top@S1").tag != with_state(new).unit("top@S1").tag
    assert decided.wanted.unit("top@S1").epoch == 2


def test_types_below_matter_to_state() -> None:
    text = state(windowed(), windowed(), schema="id bigint, ts timestamp, k string, v float")
    assert "the aggregates changed" in text
    # A column that the windows do not use does not matter.
    assert state(windowed(), windowed(), schema=f"{ROWS}, more string") == "replace kept"
    # The state of a fold in event-time order has whole rows.
    old = folded(order="ts")
    assert "the rows that wait" in state(old, old, schema=f"{ROWS}, more string")


def test_no_state_is_lost_where_there_was_none() -> None:
    assert state(lambda s: s.select("k", "v AS m"), windowed()) == "replace none"


def test_consent_is_for_units_that_are_there() -> None:
    assert "unknown unit nobody@S1" in refusal(FIRST.plan(), FIRST.plan(), "nobody@S1")
    decided = between(FIRST, FIRST, "AD@S1")
    assert actions(decided) == {"AD@S1": "replace given up"}


def test_state_with_a_source_of_its_own_cannot_be_given_up() -> None:
    def plan(agg: str) -> DeploymentPlan:
        builder = hw.flow("f", locations=("L1",))
        rows = builder.read.json("/d/{location}", ROWS).with_watermark("ts", "5 seconds")
        rows.group_by(WINDOW, "k").agg(m=agg).named("top").write.memory("out")
        return build(builder.build(), ACME)

    for reset in ((), ("out@E1",)):
        text = refusal(plan("avg(v)"), plan("max(v)"), *reset)
        assert "'files' itself, which would be read again" in text and "higher layer" in text


def test_a_source_goes_on_when_its_columns_change() -> None:
    def plan(schema: str, *, direct: bool = False) -> DeploymentPlan:
        builder = hw.flow("f", locations=("L1",))
        rows = builder.read.json("/d/{location}", schema).named("read")
        (rows if direct else rows.where("true")).to_layer("site").write.memory("out")
        return build(builder.build(), ACME)

    old, new = plan("v double"), plan("v double, w double")
    assert diff(old, new).wanted.tags["read"] == old.tags["read"]
    text = refusal(plan("v double", direct=True), plan("v double, w double", direct=True))
    assert "would read all input again" in text and "'read'" in text


def test_state_of_two_zones_becomes_one_and_is_divided_again() -> None:
    dataflow = FIRST.flow()
    lifted = build(dataflow, ACME, in_layers(dataflow, ACME, {**marked_layers(dataflow, ACME), "AD": "cloud"}))
    up = diff(FIRST.plan(), lifted)
    ((share,),) = [c.shares for c in up.transfers]
    assert ([d.unit for d in share.source_units], share.by, share.part) == (["AD@S1", "AD@S2"], None, None)
    assert actions(up)["AD@S1"] == "stop transferred"
    down = diff(up.wanted, FIRST.plan())
    assert {c.unit: (share.by, share.values, share.part) for c in down.transfers for share in c.shares} == {
        "AD@S1": ("location", ("L1", "L2"), None),
        "AD@S2": ("location", ("L4",), None),
    }
    given_up = diff(FIRST.plan(), lifted, reset_state=frozenset({"AD@S1", "AD@S2"}))
    assert actions(given_up)["AD@S1"] == "stop given up"
    # The rows that they have read are still not read again.
    assert [r.source_units for c in given_up.transfers for r in c.readings] == [("AD@S1", "AD@S2")]


def other_parent() -> Continuum:
    """Return the continuum with an edge zone below the other site."""
    data: Any = ACME.to_data()
    data["zones"]["E2"]["parent"] = "S2"
    return Continuum.from_data(data)


def test_state_is_divided_by_location_where_a_zone_changes_its_parent() -> None:
    decided = diff(FIRST.plan(), FIRST.plan(other_parent()))
    assert actions(decided) == {
        "AD@S1": "replace transferred", "AD@S2": "replace transferred", "out@C1": "update_inputs none",
    }  # fmt: skip
    shares = {t.unit: [(s.by, set(s.values)) for s in t.shares] for t in decided.transfers}
    assert shares == {"AD@S1": [("location", {"L1"})], "AD@S2": [("location", {"L2", "L4"})]}


@pytest.mark.parametrize("zones", [{"E1": ["L1", "L2"], "E4": ["L4"]}, {"E1": ["L1"], "E4": ["L4", "L2"]}])
def test_a_location_takes_its_position_to_another_zone(zones: dict[str, list[str]]) -> None:
    def plan(zones: dict[str, list[str]]) -> DeploymentPlan:
        edges = "".join(f"\n  {z}: {{layer: edge, parent: C1, locations: {own}}}" for z, own in zones.items())
        text = f"name: c\nlayers: [edge, cloud]\nzones:\n  C1: {{layer: cloud}}{edges}"
        builder = hw.flow("f")
        builder.read.json("/d/{location}", SCHEMA).where("v > 0").named("good").to_layer("cloud").write.memory("out")
        return build(builder.build(), Continuum.from_text(text))

    decided = diff(plan({"E1": ["L1"], "E2": ["L2"], "E4": ["L4"]}), plan(zones))
    taker = next(f"good@{z}" for z, own in zones.items() if "L2" in own)
    found = next(t for t in decided.transfers if t.unit == taker)
    assert set(found.source_units) == {taker, "good@E2"}, "it goes on where both have stopped"
    before = {c.id for c in decided.running.channels} if decided.running is not None else set()
    (written,) = (c.id for c in decided.wanted.channels if c.producer == taker)
    assert written not in before, "its event time may be ahead of the location that joins it"


def test_changed_code_is_told_of() -> None:
    decided = diff(with_state(folded(1)), with_state(folded(2)))
    assert decided.notes == (
        "top@S1: the changed function of 'top' reads the state of the former one; the formats have to match",
    )


def test_another_dataflow_cannot_take_its_place() -> None:
    other = hw.flow("g", locations=("L1",))
    other.read.json("/d/{location}", "v double").write.memory("out")
    assert "applied" not in refusal(FIRST.plan(), build(other.build(), ACME))


def test_a_unit_that_reads_a_channel_fewer_times_leaves_readers() -> None:
    """Branches that meet again read a channel once each alone, and once together beside another output."""
    continuum = Continuum.from_text(
        "layers: [edge, cloud]\nzones:\n  C: {layer: cloud}\n  E: {layer: edge, parent: C, locations: [L1]}\n"
    )

    def flow(*, more: bool) -> Dataflow:
        builder = hw.flow("f")
        rows = builder.read.json("/d/{location}", "id bigint, v double").where("v > 0").named("rows").to_layer("cloud")
        rows.where("v > 3").union(rows.where("v < 1")).write.memory("m")
        if more:
            rows.where("v > 2").write.memory("n")
        return builder.build()

    alone = build(flow(more=False), continuum)
    beside = diff(alone, build(flow(more=True), continuum)).wanted
    assert beside is not None
    twice, once = spec_of(alone, "m@C"), spec_of(beside, "m@C")
    first, second = twice.own_readers["rows"]
    assert once.own_readers["rows"] == (first,), "the unit keeps its checkpoint"
    assert twice.readers_left_by(once) == {"rows": (second,)}
    assert once.readers_left_by(twice) == {"rows": ()}
    assert twice.readers_left_by(None) == {"rows": (first, second)}
