"""Attribute the processor time, memory and wall time of a run to its kinds of work.

One pipeline (that of ``benchmarks.overhead``) runs as plain Spark, as one unit, as three units with filelogs,
and as three zones with an agent and a Spark each below a controller; a filter and projections run as plain Spark
and as one unit, without Python workers for operators. The sums come from /proc: of processes by role, and
of a JVM's threads by their names. What the threads and processes do is split by stacks: sampled
by Java's flight recorder (it needs the JDK), and in Python by ``sampler``. Results are checked.

    python -m benchmarks.cost [--quick] [--json FILE] [--only NAME] [--graphs DIRECTORY]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import common, overhead
from benchmarks.cost import processes, runs, stacks
from benchmarks.cost.flame import flame_graph
from benchmarks.cost.processes import WORKER, ZYGOTE
from benchmarks.cost.runs import Measured
from benchmarks.cost.stacks import Stack
from headwater.spark.endpoint import LocalEndpoint

ZONES = "zones"
_SAMPLED = {"tasks": "Executor task", "stream threads": "stream execution thread"}
"""Thread groups of a JVM that are split by stacks, and the beginnings of their threads' full names."""
_OUTER = ("pyspark/daemon.py:worker", "Executor$TaskRunner.run", "StreamExecution.runStream")
"""Frames that all stacks of their threads share; flame graphs begin behind them."""


def attributed(run: Measured) -> Counter[str]:
    """Split a run's processor seconds by kind of work; they sum up to the total of its processes."""
    kinds: Counter[str] = Counter()
    for pid, groups in run.spent.threads.items():
        for group, seconds in groups.items():
            samples = _of_group(run.java.get(pid, ()), group)
            if not samples:
                kinds[f"Spark: {group}"] += seconds  # type: ignore[assignment]  # seconds
            for one in stacks.scaled(samples, seconds):
                kinds[stacks.kind_of_java(one.frames)] += one.weight  # type: ignore[assignment]
    for role, seconds in run.spent.roles.items():
        if role == processes.JVM:
            continue
        samples = python_samples(run, role)
        if not samples:
            kinds[role] += seconds  # type: ignore[assignment]
        for one in stacks.scaled(samples, seconds):
            kind = stacks.kind_of_python(one.frames)
            own = role == WORKER or kind == stacks.RELAY
            kinds[kind if own else role] += one.weight  # type: ignore[assignment]
    return kinds


def _of_group(samples: Sequence[Stack], group: str) -> list[Stack]:
    begin = _SAMPLED.get(group)
    return [s for s in samples if s.thread.startswith(begin)] if begin else []


def python_samples(run: Measured, role: str, jvm: int | None = None) -> list[Stack]:
    """Return the samples of Python processes with a role, perhaps only of one JVM's workers."""
    found: list[Stack] = []
    for one in run.python:
        mine = WORKER if one.fork and processes.role_of(one.command) == ZYGOTE else processes.role_of(one.command)
        if mine == role and (jvm is None or one.command.split()[-1] == str(jvm)):
            found += one.stacks
    return found


def graph(run: Measured, jvm: int) -> Counter[tuple[str, ...]]:
    """Return the stacks of a JVM's sampled threads and of its Python workers, scaled to processor seconds."""
    found: Counter[tuple[str, ...]] = Counter()
    for group, seconds in run.spent.threads[jvm].items():
        samples = stacks.scaled(_of_group(run.java.get(jvm, ()), group), seconds)
        if not samples and seconds > 0:
            found["Spark", group] += seconds  # type: ignore[assignment]
        for frames, weight in stacks.folded(samples).items():
            found["Spark", group, *_inner(frames)] += weight
    workers = python_samples(run, WORKER, jvm)
    everyone = sum(s.weight for s in python_samples(run, WORKER))
    share = run.spent.roles[WORKER] * sum(s.weight for s in workers) / everyone if everyone else 0.0
    for frames, weight in stacks.folded(stacks.scaled(workers, share)).items():
        found["Python workers", *_inner(frames)] += weight
    return found


def _inner(frames: tuple[str, ...]) -> tuple[str, ...]:
    last = max((n for n, f in enumerate(frames) if f.endswith(_OUTER)), default=-1)
    return frames[last + 1 :]


def report(name: str, run: Measured, rows: int) -> dict[str, Any]:
    """Return the figures of a run."""
    total = run.spent.total
    kinds = attributed(run)
    return {
        "rows": rows,
        "cpu_s": round(total, 2),
        "cpu_us_per_row": round(total / rows * 1e6, 3),
        "wall_s": round(run.seconds, 2),
        "cpu_s_by_kind": {kind: round(s, 2) for kind, s in kinds.most_common()},
        "share_by_kind": {kind: round(s / total, 4) for kind, s in kinds.most_common()},
        "cpu_s_by_role": {role: round(s, 2) for role, s in run.spent.roles.most_common()},
        "pss_mb_by_role": run.spent.pss_mb,
        "phases_s": run.batches,
    }


def on_one_spark(
    place: Path, samples: Path, names: Sequence[str], rows: int, repeats: int
) -> dict[str, list[Measured]]:
    """Run variants in turn on one warmed Spark."""
    found: dict[str, list[Measured]] = {name: [] for name in names}
    partitions = {"spark.sql.shuffle.partitions": str(common.machine()["cores"])}
    endpoint = LocalEndpoint.start(place / "spark", memory_mb=3072, extra_conf=partitions, quick=False)
    try:
        few = min(rows, 200_000)
        for count in dict.fromkeys((few, rows)):
            overhead.write_rows(place / f"rows-{count}", count)
        for turn in range(-1, repeats):
            for name in names:
                count = few if turn < 0 else rows
                directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))

                def run(name: str = name, count: int = count, directory: Path = directory) -> dict[str, Any]:
                    return runs.ON_ONE_SPARK[name](endpoint, place / f"rows-{count}", directory)

                if turn < 0:  # warms the server's code and workers
                    run()
                else:
                    found[name].append(runs.measured(os.getpid(), {endpoint.pid: ""}, samples, run))
                runs.check(name, directory, count)
                shutil.rmtree(directory)
                taken = "warms up" if turn < 0 else f"{found[name][-1].spent.total:.2f} processor seconds"
                print(f"  {name:<14} {count:>11,} rows, {taken}, result right", file=sys.stderr, flush=True)
    finally:
        endpoint.stop()
    return found


def main() -> int:
    """Measure, print a table, write the JSON and the graphs."""
    parser = common.arguments("Processor time, memory and wall time of a run by kind of work", repeats=3)
    every = [*runs.ON_ONE_SPARK, ZONES]
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="some of the runs")
    parser.add_argument("--rows", type=int, metavar="N", help="other number of rows")
    parser.add_argument("--graphs", type=Path, metavar="DIRECTORY", help="write a flame graph of each unit's Spark")
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    rows = options.rows or (400_000 if options.quick else 5_000_000)
    place = Path(tempfile.mkdtemp(prefix="headwater-cost-"))
    samples = place / "samples"
    samples.mkdir()
    os.environ[runs.SAMPLES] = str(samples)
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(runs.SAMPLER), os.environ.get("PYTHONPATH", "")) if p)
    found: dict[str, Any] = {}
    try:
        shared = [name for name in options.only if name != ZONES]
        measured = on_one_spark(place, samples, shared, rows, common.repeats_of(options)) if shared else {}
        if ZONES in options.only:
            measured[ZONES] = [runs.zones(place, samples, rows)]
            print(f"  {ZONES:<14} {rows:>11,} rows, result right", file=sys.stderr, flush=True)
        for name, mine in measured.items():
            # The run of the median: its parts sum up to its whole.
            middle = sorted(mine, key=lambda r: r.spent.total)[(len(mine) - 1) // 2]
            found[name] = {**report(name, middle, rows), "all_cpu_s": [round(r.spent.total, 2) for r in mine]}
            if options.graphs is not None:
                options.graphs.mkdir(parents=True, exist_ok=True)
                for jvm, zone in middle.names.items():
                    label = f"{name}-{zone}" if zone else name
                    flame_graph(options.graphs / f"{label}.svg", label, graph(middle, jvm))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    _show(found)
    for one, other in (("one_unit", "plain"), ("three_units", "plain"), ("one_unit_sql", "plain_sql")):
        if one in found and other in found:
            found[one]["cpu_of_plain"] = round(found[other]["cpu_s"] / found[one]["cpu_s"], 3)
            print(f"{other} / {one}: {found[one]['cpu_of_plain']:.2f} of the processor time")
    common.write_result(options.json, {"repeats": common.repeats_of(options), "runs": found}, facts=facts)
    return 0


def _show(found: dict[str, Any]) -> None:
    kinds = Counter[str]()
    for figures in found.values():
        kinds.update(figures["cpu_s_by_kind"])
    wide = max((len(k) for k in kinds), default=0)
    print(f"{'processor seconds':<{wide}}" + "".join(f"{name:>14}" for name in found))
    for kind, _ in kinds.most_common():
        cells = (figures["cpu_s_by_kind"].get(kind, 0.0) for figures in found.values())
        print(f"{kind:<{wide}}" + "".join(f"{cell:>14.2f}" for cell in cells))
    for label, key in (("total", "cpu_s"), ("wall", "wall_s")):
        print(f"{label:<{wide}}" + "".join(f"{figures[key]:>14.2f}" for figures in found.values()))
    memory = (sum(figures["pss_mb_by_role"].values()) for figures in found.values())
    print(f"{'PSS MB':<{wide}}" + "".join(f"{mb:>14.0f}" for mb in memory))


if __name__ == "__main__":
    sys.exit(main())
