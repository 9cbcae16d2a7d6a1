"""Compare the placement model's queues with a simulation event by event, and find where they mislead.

Placements of the paper's kind of applications are simulated: as the model has it (each operator and stream
with a server of its own, Poisson arrivals, exponential service), and with each of these assumptions dropped.
The time in hosts and queues is compared without the latency of links, which is far larger.

    python -m benchmarks.queues --json FILE
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import common
from headwater.placement import Answer, Application, Problem, solve
from headwater.placement.cost import transfer_time
from headwater.testing import generate
from headwater.testing.queues import QueueResult, QueueWorld, simulate

WORLDS: Mapping[str, QueueWorld] = {
    "as the model": QueueWorld(),
    "hosts and links shared": QueueWorld(shared=True),
    "steady sources": QueueWorld(steady=True),
    "fixed service times": QueueWorld(fixed=True),
    "windows release together": QueueWorld(windows=True),
    "all of these": QueueWorld(shared=True, steady=True, fixed=True, windows=True),
}
STRATEGIES = ("optimal", "aels_rp_la", "aels")


def rows(seeds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Simulate placements of drawn problems under every set of assumptions."""
    for preset in ("phys", "paper"):
        for seed in range(seeds):
            graph = generate.series_parallel(20, seed=seed, sources=2, sinks=4)
            problem = generate.problem(graph, (5, 5, 20), seed=seed, units=preset)
            for strategy in STRATEGIES:
                answer = solve(problem, strategy)
                for name, world in WORLDS.items():
                    seen = simulate(problem, answer.placement, seconds=seconds, seed=seed, world=world)
                    yield {
                        "preset": preset,
                        "seed": seed,
                        "strategy": strategy,
                        "world": name,
                        **_compared(problem, answer, seen),
                        "events": seen.events,
                    }


def _compared(problem: Problem, answer: Answer, seen: QueueResult) -> dict[str, float]:
    """Return AL, its queues and its windows, modelled and simulated, of the operators that events reached in time."""
    application, cost = problem.application, answer.evaluation
    silent = tuple(replace(operator, size=0.0) for operator in application.operators)
    quiet = replace(problem, application=Application(silent, application.streams))
    modelled, latencies, held, waits = [], [], [], []
    for o, paths in enumerate(application.paths):
        if not math.isnan(seen.service[o]):
            modelled.append(paths * cost.service[o])
        if not math.isnan(seen.holding[o]):
            held.append(paths * float(seen.holding[o]))
            waits.append(paths * application.operators[o].window / float(application.rate_in[o]))
    for (u, v), paths in application.paths_over.items():
        if not math.isnan(seen.transfer[u, v]):
            modelled.append(paths * cost.transfer[u, v])
            lower, upper = answer.placement[u], answer.placement[v]
            latencies.append(paths * transfer_time(quiet, (u, v), lower, upper))
    links = math.fsum(latencies)
    return {
        "model_al_s": math.fsum(modelled),
        "seen_al_s": seen.latency,
        "model_queues_s": math.fsum(modelled) - links,
        "seen_queues_s": seen.latency - links,
        "model_window_s": math.fsum(waits),
        "seen_window_s": math.fsum(held),
    }


def summary(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, per preset and world, the simulated figure as a multiple of the model's: median, least, most."""
    told = []
    for preset in dict.fromkeys(r["preset"] for r in found):
        for world in WORLDS:
            group = [r for r in found if (r["preset"], r["world"]) == (preset, world)]
            entry: dict[str, Any] = {"preset": preset, "world": world, "cases": len(group)}
            for what in ("al", "queues", "window"):
                ratios = [
                    r[f"seen_{what}_s"] / r[f"model_{what}_s"]
                    for r in group
                    if r[f"model_{what}_s"] > 0 and r[f"seen_{what}_s"] > 0
                ]
                if ratios:
                    entry[what] = {
                        "p50": statistics.median(ratios),
                        "min": min(ratios),
                        "max": max(ratios),
                    }
            told.append(entry)
    return told


def show(told: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the summary."""
    table = Table("units", "world", "AL seen / model", "queues seen / model", "windows seen / model")
    for row in told:
        cells = [
            f"{of['p50']:.4g} ({of['min']:.4g} to {of['max']:.4g})" if (of := row.get(what)) else ""
            for what in ("al", "queues", "window")
        ]
        table.add_row(row["preset"], row["world"], *cells)
    console.print(table)


def main() -> None:
    """Run the benchmark."""
    options = common.arguments(__doc__.splitlines()[0], repeats=10).parse_args()
    known = common.facts(quick=options.quick)
    found = list(rows(common.repeats_of(options), 2.0 if options.quick else 20.0))
    told = summary(found)
    show(told, Console())
    common.write_result(options.json, {"rows": found, "summary": told}, facts=known)


if __name__ == "__main__":
    main()
