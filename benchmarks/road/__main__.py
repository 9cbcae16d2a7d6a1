"""What a small dataflow of many units costs: to run it to its end, to start it, to change it, and to leave it idle.

Road sensors of four areas report each minute. The dataflow runs over seven zones on this machine, once by
``headwater run --until-drained`` beside one PySpark batch job over the same files, and once by ``headwater up`` and
``apply``: the time until the first result, of an edited threshold, and of one more location; then idle, without and
with new input. The rows of the first run are compared with those of the batch job.

    python -m benchmarks.road [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import common
from benchmarks.cost.processes import below, by_role, pss_mb
from benchmarks.road.flow import road
from headwater.continuum.model import Continuum
from headwater.plan.build import build

AREAS = ["L1", "L2", "L3", "L4"]
MORE = "L5"
SITES = {"L1": "S1", "L2": "S1", "L3": "S2", "L4": "S2", "L5": "S2"}
MINUTES, DETECTORS = 178, 22
"""Rows of an area: 3,916; of all areas: 15,664."""
START = datetime(2026, 3, 2, 6, tzinfo=UTC)
PATIENCE = 600.0
IDLE, IDLE_QUICK = 30.0, 4.0  # seconds
HEADWATER = [sys.executable, "-m", "headwater"]


def continuum(areas: list[str]) -> str:
    """Return the zones as YAML: one for each area, two sites, and the cloud."""
    lines = ["name: road", "layers: [edge, site, cloud]", "zones:", "  C1: {layer: cloud}"]
    lines += [f"  {site}: {{layer: site, parent: C1}}" for site in ("S1", "S2")]
    lines += [f"  E{a[1:]}: {{layer: edge, parent: {SITES[a]}, locations: [{a}]}}" for a in areas]
    return "\n".join(lines) + "\n"


def write_minutes(place: Path, areas: list[str], first: int, minutes: int, number: int) -> None:
    """Write one file per area with some minutes of all its detectors."""
    for area in areas:
        drawn = random.Random(f"{area} {first}")
        lines = []
        for minute in range(first, first + minutes):
            at = (START + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ")
            for detector in range(DETECTORS):
                jam = 0.3 if (minute // 40 + detector) % 7 == 0 else 1.0
                speed = round(jam * drawn.uniform(55, 110), 1)
                lines.append(f"{area}-{detector},{at},{drawn.randrange(40)},{speed}")
        (place / area).mkdir(parents=True, exist_ok=True)
        draft = place / f".{area}.part"
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(place / area / f"{number:03d}.csv")


def sink_rows(results: Path) -> dict[str, list[str]]:
    """Return the rows of each sink's files, sorted, with times in one form."""
    found: dict[str, list[str]] = {}
    for sink in ("slow", "hours", "busiest"):
        files = [f for f in (results / sink).rglob("*.json") if ".headwater" not in f.parts]
        lines = (line for f in files for line in f.read_text().splitlines() if line)
        found[sink] = sorted(json.dumps(_plain(json.loads(line)), sort_keys=True) for line in lines)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    try:
        return datetime.fromisoformat(value).astimezone(UTC).isoformat()
    except (TypeError, ValueError):
        return value


@dataclass
class Weighed:
    """The largest number and memory of the processes below one."""

    processes: int = 0
    pss_mb: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def look(self, root: int) -> None:
        """Count and weigh the processes now."""
        found = list(below(root))
        self.processes = max(self.processes, len(found))
        self.pss_mb = round(max(self.pss_mb, sum(pss_mb(p.pid) for p in found)), 1)

    @contextmanager
    def watching(self, root: int) -> Iterator[None]:
        """Look each two seconds; the looks take little beside a Spark."""

        def watch() -> None:
            while not self._over.wait(2.0):
                self.look(root)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


class Trial:
    """One run of all phases in a directory."""

    def __init__(self, place: Path, *, idle: float) -> None:
        self.place = place
        self._idle = idle
        self._file = place / "road.yaml"
        self._flow = str(Path(__file__).with_name("flow.py"))
        self._input = place / "in"
        self._store = str(place / "store.db")

    def environment(self, results: str, areas: list[str], limit: str = "30") -> dict[str, str]:
        """Return the environment of a command."""
        path = os.pathsep.join([str(common.ROOT), os.environ.get("PYTHONPATH", "")])
        own = {"ROAD_INPUT": str(self._input), "ROAD_OUTPUT": str(self.place / results), "ROAD_LIMIT": limit}
        return {**os.environ, **own, "ROAD_LOCATIONS": ",".join(areas), "PYTHONPATH": path}

    def drained(self) -> dict[str, Any]:
        """Run one batch job, then ``headwater run --until-drained``, over the same files."""
        write_minutes(self._input, AREAS, 0, MINUTES, 0)
        self._file.write_text(continuum(AREAS))
        begun = time.monotonic()
        job = [sys.executable, "-m", "benchmarks.road.batch", str(self._file), str(self.place / "batch")]
        subprocess.run(
            job, env=self.environment("batch", AREAS), check=True, timeout=PATIENCE, stderr=subprocess.DEVNULL
        )
        batch_s = time.monotonic() - begun
        begun, weighed = time.monotonic(), Weighed()
        run = [
            *HEADWATER,
            "run",
            self._flow,
            "-c",
            str(self._file),
            "--dir",
            str(self.place / "run"),
            "--until-drained",
        ]
        with (self.place / "run.log").open("ab") as log:
            process = subprocess.Popen(
                run, env=self.environment("drained", AREAS), cwd=self.place, stdout=log, stderr=log
            )
            with weighed.watching(process.pid):
                status = process.wait(PATIENCE)
        run_s = time.monotonic() - begun
        if status:
            sys.exit(f"headwater run ended with {status}:\n{(self.place / 'run.log').read_text()[-3000:]}")
        self._equal("drained")
        return {
            "batch_job_s": round(batch_s, 2),
            "run_s": round(run_s, 2),
            "run_processes": weighed.processes,
            "run_pss_mb": weighed.pss_mb,
        }

    def _equal(self, results: str) -> None:
        got, wanted = sink_rows(self.place / results), sink_rows(self.place / "batch")
        if got != wanted:
            counts = {sink: (len(got[sink]), len(rows)) for sink, rows in wanted.items()}
            sys.exit(
                f"{results} differs from the batch job; rows: {counts}; first: {got['slow'][:1]}, {wanted['slow'][:1]}"
            )

    def deployed(self) -> dict[str, Any]:
        """Run ``up`` and ``apply``; change the deployment, and let it idle."""
        told = ["--store", self._store]
        with (self.place / "up.log").open("ab") as log:
            up = subprocess.Popen(
                [*HEADWATER, "up", "--listen", "none", *told, "--home", str(self.place / "home")],
                env=self.environment("live", AREAS), cwd=self.place, stdout=log, stderr=log,
            )  # fmt: skip
        found: dict[str, Any] = {}
        try:
            begun = time.monotonic()
            self._apply(AREAS)
            live = self.place / "live"
            self._until(lambda: bool(sink_rows(live)["slow"]), "the first result")
            found["first_result_s"] = time.monotonic() - begun
            self._until_quiet(live)
            found["edited_s"] = self._timed(lambda: self._apply(AREAS, limit="31"))
            areas = [*AREAS, MORE]
            write_minutes(self._input, [MORE], 0, MINUTES, 0)
            self._file.write_text(continuum(areas))
            begun = time.monotonic()
            self._apply(areas, limit="31")
            self._until(lambda: any(MORE in row for row in sink_rows(live)["slow"]), f"rows of {MORE}")
            found["location_s"] = time.monotonic() - begun
            self._until_quiet(live)
            time.sleep(2 * self._idle)  # Spark's Python workers end after a minute without work
            found |= self._idling(up.pid)
            before, batches, written = len(sink_rows(live)["slow"]), self._batches(), time.time()
            write_minutes(self._input, areas, MINUTES, 30, 1)
            found["taken_up_s"] = self._timed(
                lambda: self._until(lambda: len(sink_rows(live)["slow"]) > before, "new input's results")
            )
            found["batch_begun_s"] = min(file.stat().st_mtime for file in self._batches() - batches) - written
        finally:
            down = [*HEADWATER, "down", "--home", str(self.place / "home")]
            subprocess.run(
                down, env=self.environment("live", AREAS), cwd=self.place, stdout=sys.stderr, timeout=PATIENCE
            )
            up.terminate()
            up.wait(60)
        return {name: round(value, 3) for name, value in found.items()}

    def _batches(self) -> set[Path]:
        """Return the files in which Spark notes, at the begin of each batch, its input."""
        return {file for file in (self.place / "home").rglob("offsets/*") if file.name.isdigit()}

    def _apply(self, areas: list[str], limit: str = "30") -> None:
        apply = [*HEADWATER, "apply", self._flow, "-c", str(self._file), "--yes", "--wait", "--store", self._store]
        done = subprocess.run(
            apply, env=self.environment("live", areas, limit), cwd=self.place, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"headwater apply failed:\n{done.stdout}{done.stderr}")

    def _idling(self, root: int) -> dict[str, float]:
        # Agents outlive the controller, so they are no children of it.
        begin, weighed = self._cpu(root), Weighed()
        begun = time.monotonic()
        time.sleep(self._idle)
        seconds = time.monotonic() - begun
        cores = (self._cpu(root) - begin) / seconds
        for pid in self._roots(root):
            one = Weighed()
            one.look(pid)
            weighed.processes += one.processes
            weighed.pss_mb += one.pss_mb
        zones = len(AREAS) + 1 + 3
        return {
            "idle_processes": weighed.processes,
            "idle_pss_mb": weighed.pss_mb,
            "idle_pss_mb_per_zone": weighed.pss_mb / zones,
            "idle_cores": cores,
            "idle_cores_per_zone": cores / zones,
        }

    def _roots(self, up: int) -> list[int]:
        """Return the processes of this trial whose parents are not of it."""
        home = str(self.place)
        own = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace")
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if home in command or int(entry) == up:
                own[int(entry)] = parent
        return [pid for pid, parent in own.items() if parent not in own]

    def _cpu(self, up: int) -> float:
        return sum(sum(by_role(list(below(pid))).values()) for pid in self._roots(up))

    @staticmethod
    def _timed(call: Callable[[], None]) -> float:
        begun = time.monotonic()
        call()
        return time.monotonic() - begun

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                sys.exit(f"no {what} after {PATIENCE:.0f} s:\n{(self.place / 'up.log').read_text()[-3000:]}")
            time.sleep(0.05)

    def _until_quiet(self, results: Path) -> None:
        """Wait until the sinks have not grown for some seconds."""
        known, since = -1, time.monotonic()
        deadline = since + PATIENCE
        while time.monotonic() - since < 6.0 and time.monotonic() < deadline:
            now = sum(map(len, sink_rows(results).values()))
            if now != known:
                known, since = now, time.monotonic()
            time.sleep(0.5)


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=3)
    options = parser.parse_args()
    known = common.facts(quick=options.quick)
    plan = build(road("in", "out", AREAS, "30"), Continuum.from_text(continuum(AREAS)))
    size = {"rows": len(AREAS) * MINUTES * DETECTORS, "units": len(plan.units), "zones": len(AREAS) + 3}
    print(f"{size['rows']:,} rows, {size['units']} units, {size['zones']} zones")
    runs = []
    for _ in range(common.repeats_of(options)):
        place = Path(tempfile.mkdtemp(prefix="road-"))
        try:
            trial = Trial(place, idle=IDLE_QUICK if options.quick else IDLE)
            runs.append({**trial.drained(), **trial.deployed()})
            print(json.dumps(runs[-1]), flush=True)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    medians = {name: round(median(run[name] for run in runs), 3) for name in runs[0]}
    for name, value in medians.items():
        print(f"  {name:22}{value:>10}")
    common.write_result(options.json, {**size, **medians, "runs": runs}, facts=known)


if __name__ == "__main__":
    main()
