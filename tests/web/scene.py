"""The store's content in the browser tests: a dataflow over Acme's zones, and proposals on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headwater.adapt.slo import SLO
from headwater.app import loading, observe
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.control.store import Store
from headwater.plan.edit import Split
from headwater.plan.model import DeploymentPlan

ROOT = Path(__file__).parents[2]
FLOW = """
import headwater as hw
f = hw.flow("machines", locations=["L1", "L2", "L3", "L4", "L5"])
rows = f.read.csv("in/{location}", "id int, ts timestamp, celsius double", location_as="location")
warm = rows.named("readings").with_watermark("ts", "1 second").where("celsius > 40").named("warm")
means = warm.to_layer("site").group_by(hw.window("ts", "1 minute"), "location").agg(mean="avg(celsius)")
means.named("means").to_layer("cloud").write.memory("hottest")
"""
OPTION: dict[str, Any] = {
    "name": "as it is", "layers": {}, "at": {}, "latency_s": 3.1, "load": {"gw2 (E2)": 0.91},
    "bandwidth_bytes_per_s": 48_000.0, "cost": 0.42, "moved": 0, "keeps": False,
    "breaks": ["max_latency: 3.1 s > 2 s"], "why_not": "",
}  # fmt: skip
BETTER = {
    **OPTION, "name": "cut behind watermark", "latency_s": 1.2, "load": {"gw2 (E2)": 0.55}, "cost": 0.31,
    "moved": 1, "keeps": True, "breaks": [],
}  # fmt: skip


def apply(place: str, directory: Path) -> int:
    """Store the dataflow as the desired state; return its version."""
    flow = directory / "flow.py"
    flow.write_text(FLOW)
    loaded = loading.load_dataflow(str(flow)).dataflow
    client, continuum = Client(place), Continuum.from_yaml(ROOT / "tests/unit/acme.yaml")
    return client.apply(client.propose(PlanRequest(dataflow=loaded, continuum=continuum)))


def until_runs(place: str, version: int, seconds: float = 90.0) -> None:
    """Wait until a version is in force, and measured."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        (status,) = observe.status("machines", place)
        if status.observed_version >= version and status.units and status.measured:
            return
        time.sleep(0.2)
    raise AssertionError(f"version {version} is not in force within {seconds} s")


def propose_fission(place: str) -> int:
    """Propose to cut the units at the edge behind the watermark; return the decision's number."""
    client = Client(place)
    unit = next(u for u in client.in_force("machines").units if u.zone == "E1")
    request = PlanRequest(of="machines", edits=(Split(unit=unit.id, after="watermark"),))
    return propose(place, client.propose(request).plan)


def propose(place: str, plan: DeploymentPlan) -> int:
    """Propose a plan as the controller would; this controller holds the lease and decides nothing by itself."""
    store = Store(place)
    try:
        store.set_slo("machines", SLO(mode="off", max_latency=2.0))
        lease = store.lease()
        assert lease is not None
        return store.record_decision(
            lease.holder,
            "machines",
            mode="advise",
            trigger="max_latency",
            why="max_latency: 3.1 s > 2 s; cut behind watermark keeps to all limits",
            state="proposed",
            plan=plan,
            before=store.deployment("machines").active_plan,
            data={"current": OPTION, "alternatives": [BETTER], "chosen": 0},
        )
    finally:
        store.close()
