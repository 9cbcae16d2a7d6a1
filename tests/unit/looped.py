"""A policy over a real store, with a simulated world and a simulated clock."""

from __future__ import annotations

from pathlib import Path

from headwater.adapt.model import Costs, Facts
from headwater.adapt.slo import SLO
from headwater.continuum.model import Continuum
from headwater.control.policy import Policy
from headwater.control.records import Decision
from headwater.control.store import Store
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.diff import diff
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import OperatorProfile, Profile
from headwater.testing.modelled import ModelledWorld

HOLDER = "test:1"
BEGIN = 1_700_000_000.0

ZONES = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  cloud: {layer: cloud, hosts: {vm: {n_cpu: 1, memory: 2GiB}}}
  kerb:
    layer: edge
    parent: cloud
    locations: [nyc]
    link: {bandwidth: 100Mbit/s, latency: 5ms}
    hosts: {pi: {n_cpu: 1, memory: 2GiB}}
""")
PROFILE = Profile(
    dataflow="two",
    operators={
        "trips": OperatorProfile(cpu_s=20e-6, bytes_out=1500),
        "watermark": OperatorProfile(cpu_s=5e-6, bytes_out=1500),
        "heavy": OperatorProfile(cpu_s=220e-6, bytes_out=1600),
        "light": OperatorProfile(cpu_s=220e-6, bytes_out=20),
        "zones": OperatorProfile(cpu_s=10e-6, selectivity=0.02, bytes_out=40),
    },
)


def two(name: str = "two") -> Dataflow:
    """Build a query with two expensive operators, after which rows are small."""
    import headwater as hw

    builder = hw.flow(name, locations=["nyc"])
    trips = builder.read.csv("/data/{location}", "ts timestamp, zone int, blob string").named("trips")
    heavy = trips.with_watermark("ts", "1 second").select("ts", "zone", "blob").named("heavy")
    light = heavy.select("ts", "zone", "length(blob) AS n").named("light")
    zones = light.group_by(hw.window("ts", "1 minute"), "zone").agg(n="sum(n)").named("zones")
    zones.to_layer("cloud").write.memory("result")
    return builder.build()


def planned(first_in_cloud: str, dataflow: Dataflow | None = None) -> DeploymentPlan:
    """Plan a dataflow with its operators from the named one on in the cloud."""
    flow = dataflow or two()
    at = flow.order.index(first_in_cloud)
    layers = {o: "edge" if n < at else "cloud" for n, o in enumerate(flow.order)}
    return build(flow, ZONES, in_layers(flow, ZONES, {**marked_layers(flow, ZONES), **layers}))


class Loop:
    """A deployment whose SLO a policy must keep."""

    def __init__(
        self,
        place: Path,
        slo: SLO,
        *,
        first_in_cloud: str = "zones",
        costs: Costs | None = None,
        change_s: float = 5.0,
        plan: DeploymentPlan | None = None,
        profile: Profile = PROFILE,
    ) -> None:
        self.store = Store(place / "store.db")
        self.store.hold(HOLDER, 1e9)
        plan = plan or planned(first_in_cloud)
        self.world = ModelledWorld(plan, Facts(profile=profile, costs=costs or Costs()))
        self.rate(100)
        self.wrong_by = 0.0
        """Seconds by which the machine's clock is wrong."""
        self.tried: list[DeploymentPlan] = []
        self.policy = Policy(self.store, HOLDER, clock=self.clock, try_out=self._try_out)
        self._change_s = change_s
        self._until: float | None = None
        self.broken = 0
        self.store.want("two", "run", plan)
        self._take_up()
        self._end()
        self.store.keep_profile("two", profile)
        self.store.set_slo("two", slo)

    def clock(self) -> float:
        return BEGIN + self.world.now + self.wrong_by

    def rate(self, rows: float) -> None:
        self.world.set_rates({"trips": {"nyc": rows}})

    def go(self, seconds: int) -> None:
        """Advance time second by second, and count the seconds in which the SLO is broken."""
        for _ in range(seconds):
            self.world.go(1.0)
            slo = self.store.slo("two")
            assert slo is not None
            self.broken += self.world.latency > slo.max_latency
            self.store.report(HOLDER, self.clock(), samples={"two": self.world.progress()})
            self.policy.look()
            record = self.store.deployment("two")
            if self._until is None and record.version > record.observed_version:
                self._take_up()
            elif self._until is not None and self.world.now >= self._until:
                self._end()

    def decisions(self) -> tuple[Decision, ...]:
        return self.store.decisions("two")

    @property
    def cloud(self) -> set[str]:
        """Return the operators that are now in the cloud."""
        return {o for u in self.world.plan.units if u.zone == "cloud" for o in u.operators}

    def _try_out(self, name: str, plan: DeploymentPlan) -> bool:
        self.tried.append(plan)
        return True

    def _take_up(self) -> None:
        desired = self.store.desired("two")
        assert desired.plan is not None
        base = self.store.active_plan("two")
        self._wanted = diff(base, self.store.plan(desired.plan), generation=desired.generation).wanted
        self.store.begin_change(HOLDER, desired, self._wanted, (), phase="checking")
        self._until = self.world.now + self._change_s

    def _end(self) -> None:
        change = self.store.change("two")
        assert change is not None
        if self.world.plan is not self._wanted:
            self.world.change(self._wanted)
        self.store.end_change(HOLDER, change, "done", phase="running", active_plan=plan_id(self._wanted))
        self._until = None
