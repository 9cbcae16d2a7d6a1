"""Place the paper's applications on the paper's networks by every strategy; measure time, quality and success.

Networks of Table 3 and one of 1,000,000 hosts, applications of up to 50 operators drawn by Table 4, in two
sets of units. Each placement is checked against all constraints, and compared with the lower bound of all
placements. The index of a network is made once and timed apart.

*Certificates*: graphs of 25 and of 200 operators on networks of 100 to 1,000,000 hosts by ``optimal``, and the same
with one operator that needs more memory than any host has, and with a source whose access to its LAN carries 40 % of
what it sends: proofs, bounds and refusals, with their processor time.

    python -m benchmarks.placement --json FILE --plot docs/placement.png
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import common
from headwater.placement import Application, Problem, Topology, solve
from headwater.placement.cost import evaluate, shortages
from headwater.placement.index import Index
from headwater.placement.problem import Stream
from headwater.placement.solve import choose
from headwater.placement.why import Unplaceable
from headwater.testing import generate

STRATEGIES = ("cloud_only", "tcep", "aels", "aels_rp", "aels_rp_la", "local_search", "optimal")
MILLION = (1000, 1000, 999)
"""Clouds, sites, hosts of a site."""
QUICK = ((10, 10, 10), (100, 100, 100), (10, 500, 500), MILLION)
"""One of each class of networks."""
GRAPHS = common.ROOT.parent / "shared" / "workloads" / "placement_graphs"
MOST = 50
"""Operators."""
RUNS, LONG_MS = 3, 100.0
"""Runs of a strategy on a problem, of which the median counts; no further run starts after these milliseconds."""


def graphs() -> dict[str, tuple[Stream, ...]]:
    """Read the graphs of the paper's authors; if they are absent, draw as many of the same sizes."""
    found = {path.stem: generate.read_graph(path.read_text()) for path in sorted(GRAPHS.glob("*.json"))}
    found = {name: graph for name, graph in found.items() if len({o for e in graph for o in e}) <= MOST}
    if found:
        return found
    sizes = ((6, 1, 1), (9, 1, 2), (10, 2, 2), (11, 1, 2), (15, 1, 1), (25, 3, 4), (25, 7, 9), (50, 4, 12))
    return {
        f"drawn{n}": generate.series_parallel(operators, seed=n, sources=sources, sinks=sinks)
        for n, (operators, sources, sinks) in enumerate(sizes)
    }


def rows(
    sizes: Sequence[tuple[int, int, int]], units: Sequence[str], seeds: int, console: Console
) -> Iterator[dict[str, Any]]:
    """Solve all problems; return a row for each solution or failure."""
    every = graphs()
    for preset in units:
        for size in sizes:
            begun = time.perf_counter()
            for seed in range(seeds):
                topology, index_ms = network(size, seed, preset)
                for name, graph in every.items():
                    application = generate.application(graph, topology, seed=1000 + seed, units=preset)
                    case = {
                        "preset": preset,
                        "network": "x".join(map(str, size)),
                        "graph": name,
                        "seed": seed,
                    }
                    yield from _solved(Problem(topology, application), case, index_ms)
            hosts = size[1] * size[2] + size[0]
            console.print(f"{preset}, {hosts:,} hosts: {time.perf_counter() - begun:.0f} s")


def network(size: tuple[int, int, int], seed: int, units: str) -> tuple[Topology, float]:
    """Draw a network and make its index; return the milliseconds of the latter."""
    clouds, sites, devices = size
    topology = generate.network(sites, devices, clouds, seed=seed, units=units)
    begun = time.perf_counter()
    Index.of(topology)
    assert len(topology.by_cpu) == 2
    return topology, (time.perf_counter() - begun) * 1e3


def _solved(problem: Problem, case: Mapping[str, Any], index_ms: float) -> Iterator[dict[str, Any]]:
    _derive(problem.application)
    bound = None
    for strategy in reversed(STRATEGIES):
        row = {
            "strategy": strategy,
            **case,
            "hosts": len(problem.hosts),
            "operators": len(problem.application),
            "index_ms": round(index_ms, 3),
        }
        found = None
        times: list[float] = []
        while len(times) < RUNS and sum(times) < LONG_MS:
            # Values derived once for a problem do not count in a strategy's time, nor does garbage collection.
            fresh = Problem(problem.topology, problem.application)
            gc.disable()
            begun = time.perf_counter()
            try:
                found = choose(fresh, strategy)
            except Unplaceable as error:
                row["why"] = str(error)
            times.append((time.perf_counter() - begun) * 1e3)
            gc.enable()
        row["solve_ms"] = common.middle(times, 4)
        if found is None:
            yield row | {"failed": True}
            continue
        if shortages(problem, found.placement):
            raise SystemExit(f"{strategy} gave a placement that does not hold: {row}")
        bound = found.bound if found.bound is not None else bound
        cost = evaluate(problem, found.placement)
        yield row | {
            "al_s": cost.total,
            "al_without_window_s": cost.latency,
            "bound_s": bound,
            "failed": False,
        }


CERTIFIED = ((10, 10, 9), (10, 10, 100), (100, 100, 100), (1000, 100, 990), MILLION)
"""100 to 1,000,000 hosts."""
OPERATORS = (25, 200)
_CLOSE = 0.05
_SHARE = 0.4
"""Of what a source sends: the bandwidth of a narrow access."""


def certificates(units: Sequence[str], seeds: int) -> Iterator[dict[str, Any]]:
    """Solve drawn graphs to optimality, feasible and not; return the distance to the bound, or the named constraint."""
    for preset in units:
        for size in CERTIFIED:
            topology, _ = network(size, 0, preset)
            for seed in range(seeds):
                for operators in OPERATORS:
                    graph = generate.series_parallel(operators, seed=seed, sources=3, sinks=5)
                    application = generate.application(graph, topology, seed=2000 + seed, units=preset)
                    for lacks in ("", "memory", "bandwidth"):
                        problem = Problem(topology, _too_large(application) if lacks == "memory" else application)
                        problem = _narrow(problem) if lacks == "bandwidth" else problem
                        begun = time.process_time()
                        gap: float | None = None
                        refused = ""
                        try:
                            gap = solve(problem, "optimal").gap
                        except Unplaceable as error:
                            refused = error.shortages[0].constraint if error.shortages else "route"
                        yield {
                            "preset": preset,
                            "hosts": len(topology.hosts),
                            "operators": operators,
                            "seed": seed,
                            "lacks": lacks,
                            "gap": gap,
                            "refused": refused,
                            "processor_ms": (time.process_time() - begun) * 1e3,
                        }


def _too_large(application: Application) -> Application:
    """Return the application with one operator that no host has the memory for."""
    at = application.free[len(application.free) // 2]
    operators = list(application.operators)
    operators[at] = replace(operators[at], memory=1e15)
    return Application(tuple(operators), application.streams)


def _narrow(problem: Problem) -> Problem:
    """Return the problem with a source's access that carries less than half of what the source sends.

    It has a placement only where the source's host can run an operator that reduces this.
    """
    application, hosts = problem.application, problem.hosts
    source = application.sources[0]
    at = application.operators[source].host
    sent = sum(application.flow((u, v), 0).bandwidth for u, v in application.streams if u == source)
    narrow = np.where(np.arange(len(hosts)) == at, _SHARE * sent, hosts.lan_bandwidth)
    topology = replace(problem.topology, hosts=replace(hosts, lan_bandwidth=narrow))
    return replace(problem, topology=topology)


def certified(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Count proofs, bounds within 5 %, and refusals that name what lacks, by preset, operators and hosts."""
    told = []
    for key in dict.fromkeys((r["preset"], r["operators"], r["hosts"]) for r in found):
        own = [r for r in found if (r["preset"], r["operators"], r["hosts"]) == key]
        placed = [r for r in own if not r["lacks"]]
        impossible = [r for r in own if r["lacks"] == "memory"]
        narrow = [r for r in own if r["lacks"] == "bandwidth" and r["gap"] is None]
        told.append(
            {
                "preset": key[0],
                "operators": key[1],
                "hosts": key[2],
                "of": len(placed),
                "certified": sum(r["gap"] is not None and r["gap"] <= 1e-9 for r in placed),
                "within_5_percent": sum(r["gap"] is not None and r["gap"] <= _CLOSE for r in placed),
                "processor_ms": common.middle([r["processor_ms"] for r in placed], 1),
                "refused": sum(r["refused"] == "memory" for r in impossible),
                "processor_ms_refused": common.middle([r["processor_ms"] for r in impossible], 1),
                "narrow": len(narrow),
                "narrow_refused": sum(r["refused"] == "bandwidth" for r in narrow),
                "processor_ms_narrow": common.middle([r["processor_ms"] for r in narrow], 1) if narrow else None,
                "processor_ms_narrow_worst": round(max(r["processor_ms"] for r in narrow), 1) if narrow else None,
            }
        )
    return told


def show_certified(told: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the counts of ``certified``."""
    heads = (
        "units",
        "operators",
        "hosts",
        "certified",
        "within 5 %",
        "cpu ms",
        "no memory",
        "cpu ms",
        "narrow",
        "cpu ms",
    )
    table = Table(*heads, title="optimal: proofs, and refusals of infeasible problems")
    for row in told:
        of = row["of"]
        table.add_row(
            row["preset"],
            str(row["operators"]),
            f"{row['hosts']:,}",
            f"{row['certified']}/{of}",
            f"{row['within_5_percent']}/{of}",
            f"{row['processor_ms']:.0f}",
            f"{row['refused']}/{of}",
            f"{row['processor_ms_refused']:.0f}",
            f"{row['narrow_refused']}/{row['narrow']}",
            f"{row['processor_ms_narrow']:.0f}" if row["narrow"] else "",
        )
    console.print(table)


def _derive(application: Application) -> None:
    assert application.order and application.waiting >= 0 and application.paths and application.paths_over
    assert len(application.work) == len(application.room) == len(application)
    assert application.sources and application.sinks and application.free and application.streams


def summary(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, per preset and class of network, each strategy's time, AL, distance to the bound and failures."""
    told = []
    for preset in dict.fromkeys(r["preset"] for r in found):
        for label, most, least in CLASSES:
            group = [r for r in found if r["preset"] == preset and least <= r["hosts"] <= most]
            if not group:
                continue
            by_case = {(r["strategy"], *_case(r)): r for r in group if not r["failed"]}
            for strategy in STRATEGIES:
                own = [r for r in group if r["strategy"] == strategy]
                done = [r for r in own if not r["failed"]]
                if not done:
                    continue
                fifty = [r["solve_ms"] for r in own if r["operators"] == MOST]
                told.append(
                    {
                        "preset": preset,
                        "networks": label,
                        "strategy": strategy,
                        "solve_ms": common.middle([r["solve_ms"] for r in own], 4),
                        "solve_ms_50_operators": common.middle(fifty, 4) if fifty else None,
                        "al_s": statistics.fmean(r["al_without_window_s"] for r in done),
                        "gap": _gap(done),
                        "failed": len(own) - len(done),
                        "of": len(own),
                        **{f"below_{other}": _below(done, by_case, other) for other in COMPARED},
                    }
                )
    return told


CLASSES = (
    ("regular, to 5,500", 9_999, 0),
    ("large, to 50,500", 99_999, 10_000),
    ("extra-large, to 250,500", 999_999, 100_000),
    ("1,000,000", 10**9, 1_000_000),
)
COMPARED = ("cloud_only", "tcep", "aels_rp_la")


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["preset"], row["network"], row["graph"], row["seed"]


def _gap(done: Sequence[Mapping[str, Any]]) -> float | None:
    gaps = [r["al_without_window_s"] / r["bound_s"] - 1 for r in done if r.get("bound_s")]
    return statistics.fmean(gaps) if gaps else None


def _below(
    done: Sequence[Mapping[str, Any]], by_case: Mapping[tuple[Any, ...], Mapping[str, Any]], other: str
) -> dict[str, float] | None:
    """Return how far AL is below another strategy's: of the means over cases, and the mean over cases."""
    pairs = [
        (r["al_without_window_s"], by_case[key]["al_without_window_s"])
        for r in done
        if (key := (other, *_case(r))) in by_case
    ]
    if not pairs:
        return None
    own, its = (sum(values) for values in zip(*pairs, strict=True))
    return {"of_means": 1 - own / its, "mean_of_cases": statistics.fmean(1 - a / b for a, b in pairs)}


def show(told: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the summary, a table for each preset and class of networks."""
    heads = ("strategy", "ms", "50 ops", "AL s", "over bound", "failed", "below cloud", "TCEP", "LA")
    for preset, networks in dict.fromkeys((row["preset"], row["networks"]) for row in told):
        table = Table(*heads, title=f"units '{preset}', hosts: {networks}")
        for row in told:
            if (row["preset"], row["networks"]) != (preset, networks):
                continue
            below = [row[f"below_{other}"] for other in COMPARED]
            table.add_row(
                row["strategy"],
                f"{row['solve_ms']:.2f}",
                "" if row["solve_ms_50_operators"] is None else f"{row['solve_ms_50_operators']:.2f}",
                f"{row['al_s']:.3f}",
                "" if row["gap"] is None else f"{row['gap']:.1%}",
                f"{row['failed']}/{row['of']}",
                *("" if b is None else f"{b['of_means']:.0%} ({b['mean_of_cases']:.0%})" for b in below),
            )
        console.print(table)
    console.print("In brackets: the mean over cases, where the other is of mean AL.")


def plot(found: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw time against hosts, and AL above the bound, per preset."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    presets = list(dict.fromkeys(r["preset"] for r in found))
    figure, axes = pyplot.subplots(2, len(presets), figsize=(6 * len(presets), 8), squeeze=False, sharex=True)
    for column, preset in enumerate(presets):
        for strategy in STRATEGIES:
            own = [r for r in found if (r["preset"], r["strategy"]) == (preset, strategy) and not r["failed"]]
            hosts = sorted({r["hosts"] for r in own})
            times = [statistics.median(r["solve_ms"] for r in own if r["hosts"] == h) for h in hosts]
            gaps = [_gap([r for r in own if r["hosts"] == h]) for h in hosts]
            axes[0][column].plot(hosts, times, marker=".", label=strategy)
            axes[1][column].plot(hosts, [100 * (g or 0.0) for g in gaps], marker=".", label=strategy)
        axes[0][column].set(title=f"units '{preset}'", xscale="log", yscale="log", ylabel="ms to place (median)")
        axes[1][column].set(xlabel="hosts", ylabel="AL over the bound, % (mean)")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=10)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the result")
    parser.add_argument("--presets", default="phys,paper", help="units to draw with (default phys,paper)")
    options = parser.parse_args()
    known, console = common.facts(quick=options.quick), Console()
    sizes = QUICK if options.quick else (*generate.TABLE_3, MILLION)
    _warm_up()
    found = list(rows(sizes, options.presets.split(","), common.repeats_of(options), console))
    told = summary(found)
    show(told, console)
    proofs = list(certificates(options.presets.split(","), 1 if options.quick else 5))
    show_certified(certified(proofs), console)
    result = {"rows": found, "summary": told, "certificates": proofs, "certified": certified(proofs)}
    common.write_result(options.json, result, facts=known)
    if options.plot is not None:
        plot(found, options.plot)


def _warm_up() -> None:
    """Compile loops before the measurements."""
    problem = generate.problem(generate.series_parallel(10, seed=0), (10, 100, 300), seed=0)
    for strategy in STRATEGIES:
        solve(problem, strategy)


if __name__ == "__main__":
    main()
