"""Count tasks with and without reuse, step by step, and measure the time of merging."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import middle, quantile
from benchmarks.reuse.workloads import TRACES, Trace, shape, trace, workload
from headwater.reuse.commons import Commons

COUNTS = (35, 350, 3_500)


def counted(name: str, kind: Trace) -> dict[str, Any]:
    """Go through a trace; count the running tasks after each step, and check the model's constraints there.

    ``users_of_tasks``: where most dataflows' tasks run, the number of tasks that 1, 2, ... dataflows need.
    """
    graphs = {g.name: g for g in workload(name)}
    shapes = {n: shape(g) for n, g in graphs.items()}
    commons, there, steps = Commons(), set[str](), []
    users: dict[int, int] = {}
    for what, one in trace(name, kind, sorted(graphs)):
        if what == "submit":
            commons.submit(shapes[one])
            there.add(one)
        else:
            commons.remove(one)
            there.discard(one)
        commons.check()
        steps.append((sum(len(graphs[n].tasks) for n in there), len(commons)))
        if steps[-1][0] == max(tasks for tasks, _ in steps):
            users = dict(sorted(Counter(Counter(k for n in there for k in shapes[n].inputs).values()).items()))
    shared = [1 - reuse / default for default, reuse in steps if default]
    return {
        "workload": name,
        "trace": kind,
        "peak_default": max(d for d, _ in steps),
        "peak_reuse": max(r for _, r in steps),
        "mean_default": round(fmean(d for d, _ in steps), 1),
        "mean_reuse": round(fmean(r for _, r in steps), 1),
        "mean_reduction": round(fmean(shared), 4),
        "users_of_tasks": users,
        "left": steps[-1][1],
        "steps": steps,
    }


def plot(logical: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the number of running tasks after each step, with and without reuse: a row a workload, a column a trace."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(one["workload"] for one in logical))
    figure, axes = pyplot.subplots(len(names), len(TRACES), figsize=(4 * len(TRACES), 2.7 * len(names)), squeeze=False)
    for one in logical:
        axis = axes[names.index(one["workload"])][TRACES.index(one["trace"])]
        for place, label in ((0, "default"), (1, "reuse")):
            axis.plot([step[place] for step in one["steps"]], label=label)
        axis.set_title(f"{one['workload']}, {one['trace']}", fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for row in axes:
        row[0].set_ylabel("tasks that run")
    for axis in axes[-1]:
        axis.set_xlabel("step")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def merge_ms(count: int, repeats: int) -> dict[str, float]:
    """Time submitting (with keys) and removing at this number of dataflows: copies of the 35, two of each alike."""
    graphs = workload("opmw35_synth")
    copies = [(graph, copy) for copy in range(-(-count // len(graphs)) + 1) for graph in graphs]
    commons, drawn = Commons(), random.Random(1)
    for graph, copy in copies[:count]:
        commons.submit(shape(graph, name=f"{graph.name}-{copy}", salt=str(copy // 2)))
    merging, unmerging = [], []
    for graph, copy in drawn.choices(copies[count:], k=repeats):
        begun = time.perf_counter()
        one = shape(graph, name=f"{graph.name}-{copy}", salt=str(copy // 2))
        commons.submit(one)
        merged = time.perf_counter()
        commons.remove(one.name)
        merging.append(merged - begun)
        unmerging.append(time.perf_counter() - merged)
    return {
        "merge": middle([t * 1e3 for t in merging], 4),
        "merge_p95": round(quantile(merging, 0.95) * 1e3, 4),
        "unmerge": middle([t * 1e3 for t in unmerging], 4),
        "tasks": len(commons),
    }


def result(*, quick: bool) -> dict[str, Any]:
    """Run both measurements; workloads that are absent are left out."""
    found: list[dict[str, Any]] = []
    for name in ("riot21", "opmw35_synth", "opmw35"):
        for kind in TRACES:
            try:
                found.append(counted(name, kind))
            except FileNotFoundError:
                print(f"{name} is not there", flush=True)
                break
            print({k: v for k, v in found[-1].items() if k != "steps"}, flush=True)
    times = {str(count): merge_ms(count, 50 if quick else 500) for count in COUNTS}
    for count, one in times.items():
        print(f"{count} dataflows: {one}", flush=True)
    return {
        "logical": found,
        "merge_ms": {count: one["merge"] for count, one in times.items()},
        "merging": times,
    }
