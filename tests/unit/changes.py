"""Versions of a plan, for tests of the changes between them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.control.executor import Executor
from headwater.control.ports import Ports
from headwater.control.stamps import Stamps
from headwater.plan.build import build, one_unit, unit_per_operator
from headwater.plan.diff import PlanDiff
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan
from headwater.plan.order import steps_to
from headwater.plan.steps import CanarySettings, CatchUp, Step, UnitStatuses, begun, done, unit_statuses_of
from headwater.testing.nodes import SimulatedNodes

ACME = Continuum.from_yaml(Path(__file__).parents[2] / "examples/acme/continuum.yaml")
SCHEMA = "id bigint, ts timestamp, k string, v double"
_TERMS = itertools.count(1)


@dataclass(frozen=True)
class Version:
    """A version of a dataflow with filters at the edge, windows at the site, and a list in the cloud."""

    locations: tuple[str, ...] = ("L1", "L2", "L4")
    above: int = 0
    wider: bool = False
    """Whether the stream from the edge has another column."""
    size: str = "1 minute"
    aggregate: str = "avg(v)"
    alarm: int = 1
    require: str = ""
    path: str = "/out/{zone}"
    windows: str = "site"
    """The layer of the windows."""
    upper: str = "cloud"
    tap: bool = False
    """Whether the windows are also written at the site."""
    more: bool = False
    """Whether the cloud has a second unit that reads the windows."""
    shape: str = "annotated"

    def flow(self) -> Any:
        builder = hw.flow("f", locations=self.locations)
        rows = builder.read.json("/d/{location}", SCHEMA, location_as="location").named("read")
        first = rows.where(f"v > {self.above}").with_watermark("ts", "5 seconds")
        first = first.with_columns(w="v * 2") if self.wider else first.with_columns(v="v + 1")
        first = first.named("FP")
        ad = first.to_layer(self.windows).group_by(hw.window("ts", self.size), "location", "k")
        windows = ad.agg(m=self.aggregate).named("AD")
        if self.tap:
            windows.write.memory("tap")
        if self.more:
            windows.to_layer("cloud").where("m > 9").named("more").write.memory("list")
        upper = windows.to_layer("cloud" if self.windows == "cloud" else self.upper)
        upper = upper.require(self.require) if self.require else upper
        listed = upper.where(f"m > {self.alarm}").named("ML")
        listed.write.parquet(self.path).named("out")
        return builder.build()

    def plan(self, continuum: Continuum = ACME) -> DeploymentPlan:
        dataflow = self.flow()
        shapes = {"one": one_unit, "every": unit_per_operator}
        shape = shapes.get(self.shape)
        return build(dataflow, continuum, shape(dataflow, continuum) if shape else None)


FIRST = Version()


@st.composite
def versions(draw: st.DrawFn) -> Version:
    """Draw a version with few differences from the first."""
    changes = {
        "locations": st.sets(st.sampled_from(("L1", "L2", "L4", "L5")), min_size=1).map(lambda s: tuple(sorted(s))),
        "above": st.integers(0, 2),
        "wider": st.booleans(),
        "size": st.sampled_from(["1 minute", "2 minutes"]),
        "aggregate": st.sampled_from(["avg(v)", "max(v)", "avg(v) + 1"]),
        "alarm": st.integers(0, 2),
        "require": st.sampled_from(["", "n_cpu >= 4"]),
        "path": st.sampled_from(["/out/{zone}", "/other/{zone}"]),
        "upper": st.sampled_from(["cloud", "site"]),
        "tap": st.booleans(),
        "more": st.booleans(),
        "windows": st.sampled_from(["edge", "site", "cloud"]),
        "shape": st.sampled_from(["annotated", "one", "every"]),
    }
    names = draw(st.lists(st.sampled_from(sorted(changes)), max_size=3, unique=True))
    return replace(FIRST, **{name: draw(changes[name]) for name in names})


def carry_out(
    steps: tuple[Step, ...], zones: SimulatedNodes, decided: PlanDiff, unit_statuses: UnitStatuses
) -> UnitStatuses:
    """Execute steps one by one, in a new term; return the unit statuses afterwards."""
    plans = {plan_id(p): p for p in (decided.running, decided.wanted) if p is not None}
    executor = Executor(Ports(zones.open, Stamps("a store", next(_TERMS))))
    for step in steps:
        plan = plans[step.plan]
        unit_statuses = begun(step, unit_statuses, plan)
        source = plans[step.source_plan] if isinstance(step, CatchUp) else None
        for _ in range(20):
            if executor.attempt(step, plan, source=source).done:
                break
        else:
            raise AssertionError(f"never done: {step}")
        unit_statuses = done(step, unit_statuses, plan)
    return unit_statuses


def calls_of(zones: SimulatedNodes, *names: str) -> list[str]:
    """Return the calls that change a node, as `name unit`."""
    wanted = names or ("prepare", "start", "update_inputs", "stop", "forget")
    return [f"{c.name} {c.unit}" for c in zones.calls if c.name in wanted]


def steps_of(diff: PlanDiff, *, canary: CanarySettings | None = None) -> tuple[Step, ...]:
    """Return the steps from a running plan, with all its units running, to the wanted plan."""
    running = diff.running
    plans = {plan_id(p): p for p in (running, diff.wanted) if p is not None}
    return steps_to(diff, unit_statuses_of(running) if running else {}, plans, canary=canary)
