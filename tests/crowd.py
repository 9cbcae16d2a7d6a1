"""A store with any number of zones and dataflows, and the reports of its zones; no controller."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from sqlalchemy import insert, update

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.control import tables as t
from headwater.control.rows import keep_plan
from headwater.control.store import Store
from headwater.core.jsonform import dump_json
from headwater.core.metrics import (
    HostProgress,
    Latency,
    LinkProgress,
    OperatorProgress,
    Progress,
    UnitProgress,
)
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan

PER_SITE = 9


def continuum(zones: int) -> Continuum:
    """Return a cloud, and sites with nine edge zones each; every edge zone has a location of its own."""
    found: dict[str, object] = {"C1": {"layer": "cloud", "hosts": {"vm": {"n_cpu": 16}}}}
    site = 0
    while len(found) < zones:
        site += 1
        link = {"bandwidth": "100Mbit/s", "latency": "20ms"}
        found[f"S{site}"] = {
            "layer": "site",
            "parent": "C1",
            "link": link,
            "hosts": {f"s{site}": {"n_cpu": 4}},
        }
        for n in range(1, PER_SITE + 1):
            if len(found) == zones:
                break
            found[f"E{site}.{n}"] = {
                "layer": "edge", "parent": f"S{site}", "locations": [f"L{site}.{n}"],
                "link": {"bandwidth": "10Mbit/s", "latency": "5ms"}, "hosts": {f"gw{site}.{n}": {"n_cpu": 2}},
            }  # fmt: skip
    return Continuum.from_data({"name": "crowd", "layers": ["edge", "site", "cloud"], "zones": found})


def flow(name: str, locations: list[str]) -> Dataflow:
    builder = hw.flow(name, locations=locations)
    rows = builder.read.csv("in/{location}", "id int, ts timestamp, v double", location_as="location")
    low = rows.with_watermark("ts", "1 second").where("v > 1").named("low").to_layer("site")
    means = low.group_by(hw.window("ts", "1 minute"), "location").agg(m="avg(v)").named("high")
    means.to_layer("cloud").write.memory("out")
    return builder.build()


def said(plan: DeploymentPlan, seconds: float, seed: int = 0) -> Progress:
    """Return the reports of a plan's units, hosts and links ``seconds`` after their start; only lags change."""
    draw, now = random.Random(seed), random.Random(f"{seed} {seconds}")
    units, links, hosts = [], [], []
    for unit in plan.units:
        rate = draw.uniform(50, 500)
        rows = int(rate * seconds)
        units.append(
            UnitProgress(
                unit=unit.id,
                zone=unit.zone,
                layer=unit.layer,
                status="running",
                rows_in=rows,
                rows_out=rows // 2,
                lag=now.randrange(100) if plan.inputs(unit) else None,
                batch=int(seconds),
                batches=int(seconds),
                busy_s=seconds * 0.2,
                cpu_s=seconds * 0.1,
                run="1",
                began=seconds,
                operators=tuple(OperatorProgress(operator=o, rows_in=rows, rows_out=rows) for o in unit.operators),
                latency=Latency(p50=0.4, p95=draw.uniform(0.5, 2), rows=100, over_s=10.0),
                state_rows=40,
                state_bytes=4000,
                trigger_s=0.5,
            )
        )
    for zone in dict.fromkeys(u.zone for u in plan.units):
        found = plan.continuum.zone(zone)
        hosts += [
            HostProgress(
                host=h.name,
                zone=zone,
                cores=2,
                seconds=seconds,
                cpu_s=seconds * 0.3,
                memory=10**9,
                agent_memory=10**8,
                pss=3 * 10**8,
            )
            for h in found.hosts
        ]
        if found.link is not None:
            speed = draw.uniform(1e3, 1e6)
            traffic = LinkProgress(link=found.link.name, rows=int(speed / 10 * seconds), bytes=int(speed * seconds))
            links.append(replace(traffic, up=True, delay_s=0.01, bytes_per_s=speed))
    return Progress(seconds=seconds, units=tuple(units), links=tuple(links), hosts=tuple(hosts))


def fill(store: Store, zones: int, dataflows: int, *, each: int = 3, samples: int = 4) -> list[DeploymentPlan]:
    """Put dataflows into a store, each over a few locations, with their zones' newest reports."""
    world = continuum(zones)
    places = list(world.locations)
    first = build(flow("d0", places[:each]), world)
    made = []
    for n in range(dataflows):
        at = [places[(n * each + k) % len(places)] for k in range(each)]
        made.append(first if n == 0 else build(flow(f"d{n}", at), world))
    now = time.time()
    with store._writing() as connection:
        for plan in made:
            id_ = keep_plan(connection, plan)
            connection.execute(
                insert(t.deployments).values(
                    name=plan.dataflow.name,
                    version=1,
                    observed_version=1,
                    phase="running",
                    active_plan=id_,
                    message="",
                    updated=now,
                )
            )
            connection.execute(
                insert(t.desired_states).values(
                    deployment=plan.dataflow.name, version=1, goal="run", plan=id_, options="{}", at=now
                )
            )
    for k in range(samples):
        tell(store, made, 1000.0 + 2.5 * k, at=now - 2.5 * (samples - 1 - k))
    return made


def tell(store: Store, plans: list[DeploymentPlan], seconds: float, *, at: float) -> None:
    """Store a sample of each dataflow, and a report of each zone."""
    samples, reports = [], []
    for n, plan in enumerate(plans):
        name, whole = plan.dataflow.name, said(plan, seconds, n)
        samples.append({"deployment": name, "at": at, "progress": dump_json(whole, lean=True).decode()})
        for zone in dict.fromkeys(u.zone for u in plan.units):
            own = Progress(seconds=seconds, units=tuple(u for u in whole.units if u.zone == zone))
            own = replace(own, hosts=tuple(h for h in whole.hosts if h.zone == zone))
            values = {"at": at, "progress": dump_json(own).decode(), "error": None}
            reports.append({"deployment": name, "zone": zone, **values})
    with store._writing() as connection:
        connection.execute(insert(t.samples), samples)
        for one in reports:
            key = (t.reports.c.deployment == one["deployment"]) & (t.reports.c.zone == one["zone"])
            if not connection.execute(update(t.reports).where(key).values(**one)).rowcount:
                connection.execute(insert(t.reports).values(**one))
