"""Random histories of a pool: dataflows with diamonds, continua that change, and checks after every step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks.reuse.city import LOCATION, dataflow
from benchmarks.reuse.workloads import Graph, workload
from headwater.app import pools
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.control.store import Store
from headwater.core.errors import HeadwaterError
from headwater.core.requirement import Requirement
from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow, own_content
from headwater.dataflow.sinks import MemorySink, Sink
from headwater.dataflow.stream import Stream
from headwater.plan import edit
from headwater.plan.build import build
from headwater.plan.diff import diff
from headwater.plan.document import from_document, to_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.spec import spec_of
from headwater.reuse.normal import normalized
from headwater.sql.conditions import implied, parts_of

SCHEMA = "id bigint, ts timestamp, k string, v double"
PLACES = ["L1", "L2", "L3"]
HOLDER = "test:1"


def keeping_highest(state: float, row: dict[str, Any]) -> Any:
    state = max(state, row["v"])
    return state, {**row, "v": state}


def adding(state: float, row: dict[str, Any]) -> Any:
    state += row["v"]
    return state, {**row, "v": state}


# ---------------------------------------------------------------- dataflows


@cache
def city() -> Mapping[str, Dataflow]:
    """Return the 21 dataflows of a city, of RIoTBench's tasks."""
    return {graph.name: dataflow(graph, Path("/data")) for graph in workload("riot21")}


@cache
def scientific() -> Mapping[str, Dataflow]:
    """Return dataflows with the shapes and overlaps of scientific workflows; equal tasks are equal operators."""
    return {graph.name: _of_graph(graph) for graph in workload("opmw35_synth")}


@cache
def made_up(seed: int, count: int = 10) -> Mapping[str, Dataflow]:
    """Draw dataflows over few tasks, so that they overlap; branches part and meet again."""
    drawn = random.Random(seed)
    return {f"f{number}": _drawn(drawn, f"f{number}", [LOCATION]) for number in range(count)}


@cache
def at_places(seed: int, count: int = 10) -> Mapping[str, Dataflow]:
    """Draw such dataflows, each for some of three locations, or for all of the continuum."""
    drawn = random.Random(seed)
    names = {f"f{number}": drawn.sample(PLACES, drawn.randint(0, 3)) for number in range(count)}
    return {name: _drawn(drawn, name, places) for name, places in names.items()}


def _of_graph(graph: Graph) -> Dataflow:
    builder = hw.flow(graph.name, locations=[LOCATION])
    streams: dict[str, Stream] = {}
    read = {p for p, _ in graph.edges}
    for task in graph.order:
        kind, config = graph.tasks[task]
        if not graph.inputs(task):
            rows = builder.read.json(f"/in/{kind.removeprefix('source:')}", SCHEMA)
            streams[task] = rows.with_watermark("ts", "2 seconds")
            continue
        parents = [streams[p] for p in graph.inputs(task)]
        streams[task] = parents[0].union(*parents[1:]) if len(parents) > 1 else parents[0]
        if task not in read:
            streams[task].write.json(f"/out/{graph.name}/{task}").named(task)
        else:
            streams[task] = _task(streams[task], f"{kind} {config}")
    for task in set(graph.tasks) - read:
        if not graph.inputs(task):
            streams[task].write.json(f"/out/{graph.name}/{task}").named(task)
    return builder.build()


def _drawn(drawn: random.Random, name: str, places: list[str]) -> Dataflow:
    builder = hw.flow(name, locations=places)
    path = f"/in/{{location}}/{drawn.randrange(2)}"
    located = drawn.random() < 0.8
    read = builder.read.json(path, SCHEMA, location_as="site" if located else None).with_watermark("ts", "2 seconds")
    read = read if located else read.to_layer("cloud")  # only there one zone sees the rows of all locations
    streams = [read]
    for _ in range(drawn.randint(1, 7)):
        stream = drawn.choice(streams[-3:])
        if len(streams) > 2 and drawn.random() < 0.3:
            stream = stream.union(drawn.choice(streams))
        if drawn.random() < 0.15:
            stream = stream.to_layer("cloud")
        streams.append(_task(stream, str(drawn.randrange(12))))
    for number, stream in enumerate(drawn.sample(streams[1:], min(2, len(streams) - 1))):
        stream.write.json(f"/out/{name}/{number}").named(f"kept{number}")
    _end_the_rest(builder, streams, name)
    return builder.build()


def _end_the_rest(builder: Any, streams: list[Stream], name: str) -> None:
    """Write the streams that nothing reads."""
    for number, stream in enumerate(streams):
        try:
            builder.build()
            return
        except HeadwaterError:
            stream.write.json(f"/out/{name}/end{number}").named(f"end{number}")


def _task(stream: Stream, text: str) -> Stream:
    """Return one task over rows of ``SCHEMA``; equal texts give equal tasks."""
    number = random.Random(text).randrange(6)
    located = "site" in stream.columns
    schema, keys = (f"{SCHEMA}, site string", ["site", "k"]) if located else (SCHEMA, ["k"])
    makers: list[Callable[[], Stream]] = [
        lambda: stream.where(f"v > {number - 3}"),
        lambda: stream.where(f"v > {number - 3} AND k = 'k1'"),
        lambda: stream.with_columns(v=f"v * {number + 2}"),
        lambda: stream.scan(adding, schema, keys=keys, order_by=["ts", "id"], initial=float(number)),
        lambda: stream.scan(keeping_highest, schema, keys=keys, order_by=["ts", "id"], initial=float(number)),
        lambda: stream.drop_duplicates(*keys, "id"),
    ]
    return random.Random(f"{text} kind").choice(makers)()


# ---------------------------------------------------------------- continua


ZONES = ([PLACES], [["L3"], ["L1", "L2"]], [["L1"], ["L2"], ["L3"]])
"""Divisions of the places among zones."""
MORE = "L0"
"""A location that no dataflow names, and that comes and goes."""


def continuum(drawn: random.Random, zones: list[list[str]]) -> Continuum:
    """Draw a continuum of edge zones and a cloud zone, perhaps with a site between them: hosts come and go."""

    def hosts(zone: str) -> str:
        names = drawn.sample([f"{zone}{n}" for n in range(4)], drawn.randint(1, 3))
        return "{" + ", ".join(f"{n}: {{n_cpu: {drawn.choice([1, 2, 8])}, memory: 8GiB}}" for n in names) + "}"

    site = drawn.random() < 0.5
    lines = [
        "name: changing",
        f"layers: [edge, {'site, ' if site else ''}cloud]",
        "zones:",
        f"  C: {{layer: cloud, hosts: {hosts('c')}}}",
        f"  S: {{layer: site, parent: C, hosts: {hosts('s')}}}" if site else "",
    ]
    above = "S" if site else "C"
    lines += [
        f"  E{n}: {{layer: edge, parent: {above}, locations: [{', '.join(own)}], hosts: {hosts(f'e{n}')}}}"
        for n, own in enumerate(zones)
    ]
    return Continuum.from_text("\n".join(lines))


# ---------------------------------------------------------------- histories


class PoolHistory:
    """A pool in a store, random changes of it, and the checks after each."""

    def __init__(self, store: Store, flows: Mapping[str, Dataflow], seed: int) -> None:
        self._store, self._flows, self._drawn = store, flows, random.Random(seed)
        several = any(LOCATION not in flow.locations for flow in flows.values())
        self._zones = self._drawn.choice(ZONES) if several else [[LOCATION]]
        self._continuum = continuum(self._drawn, self._zones)
        self.there: dict[str, Dataflow] = {}
        self.done: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        """Make some changes, and remove all dataflows in the end."""
        for _ in range(steps):
            self._step()
        for name in self._drawn.sample(sorted(self.there), len(self.there)):
            self._remove(name)
        (pool,) = self._store.every_pool()
        record = self._store.find(pools.POOL)
        assert pool.submissions == () and record is not None and record.phase == "stopped"
        assert self._store.active_plan(pools.POOL) is None

    def _step(self) -> None:
        away = sorted(set(self._flows) - set(self.there))
        if self._drawn.random() < 0.25:
            self._come_or_go()
            self._continuum = continuum(self._drawn, self._zones)
            self.done["continuum"] += 1
        choice = self._drawn.random()
        if away and (choice < 0.5 or not self.there):
            name = self._drawn.choice(away)
            self._submit(name, self._flows[name])
        elif choice < 0.65:
            name = self._drawn.choice(sorted(self.there))
            self._submit(name, self._version(name), update=True)
        elif choice < 0.75 and self._moved():
            pass
        elif choice < 0.85:
            self._settle("defragment", pools.plan_defragmentation(pools.POOL, self._store.where))
        else:
            self._remove(self._drawn.choice(sorted(self.there)))

    def _come_or_go(self) -> None:
        """Let a location come in some zone, or go while no dataflow runs at all locations: its state would be lost.

        Or let zones take other locations.
        """
        if self._zones == [[LOCATION]] or self._drawn.random() < 0.4:
            return
        if self._drawn.random() < 0.3:
            more = [[MORE]] if any(MORE in own for own in self._zones) else []
            self._zones = [*self._drawn.choice(ZONES), *more]
            return
        if not any(MORE in own for own in self._zones):
            zones = [*self._zones, list[str]()]
            chosen = self._drawn.choice(zones)
            self._zones = [[*own, MORE] if own is chosen else own for own in zones if own or own is chosen]
        elif all(flow.locations for flow in self.there.values()):
            self._zones = [rest for own in self._zones if (rest := [x for x in own if x != MORE])]

    def _version(self, name: str) -> Dataflow:
        """Return another version of a dataflow: another one under its name, or the same with another condition."""
        other = self._flows[self._drawn.choice(sorted(self._flows))]
        return replace(other, name=name)

    def _submit(self, name: str, flow: Dataflow, *, update: bool = False) -> None:
        change = pools.plan_submission(
            flow, self._continuum, "team", self._store.where, update=update, former_output="append"
        )
        self._settle("update" if update else "submit", change)
        self.there[name] = flow
        self.check()

    def _remove(self, name: str) -> None:
        self._settle("remove", pools.plan_removal(name, "team", self._store.where))
        del self.there[name]
        self.check()

    def _moved(self) -> bool:
        """Move an operator to another layer, as its operator or an SLO does; return whether one could be moved."""
        plan = self._plan()
        operators = [o.id for o in plan.dataflow.operators if o.inputs]
        layers = [layer.name for layer in plan.continuum.layers]
        for operator in self._drawn.sample(operators, min(3, len(operators))):
            try:
                at = self._drawn.choice([None, *plan.deployment.placement.of(operator)])
                moved = edit.move(plan, operator, self._drawn.choice(layers), location=at)
                wanted = build(plan.dataflow, plan.continuum, moved, pooled=True)
                if diff(plan, wanted).empty:
                    continue
            except HeadwaterError:
                continue
            client = Client(self._store.where)
            client.apply(client.propose(PlanRequest(of=pools.POOL, decided=moved)))
            self._carry_out()
            self.done["move"] += 1
            self.check()
            return True
        return False

    def _settle(self, what: str, change: pools.PoolChange) -> None:
        if change.proposal is not None:
            assert change.proposal.plan.pooled
        change.apply()
        self._carry_out()
        self.done[what] += 1

    def _carry_out(self) -> None:
        """End the change as a controller does."""
        store = self._store
        store.hold(HOLDER, 60.0)
        desired = store.desired(pools.POOL)
        plan = store.plan(desired.plan) if desired.plan else None
        store.begin_change(HOLDER, desired, plan, (), phase="checking" if plan else "stopping")
        change = store.change(pools.POOL)
        assert change is not None
        phase = "running" if plan else "stopped"
        store.end_change(HOLDER, change, "done", phase=phase, active_plan=desired.plan if plan else None)

    def _plan(self) -> DeploymentPlan:
        plan = self._store.active_plan(pools.POOL)
        assert plan is not None
        return plan

    def check(self) -> None:
        """Check the pool against its dataflows, each by itself, and the plan against the pool."""
        (pool,) = self._store.every_pool()
        pool.check()
        assert {one.name: one.written for one in pool.submissions} == self.there
        if not self.there:
            return
        plan = self._plan()
        ours = sorted(pool.dataflow.operators, key=lambda o: o.id)
        assert sorted(plan.dataflow.operators, key=lambda o: o.id) == ours, "all of the pool runs, and nothing else"
        run = Counter(o for unit in plan.units for o in unit.operators)
        assert run.keys() == set(pool.dataflow.order)
        for name, flow in self.there.items():
            for sink in flow.sinks:
                alone, shared = flow_to(flow, sink.id), flow_to(pool.dataflow, pool[name].sinks[sink.id])
                assert meaning(shared) == meaning(alone), (name, sink.id)
                self._check_places(plan, pool[name].sinks[sink.id], set(flow.locations or plan.continuum.locations))
        self._check_units(plan)

    def _check_units(self, plan: DeploymentPlan) -> None:
        """Check that every output of a unit is a sink or is read at the unit's locations, and that no row is missed."""
        assert from_document(to_document(plan)) == plan
        for unit in plan.units:
            written = {c.operator: c for c in plan.outputs(unit)}
            assert set(unit.outputs) == written.keys() | {
                o for o in unit.operators if isinstance(plan.dataflow[o], Sink)
            }
            for id_, channel in written.items():
                readers = [plan.unit(reader) for reader in channel.consumers]
                assert readers and spec_of(plan, unit.id).flow.consumers[id_]
                here = set(unit.locations)
                for consumer in plan.dataflow.consumers[id_]:
                    needed = here & plan.deployment.placement.of(consumer).keys()
                    if consumer not in unit.operators:
                        assert needed == here & {x for r in readers if consumer in r.operators for x in r.locations}
                self.done["fewer"] += any(here - set(r.locations) for r in readers)

    def _check_places(self, plan: DeploymentPlan, sink: str, wanted: set[str]) -> None:
        """Check that a sink gets the rows of its locations, and of these only."""
        flow, placement = plan.dataflow, plan.deployment.placement
        assert placement.of(sink).keys() == wanted
        todo = [sink]
        while todo:
            id_ = todo.pop()
            todo += flow[id_].inputs
            there = placement.of(id_).keys()
            assert there >= wanted
            if there != wanted:
                self.done["across"] += 1
                before = flow_to(flow, id_)
                assert flow.types[id_].located_by and not any(o.stateful for o in before.operators)


def flow_to(flow: Dataflow, sink: str) -> Dataflow:
    """Return the part of a dataflow that leads to a sink, without marks."""
    needed, todo = set[str](), [sink]
    while todo:
        id_ = todo.pop()
        if id_ not in needed:
            needed.add(id_)
            todo += flow[id_].inputs
    kept = [replace(o, layer=None, requires=Requirement()) for o in flow.operators if o.id in needed]
    if not isinstance(flow[sink], Sink):
        kept.append(MemorySink(id="end", inputs=(sink,)))
    return normalized(replace(flow, operators=tuple(kept)))


def meaning(flow: Dataflow) -> Any:
    """Return the content of a dataflow of one sink: of filters without the conditions that others imply."""
    (sink,) = flow.sinks
    return _meaning(flow, sink.id)


def _meaning(flow: Dataflow, id_: str) -> Any:
    operator = flow[id_]
    inputs = [_meaning(flow, i) for i in operator.inputs]
    if isinstance(operator, ops.Where):
        parts = list(parts_of(operator.condition, flow.types[operator.inputs[0]].schema))
        for part in list(parts):
            if implied(part, [p for p in parts if p is not part]):
                parts.remove(part)
        return ["where", sorted(p.text for p in parts), inputs]
    return [own_content(flow, id_), inputs if operator.ordered_inputs else sorted(inputs, key=repr)]
