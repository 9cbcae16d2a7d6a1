"""Check that Python, command line, REST, dashboard and pools make and store the same plan for the same request."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from headwater.app import pools
from headwater.app.client import Client, PlanRequest, Proposal
from headwater.control import tables
from headwater.control.store import Store
from headwater.control.tables import STORE
from headwater.core.requirement import Requirement
from headwater.dataflow.graph import Dataflow
from headwater.placement import STRATEGIES
from headwater.placement.schedule import SCHEDULERS
from headwater.plan.document import to_document
from headwater.plan.edit import Edit, Fuse, Move, Split, Spread
from headwater.plan.model import DeploymentPlan
from headwater.plan.place import ANNOTATED
from headwater.plan.profile import OperatorProfile, Profile
from headwater.plan.steps import FormerOutputChoice
from headwater.testing.nodes import SimulatedNodes
from tests.unit import entrances as ways
from tests.unit.changes import FIRST, versions
from tests.unit.entrances import Asked, Refused, Stored
from tests.unit.test_plan import dataflows, paper

NOT_SHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Cases are not shrunk: a case takes long."""
LOCATIONS = ("L1", "L2", "L4", "L5")


@dataclass(frozen=True)
class World:
    """The entrances, over stores in a directory."""

    directory: Path
    rest: ways.Rest
    empty: Path
    """An empty store, to copy."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("entrances")
        patch.chdir(directory)
        patch.setattr(tables, "SYNCHRONOUS", "OFF")
        for name in (STORE, pools.TOKEN):
            patch.delenv(name, raising=False)
        Store(directory / "empty.db").close()
        yield World(directory, ways.Rest(directory / "nowhere.db"), directory / "empty.db")


# ---------------------------------------------------------------- requests


@st.composite
def continua(draw: st.DrawFn) -> dict[str, Any]:
    """Draw zones with hosts of several kinds, some with their own addresses."""
    zones: dict[str, Any] = {"C1": {"layer": "cloud", **draw(zone_hosts("c"))}}
    sites = draw(st.integers(1, 2))
    for n in range(1, sites + 1):
        zones[f"S{n}"] = {"layer": "site", "parent": "C1", **draw(zone_hosts(f"s{n}")), **draw(links())}
    for location in LOCATIONS:
        own = {"layer": "edge", "parent": f"S{draw(st.integers(1, sites))}", "locations": [location]}
        zones[f"E{location[1:]}"] = {**own, **draw(zone_hosts(f"e{location[1:]}")), **draw(links())}
    return {"name": "drawn", "layers": ["edge", "site", "cloud"], "zones": zones}


@st.composite
def zone_hosts(draw: st.DrawFn, prefix: str) -> dict[str, Any]:
    kinds = [{"n_cpu": 2}, {"n_cpu": 4, "gpu": True}, {"n_cpu": 8, "memory": "16GiB"}]
    found = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    own = {"at": "local"} if draw(st.booleans()) else {}
    return {"hosts": {f"{prefix}{'abc'[n]}": {**kind, **own} for n, kind in enumerate(found)}}


@st.composite
def links(draw: st.DrawFn) -> dict[str, Any]:
    width, late = draw(st.sampled_from([1, 10, 100])), draw(st.sampled_from([5, 40]))
    return {"link": {"bandwidth": f"{width}Mbit/s", "latency": f"{late}ms"}}


@st.composite
def flows(draw: st.DrawFn) -> Dataflow:
    """Draw a dataflow with or without state; some of its operators may have requirements."""
    kept = versions().map(lambda version: replace(version, shape="annotated").flow())
    flow: Dataflow = draw(st.one_of(dataflows(), kept, st.just(paper())))
    free = [o.id for o in flow.operators if o.id not in {s.id for s in flow.sources}]
    needy = draw(st.sets(st.sampled_from(free), max_size=2)) if draw(st.booleans()) else set()
    need = Requirement.parse(draw(st.sampled_from(["gpu = true", "n_cpu >= 4"])))
    return flow.with_operators(replace(o, requires=need) if o.id in needy else o for o in flow.operators)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """Draw a request: often with marks alone, else with a strategy and its options."""
    found = Asked(flow=draw(flows()), zones=draw(continua()))
    if draw(st.booleans()):
        return found
    return replace(found, **draw(choices(found.flow)))


@st.composite
def choices(draw: st.DrawFn, flow: Dataflow) -> dict[str, Any]:
    costs = OperatorProfile(cpu_s=draw(st.sampled_from([1e-5, 1e-3])), selectivity=0.5, bytes_out=40)
    rates = {s.id: {"*": draw(st.sampled_from([1.0, 500.0]))} for s in flow.sources}
    profile = Profile(dataflow=flow.name, rates=rates, operators=dict.fromkeys(flow.order, costs))
    strategy = draw(st.sampled_from([ANNOTATED, *STRATEGIES, *SCHEDULERS]))
    found: dict[str, Any] = {"strategy": strategy, "profile": draw(st.sampled_from([None, profile]))}
    if strategy in SCHEDULERS or draw(st.integers(0, 9)) == 0:  # the others take no limits
        found["max_latency"] = draw(st.sampled_from([None, 0.5, 5.0]))
        found["max_bandwidth"] = draw(st.sampled_from([None, 1, 80]))
        found["weights"] = draw(st.sampled_from([None, (1.0, 0.0), (0.0, 1.0)]))
    if draw(st.integers(0, 3)) == 0:
        found |= {"rewrite": True, "without_rules": draw(st.sampled_from([(), ("filter-down", "prune-columns")]))}
    return {**found, "compare": draw(st.integers(0, 9)) == 0}


def drawn_edit(data: st.DataObject, plan: DeploymentPlan) -> Edit:
    """Draw a plausible edit of a plan."""
    unit = data.draw(st.sampled_from(plan.units))
    continuum = plan.continuum
    kind = data.draw(st.sampled_from((Move, Move, Spread, Split, Fuse)))
    if kind is Spread:
        hosts = [host.name for host in continuum.zone(unit.zone).hosts]
        over = data.draw(st.lists(st.sampled_from(hosts), min_size=1, unique=True))
        return Spread(unit=data.draw(st.sampled_from((unit.id, unit.name))), over=tuple(over))
    if kind is Split:
        return Split(unit=unit.id, after=data.draw(st.sampled_from(unit.operators)))
    if kind is Fuse and plan.channels:
        channel = data.draw(st.sampled_from(plan.channels))
        reader = data.draw(st.sampled_from(channel.consumers))
        to = data.draw(st.sampled_from((None, plan.unit(reader).layer)))
        return Fuse(first=channel.producer, second=reader, to=to)
    places = ("edge", "site", "cloud", *(h.name for h in continuum.hosts))
    return Move(
        operator=data.draw(st.sampled_from(plan.dataflow.order)),
        to=data.draw(st.sampled_from(places)),
        at=data.draw(st.sampled_from((*plan.locations, None))),
    )


# ---------------------------------------------------------------- one plan from all entrances


def agree(python: Any, command: Any, rest: Any) -> None:
    """Check that the command line and REST make the same plan as Python."""
    if isinstance(python, Refused):
        refused(python, command, rest)
    else:
        assert ways.narrowed(command, python) == ways.narrowed(rest, python) == python


def refused(python: Refused, command: Any, rest: Any) -> None:
    """Check that the command line and REST refuse the request for the same reasons as Python."""
    assert rest == python
    assert isinstance(command, tuple), (python, command)
    code, text = command
    assert code not in (0, 1), text
    assert all(what in text for what in python.what), (python, text)


def check_planned(world: World, one: Asked, store: Path) -> Proposal | Refused:
    """Check that all entrances make the same plan, before any of them stores it."""
    command = ways.CommandLine(world.directory)
    found, by_rest = ways.Python().propose(one.request, store), world.rest.plan(one, store)
    # The command line takes these options only in ``apply``.
    if one.canary or one.reset or one.former_output != "refuse":
        plain = replace(one, canary=None, reset=(), former_output="refuse")
        agree(ways.Python().plan(plain, store), command.plan(plain, store), world.rest.plan(plain, store))
        told = found if isinstance(found, Refused) else ways.outline(found.plan)
        assert by_rest == told if isinstance(told, Refused) else ways.narrowed(by_rest, told) == told
    else:
        by_command = command.plan(one, store)
        agree(found if isinstance(found, Refused) else ways.outline(found.plan), by_command, by_rest)
        assert by_command == by_rest or isinstance(found, Refused)
    if isinstance(found, Proposal):
        assert by_rest["change"]["steps"] == found.change.words
    return found


def check_stored(outcomes: list[Any], shown: Proposal) -> None:
    """Check that all entrances stored the plan that was shown."""
    for one in outcomes:
        if shown.change.same:
            assert one is None
            continue
        assert isinstance(one, Stored), one
        assert one.plan == to_document(shown.plan)
        assert one.shown == shown.change.words
        options = (sorted(shown.request.reset_state), shown.request.canary, shown.request.former_output)
        assert one.options == ("run", *options)


def check_applied(world: World, one: Asked, store: Path, new: Iterator[Path]) -> Proposal | None:
    """Apply by the other entrances in copies of a store, and by Python in the store itself."""
    shown = check_planned(world, one, store)
    each = (ways.CommandLine(world.directory), world.rest)
    outcomes = [way.apply(one, ways.copied(store, next(new))) for way in each]
    if isinstance(shown, Refused):
        refused(ways.Python().apply(one, store), *outcomes)
        return None
    check_stored([*outcomes, ways.Python().apply(one, store)], shown)
    return shown


def check_edited(world: World, name: str, edit: Edit, store: Path, new: Iterator[Path]) -> Proposal | None:
    """Edit, and approve the same edit as a decision, by each entrance in a copy of the store; then edit the store."""
    command, python = ways.CommandLine(world.directory), ways.Python()
    shown = python.propose(PlanRequest(of=name, edits=(edit,)), store)
    outcomes = [way.edit(name, edit, ways.copied(store, next(new))) for way in (command, world.rest)]
    if isinstance(shown, Refused):
        refused(python.edit(name, edit, store), *outcomes)
        return None
    if not shown.change.same:
        for way in (command, world.rest, ways.Dashboard()):
            copy = ways.copied(store, next(new))
            outcomes.append(way.approve(ways.proposed(copy, shown), name, copy))
    check_stored([*outcomes, python.edit(name, edit, store)], shown)
    return shown


def came_of(shown: Proposal | None) -> str:
    return "refused" if shown is None else "nothing new" if shown.change.same else "done"


def check_settled(shown: Proposal | None, store: Path, zones: SimulatedNodes) -> None:
    """Let a controller execute the stored plan, and check that the result is the plan that was shown."""
    if came_of(shown) == "done":
        assert shown is not None
        plan = ways.settle(store, shown.plan.dataflow.name, zones)
        assert to_document(plan) == to_document(shown.change.diff.wanted)


def check_case(world: World, one: Asked, data: st.DataObject, edits: int) -> None:
    with tempfile.TemporaryDirectory(dir=world.directory) as place:
        new = (Path(place) / f"{n}.db" for n in itertools.count())
        store, zones, name = ways.copied(world.empty, next(new)), SimulatedNodes(), one.flow.name
        shown = check_applied(world, one, store, new)
        if shown is None:
            event("refused")
            return
        if not one.compare:
            by_run = ways.CommandLine(Path(place)).run(one)
            assert by_run == ways.outline(shown.plan)
        event(f"strategy {one.strategy}")
        check_settled(shown, store, zones)
        plan = shown.change.diff.wanted
        for _ in range(edits):
            if data.draw(st.sampled_from((False, False, False, True))):
                # The same dataflow with a new placement.
                more = data.draw(choices(one.flow))
                canary = data.draw(st.sampled_from([None, 1]))
                known = data.draw(st.booleans())
                again = replace(one, **{**more, "compare": False}, canary=canary, known=known)
                shown, what = check_applied(world, again, store, new), "applied anew"
            else:
                edit = drawn_edit(data, plan)
                shown, what = check_edited(world, name, edit, store, new), type(edit).__name__
            event(f"{what}: {came_of(shown)}")
            check_settled(shown, store, zones)
            plan = plan if shown is None else shown.change.diff.wanted


USUAL = settings(deadline=None, phases=NOT_SHRUNK, suppress_health_check=[HealthCheck.too_slow])


@settings(USUAL, max_examples=4)
@given(one=asked(), data=st.data())
def test_all_entrances_give_one_plan(world: World, one: Asked, data: st.DataObject) -> None:
    check_case(world, one, data, edits=2)


@pytest.mark.long
@settings(USUAL, max_examples=150)
@given(one=asked(), data=st.data())
def test_all_entrances_give_one_plan_in_many_cases(world: World, one: Asked, data: st.DataObject) -> None:
    check_case(world, one, data, edits=3)


ZONES: dict[str, Any] = {
    "name": "fixed",
    "layers": ["edge", "site", "cloud"],
    "zones": {
        "C1": {"layer": "cloud", "hosts": {"c1": {"n_cpu": 8}, "c2": {"n_cpu": 8}}},
        "S1": {
            "layer": "site",
            "parent": "C1",
            "hosts": {"s1": {"n_cpu": 4, "at": "local"}, "s2": {"n_cpu": 4, "gpu": True, "at": "local"}},
        },
        "E1": {"layer": "edge", "parent": "S1", "locations": ["L1"], "hosts": {"e1": {"n_cpu": 2}}},
        "E2": {"layer": "edge", "parent": "S1", "locations": ["L2"], "hosts": {"e2": {"n_cpu": 2}}},
    },
}
EDITS: tuple[tuple[Edit, str], ...] = (
    (Move(operator="FP", to="site", at="L1"), "done"),
    (Move(operator="ML", to="c2"), "done"),
    (Spread(unit="AD", over=("s2",)), "done"),
    (Spread(unit="AD@s2", over=("s2",)), "nothing new"),
    (Split(unit="out", after="ML"), "done"),
    (Fuse(first="ML", second="out"), "done"),
    (Fuse(first="AD", second="out"), "refused"),
    (Fuse(first="AD", second="out", to="cloud"), "done"),
    (Move(operator="nobody", to="site"), "refused"),
)


def fixed(**changes: Any) -> Dataflow:
    flow: Dataflow = replace(FIRST, locations=("L1", "L2"), **changes).flow()
    return flow


COSTS = OperatorProfile(cpu_s=1e-3, selectivity=0.5, bytes_out=40)
OPTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"known": True}, "done"),
    ({"known": True}, "nothing new"),
    ({"flow": fixed(size="2 minutes")}, "refused"),
    ({"flow": fixed(size="2 minutes"), "reset": ("AD.1of2@s1", "AD.2of2@s2")}, "done"),
    ({"flow": fixed(size="2 minutes", above=1), "canary": 1}, "done"),
    ({"flow": fixed(size="2 minutes", above=2), "former_output": "append"}, "done"),
    (
        {
            "flow": fixed(size="2 minutes", above=1),
            "strategy": "tsoo_exact",
            "max_latency": 5.0,
            "max_bandwidth": 80,
            "weights": (0.0, 1.0),
            "profile": Profile(dataflow="f", rates={"read": {"*": 9.0}}, operators={"FP": COSTS}),
            "compare": True,
        },
        "done",
    ),
    ({"flow": fixed(size="2 minutes", above=1), "rewrite": True, "without_rules": ("split-aggregate",)}, "done"),
)


def test_each_option_comes_through(world: World, tmp_path: Path) -> None:
    """Check each kind of edit with all its options, and each option of ``apply``; hypothesis may not draw them all."""
    new = (tmp_path / f"{n}.db" for n in itertools.count())
    store, zones = ways.copied(world.empty, next(new)), SimulatedNodes()
    first = Asked(flow=fixed(), zones=ZONES)
    assert came_of(check_applied(world, first, store, new)) == "done"
    ways.settle(store, "f", zones)
    for edit, expected in EDITS:
        shown = check_edited(world, "f", edit, store, new)
        assert came_of(shown) == expected, edit
        check_settled(shown, store, zones)
    for options, expected in OPTIONS:
        shown = check_applied(world, replace(first, **options), store, new)
        assert came_of(shown) == expected, options
        check_settled(shown, store, zones)


# ---------------------------------------------------------------- pools


def check_pooled(outcomes: list[Any], store: Path, pool: str) -> bool:
    """Check that all entrances stored the plan of a pool that ``Client`` makes; return False if it is refused."""
    *copies, python = outcomes
    if isinstance(python, Refused):
        refused(python, *copies)
        return False
    assert all(one == python for one in copies)
    if python[0] is not None:
        with closing(Store(store)) as opened:
            plan, kept = ways.newest(store, pool)[0], opened.pool(pool)
        assert plan is not None and plan.pooled
        request = PlanRequest(dataflow=plan.dataflow, continuum=plan.continuum, decided=plan.deployment, pool=kept)
        assert to_document(Client(str(store)).propose(request).plan) == python[0]
    return True


def check_pool(world: World, members: list[Asked], data: st.DataObject) -> None:
    each = (ways.CommandLine(world.directory), world.rest)
    with tempfile.TemporaryDirectory(dir=world.directory) as place:
        new = (Path(place) / f"{n}.db" for n in itertools.count())
        store, zones, there = ways.copied(world.empty, next(new)), SimulatedNodes(), list[str]()
        for one in members:
            found = [way.submit(one, "p", ways.copied(store, next(new))) for way in each]
            if not check_pooled([*found, ways.Python().submit(one, "p", store)], store, "p"):
                event("refused")
                continue
            there.append(one.flow.name)
            plan = ways.settle(store, "p", zones)
            edit = drawn_edit(data, plan)
            shown = check_edited(world, "p", edit, store, new)
            event(f"{type(edit).__name__}: {came_of(shown)}")
            check_settled(shown, store, zones)
        if there:
            name = data.draw(st.sampled_from(there))
            found = [way.remove(name, "p", ways.copied(store, next(new))) for way in each]
            check_pooled([*found, ways.Python().remove(name, "p", store)], store, "p")
            event(f"removed, of {len(there)}")


@st.composite
def members(draw: st.DrawFn) -> list[Asked]:
    """Draw two or three dataflows for one pool; two of them differ only in the name."""
    zones = draw(continua())
    drawn = [draw(flows()) for _ in range(draw(st.integers(1, 2)))]
    found = [*drawn, draw(st.sampled_from(drawn))]
    choices: list[FormerOutputChoice] = ["refuse", "append", "overwrite"]
    return [
        Asked(flow=replace(flow, name=f"f{n}"), zones=zones, former_output=draw(st.sampled_from(choices)))
        for n, flow in enumerate(found)
    ]


@settings(USUAL, max_examples=2)
@given(them=members(), data=st.data())
def test_all_entrances_give_one_plan_of_a_pool(world: World, them: list[Asked], data: st.DataObject) -> None:
    check_pool(world, them, data)


@pytest.mark.long
@settings(USUAL, max_examples=40)
@given(them=members(), data=st.data())
def test_all_entrances_give_one_plan_of_a_pool_in_many_cases(
    world: World, them: list[Asked], data: st.DataObject
) -> None:
    check_pool(world, them, data)
