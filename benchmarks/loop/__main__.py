"""Measure how long an SLO is broken while rates, a link and a host change, with and without the closed loop.

An edge with one core and a cloud zone with another are joined by a link of 100 Mbit/s. Trips come at 100,
800, 2,000 and again 100 a second; then the link drops to 1 Mbit/s, then another job takes half of the edge's
core. The SLO is that a window's result is there ``--max-latency`` seconds after its last trip. Each
placement that stays runs through the same course as the one that adapts itself; the best of them is found
afterwards. In the end every sink is compared with one Spark batch run.

    python -m benchmarks.loop --json FILE
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks import common
from benchmarks.loop import workload
from benchmarks.loop.workload import CUTS, LOCATION, NAME, Feed, Phase, flow, phases, spans_out
from benchmarks.loop.zones import CLOUD, Zones, continuum
from benchmarks.netlab import Lab
from headwater.adapt.slo import SLO
from headwater.app import deployments, objectives, observe, profiles
from headwater.channels.filelog import FileLog
from headwater.control.store import Store
from headwater.core.jsonform import dump
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import Profile
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare

ALL_EDGE, ALL_CLOUD, AUTO = "all_edge", "all_cloud", "auto"
STATIC = {ALL_CLOUD: CUTS[0], "split": CUTS[1], "small_rows": CUTS[2], ALL_EDGE: "result"}
"""Placements that stay, by the first operator in the cloud; all but the sink may be at the edge."""
_WORK_US = 200.0  # microseconds of a core that each of the two heavy operators is to take for a trip
_QUICK_PASSES = 20
_SETTLE = 20.0


def planned(dataflow: Any, addresses: dict[str, str], first_in_cloud: str) -> DeploymentPlan:
    """Plan the query; the cloud runs its operators from one of them on."""
    zones = continuum(addresses)
    at = dataflow.order.index(first_in_cloud)
    layers = {o: "edge" if n < at else "cloud" for n, o in enumerate(dataflow.order)}
    return build(dataflow, zones, in_layers(dataflow, zones, {**marked_layers(dataflow, zones), **layers}))


@dataclass
class Run:
    """The result of one policy."""

    policy: str
    placement: str
    seconds_out: dict[str, float]
    changes: int
    lost: int
    duplicated: int
    decisions: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[str, list[float]] = field(default_factory=dict)
    lags: dict[str, float] = field(default_factory=dict)
    stolen: dict[str, float] = field(default_factory=dict)
    """The share of this machine's processors that its own host gave to others."""
    rows_in: int = 0

    @property
    def total(self) -> float:
        return sum(self.seconds_out.values())


class Trial:
    """One policy, from an empty disk to the comparison with the batch run."""

    def __init__(self, lab: Lab, place: Path, options: argparse.Namespace, passes: int, profile: Profile):
        self._place, self._options, self._profile = place, options, profile
        (place / "in" / LOCATION).mkdir(parents=True)
        self._zones = Zones(lab, place, pinned=not options.quick)
        self._told = 0
        self._stolen: dict[str, float] = {}
        self._dataflow = flow(str(place / "in"), passes)
        # If it does not disturb a measurement, the batch run's Spark starts at the same time.
        self._spark = ThreadPoolExecutor(1).submit(self._batch_spark) if options.quick else None
        self._say: Callable[[str], None] = lambda text: print(text, flush=True)

    def run(self, policy: str, first_in_cloud: str) -> Run:
        """Run through all phases."""
        zones, feed = self._zones, Feed(self._place / "in" / LOCATION, 100)
        course, begun = phases(self._options.seconds, self._options.warm), {}
        errors: dict[str, list[float]] = {"latency": [], "load": [], "bytes": []}
        try:
            zones.begin()
            plan = planned(self._dataflow, zones.addresses, first_in_cloud)
            zones.carry_out(common.want(plan, zones.store))
            feed.start()
            self._slo("off")
            for phase in course:
                if phase.name == "calm" and policy == AUTO:
                    self._slo("auto")
                begun[phase.name] = time.time()
                self._enter(phase, feed)
                self._pass(phase, errors)
            ended = time.time()
            feed.rate = 0
            self._slo("off")
            feed.end()
            self._wait_until_calm()
            versions = [w.version for w in deployments.history(NAME, zones.store).desired_states]
            zones.carry_out(deployments.stop(NAME, zones.store, how="finish"))
            due, got = self._outputs(feed)
            decisions = dump(objectives.decisions(NAME, zones.store))
        except BaseException:
            if self._spark is not None:
                self._spark.result().stop()
            raise
        finally:
            with suppress(RuntimeError):
                feed.end()
            zones.end()
        out, lags = self._out(course, begun, ended, due)
        difference = compare(self._batch(), got)
        return Run(
            policy=policy,
            placement=first_in_cloud,
            seconds_out=out,
            changes=len(versions) - 1,
            lost=difference.lost,
            duplicated=difference.duplicated,
            decisions=decisions,
            errors=errors,
            lags=lags,
            stolen=self._stolen,
            rows_in=feed.rows,
        )

    def _slo(self, mode: Any) -> None:
        store = Store(self._zones.store)
        try:
            store.keep_profile(NAME, self._profile)
            slo = SLO(
                mode=mode,
                max_latency=self._options.max_latency,
                headroom=self._options.headroom,
                settle=_SETTLE,
                cool_down=60.0,
            )
            store.set_slo(NAME, slo)
        finally:
            store.close()

    def _enter(self, phase: Phase, feed: Feed) -> None:
        self._say(f"  {phase.name}: {phase.rate} trips/s")
        feed.rate = phase.rate
        if phase.narrow:
            self._zones.narrow()
        if phase.crowded:
            self._zones.crowd()

    def _pass(self, phase: Phase, errors: dict[str, list[float]]) -> None:
        """Wait for the end of a phase; compare the model with the measurements of its last third."""
        begun = psutil.cpu_times()
        ends = time.monotonic() + phase.seconds
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(5.0, left))
            for event in deployments.history(NAME, self._zones.store).events[self._told :]:
                self._told += 1
                if self._options.steps:
                    self._say(f"    {time.strftime('%H:%M:%S', time.localtime(event.at))} {event.text}")
            if left < phase.seconds / 3 + 5.0:
                for kind, found in objectives.compared(NAME, self._zones.store).items():
                    errors[kind] += [c.error for c in found]
        self._stolen[phase.name] = stolen(begun, psutil.cpu_times())

    def _wait_until_calm(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            (now,) = observe.status(NAME, self._zones.store)
            if now.phase == "running" and now.observed_version == now.version:
                return
            time.sleep(0.2)

    def _outputs(self, feed: Feed) -> tuple[list[tuple[float, float]], pa.Table]:
        """Read the sink: for each window the time when its trips were all there and when its last row came."""
        (directory,) = (self._place / CLOUD / "deployments" / NAME / "sinks").iterdir()
        log, batches = FileLog(directory), []
        came: dict[datetime, float] = {}
        for entry in range(log.earliest(), log.latest()):
            at = (directory / "log" / f"{entry:012d}").stat().st_mtime
            for batch in log.read(entry, entry + 1):
                batches.append(batch)
                for until in batch.column("until").to_pylist():
                    came[until] = max(at, came.get(until, 0.0))
        return [(feed.moment(until), at) for until, at in came.items()], pa.Table.from_batches(batches)

    def _out(
        self, course: Sequence[Phase], begun: dict[str, float], ended: float, due: list[tuple[float, float]]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Assign the spans with missing output to the phases in which they began."""
        limit = self._options.max_latency
        spans = spans_out([(there, came) for there, came in due if there < ended], limit)
        out, lags = {}, {}
        for phase, following in zip(course, [*course[1:], None], strict=True):
            first = begun[phase.name]
            last = begun[following.name] if following else ended
            if phase.name not in ("warm", "calm"):
                out[phase.name] = round(sum(min(e, ended) - b for b, e in spans if first <= b < last), 1)
            mine = [came - there for there, came in due if first <= there < last]
            lags[phase.name] = round(common.quantile(mine, 0.95), 2) if mine else -1.0
        return out, lags

    def _batch(self) -> pa.Table:
        batch = self._spark.result() if self._spark is not None else self._batch_spark()
        try:
            return batch_result(batch.session(), self._dataflow, continuum({}))["result"]
        finally:
            batch.stop()

    def _batch_spark(self) -> LocalEndpoint:
        place = self._place / "batch"
        return LocalEndpoint.start(
            place, cores=2, memory_mb=2000, python_path=(str(common.ROOT),), quick=self._options.quick
        )


def stolen(before: Any, after: Any) -> float:
    """Return the share of processor time that this machine's host gave to others, where it is reported."""
    spent = sum(after) - sum(before)
    return round((getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)) / spent, 3) if spent else 0.0


def tuned(place: Path) -> tuple[int, Profile]:
    """Find the passes that make a heavy operator take ``_WORK_US`` for a trip here; profile the query with them."""
    workload.sample(place / LOCATION, 6_000)
    lines = next((place / LOCATION).iterdir()).read_text().splitlines()[:512]
    telemetry = [line.rsplit(",", 1)[1] for line in lines]
    passes = 200
    for _ in range(3):
        each = min(_micros(telemetry, passes) for _ in range(5))
        print(f"{passes} passes: {each:.0f} µs", flush=True)
        passes = max(1, round(passes * _WORK_US / each))
    samples = {"trips": {LOCATION: str(place / LOCATION)}}
    profile = profiles.profile(flow(str(place), passes), samples, cores=1, memory_mb=1000, repeats=3)
    return passes, profile.model_copy(update={"rates": {}})


def _micros(telemetry: list[str], passes: int) -> float:
    begun = time.perf_counter()
    workload.smooth(telemetry, passes)
    return (time.perf_counter() - begun) / len(telemetry) * 1e6


def known(file: Path | None, place: Path, *, quick: bool) -> tuple[int, Profile]:
    """Tune, or use the result of an earlier run on this machine; ``quick``: use a number that may be too small."""
    if quick:
        return _QUICK_PASSES, Profile(dataflow=NAME)
    if file is not None and file.exists():
        found = json.loads(file.read_text())
        return int(found["passes"]), Profile.model_validate(found["profile"])
    passes, profile = tuned(place)
    if file is not None:
        data = {"passes": passes, "profile": profile.model_dump(exclude_none=True)}
        file.write_text(json.dumps(data))
    return passes, profile


def policies(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the policies, each with its first operator in the cloud."""
    wanted = options.only.split(",") if options.only else [AUTO, *STATIC]
    return [(name, STATIC.get(name, STATIC["small_rows"])) for name in wanted]


def result_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the result in its shape, with explanatory figures."""
    static = [r for r in runs if r.policy != AUTO]
    rows = [
        {
            "policy": r.policy,
            "placement": r.placement,
            "seconds_out": r.seconds_out,
            "changes": r.changes,
            "lost": r.lost,
            "duplicated": r.duplicated,
            "lag_p95_s": r.lags,
            "stolen": r.stolen,
            "rows_in": r.rows_in,
            "decisions": r.decisions,
        }
        for r in runs
    ]
    if static:
        best = min(static, key=lambda r: r.total)
        rows.append({**next(x for x in rows if x["policy"] == best.policy), "policy": "static_best", "decisions": []})
    own = [r for r in runs if r.policy == AUTO] or list(runs)
    errors: dict[str, float | None] = {}
    for kind in ("latency", "load", "bytes"):
        found = [e for r in own for e in r.errors.get(kind, [])]
        # Without a bound where the model predicts an overload.
        error = statistics.median(found) if found else math.nan
        errors[kind] = round(error, 3) if math.isfinite(error) else None
        errors[f"{kind}_unbounded"] = round(sum(map(math.isinf, found)) / len(found), 3) if found else None
    return {"runs": rows, "model_error": errors}


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--warm", type=float, default=180.0, help="seconds in which Java warms up")
    parser.add_argument("--max-latency", type=float, default=10.0, help="the SLO")
    parser.add_argument("--headroom", type=float, default=0.1, help="the SLO")
    parser.add_argument("--only", help=f"some of {AUTO},{','.join(STATIC)}")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="keep there what tuning found, or use it")
    parser.add_argument("--steps", action="store_true", help="show what happens")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep everything there")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.warm = 4.0, 20.0
        options.only = options.only or f"{AUTO},small_rows"
    facts = common.facts(quick=options.quick)
    root = options.keep or Path(tempfile.mkdtemp(prefix="headwater-loop-"))
    runs = []
    try:
        passes, profile = known(options.tuned, root / "sample", quick=options.quick)
        with Lab(continuum({})) as lab:
            for n in range(common.repeats_of(options)):
                for policy, first in policies(options):
                    print(f"{policy}, first in the cloud: {first}", flush=True)
                    place = root / f"{policy}-{n}"
                    runs.append(Trial(lab, place, options, passes, profile).run(policy, first))
                    found = runs[-1]
                    print(f"  {found.seconds_out} changes {found.changes} lags {found.lags}", flush=True)
                    if not options.keep:
                        shutil.rmtree(place, ignore_errors=True)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    result = result_of(runs)
    print(json.dumps({k: v for k, v in result.items() if k != "runs"}, indent=1))
    for row in result["runs"]:
        print(json.dumps({k: v for k, v in row.items() if k != "decisions"}))
    common.write_result(options.json, result, facts=facts)
    if any(r.lost or r.duplicated for r in runs):
        sys.exit("rows were lost or doubled")


if __name__ == "__main__":
    main()
