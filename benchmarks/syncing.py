"""Measure the cost of power-cut safety: the duration of batches with and without the sync of channels and checkpoints.

One dataflow runs twice on one warmed server, in directories of the same disk: cleaned rows at the edge, windows with
state at the site. Both get the same small files in turn, the first of a round changing, and each file is
processed before the next. So both have the same load of the machine beside them. Compare the ratio of the medians, not
the durations: these are of the machine's disk.

    python -m benchmarks.syncing [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks import common
from headwater.app.local import LocalRun
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import compare

CONTINUUM = """
name: line
layers: [edge, site]
zones:
  S1: {layer: site}
  E1: {layer: edge, parent: S1, locations: [L1]}
"""
TRIGGER = "0 seconds"
FILE_ROWS = 500
WARM = 5  # files before the measurement
FILES, QUICK_FILES = 60, 20
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def plan_of(name: str, source: Path) -> DeploymentPlan:
    """Plan the dataflow over the files of a directory."""
    f = hw.flow(name, locations=["L1"])
    rows = f.read.json(str(source), "id bigint, ts timestamp, k int, v double").where("v >= 0")
    timed = rows.with_watermark("ts", "5 seconds").to_layer("site")
    timed.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", mean="avg(v)").write.memory("means")
    return build(f.build(), hw.Continuum.from_text(CONTINUUM))


class Side:
    """The deployment with the sync, or the one without it."""

    def __init__(self, name: str, place: Path, endpoint: LocalEndpoint, *, fsync: bool) -> None:
        self.name = name
        self.source = place / f"in-{name}"
        self.source.mkdir()
        self._endpoint = endpoint
        settings = UnitSettings(trigger=TRIGGER, channel=ChannelSettings(fsync=fsync))
        self.deployment = LocalRun(plan_of(name, self.source), place / name, endpoint, settings)
        self.batches: dict[str, dict[int, float]] = {}
        self._warm: dict[str, int] = {}

    def give(self, number: int) -> None:
        """Give it a file, wait until it is processed, and note the batches since the last call."""
        made = []
        for row in range(number * FILE_ROWS, (number + 1) * FILE_ROWS):
            ts = (BEGIN + timedelta(seconds=row / 100)).isoformat()
            made.append({"id": row, "ts": ts, "k": row % 20, "v": float(row % 97)})
        scratch = self.source / f".{number:06d}"
        scratch.write_text("".join(json.dumps(row) + "\n" for row in made))
        scratch.rename(self.source / f"{number:06d}.json")
        self.deployment.settle()
        for query in self._endpoint.session().streams.active:
            deployment, unit = query.name.split("/")[:2]
            if deployment == self.name:
                known = self.batches.setdefault(unit.split("@")[0], {})
                for report in query.recentProgress:
                    if "addBatch" in report["durationMs"]:
                        known[int(report["batchId"])] = float(report["durationMs"]["triggerExecution"])

    def forget(self) -> None:
        """Leave the batches up to now out of the figures."""
        self._warm = {unit: max(known) for unit, known in self.batches.items()}

    def milliseconds(self) -> dict[str, list[float]]:
        """Return the durations of each unit's batches."""
        return {
            unit: [ms for batch, ms in sorted(known.items()) if batch > self._warm[unit]]
            for unit, known in sorted(self.batches.items())
        }


def measure(endpoint: LocalEndpoint, place: Path, files: int) -> dict[str, Any]:
    """Run both sides, file by file in turn; return the figures of each unit."""
    sides = [Side("synced", place, endpoint, fsync=True), Side("unsynced", place, endpoint, fsync=False)]
    try:
        for side in sides:
            side.deployment.start()
        for number in range(WARM + files):
            if number == WARM:
                for side in sides:
                    side.forget()
            for side in sides if number % 2 else sides[::-1]:
                side.give(number)
            print(f"  {number + 1 - WARM} of {files} files", file=sys.stderr, flush=True)
        means = [side.deployment.sink_rows("means") for side in sides]
    finally:
        for side in sides:
            side.deployment.stop()
    if difference := compare(means[1], means[0]):
        sys.exit(f"the results differ: {difference}")
    if not means[0].num_rows:
        sys.exit("no window has closed")
    synced, unsynced = (side.milliseconds() for side in sides)
    found: dict[str, Any] = {}
    for unit, ms in synced.items():
        if min(len(ms), len(unsynced[unit])) < files:
            sys.exit(f"{unit}: {len(ms)} and {len(unsynced[unit])} batches of {files} files")
        one, other = common.middle(ms, 1), common.middle(unsynced[unit], 1)
        found[unit] = {
            "synced_ms": one,
            "unsynced_ms": other,
            "ratio": round(one / other, 3),
            "batches": [len(ms), len(unsynced[unit])],
        }
    return found


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("Duration of batches with and without the sync of channels and checkpoints", repeats=3)
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    files = QUICK_FILES if options.quick else FILES
    place = Path(tempfile.mkdtemp(prefix="headwater-syncing-"))
    endpoint = None
    rounds = []
    try:
        partitions = {"spark.sql.shuffle.partitions": str(facts["machine"]["cores"])}
        endpoint = LocalEndpoint.start(place / "spark", memory_mb=1536, extra_conf=partitions, quick=options.quick)
        for number in range(common.repeats_of(options)):
            directory = place / str(number)
            directory.mkdir()
            rounds.append(measure(endpoint, directory, files))
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    units = {
        unit: {key: common.middle([r[unit][key] for r in rounds]) for key in ("synced_ms", "unsynced_ms", "ratio")}
        for unit in rounds[0]
    }
    print(f"medians of at least {files} batches, {len(rounds)} rounds; all results equal")
    for unit, figures in units.items():
        synced, unsynced, ratio = (figures[key] for key in ("synced_ms", "unsynced_ms", "ratio"))
        print(f"  {unit:<12} {synced:8.1f} ms synced {unsynced:8.1f} ms not: {ratio:.2f}")
    common.write_result(options.json, {"units": units, "rounds": rounds, "files": files}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
