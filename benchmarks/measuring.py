"""What it costs to measure: whole dataflows with and without it, in turn, on one warmed server.

Measured, a deployment counts its operators' rows inside Spark, and a thread asks, as often as an agent
does, how far its units are and what their processes take. Three dataflows over files in one batch:
that of ``examples/taxi`` (filters at the edge, windows in the cloud), that of the demo (windows at the edge),
and one that does nothing but what is the dearest to count: filters around an explode, with little to do
for each row.

    python -m benchmarks.measuring [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import headwater as hw
from benchmarks import common
from examples.taxi.flow import taxi
from headwater.demo.flow import CONTINUUM as ACME
from headwater.demo.flow import acme
from headwater.metrics import Progress
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.runtime.deployment import Deployment
from headwater.runtime.endpoint import LocalEndpoint
from headwater.runtime.hosts import Meter
from headwater.runtime.profiling import cpu_seconds
from headwater.runtime.settings import UnitSettings

TAXI = Path(__file__).resolve().parent.parent / "examples" / "taxi" / "continuum.yaml"
FILES = 4
LOOK, EVERY = 1.0, 5  # seconds between two looks of an agent; looks between two at the queries
BEGIN = np.datetime64("2026-01-01T00:00:00", "s")
ONE = """
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [L1]}
"""


# ---------------------------------------------------------------- the dataflows and what they read


def trips(rows: int, rng: np.random.Generator) -> pa.Table:
    """Make taxi trips in the order of their ends, over two hours, most of them within the grid."""
    end = np.sort(rng.integers(0, 7200, rows))
    spots = rng.normal((-73.98, 40.75), 0.05, (30, 2)).round(6)
    spot = {}
    for event in ("pickup", "dropoff"):
        where = spots[rng.integers(0, len(spots), rows)]
        spot |= {f"{event}_longitude": where[:, 0], f"{event}_latitude": where[:, 1]}
    money = {
        name: rng.integers(0, 50, rows) for name in ("fare_amount", "surcharge", "mta_tax", "tip_amount")
    }
    return pa.table(
        {
            "medallion": rng.integers(0, 10_000, rows),
            "hack_license": rng.integers(0, 10_000, rows),
            "pickup_datetime": _text(end - 600),
            "dropoff_datetime": _text(end),
            "trip_time_in_secs": np.full(rows, 600),
            "trip_distance": rng.integers(0, 20, rows),
            **{name: spot[name] for name in ("pickup_longitude", "pickup_latitude")},
            **{name: spot[name] for name in ("dropoff_longitude", "dropoff_latitude")},
            "payment_type": np.where(rng.integers(0, 2, rows) == 0, "CSH", "CRD"),
            **money,
            "tolls_amount": np.zeros(rows, dtype="int64"),
            "total_amount": sum(money.values()),
        }
    )


def readings(rows: int, rng: np.random.Generator) -> pa.Table:
    """Make readings of fifty machines over four days; some are not plausible."""
    at = np.arange(rows) * (4 * 86_400) // rows
    machine = np.char.add("m", (np.arange(rows) % 50).astype(str))
    return pa.table(
        {"machine": machine, "ts": _text(at), "temperature": rng.uniform(-60, 150, rows).round(3)}
    )


def numbers(rows: int, rng: np.random.Generator) -> pa.Table:
    """Make rows that cost nothing to read."""
    return pa.table({"i": rng.permutation(rows)})


def _text(seconds: np.ndarray) -> np.ndarray:
    return np.char.replace((BEGIN + seconds).astype(str), "T", " ")


def exploded(data: str) -> hw.Dataflow:
    """Build what does little but filter and explode."""
    f = hw.flow("exploded", locations=["L1"])
    rows = f.read.parquet(f"{data}/{{location}}", "i bigint").where("i % 10 > 0").named("most")
    rows = rows.explode("array(i, i + 1)", "j").named("twice")
    rows.where("j % 2 = 0").named("even").write.memory("out")
    return f.build()


@dataclass(frozen=True)
class Kind:
    """A dataflow: its rows, and its plan over them."""

    location: str
    make: Callable[[int, np.random.Generator], pa.Table]
    plan: Callable[[str], DeploymentPlan]


def _planned(dataflow: hw.Dataflow, continuum: str) -> DeploymentPlan:
    return build(dataflow, hw.Continuum.from_text(continuum))


KINDS = {
    "taxi": Kind("nyc", trips, lambda d: _planned(taxi(d, None, name="taxi"), TAXI.read_text())),
    "demo": Kind("L1", readings, lambda d: _planned(acme(d, locations=["L1"]), ACME.read_text())),
    "explode": Kind("L1", numbers, lambda d: _planned(exploded(d), ONE)),
}


def write_input(kind: Kind, directory: Path, rows: int, *, text: bool) -> None:
    """Write a kind's rows as a few files."""
    place = directory / kind.location
    place.mkdir(parents=True)
    table = kind.make(rows, np.random.default_rng(1))
    for n in range(FILES):
        part = table.slice(n * rows // FILES, (n + 1) * rows // FILES - n * rows // FILES)
        if text:
            options = pc.WriteOptions(include_header=False, quoting_style="none")
            pc.write_csv(part, place / f"{n}.csv", options)
        else:
            pq.write_table(part, place / f"{n}.parquet")


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Run:
    """Seconds until all was through, seconds of a core that it took, and what was seen at the end."""

    seconds: float
    cpu: float
    seen: Progress


def run(endpoint: LocalEndpoint, plan: DeploymentPlan, directory: Path, *, measure: bool) -> Run:
    """Let a deployment take all its input."""
    deployment = Deployment(
        plan, directory, endpoint, UnitSettings(trigger="200 milliseconds", measure=measure)
    )
    cpu, begun = cpu_seconds() + time.process_time(), time.monotonic()
    deployment.start()
    try:
        with _looked_at(deployment, endpoint) if measure else _left_alone():
            deployment.settle()
        seconds, cpu = time.monotonic() - begun, cpu_seconds() + time.process_time() - cpu
        return Run(seconds, cpu, deployment.progress())
    finally:
        deployment.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _looked_at(deployment: Deployment, endpoint: LocalEndpoint) -> Iterator[None]:
    stop, meter = threading.Event(), Meter("host", "zone", endpoint)

    def look() -> None:
        for turn in itertools.count(1):
            if stop.wait(LOOK):
                return
            meter.look()
            if turn % EVERY == 0:
                deployment.progress()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _left_alone() -> Iterator[None]:
    yield


def look_ms(endpoint: LocalEndpoint) -> float:
    """Measure a look at the processes of a Spark, in milliseconds."""
    meter, took = Meter("host", "zone", endpoint), []
    for _ in range(20):
        begun = time.perf_counter()
        meter.look()
        took.append((time.perf_counter() - begun) * 1000)
    return common.middle(took, 2)


def compared(endpoint: LocalEndpoint, name: str, place: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Run a dataflow with and without measuring, in turn, the one that begins changing."""
    kind, data = KINDS[name], place / name
    write_input(kind, data, rows, text=name != "explode")
    plan = kind.plan(str(data))
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for turn in range(-1, repeats):
        for measure in (True, False) if turn % 2 else (False, True):
            one = run(endpoint, plan, place / "run", measure=measure)
            if turn >= 0:  # before, the server's code and workers are warmed
                runs[measure].append(one)
            print(f"  {name:<8} measured {measure!s:<5} {one.seconds:7.2f} s {one.cpu:7.2f} s of cores",
                  file=sys.stderr, flush=True)  # fmt: skip
    shutil.rmtree(data)
    given = {m: [u.rows_out for u in r[-1].seen.units] for m, r in runs.items()}
    if given[True] != given[False]:
        sys.exit(f"{name}: {given[True]} rows measured, {given[False]} rows without")
    seconds = {m: common.middle([x.seconds for x in r]) for m, r in runs.items()}
    cpu = {m: common.middle([x.cpu for x in r]) for m, r in runs.items()}
    counted = [o for u in runs[True][-1].seen.units for o in u.operators]
    return {
        "rows": rows,
        "seconds_ratio": round(seconds[True] / seconds[False], 4),
        "cpu_ratio": round(cpu[True] / cpu[False], 4),
        "rows_per_s": {"measured": round(rows / seconds[True]), "without": round(rows / seconds[False])},
        "seconds": {str(m).lower(): [round(x.seconds, 3) for x in r] for m, r in runs.items()},
        "cpu_s": {str(m).lower(): [round(x.cpu, 2) for x in r] for m, r in runs.items()},
        "operators": len(counted),
        "operators_counted": sum(o.rows_in is not None and o.rows_out is not None for o in counted),
    }


# ---------------------------------------------------------------- the whole


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("What measuring costs", repeats=5)
    parser.add_argument("--rows", type=int, metavar="N", help="other number of rows")
    parser.add_argument("--only", choices=list(KINDS), help="one of the dataflows")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    rows = options.rows or (100_000 if options.quick else 2_000_000)
    place = Path(tempfile.mkdtemp(prefix="headwater-measuring-"))
    partitions = {"spark.sql.shuffle.partitions": str(facts["machine"]["cores"])}
    endpoint = None
    try:
        endpoint = LocalEndpoint.start(place / "spark", memory_mb=3072, extra_conf=partitions, quick=False)
        names = [options.only] if options.only else list(KINDS)
        found = {n: compared(endpoint, n, place, rows, common.repeats_of(options)) for n in names}
        look = look_ms(endpoint)
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    result = {"repeats": common.repeats_of(options), "look_ms": look, "dataflows": found}
    print(f"{rows:,} rows; measured beside not measured, medians of {result['repeats']}")
    for name, figures in found.items():
        print(
            f"  {name:<8} time {figures['seconds_ratio']:.3f}   cores {figures['cpu_ratio']:.3f}   "
            f"{figures['operators_counted']} of {figures['operators']} operators counted"
        )
    print(f"  a look at the processes of a Spark: {look:.1f} ms")
    common.write_result(options.json, result, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
