"""Move operators between edge and cloud while taxi trips flow; measure the pause in output and lost rows.

StrIoT's taxi query runs on an edge and a cloud zone, each with an agent and a Spark of its own. The operators
that rank the routes are fused with those at the edge, cut off again and put into the cloud, and moved as a
unit of their own, all under a steady feed. Event time runs ``SPEED`` times faster than the clock, so that a
window closes every half second. In the end the sink is compared with one Spark batch run. After it, one plain
Spark query with the same operators is stopped and started again under such a feed. ``--quick`` does each of
these once; it takes some minutes on two cores all the same.

    python -m benchmarks.adaptation --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks import common
from examples.taxi import flow as taxi
from examples.taxi import generate
from headwater.app import deployments
from headwater.app.client import Client
from headwater.app.stores import existing
from headwater.channels.filelog import FileLog
from headwater.continuum.model import Continuum
from headwater.control.records import JournalEntry
from headwater.control.store import StoreReader
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.deployment import Edge
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import Stop
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare

CONTINUUM = Continuum.from_text("""
name: adaptation
layers: [edge, cloud]
zones:
  cloud: {layer: cloud, hosts: {vm: {n_cpu: 1, memory: 2GiB}}}
  kerb: {layer: edge, parent: cloud, locations: [nyc], hosts: {pi: {n_cpu: 1, memory: 2GiB}}}
""")
NAME = "adaptation"
SPEED = 60  # seconds of event time in one of the clock
WINDOW = 30  # seconds of event time
FILE_EVERY = 0.25  # seconds between two files
START = datetime(2013, 1, 1, tzinfo=UTC)
PATIENCE = 300.0
CALM, CALM_QUICK = 5.0, 2.0  # seconds before and after a change that count for its measurements


def planned(place: Path, first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
    """Plan the query; the cloud runs its operators from one of them on."""
    span = f"{WINDOW} seconds"
    dataflow = taxi.taxi(str(place / "in"), None, name=NAME, window=span, slide=span, lateness="1 second")
    layers = dict(marked_layers(dataflow, CONTINUUM))
    at = dataflow.order.index(first_in_cloud)
    layers |= dict.fromkeys(dataflow.order[:at], "edge") | dict.fromkeys(dataflow.order[at:], "cloud")
    return build(dataflow, CONTINUUM, in_layers(dataflow, CONTINUUM, layers, cuts=frozenset(cuts)))


class Feed(threading.Thread):
    """Write trips at a steady rate; event time goes with the clock, ``SPEED`` times as fast."""

    def __init__(self, place: Path, rate: int) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._rate = rate
        self._trips: Iterator[list[str]] = generate.trips(10**9)
        self._over = threading.Event()
        self.begun = 0.0
        self.rows = 0

    def run(self) -> None:
        number, due = 0, time.monotonic()
        self.begun = time.time()
        while not self._over.is_set():
            number += 1
            due += FILE_EVERY
            self._over.wait(max(0.0, due - time.monotonic()))
            self._write(number)

    def _write(self, number: int) -> None:
        upto = round(number * FILE_EVERY * self._rate)
        lines = []
        for n in range(self.rows, upto):
            trip = next(self._trips)
            end = START + timedelta(seconds=n / self._rate * SPEED)
            trip[2], trip[3] = (
                str((end - timedelta(minutes=10)).replace(tzinfo=None)),
                str(end.replace(tzinfo=None)),
            )
            lines.append(",".join(trip))
        draft = self._place / f".{number:08d}"
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(self._place / f"{number:08d}.csv")
        self.rows = upto

    def end(self) -> None:
        """Stop writing."""
        self._over.set()
        self.join()

    def moment(self, event_time: datetime) -> float:
        """Return the time at which the trips up to an event time had been written."""
        return self.begun + (event_time - START).total_seconds() / SPEED


class Trial:
    """A controller and the agents it starts, in a directory."""

    def __init__(self, place: Path, *, catch_up: bool) -> None:
        self.place = place
        self.store = str(place / "store.db")
        command = [
            sys.executable,
            "-m",
            "headwater",
            "up",
            "--listen",
            "none",
            "--store",
            self.store,
            "--home",
            str(place),
            "--quick",
            "--no-share-spark",
        ]
        roots = [str(common.ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(r for r in roots if r)}
        environment["HEADWATER_CATCH_UP"] = str(int(catch_up))
        with (place / "up.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def carry_out(self, version: int) -> list[JournalEntry]:
        """Wait until a version is in force; return the journal of the change."""
        deadline = time.monotonic() + PATIENCE
        with existing(self.store) as store:  # a full status would take a fifth of a core from the units
            while (now := store.deployment(NAME)).observed_version < version:
                if time.monotonic() > deadline:
                    raise SystemExit(f"the change does not come to its end: {now}")
                time.sleep(0.05)
            change = store.changes(NAME)[-1]
            if change.outcome != "done":
                raise SystemExit(f"the change failed: {change}")
            return list(store.journal(change.id))

    def end(self) -> None:
        """End the controller, the agents, their units and Sparks."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        deployments.down(self.place)


@dataclass(frozen=True)
class Output:
    """A changed list in the output: its time, and the end of its window."""

    at: float
    window_end: datetime


def outputs(place: Path) -> tuple[list[Output], pa.Table]:
    """Read the sink: the time of each output, and all rows."""
    (directory,) = (place / "zones" / "cloud" / "deployments" / NAME / "sinks").iterdir()
    log, found, batches = FileLog(directory), [], []
    for entry in range(log.earliest(), log.latest()):
        at = (directory / "log" / f"{entry:012d}").stat().st_mtime
        for batch in log.read(entry, entry + 1):
            batches.append(batch)
            found += [Output(at, t) for t in batch.column("ts").to_pylist()]
    return found, pa.Table.from_batches(batches)


@dataclass(frozen=True)
class Change:
    """A change that was made while trips flowed."""

    kind: str
    begun: float
    ended: float
    journal: Sequence[JournalEntry]


def judge(change: Change, moments: Sequence[float], lags: Sequence[float], calm: float) -> tuple[float, float]:
    """Return the longest time without output around a change, and the time until lag is usual.

    ``moments`` are those of outputs in order, ``lags`` the seconds from a window's last trip to its output. Lag is
    usual as before the change, or as it is later with the new units: windows close later where other units close them.
    """
    reach = range(1, len(moments))
    near = [n for n in reach if moments[n] >= change.begun and moments[n - 1] <= change.ended + calm]
    gap, first = max((moments[n] - moments[n - 1], n) for n in near)
    stopped = moments[first - 1]
    before = sorted(lag for t, lag in zip(moments, lags, strict=True) if stopped - calm <= t <= stopped)
    later = [lag for t, lag in zip(moments, lags, strict=True) if change.ended + calm < t <= change.ended + 2 * calm]
    usual = 1.1 * max(common.quantile(before, 0.95), median(later) if later else 0.0)
    late = [n for n in near if n >= first and lags[n] > usual]
    return gap, (moments[late[-1] + 1 if late else first] - stopped)


def changes(trial: Trial, options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Change]:
    """Make all changes, one after the other."""
    repeats, calm = common.repeats_of(options), calm_of(options)
    apart, together = planned(trial.place, "routes"), planned(trial.place, after_ranking())
    low = planned(trial.place, after_ranking(), ("end_in_range", "routes"))
    high = planned(trial.place, "routes", ("top_routes", after_ranking()))
    trial.carry_out(common.want(apart, trial.store))
    time.sleep(4 * calm)

    def change(kind: str, plan: DeploymentPlan) -> Change:
        proposal = common.proposal(plan, trial.store)
        begun = time.time()
        journal = trial.carry_out(Client(trial.store).apply(proposal))
        made = Change(kind, begun, time.time(), journal)
        time.sleep(2 * calm)
        say(f"{kind}: {told(made)}")
        return made

    for _ in range(repeats):
        yield change("fusion", together)
        yield change("fission", apart)
    change("", low)
    for n in range(repeats):
        yield change("migration", high if n % 2 == 0 else low)


def calm_of(options: argparse.Namespace) -> float:
    """Return the seconds between the periods of two changes."""
    return CALM_QUICK if options.quick else CALM


def after_ranking() -> str:
    """Return the operator that reads the ranked routes."""
    dataflow = taxi.taxi("", None, name=NAME)
    (next_one,) = dataflow.consumers["top_routes"]
    return next_one


def told(change: Change) -> str:
    """Return the duration of the steps from the first stop on."""
    stops = [n for n, e in enumerate(change.journal) if isinstance(e.step, Stop)]
    words = []
    for entry in change.journal[stops[0] if stops else 0 :]:
        if entry.begun and entry.ended:
            words.append(f"{entry.step.kind} {entry.step.node} {entry.ended - entry.begun:.2f}")
    return ", ".join(words)


def state_bytes(change: Change) -> tuple[int, int]:
    """Return the size of the transferred state, and of the part of it that had not been sent before."""
    kept = sent = 0
    for entry in change.journal:
        if said := re.fullmatch(r"(\d+) bytes of state, (\d+) of them sent now", entry.note):
            kept, sent = kept + int(said[1]), sent + int(said[2])
    return kept, sent


class Plain:
    """One plain Spark query with the same operators, from the same files."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._endpoint = LocalEndpoint.start(place / "plain", cores=1, memory_mb=1000)
        self._query: Any = None

    def start(self) -> None:
        """Start the query at its last position."""
        from pyspark.sql import functions as F

        spark = self._endpoint.session()
        trips = spark.readStream.name("trips").schema(taxi.TRIP).csv(str(self._place / "in" / "nyc"))
        journeys = trips.withWatermark("dropoff_datetime", "1 second").selectExpr(
            "dropoff_datetime AS ts", *taxi.cell("start", "pickup"), *taxi.cell("end", "dropoff")
        )
        journeys = journeys.where(taxi.in_range("start")).where(taxi.in_range("end"))
        cells = ("start_row", "start_column", "end_row", "end_column")
        routes = journeys.groupBy(F.window("ts", f"{WINDOW} seconds"), *cells).count()
        best = f"slice(sort_array(collect_list(struct(count, {', '.join(cells)})), false), 1, 10)"
        top = routes.groupBy("window").agg(F.expr(best).alias("top"))
        writer = top.writeStream.format("json").option("path", str(self._place / "plain-out"))
        writer = writer.option("checkpointLocation", str(self._place / "plain-checkpoint"))
        self._query = writer.trigger(processingTime="500 milliseconds").start()

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()

    def moments(self) -> list[float]:
        """Return the times of output."""
        parts = (self._place / "plain-out").glob("part-*.json")
        return sorted({status.st_mtime for part in parts if (status := part.stat()).st_size})

    def end(self) -> None:
        """End its Spark."""
        self._endpoint.stop()


def restarts(place: Path, options: argparse.Namespace) -> list[float]:
    """Stop and start a plain query under a feed of its own; return the time without output around each restart."""
    (place / "in" / "nyc").mkdir(parents=True)
    plain, feed, made = Plain(place), Feed(place / "in" / "nyc", options.rate), []
    repeats, calm = common.repeats_of(options), calm_of(options)
    try:
        feed.start()
        plain.start()
        deadline = time.monotonic() + PATIENCE
        while sum(t > time.time() - calm for t in plain.moments()) < 4:  # it reads all from the beginning
            if time.monotonic() > deadline:
                raise SystemExit("the plain query gives nothing")
            time.sleep(1.0)
        time.sleep(calm)
        for _ in range(repeats):
            begun = time.time()
            plain.stop()
            plain.start()
            time.sleep(2 * calm)
            made.append(begun)
        plain.stop()
        moments = plain.moments()
    finally:
        feed.end()
        plain.end()
    # The pause that contains the restart, or one that begins soon after.
    pauses = [[b - a for a, b in pairwise(moments) if b >= begun and a <= begun + calm] for begun in made]
    return [max(around) for around in pauses if around]


def run(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Run the benchmark; return the result in its shape."""
    (place / "in" / "nyc").mkdir(parents=True)
    feed, trial = Feed(place / "in" / "nyc", options.rate), Trial(place, catch_up=options.way == "catch-up")
    say = (lambda text: print(text, flush=True)) if options.steps else lambda text: None
    try:
        feed.start()
        made = list(changes(trial, options, say))
        feed.end()
        with closing(StoreReader.open(trial.store)):
            trial.carry_out(deployments.stop(NAME, trial.store, how="finish"))
        seen, got = outputs(place)
    finally:
        feed.end()
        trial.end()
    plain = [] if options.no_plain else restarts(place / "plain", options)
    batch = LocalEndpoint.start(place / "batch", cores=2, memory_mb=1500, python_path=(str(common.ROOT),))
    try:
        dataflow = planned(place, "routes").dataflow
        difference = compare(batch_result(batch.session(), dataflow, CONTINUUM)["result"], got)
    finally:
        batch.stop()
    return judged(made, seen, plain, feed, calm_of(options)) | {
        "rate": options.rate,
        "way": options.way,
        "lost": difference.lost,
        "duplicated": difference.duplicated,
        "rows_in": feed.rows,
        "rows_out": got.num_rows,
        "repeats": common.repeats_of(options),
    }


def judged(
    made: Sequence[Change], seen: Sequence[Output], plain: Sequence[float], feed: Feed, calm: float
) -> dict[str, Any]:
    """Measure the effect of each change on the times of output."""
    moments = [o.at for o in seen]
    lags = [o.at - feed.moment(o.window_end) for o in seen]
    found: dict[str, Any] = {}
    for kind in dict.fromkeys(c.kind for c in made):
        pairs = [judge(c, moments, lags, calm) for c in made if c.kind == kind]
        for name, values in (("gap_s", [g for g, _ in pairs]), ("stable_s", [s for _, s in pairs])):
            found.setdefault(kind, {})[name] = {"p50": common.middle(values), "max": round(max(values), 3)}
        sizes = [state_bytes(c) for c in made if c.kind == kind]
        for name, number in (("state_bytes", 0), ("state_bytes_after_the_stop", 1)):
            found[kind][name] = round(common.middle([size[number] for size in sizes]))
        found[kind]["lags"] = through(next(c for c in made if c.kind == kind), moments, lags, calm)
    found["state_bytes"] = max(of["state_bytes"] for of in found.values())
    usual = [b - a for a, b in pairwise(moments) if not any(c.begun < b and a < c.ended + calm for c in made)]
    found["usual_gap_s"] = {"p50": common.middle([g for g in usual if g > 0])}
    found["usual_lag_s"] = {"p50": common.middle(lags)}
    if plain:
        found["plain_restart_s"] = {"p50": common.middle(plain), "max": round(max(plain), 3)}
    return found


def through(change: Change, moments: Sequence[float], lags: Sequence[float], calm: float) -> list[tuple[float, float]]:
    """Return the outputs around a change: seconds since its begin, and the lag of each."""
    near = [n for n, at in enumerate(moments) if change.begun - calm <= at <= change.ended + calm]
    return [(round(moments[n] - change.begun, 3), round(lags[n], 3)) for n in near]


def plot(file: Path, results: Sequence[dict[str, Any]]) -> None:
    """Draw the lag through one migration for each result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    words = {"catch-up": "the new unit catches up first", "stop": "the running unit stops first"}
    figure, axes = pyplot.subplots(figsize=(7.5, 3.2), layout="constrained")
    for result in results:
        series = result["migration"]["lags"]
        axes.plot(*zip(*series, strict=True), marker="o", markersize=3, label=words[result["way"]])
    axes.set_xlabel("seconds since the change was ordered")
    axes.set_ylabel("lag of an output, s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=130)


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=10)
    parser.add_argument("--rate", type=int, default=83, help="trips a second")
    parser.add_argument(
        "--way",
        choices=("catch-up", "stop"),
        default="catch-up",
        help="units that move catch up with the running ones, or start when these have stopped",
    )
    parser.add_argument("--steps", action="store_true", help="show the seconds of each step")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain query out")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the lag through one migration")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="draw the result in this file, too")
    options = parser.parse_args()
    known = common.facts(quick=options.quick)
    place = Path(tempfile.mkdtemp(prefix="headwater-adaptation-"))
    try:
        result = run(options, place)
    finally:
        if options.keep:
            print(f"kept in {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
    print(json.dumps(result, indent=1))
    common.write_result(options.json, result, facts=known)
    if options.plot is not None:
        beside = [json.loads(options.beside.read_text())] if options.beside is not None else []
        plot(options.plot, [result, *beside])
    if result["lost"] or result["duplicated"]:
        sys.exit("rows were lost or doubled")


if __name__ == "__main__":
    main()
