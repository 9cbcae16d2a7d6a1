"""Histories: what people and faults do to a world, step by step; how they are drawn, told and judged.

A history ends with all faults healed. Then the world has to come to rest in bounded time, with the rows of one batch
in the sink, with nothing running that the store does not know, and no channel that holds data for ever.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from headwater.core.errors import HeadwaterError
from headwater.plan.build import build
from headwater.plan.edit import Edit, Fuse, Move, Split, edited
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import CanarySettings
from tests.simulation.kernel import Livelock
from tests.simulation.world import CONTINUUM, CONTROLLERS, LOCATIONS, NAME, NODES, World

REST = 700.0
"""Simulated seconds within which a healed world comes to rest."""
AFTER = 3.0
"""Seconds after which a process that has ended is started again."""

HOSTS = (*NODES, *CONTROLLERS)


@dataclass(frozen=True)
class Step:
    """One action, its arguments, and the seconds that pass after it."""

    name: str
    arguments: tuple[Any, ...] = ()
    then: float = 0.0

    def __repr__(self) -> str:
        return f"Step({self.name!r}, {self.arguments!r}, {self.then!r})"


@dataclass(frozen=True)
class History:
    """Steps, and the seed of all that is decided between them: delays, losses, the order of tasks."""

    steps: tuple[Step, ...]
    seed: int = 0
    locations: int = 2
    """Number of locations of the first plan; the last one has both."""


class Broken(AssertionError):
    """A history that breaks a rule."""


# ---------------------------------------------------------------- drawing

_SECONDS = st.sampled_from((0.0, 0.2, 1.0, 4.0, 15.0))


def _step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(name), st.tuples(*arguments), _SECONDS)


_LASTS = st.sampled_from((1.0, 6.0, 25.0))
_NODE, _HOST = st.sampled_from(NODES), st.sampled_from(HOSTS)
_AGENT, _SPARK, _CONTROLLER = (
    st.sampled_from([f"{kind} {host}" for host in hosts])
    for kind, hosts in (("agent", NODES), ("spark", NODES), ("controller", CONTROLLERS))
)
_PROCESS = st.one_of(_AGENT, _SPARK, _CONTROLLER)

EDITS: tuple[Edit, ...] = (
    Move(operator="count", to="cloud"),
    Move(operator="count", to="site"),
    Move(operator="count", to="edge"),
    Move(operator="count", to="edge", at="L1"),
    Move(operator="count", to="cloud", at="L2"),
    Move(operator="pass", to="site"),
    Move(operator="pass", to="cloud"),
    Move(operator="keep", to="site"),
    Move(operator="keep", to="edge"),
    Split(unit="count", after="count"),
    Split(unit="keep", after="read"),
    Split(unit="keep", after="keep"),
    Fuse(first="keep", second="count", to="site"),
    Fuse(first="keep", second="count", to="edge"),
    Fuse(first="count", second="pass", to="site"),
    Fuse(first="count", second="pass", to="cloud"),
)

WORK = (
    _step("pass"),
    _step("write", st.sampled_from(LOCATIONS), st.integers(1, 4)),
    _step("edit", st.integers(0, len(EDITS) - 1)),
    _step("edit", st.integers(0, len(EDITS) - 1)),
    _step("update", st.integers(0, 1), st.integers(0, 1), st.booleans()),
    _step("go back", st.integers(1, 3)),
    _step("stop"),
    _step("start"),
)
FAULTS = (
    _step("kill", _PROCESS),
    _step("kill at", _PROCESS, st.integers(1, 120)),
    _step("freeze", st.one_of(_AGENT, _CONTROLLER), _LASTS),
    _step("cut", _HOST, _HOST, _LASTS),
    _step("silent", _NODE, _LASTS),
    _step("lossy", st.sampled_from((0.05, 0.3)), _LASTS),
    _step("repeating", st.sampled_from((0.1, 0.5)), _LASTS),
    _step("slow", st.sampled_from((0.5, 5.0)), _LASTS),
    _step("store fails", st.integers(1, 4)),
    _step("clock", _HOST, st.sampled_from((3600.0, -3600.0))),
    _step("full", _NODE, st.integers(1, 8)),
)


def histories(most: int = 8) -> st.SearchStrategy[History]:
    """Draw histories; about half of their steps are faults."""
    steps = st.lists(st.one_of(st.one_of(*WORK), st.one_of(*FAULTS)), min_size=1, max_size=most)
    return st.builds(History, steps.map(tuple), st.integers(0, 2**16), st.sampled_from((2, 2, 1)))


# ---------------------------------------------------------------- acting


class Play:
    """A history that is played in a world."""

    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._history = history
        self._wanted = [plan_of(world, LOCATIONS[: history.locations])]
        self._removed: Counter[str] = Counter()
        """How often each location was removed; the source of one that is added again is read from the beginning."""

    def run(self) -> None:
        """Play the steps, heal the world, and judge it."""
        world, kernel = self.world, self.world.kernel
        world.write("L1", 2)
        world.want("run", self._wanted[-1])
        for step in self._history.steps:
            kernel.tell(f"{step}")
            acts: Callable[..., None] = getattr(self, "_" + step.name.replace(" ", "_"))
            acts(*step.arguments)
            kernel.run(step.then)
            self._check("while it ran")
        self._heal()
        self._settle()

    def _pass(self) -> None:
        """Let time pass."""

    # -- people

    def _write(self, location: str, rows: int) -> None:
        self.world.write(location, rows)

    def _apply(self, plan: DeploymentPlan, **options: Any) -> None:
        self._removed.update(set(self._wanted[-1].locations) - set(plan.locations))
        self._wanted.append(plan)
        self.world.want("run", plan, **options)

    def _edit(self, number: int) -> None:
        """Edit the deployment, also before its first version is complete."""
        plan = self.world.store.active_plan(NAME) or self._wanted[-1]
        with contextlib.suppress(HeadwaterError):  # not every edit fits every plan
            self._apply(build(plan.dataflow, CONTINUUM, edited(plan, EDITS[number])))

    def _update(self, keep: int, passed: int, canary: bool) -> None:
        """Apply the dataflow with other conditions, which hold for all rows as well."""
        watch = CanarySettings(seconds=5.0) if canary else None
        self._apply(plan_of(self.world, least=(-keep, -passed)), canary=watch)

    def _go_back(self, count: int) -> None:
        self._apply(self._wanted[-min(count + 1, len(self._wanted))])

    def _stop(self) -> None:
        self.world.want("stop")

    def _start(self) -> None:
        self.world.want("run", self._wanted[-1])

    # -- faults

    def _process(self, name: str) -> Any:
        kind, _, host = name.partition(" ")
        return self.world.sparks[host].process if kind == "spark" else self.world.processes[host]

    def _doom(self, name: str) -> Any:
        """Return a process, which is started again some time after its end."""
        kind, _, host = name.partition(" ")
        process, world = self._process(name), self.world

        def again() -> None:
            start = world.start_agent if kind == "agent" else world.start_controller
            world.kernel.spawn(world.kernel.outside, lambda: start(host), "again", after=AFTER)

        if kind != "spark":  # its agent starts a Spark again
            process.ended.append(again)
        return process

    def _kill(self, name: str) -> None:
        self.world.kernel.kill(self._doom(name))

    def _kill_at(self, name: str, effects: int) -> None:
        process = self._doom(name)
        process.dies_at = process.effects + effects

    def _power(self, node: str) -> None:
        """Cut the power of a host: its processes end, and its disk loses what was not synced."""
        world = self.world
        for name in (f"spark {node}", f"agent {node}"):
            world.kernel.kill(self._doom(name))
        world.disk.cut_power(node)

    def _clock(self, host: str, seconds: float) -> None:
        self.world.hosts[host].ahead += seconds

    def _full(self, node: str, writes: int) -> None:
        self.world.disk.full[node] = writes

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        self.world.kernel.spawn(self.world.kernel.outside, undo, "undo", after=seconds)

    def _freeze(self, name: str, seconds: float) -> None:
        process, kernel = self._process(name), self.world.kernel
        kernel.freeze(process)
        self._later(seconds, lambda: kernel.thaw(process))

    def _cut(self, source: str, target: str, seconds: float) -> None:
        cut = self.world.network.cut
        cut.add((source, target))
        self._later(seconds, lambda: cut.discard((source, target)))

    def _silent(self, node: str, seconds: float) -> None:
        server = self.world.network.servers.get(node)
        if server is not None:
            server.silent = True
            self._later(seconds, lambda: setattr(server, "silent", False))

    def _lossy(self, share: float, seconds: float) -> None:
        self._set(seconds, "lossy", share)

    def _repeating(self, share: float, seconds: float) -> None:
        self._set(seconds, "repeating", share)

    def _slow(self, most: float, seconds: float) -> None:
        self._set(seconds, "slow", most)

    def _set(self, seconds: float, name: str, value: float) -> None:
        network = self.world.network
        setattr(network, name, value)
        self._later(seconds, lambda: setattr(network, name, 0.0))

    def _store_fails(self, times: int) -> None:
        self.world.store_fails = times

    def _heal(self) -> None:
        world, kernel = self.world, self.world.kernel
        world.network.heal()
        world.store_fails = 0
        world.disk.full.clear()
        for server in world.network.servers.values():
            server.silent = False
        for process in (*world.processes.values(), *(s.process for s in world.sparks.values())):
            process.dies_at = None
            kernel.thaw(process)
        for node in NODES:
            world.start_agent(node)
        for name in CONTROLLERS:
            world.start_controller(name)

    # -- judging

    def _check(self, when: str) -> None:
        problems = [*self.world.broken, *self.world.kernel.failures]
        if problems:
            raise Broken(f"{when}: " + "; ".join(problems))

    def _settle(self) -> None:
        world = self.world
        self._until("no change is under way", self._rests)
        if world.store.deployment(NAME).phase in ("stopped", "running"):
            self._until("what runs is what the store knows", lambda: set(world.runs()) == world.known())
        active = world.store.active_plan(NAME)
        # A change may be refused or have failed; then the active plan has to run on, or to run again.
        ways = [self._wanted[-1], active, plan_of(world)]
        for plan in (p for p in ways if p is not None):
            if world.store.deployment(NAME).phase == "running":
                break
            world.want("run", plan)
            self._until("no change is under way", self._rests)
        if not set(LOCATIONS) <= set(self._active().locations):
            world.want("run", plan_of(world))
            self._until("no change is under way", self._rests)
        record = world.store.deployment(NAME)
        if record.phase != "running":
            raise Broken(f"the deployment does not run: {record.phase}: {record.message}\n{self._found()}")
        self._until("the sink has the rows of one batch", self._agrees)
        self._until("what runs is what the store knows", lambda: set(world.runs()) == world.known())
        self._flush()
        self._check("at the end")

    def _active(self) -> DeploymentPlan:
        plan = self.world.store.active_plan(NAME)
        if plan is None:
            raise Broken(f"no plan is active\n{self._found()}")
        return plan

    def _agrees(self) -> bool:
        """Return whether the sink has the rows of one batch; those of a location added again may be counted again."""
        found, expected = self.world.found(), self.world.expected()
        more = {row: count for row, count in (found - expected).items() if count > 1 or not self._may_repeat(row)}
        return not expected - found and not more and self._has_no_gap(found)

    def _may_repeat(self, row: str) -> bool:
        """Return whether the number of a row may come from input that is read again."""
        value = json.loads(row)
        given = sum(1 for place, one in self.world.written if (place, one["k"]) == (value["location"], value["k"]))
        return bool(value["i"] <= given * (1 + self._removed[value["location"]]))

    def _has_no_gap(self, found: Counter[str]) -> bool:
        """Return whether each key's numbers begin at 1 and follow one another."""
        numbers: dict[tuple[str, str], list[int]] = {}
        for row in found.elements():
            value = json.loads(row)
            numbers.setdefault((value["location"], value["k"]), []).append(value["i"])
        return all(sorted(of) == list(range(1, len(of) + 1)) for of in numbers.values())

    def _rests(self) -> bool:
        record = self.world.store.deployment(NAME)
        return record.version == record.observed_version

    def _flush(self) -> None:
        """Check that the channels release what was in them, once newer rows have passed."""
        world = self.world
        ends = {name: log.latest() for name, log in world.logs().items()}
        for _ in range(2):
            for location in LOCATIONS:
                world.write(location, 1)
            self._until("the sink has the newest rows", self._agrees)

        def held() -> list[str]:
            floors = {name: log.earliest() for name, log in world.logs().items()}
            return [n for n, end in ends.items() if n in floors and floors[n] < end]

        self._until("no channel holds old data", lambda: not held())

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        if not self.world.kernel.run(REST, holds, every=2.0):
            self._check(f"waiting until {what}")
            raise Broken(f"not within {REST:.0f} s: {what}\n{self._found()}")

    def _found(self) -> str:
        """Describe the world for a message."""
        world = self.world
        record = world.store.deployment(NAME)
        lines = [f"deployment: {record.phase}, version {record.version}, observed {record.observed_version}"]
        lines += [f"  {record.message}"] if record.message else []
        if (change := world.store.change(NAME)) is not None:
            lines += [f"  {e.state} {e.step} {e.note}" for e in world.store.journal(change.id) if e.state != "done"][:4]
        expected, found = world.expected(), world.found()
        lines += [f"rows missing: {dict(expected - found)}"] if expected - found else []
        lines += [f"rows too many: {dict(found - expected)}"] if found - expected else []
        runs, known = set(world.runs()), world.known()
        lines += [f"runs, unknown to the store: {sorted(runs - known)}"] if runs - known else []
        lines += [f"known to the store, does not run: {sorted(known - runs)}"] if known - runs else []
        for spark in world.sparks.values():
            lines += [f"{q.name}: {q._error}" for q in spark.queries if q._error][-2:]
        for name, log in world.logs().items():
            lines.append(f"{name}: {log.earliest()} to {log.latest()}, readers {log.readers()}")
        lines += [f"event: {e.text}" for e in world.store.events(NAME)[-12:]]
        return "\n".join(lines)


_PLANS: dict[Any, DeploymentPlan] = {}


def plan_of(world: World, locations: tuple[str, ...] = LOCATIONS, *, least: tuple[int, int] = (0, 0)) -> DeploymentPlan:
    """Return the plan of the dataflow as it is annotated."""
    key = (str(world.root), locations, least)
    if key not in _PLANS:
        _PLANS[key] = build(world.flow(locations, least), CONTINUUM)
    return _PLANS[key]


def play(history: History, root: Path, *, trace: Callable[[str], object] | None = None) -> World:
    """Play a history in a new world below ``root``; raise Broken where it breaks a rule."""
    world = World(root, history.seed)
    world.kernel.trace = trace
    gc.disable()  # much is made, and little of it goes before the end
    try:
        with world.running():
            Play(world, history).run()
    except Livelock as error:
        raise Broken(str(error)) from error
    finally:
        gc.enable()
    return world
