"""Dataflows of a city or of scientists on Spark, step by step: cores, memory, queries and channels, shared and not.

One zone with this machine's cores. Without reuse each dataflow is a separate deployment, in the same zone
and the same Spark; with reuse all are one pool. The measurement begins some time after every step.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from benchmarks import common
from benchmarks.reuse import city, science
from benchmarks.reuse.workloads import Trace, trace, workload
from headwater.app import deployments, pools, stores
from headwater.continuum.model import Continuum
from headwater.core.errors import Unavailable
from headwater.core.metrics import UnitProgress
from headwater.core.quantity import parse_duration
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build

ZONE = "cloud"
_PATIENCE = 300.0
_WARM = 6
"""Batches of a query before its measurement: Java compiles during the first ones."""
_BEHIND = 2
"""Triggers that a row may wait where a query keeps up."""


def continuum() -> Continuum:
    """Return a continuum of one zone."""
    return Continuum.from_text(f"""
name: city
layers: [cloud]
zones:
  {ZONE}: {{layer: cloud, locations: [{city.LOCATION}], hosts: {{vm: {{n_cpu: 2, memory: 8GiB}}}}}}
""")


class Platform:
    """A controller and a zone with the streams of a workload, until it is left."""

    def __init__(self, place: Path, name: str, *, reuse: bool, trigger: str, rate: float) -> None:
        self.place, self.reuse, self._trigger = place, reuse, parse_duration(trigger)
        self.store = str(place / "store.db")
        place.mkdir(parents=True)
        graphs = workload(name)
        riot = name == "riot21"
        self.feed = city.PackFeed(place / "in", rate) if riot else science.EventFeed(place / "in", graphs, rate)
        self.feed.start()
        self._over = threading.Event()
        self._controller = threading.Thread(target=self._control, args=(trigger,), daemon=True)
        self._controller.start()
        made = city.dataflow if riot else science.dataflow
        self.flows: Mapping[str, Dataflow] = {g.name: made(g, place) for g in graphs}
        self.sizes = {g.name: len(g.tasks) for g in graphs}

    def __enter__(self) -> Platform:
        return self

    def __exit__(self, *raised: object) -> None:
        self.feed.end()
        self._over.set()
        self._controller.join(60)
        deployments.down(self.place / "home")

    def _control(self, trigger: str) -> None:
        with (self.place / "up.log").open("a") as log:
            deployments.up(
                self.store,
                home=self.place / "home",
                options=("--trigger", trigger),
                stop=self._over,
                say=lambda text: print(text, file=log, flush=True),
            )

    def do(self, what: str, name: str) -> float:
        """Submit or remove a dataflow; return the seconds until that was done."""
        begun = time.monotonic()
        if what == "submit":
            if self.reuse:
                found = self._when_calm(
                    lambda: pools.plan_submission(
                        self.flows[name], continuum(), "city", self.store, former_output="append"
                    ).apply()
                )
                self._wait(pools.POOL, found.version)
            else:
                plan = build(self.flows[name], continuum())
                self._wait(name, common.want(plan, self.store, former_output="append"))
        elif self.reuse:
            found = self._when_calm(lambda: pools.plan_removal(name, "city", self.store).apply())
            self._wait(pools.POOL, found.version)
        else:
            self._wait(name, deployments.stop(name, self.store, how="forget"))
        return time.monotonic() - begun

    def _when_calm(self, do: Callable[[], pools.Joined]) -> pools.Joined:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return do()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _wait(self, name: str, version: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            with stores.existing(self.store) as store:
                record = store.find(name)
                if record is not None and record.observed_version >= version:
                    last = store.changes(name)[-1]
                    if last.outcome != "done":
                        raise RuntimeError(f"{name}: {last.outcome}: {last.message}")
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{name}: not carried out in {_PATIENCE:.0f} s")

    def defragment(self) -> float:
        """Merge the units that the trace has split; return the seconds until that was done."""
        begun = time.monotonic()
        found = self._when_calm(lambda: pools.plan_defragmentation(pools.POOL, self.store).apply())
        self._wait(pools.POOL, found.version)
        return time.monotonic() - begun

    def counts(self) -> dict[str, int]:
        """Count the deployed tasks, queries and channels."""
        tasks = queries = channels = 0
        with stores.existing(self.store) as store:
            for record in store.deployments():
                plan = store.active_plan(record.name) if record.phase == "running" else None
                if plan is not None:
                    tasks += len(plan.dataflow.operators)
                    queries += len(plan.units)
                    channels += len(plan.channels)
        return {"operators": tasks, "queries": queries, "channels": channels}

    def settle(self, seconds: float) -> dict[str, float]:
        """Wait until queries have warmed up and caught up, or until the limit; return the age of the waiting rows."""
        deadline = time.monotonic() + seconds
        while True:
            units = self._units()
            oldest = max((unit.oldest_s or 0.0 for unit in units), default=0.0)
            calm = oldest < _BEHIND * self._trigger and all((u.batches or 0) >= _WARM for u in units)
            if calm or time.monotonic() > deadline:
                return {"oldest_s": round(oldest, 1)}
            time.sleep(1.0)

    def _units(self) -> list[UnitProgress]:
        """Return the status of all running units."""
        with stores.existing(self.store) as store:
            return [
                unit
                for record in store.deployments()
                if record.phase == "running"
                for report in store.reports(record.name)
                if report.progress is not None
                for unit in report.progress.units
            ]

    def measured(self, seconds: float) -> dict[str, float]:
        """Measure the cores that the zone takes, and its memory.

        ``seconds`` is rounded up to whole triggers, because all queries begin their batches at the same moments.
        """
        seconds = max(1, math.ceil(seconds / self._trigger)) * self._trigger if self._trigger else seconds
        before, begun = _cpu(self._processes()), time.monotonic()
        time.sleep(seconds)
        after = _cpu(self._processes())
        worked = sum(took - before.get(process, 0.0) for process, took in after.items())
        cores = worked / (time.monotonic() - begun)
        memory = sum(_memory(p) for p in self._processes())
        return {"cores": round(cores, 3), "memory_mb": round(memory / 2**20)}

    def _processes(self) -> list[psutil.Process]:
        """Return the zone's agent, its Spark, and all their descendants."""
        known: dict[int, psutil.Process] = {}
        for one in psutil.process_iter(["cmdline"]):
            if str(self.place) not in " ".join(one.info["cmdline"] or []):
                continue
            known[one.pid] = one
            try:
                known |= {c.pid: c for c in one.children(recursive=True)}
            except psutil.NoSuchProcess:
                continue
        known.pop(os.getpid(), None)
        return list(known.values())


def _cpu(processes: list[psutil.Process]) -> dict[psutil.Process, float]:
    """Return the processor time of each process that still runs, in seconds."""
    found = {}
    for one in processes:
        try:
            times = one.cpu_times()
            found[one] = times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return found


def _memory(process: psutil.Process) -> int:
    """Return a process's memory in bytes, with its share of memory that several processes have in common."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def lived(
    platform: Platform, name: str, kind: Trace, *, settle: float, measure: float, steps: int | None, every: int
) -> dict[str, Any]:
    """Go through a trace; ``steps``: only this number of steps, and then remove all dataflows.

    Cores are measured at regular steps, where most tasks run, and in the end; each time when queries have warmed up and
    caught up, or after ``settle`` seconds.
    """
    seen: list[dict[str, Any]] = []
    there: list[str] = []
    course = list(trace(name, kind, sorted(platform.flows)))
    if steps is not None:
        course = course[:steps]
        last = {n: w for w, n in course}
        course += [("remove", n) for n, w in last.items() if w == "submit"]
    tasks, counts = 0, []
    for what, one in course:
        tasks += platform.sizes[one] if what == "submit" else -platform.sizes[one]
        counts.append(tasks)
    peak = counts.index(max(counts))
    most, defragmented = 0, not platform.reuse
    for step, (what, one) in enumerate(course):
        took = platform.do(what, one)
        there = [*there, one] if what == "submit" else [n for n in there if n != one]
        most = max(most, len(there))
        state: dict[str, Any] = {
            "what": what, "dataflows": len(there), "tasks": counts[step], "took_s": round(took, 2),
            **platform.counts(),
        }  # fmt: skip
        now = not defragmented and step > peak and 0 < len(there) <= most / 2
        if step % every == 0 or step == peak or step + 1 == len(course) or now:
            state |= platform.settle(settle)
            state |= platform.measured(measure)
        if now:
            defragmented = True
            after: dict[str, Any] = {"took_s": round(platform.defragment(), 2), **platform.counts()}
            state["defragmented"] = after | platform.settle(settle) | platform.measured(measure)
        seen.append(state)
        print(f"  {what} {one}: {state}", flush=True)
    return {"steps": seen, "remnant_queries": seen[-1]["queries"], "remnant": seen[-1]}


def _cores(one: dict[str, Any]) -> list[float]:
    return [float(step["cores"]) for step in one["steps"] if "cores" in step]


def _effect(one: dict[str, Any], what: str) -> float | None:
    """Return the median of the seconds until a submission or removal took effect."""
    took = [step["took_s"] for step in one["steps"] if step["what"] == what]
    return round(median(took), 2) if took else None


def result(
    place: Path, name: str, kinds: tuple[Trace, ...], *, fresh: bool, trigger: str, rate: float, **settings: Any
) -> list[dict[str, Any]]:
    """Go through traces of a workload with and without reuse.

    ``fresh``: each on a Spark of its own; ``rate``: packs or events a second of each stream; ``settings`` of ``lived``.
    """
    went: dict[Trace, dict[bool, dict[str, Any]]] = {kind: {} for kind in kinds}
    for reuse in (False, True):
        for group in [(kind,) for kind in kinds] if fresh else [kinds]:
            home = place / "-".join([name, *group, str(reuse)])
            with Platform(home, name, reuse=reuse, trigger=trigger, rate=rate) as platform:
                for kind in group:
                    print(f"{name}, {kind}, {'reuse' if reuse else 'default'}", flush=True)
                    went[kind][reuse] = lived(platform, name, kind, **settings)
    found = []
    for kind, both in went.items():
        peak = max(range(len(both[True]["steps"])), key=lambda n: int(both[True]["steps"][n]["tasks"]))
        top = {reuse: one["steps"][peak] for reuse, one in both.items()}
        found.append(
            {
                "workload": name,
                "trace": kind,
                "cpu_cores_default": top[False]["cores"],
                "cpu_cores_reuse": top[True]["cores"],
                "queries_default": top[False]["queries"],
                "queries_reuse": top[True]["queries"],
                "oldest_s_default": top[False]["oldest_s"],
                "oldest_s_reuse": top[True]["oldest_s"],
                "channels_default": top[False]["channels"],
                "channels_reuse": top[True]["channels"],
                "memory_mb_default": top[False]["memory_mb"],
                "memory_mb_reuse": top[True]["memory_mb"],
                "operators_default": top[False]["operators"],
                "operators_reuse": top[True]["operators"],
                "mean_cores_default": round(fmean(_cores(both[False])), 3),
                "mean_cores_reuse": round(fmean(_cores(both[True])), 3),
                "submitted_s_default": _effect(both[False], "submit"),
                "submitted_s_reuse": _effect(both[True], "submit"),
                "removed_s_default": _effect(both[False], "remove"),
                "removed_s_reuse": _effect(both[True], "remove"),
                "defragmented": [s for s in both[True]["steps"] if "defragmented" in s],
                "remnant_cores": both[True]["remnant"]["cores"],
                "remnant_queries": both[True]["remnant_queries"],
                "steps": {"default": both[False]["steps"], "reuse": both[True]["steps"]},
            }
        )
    return found
