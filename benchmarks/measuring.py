"""Measure the cost of measuring: whole dataflows with and without it, in turn, on one warmed server.

With measuring, a deployment counts its operators' rows inside Spark, and a thread polls it, as often as
an agent does, for its units' progress and the load of their processes. Three dataflows over files, which have begun
before anything counts, take most rows at once and some more in small batches: that of ``examples/taxi``
(filters at the edge, windows in the cloud), that of the demo (windows at the edge), and one that does
only the work that is the most expensive to count: filters around an explode, with little to do for each row.

    python -m benchmarks.measuring [--quick] [--json FILE] [--repeats N]
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import headwater as hw
from benchmarks import common
from examples.taxi.flow import taxi
from headwater.app.local import LocalRun
from headwater.core.metrics import Progress
from headwater.demo.flow import CONTINUUM as ACME
from headwater.demo.flow import acme
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.spark.hosts import Meter
from headwater.spark.profiling import cpu_seconds

TAXI = Path(__file__).resolve().parent.parent / "examples" / "taxi" / "continuum.yaml"
FILES = 4  # of the bulk
TRICKLE, QUICK_TRICKLE, SMALL = 10, 3, 500  # small files that come one by one, and the rows of each
LOOK, EVERY = 1.0, 5  # seconds between two looks of an agent; looks between two at the queries
BEGIN = np.datetime64("2026-01-01T00:00:00", "s")
ONE = """
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [L1]}
"""
HOST = hw.Continuum.from_text(ONE).root.hosts[0]
"""The name of this machine in a meter; the measurements do not depend on it."""


# ---------------------------------------------------------------- the dataflows and their input


def trips(rows: int, rng: np.random.Generator) -> pa.Table:
    """Return taxi trips in the order of their ends, over two hours, most of them within the grid."""
    end = np.sort(rng.integers(0, 7200, rows))
    spots = rng.normal((-73.98, 40.75), 0.05, (30, 2)).round(6)
    spot: dict[str, np.ndarray] = {}
    for event in ("pickup", "dropoff"):
        where = spots[rng.integers(0, len(spots), rows)]
        spot |= {f"{event}_longitude": where[:, 0], f"{event}_latitude": where[:, 1]}
    money = {name: rng.integers(0, 50, rows) for name in ("fare_amount", "surcharge", "mta_tax", "tip_amount")}
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
    """Return readings of fifty machines over four days; some are not plausible."""
    at = np.arange(rows) * (4 * 86_400) // rows
    machine = np.char.add("m", (np.arange(rows) % 50).astype(str))
    return pa.table({"machine": machine, "ts": _text(at), "temperature": rng.uniform(-60, 150, rows).round(3)})


def numbers(rows: int, rng: np.random.Generator) -> pa.Table:
    """Return rows that are cheap to read."""
    return pa.table({"i": rng.permutation(rows)})


def _text(seconds: np.ndarray) -> np.ndarray:
    return np.char.replace((BEGIN + seconds).astype(str), "T", " ")


def exploded(data: str) -> hw.Dataflow:
    """Build a dataflow that does little but filter and explode."""
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


def write_input(kind: Kind, store: Path, rows: int, *, trickle: int, text: bool) -> None:
    """Write a kind's rows: some to begin with, most in a few files, and a trickle of small ones."""
    store.mkdir()
    table = kind.make(rows + SMALL + trickle * SMALL, np.random.default_rng(1))
    bulk = [SMALL + n * rows // FILES for n in range(FILES + 1)]
    cuts = [0, *bulk, *(bulk[-1] + n * SMALL for n in range(1, trickle + 1))]
    for n, (first, last) in enumerate(itertools.pairwise(cuts)):
        part, file = table.slice(first, last - first), store / f"{n:03d}.{'csv' if text else 'parquet'}"
        if text:
            pc.write_csv(part, file, pc.WriteOptions(include_header=False, quoting_style="none"))
        else:
            pq.write_table(part, file)


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Run:
    """Seconds, and seconds of a core: for the bulk of the rows, and for small batches one after the other."""

    seconds: float
    cpu: float
    trickle_seconds: float
    trickle_cpu: float
    seen: Progress


def run(endpoint: LocalEndpoint, kind: Kind, store: Path, directory: Path, *, measure: bool) -> Run:
    """Start a deployment with some rows, then release most rows at once and the rest in small batches."""
    data = directory / "in"
    place = data / kind.location
    place.mkdir(parents=True)
    first, *files = sorted(store.iterdir())
    os.link(first, place / first.name)
    settings = UnitSettings(trigger="100 milliseconds", measure=measure)
    deployment = LocalRun(kind.plan(str(data)), directory / "run", endpoint, settings)
    deployment.start()
    try:
        with _looked_at(deployment, endpoint) if measure else contextlib.nullcontext():
            deployment.settle()
            bulk = _taken(deployment, place, [files[:FILES]])
            trickle = _taken(deployment, place, [[file] for file in files[FILES:]])
        return Run(*bulk, *trickle, deployment.progress())
    finally:
        deployment.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _taken(deployment: LocalRun, place: Path, batches: list[list[Path]]) -> tuple[float, float]:
    """Release files to a deployment, batch after batch; return the time until they were processed."""
    cpu, begun = cpu_seconds() + time.process_time(), time.monotonic()
    for files in batches:
        for file in files:
            os.link(file, place / file.name)
        deployment.settle()
    return time.monotonic() - begun, cpu_seconds() + time.process_time() - cpu


@contextlib.contextmanager
def _looked_at(deployment: LocalRun, endpoint: LocalEndpoint) -> Iterator[None]:
    stop, meter = threading.Event(), Meter(HOST, endpoint)

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


def look_ms(endpoint: LocalEndpoint) -> float:
    """Measure one poll of a Spark's processes, in milliseconds."""
    meter, took = Meter(HOST, endpoint), []
    for _ in range(20):
        begun = time.perf_counter()
        meter.look()
        took.append((time.perf_counter() - begun) * 1000)
    return common.middle(took, 2)


def compared(
    endpoint: LocalEndpoint, name: str, place: Path, *, rows: int, trickle: int, repeats: int
) -> dict[str, Any]:
    """Run a dataflow with and without measuring, in turn, the one that begins changing."""
    kind, store = KINDS[name], place / name
    write_input(kind, store, rows, trickle=trickle, text=name != "explode")
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for turn in range(-1, repeats):
        for measure in (True, False) if turn % 2 else (False, True):
            one = run(endpoint, kind, store, place / "run", measure=measure)
            if turn >= 0:  # before, the server's code and workers are warmed
                runs[measure].append(one)
            shown = f"{one.seconds:7.2f} s {one.cpu:7.2f} s of cores; small ones {one.trickle_cpu:6.2f} s"
            print(f"  {name:<8} measured {measure!s:<5} {shown}", file=sys.stderr, flush=True)
    shutil.rmtree(store)
    given = {m: [u.rows_out for u in r[-1].seen.units] for m, r in runs.items()}
    if given[True] != given[False]:
        sys.exit(f"{name}: {given[True]} rows measured, {given[False]} rows without")
    found = {f.name: {m: [getattr(x, f.name) for x in r] for m, r in runs.items()}
             for f in fields(Run) if f.name != "seen"}  # fmt: skip
    counted = [o for u in runs[True][-1].seen.units for o in u.operators]
    return {
        "rows": rows,
        **{f"{n}_ratio": round(median(v[True]) / median(v[False]), 4) for n, v in found.items()},
        "rows_per_s": round(rows / median(found["seconds"][True])),
        "rows_per_s_without": round(rows / median(found["seconds"][False])),
        "measured": {n: [round(x, 3) for x in v[True]] for n, v in found.items()},
        "without": {n: [round(x, 3) for x in v[False]] for n, v in found.items()},
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
    rows = options.rows or (50_000 if options.quick else 2_000_000)
    place = Path(tempfile.mkdtemp(prefix="headwater-measuring-"))
    partitions = {"spark.sql.shuffle.partitions": str(facts["machine"]["cores"])}
    endpoint = None
    try:
        endpoint = LocalEndpoint.start(place / "spark", memory_mb=3072, extra_conf=partitions, quick=False)
        names = [options.only] if options.only else list(KINDS)
        found = {
            name: compared(
                endpoint, name, place, rows=rows, trickle=QUICK_TRICKLE if options.quick else TRICKLE,
                repeats=common.repeats_of(options),
            )
            for name in names
        }  # fmt: skip
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
            f"cores of small batches {figures['trickle_cpu_ratio']:.3f}   "
            f"{figures['operators_counted']} of {figures['operators']} operators counted"
        )
    print(f"  a look at the processes of a Spark: {look:.1f} ms")
    common.write_result(options.json, result, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
