"""TSOO's experiment: two applications share fog nodes and a cloud while their rates go up and down.

App-1 (9 operators) and App-2 (11) over 10 fog nodes, 11 numbers of devices in a random order, 15 times, all
drawn anew on several networks; App-1 is decided first, App-2 on what it has left. Tmax 1 s, Bmax 125 MB/s
for each, windows of 0.5 s. ``vm``: the cloud is as strong as a fog node; ``aws``: 35,900 MIPS.

*On forecasts*: the rates of each step are predicted by the last ones, and follow drawn courses, on the same
networks and on drawn ones of three layers; limits of those are drawn too.

    python -m benchmarks.scheduling --json FILE --plot FILE.png
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import common
from headwater.placement import Problem
from headwater.placement.cutnumbers import CutLoad
from headwater.placement.cuts import branches
from headwater.placement.exact import tsoo_exact
from headwater.placement.forecast import last_value
from headwater.placement.replay import Score, Shared, Step, replay
from headwater.placement.robust import tsoo_margin
from headwater.placement.schedule import SCHEDULERS, Schedule, decide, tables
from headwater.placement.situation import Limits, Situation
from headwater.testing import fog
from headwater.testing.fog import APP_1, APP_2, DEVICES, Cloud, Course, Split

APPS = (APP_1, APP_2)
MB = 8e6  # bits
LIMITS = Limits(max_latency=1.0, max_bandwidth=125 * MB, min_bandwidth=50 * MB, links=False)
NETWORKS = 3
COMPARED = tuple(name for name in SCHEDULERS if name != "tsoo_robust")
"""On known rates ``tsoo_robust`` is ``tsoo_exact``."""
SETTINGS: Mapping[str, tuple[Cloud, float, Split]] = {
    "vm": ("vm", 0.5, "spacing"),
    "aws": ("aws", 0.5, "spacing"),
    "vm, windows of 0.75 s": ("vm", 0.75, "spacing"),
    "vm, areas alike": ("vm", 0.5, "norm"),
}


def applications(seed: int, cloud: Cloud, span: float) -> list[Shared]:
    """Draw a network and both applications on it; rates come with the steps."""
    topology = fog.fog(seed=seed, cloud=cloud)
    found = []
    for number, app in enumerate(APPS):
        drawn = fog.application(app, [1.0] * 10, seed=seed + 10 + number, span=span)
        found.append(Shared(app.name, tables(Problem(topology, drawn)), LIMITS))
    return found


def steps(shared: Sequence[Shared], seed: int, repeats: int, split: Split) -> list[tuple[int, Step]]:
    """Draw the numbers of devices: for each step its level, and the rates."""
    drawn, found = np.random.default_rng(seed), []
    for repeat in range(repeats):
        for level in drawn.permutation(len(DEVICES)).tolist():
            counts = fog.devices(DEVICES[level], seed=1000 * seed + 100 * repeat + level, split=split)
            rates = {
                one.name: dict(
                    zip(one.tables[0].problem.application.sources, (counts * app.share).tolist(), strict=True)
                )
                for one, app in zip(shared, APPS, strict=True)
            }
            found.append((level, Step(rates)))
    return found


RATIOS = {"fog_ratio": "fog memory in use", "bandwidth_ratio": "bandwidth into the cloud in use"}
"""Figures 12a and 12b, of both applications together."""


def warm_up() -> None:
    """Compile the compiled functions, so that compilation is not a part of decisions."""
    for app in APPS:
        problem = fog.problem(app, DEVICES[5], seed=1, cloud="vm")
        for name in SCHEDULERS:
            decide(problem, name, LIMITS, compiled=True)


def rows(repeats: int, networks: int, settings: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run everything; return every decision."""
    for setting in settings:
        cloud, span, split = SETTINGS[setting]
        for network in range(networks):
            shared = applications(network, cloud, span)
            given = steps(shared, network, repeats, split)
            for name in COMPARED:
                scores = replay(shared, [step for _, step in given], name, compiled=True)
                for score in scores:
                    level, step = given[score.step]
                    yield {
                        "scheduler": name,
                        "setting": setting,
                        "network": network,
                        "level": f"M{level + 1}",
                        "app": score.application,
                        **_told(score),
                        **_ratios(shared, step, score),
                    }


def _ratios(shared: Sequence[Shared], step: Step, score: Score) -> dict[str, float]:
    """Return the shares of all fog memory and of all links into the cloud that a decision takes (fig. 12a, 12b)."""
    tables = next(one.tables for one in shared if one.name == score.application)
    table = next(t for t in tables if t.selection(score.placement) is not None)
    idle = CutLoad.idle(table.problem, step.rates[score.application])
    topology = table.problem.topology
    fog = ~topology.cloud[topology.hosts.zone]
    taken = table.taken(idle, score.placement).memory - idle.memory
    width = table.network.bandwidth
    return {
        "fog_ratio": float(taken[fog].sum() / topology.hosts.memory[fog].sum()),
        "bandwidth_ratio": score.bandwidth / float(width[np.isfinite(width)].sum()),
    }


def _told(score: Score) -> dict[str, Any]:
    return {
        "step": score.step,
        "success": score.kept,
        "ru": score.cost,
        "t_violation": score.late,
        "b_violation": score.wide,
        "crowded": score.crowded,
        "changed": score.changed,
        "decision_ms": score.seconds * 1e3,
    }


FORECASTING: Mapping[str, Schedule] = {
    **{name: SCHEDULERS[name] for name in ("tsoo_robust", "tsoo_exact", "atsoo_h")},
    "tsoo_exact, limits × 0.8": tsoo_margin,
}
COURSES: tuple[Course, ...] = ("walk", "day", "burst")
LEVELS = (26_000, 33_000, 40_000, 47_000)
KNOWN = "tsoo_exact, rates known"


def two_layers(course: Course, seed: int, count: int) -> tuple[list[Shared], list[Step]]:
    """Draw a network of fog nodes, both applications, and their rates over time."""
    shared = applications(seed, "vm" if seed % 2 else "aws", 0.5)
    total = LEVELS[seed % len(LEVELS)]
    rates = fog.devices(total, seed=seed, split="norm") * fog.course(course, count, 10, seed=1000 + seed)
    found = []
    for row in rates:
        by_app = {
            one.name: dict(zip(one.tables[0].problem.application.sources, (row * app.share).tolist(), strict=True))
            for one, app in zip(shared, APPS, strict=True)
        }
        found.append(Step(by_app))
    return shared, found


def three_layers(course: Course, seed: int, count: int) -> tuple[list[Shared], list[Step]]:
    """Draw a network of three layers, its limits, and rates over time."""
    problem = fog.three_layers(seed, most_memory=4e6 if seed % 2 else 2e6, locations=4)
    application, among = problem.application, tables(problem)
    situation = Situation(among[0], CutLoad.of(problem), Limits(), compiled=True)
    most, least = (situation.measure(s).bandwidth for s in (situation.all_up, situation.all_down))
    drawn = np.random.default_rng(2000 + seed)
    limits = Limits(
        max_latency=float(drawn.uniform(0.45, 1.2)),
        max_bandwidth=float(least + (most - least) * drawn.uniform(0.6, 1.2)),
    )
    usual = np.array([application.operators[s].rate for s in application.sources])
    rates = usual * fog.course(course, count, len(usual), seed=3000 + seed)
    steps = [Step({"drawn": dict(zip(application.sources, row.tolist(), strict=True))}) for row in rates]
    return [Shared("drawn", among, limits)], steps


def forecasting(seeds: Sequence[int], count: int) -> list[dict[str, Any]]:
    """Replay drawn courses on forecast rates: for each scheduler how often limits are kept, and at which cost.

    The first step of a course, whose rates are known, does not count.
    """
    told = []
    for make in (two_layers, three_layers):
        for course in COURSES:
            found: dict[str, list[Score]] = {}
            for seed in seeds:
                shared, steps = make(course, seed, count)
                for name, schedule in FORECASTING.items():
                    scores = replay(shared, steps, schedule, expect=last_value, compiled=True)
                    found.setdefault(name, []).extend(s for s in scores if s.step)
                known = replay(shared, steps, tsoo_exact, compiled=True)
                found.setdefault(KNOWN, []).extend(s for s in known if s.step)
            for name, own in found.items():
                both = [(a, b) for a, b in zip(own, found["atsoo_h"], strict=True) if a.kept and b.kept]
                times = [s.seconds * 1e3 for s in own]
                told.append(
                    {
                        "layers": "two" if make is two_layers else "three",
                        "course": course,
                        "scheduler": name,
                        "decisions": len(own),
                        "kept": statistics.fmean(s.kept for s in own),
                        "ru": statistics.fmean(s.cost for s in own),
                        "ru_to_atsoo": sum(a.cost for a, _ in both) / max(1e-12, sum(b.cost for _, b in both)),
                        "changed": statistics.fmean(s.changed for s in own),
                        "decision_ms": statistics.median(times),
                        "decision_ms_p99": common.quantile(times, 0.99),
                    }
                )
    return told


def show_forecasting(told: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the results on forecasts."""
    table = Table("layers", "course", "scheduler", "kept", "RU", "RU/aTSOO-H", "changed", "ms", "p99")
    for row in told:
        table.add_row(
            row["layers"],
            row["course"],
            row["scheduler"],
            f"{row['kept']:.1%}",
            f"{row['ru']:.4f}",
            *(f"{row[what]:.2f}" for what in ("ru_to_atsoo", "changed", "decision_ms", "decision_ms_p99")),
        )
    console.print(table)


def by_level(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return means over the repetitions and networks."""
    groups: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["scheduler"], row["setting"], row["app"], row["level"]), []).append(row)
    told = []
    for (scheduler, setting, app, level), group in groups.items():
        entry: dict[str, Any] = {"scheduler": scheduler, "setting": setting, "app": app, "level": level}
        for what in ("success", "ru", "t_violation", "b_violation", "changed", "decision_ms", *RATIOS):
            entry[what] = statistics.fmean(float(row[what]) for row in group)
        entry["decision_ms_p99"] = common.quantile([row["decision_ms"] for row in group], 0.99)
        told.append(entry)
    return told


def overall(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each scheduler's figures over all levels, and RU beside aTSOO-H's where both succeed."""
    told = []
    for setting in dict.fromkeys(r["setting"] for r in found):
        own = [r for r in found if r["setting"] == setting]
        reference = {_case(r): r for r in own if r["scheduler"] == "atsoo_h"}
        for scheduler in COMPARED:
            group = [r for r in own if r["scheduler"] == scheduler]
            both = [(r, reference[_case(r)]) for r in group if r["success"] and reference[_case(r)]["success"]]
            times = [r["decision_ms"] for r in group]
            told.append(
                {
                    "setting": setting,
                    "scheduler": scheduler,
                    "success": statistics.fmean(r["success"] for r in group),
                    "t_violation": statistics.fmean(r["t_violation"] for r in group),
                    "b_violation": statistics.fmean(r["b_violation"] for r in group),
                    "changed": statistics.fmean(r["changed"] for r in group if r["step"]),
                    "ru_to_atsoo": sum(a["ru"] for a, _ in both) / max(1e-12, sum(b["ru"] for _, b in both)),
                    "decision_ms": statistics.median(times),
                    "decision_ms_p99": common.quantile(times, 0.99),
                    "decisions": len(group),
                }
            )
    return told


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["setting"], row["network"], row["step"], row["app"]


def against_all(problems: int) -> dict[str, int]:
    """Compare the exact scheduler with every selection, on networks small enough for that."""
    missed = dearer = feasible = 0
    for seed in range(problems):
        app, total = APPS[seed % 2], DEVICES[seed % len(DEVICES)]
        counts = fog.devices(total * 3 // 10, seed=seed, areas=3)
        topology = fog.fog(seed=seed, nodes=3, cloud="vm")
        problem = Problem(topology, fog.application(app, counts, seed=seed + 2))
        (table,) = tables(problem)
        situation = Situation(table, CutLoad.of(problem), LIMITS, compiled=True)
        found = tsoo_exact(situation)
        least = np.inf
        for choices in np.ndindex(*(len(b.choices) for b in branches(problem))):
            measured = situation.measure(np.array(choices, dtype=np.int64))
            if situation.keeps(measured):
                least = min(least, measured.cost)
        feasible += least < np.inf
        missed += least < np.inf and not found.kept
        dearer += bool(found.kept and found.measured.cost > least * (1 + 1e-9))
    return {"problems": problems, "feasible": feasible, "missed": missed, "dearer": dearer}


def show(told: Sequence[Mapping[str, Any]], levels: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the summary."""
    table = Table("setting", "scheduler", "success", "late", "wide", "changed", "RU/aTSOO-H", "ms", "p99")
    for row in told:
        table.add_row(
            row["setting"],
            row["scheduler"],
            *(f"{row[what]:.1%}" for what in ("success", "t_violation", "b_violation")),
            f"{row['changed']:.2f}",
            f"{row['ru_to_atsoo']:.3f}",
            f"{row['decision_ms']:.2f}",
            f"{row['decision_ms_p99']:.2f}",
        )
    console.print(table)
    names = [f"M{n + 1}" for n in range(len(DEVICES))]
    table = Table("setting", "scheduler", *names, title="success by level, %")
    for setting in dict.fromkeys(r["setting"] for r in levels):
        for scheduler in COMPARED:
            cells = [100 * value for value in success(levels, setting, scheduler)]
            table.add_row(setting, scheduler, *(f"{cell:.0f}" for cell in cells))
    console.print(table)
    for what, title in RATIOS.items():
        table = Table("setting", "scheduler", *names, title=f"{title}, %")
        for setting in dict.fromkeys(r["setting"] for r in levels):
            for scheduler in COMPARED:
                cells = [100 * value for value in of_both(levels, setting, scheduler, what)]
                table.add_row(setting, scheduler, *(f"{cell:.1f}" for cell in cells))
        console.print(table)


def of_both(levels: Sequence[Mapping[str, Any]], setting: str, scheduler: str, what: str) -> list[float]:
    """Return the sum of both applications' means at each level."""
    own = [r for r in levels if (r["setting"], r["scheduler"]) == (setting, scheduler)]
    return [
        sum(r[what] for r in own if r["level"] == level)
        for level in sorted({r["level"] for r in own}, key=lambda name: int(name[1:]))
    ]


def success(levels: Sequence[Mapping[str, Any]], setting: str, scheduler: str) -> list[float]:
    """Return the success of both applications together at each level."""
    own = [r for r in levels if (r["setting"], r["scheduler"]) == (setting, scheduler)]
    return [
        statistics.fmean(r["success"] for r in own if r["level"] == level)
        for level in sorted({r["level"] for r in own}, key=lambda name: int(name[1:]))
    ]


def plot(levels: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw success, operators changed, and the usage of fog and bandwidth by level."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = [s for s in ("vm", "aws") if any(r["setting"] == s for r in levels)]
    figure, axes = pyplot.subplots(4, len(settings), figsize=(5.5 * len(settings), 13), squeeze=False)
    for column, setting in enumerate(settings):
        for scheduler in COMPARED:
            own = [r for r in levels if (r["setting"], r["scheduler"]) == (setting, scheduler)]
            names = sorted({r["level"] for r in own}, key=lambda name: int(name[1:]))
            changed = [statistics.fmean(r["changed"] for r in own if r["level"] == name) for name in names]
            percent = [100 * value for value in success(levels, setting, scheduler)]
            axes[0][column].plot(names, percent, marker="o", label=scheduler)
            axes[1][column].plot(names, changed, marker="o", label=scheduler)
            for row, what in enumerate(RATIOS, start=2):
                shares = [100 * value for value in of_both(levels, setting, scheduler, what)]
                axes[row][column].plot(names, shares, marker="o", label=scheduler)
        axes[0][column].set(title=f"setting {setting}", ylabel="success, %", ylim=(0, 103))
        axes[1][column].set(ylabel="operators changed per decision")
        for row, title in enumerate(RATIOS.values(), start=2):
            axes[row][column].set(ylabel=f"{title}, %")
        axes[-1][column].set(xlabel="devices")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=15)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw success and changes by level")
    options = parser.parse_args()
    known = common.facts(quick=options.quick)
    warm_up()
    found = list(rows(common.repeats_of(options), 1 if options.quick else NETWORKS, tuple(SETTINGS)))
    levels, told = by_level(found), overall(found)
    show(told, levels, Console())
    foretold = forecasting(range(100, 102) if options.quick else range(100, 108), 20 if options.quick else 60)
    show_forecasting(foretold, Console())
    checked = against_all(2 if options.quick else 66)
    Console().print("against every selection:", checked)
    if options.plot is not None:
        plot(levels, options.plot)
    result = {"rows": levels, "overall": told, "against_all": checked, "forecasting": foretold}
    common.write_result(options.json, result, facts=known)


if __name__ == "__main__":
    main()
