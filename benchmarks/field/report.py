"""The comparison as a Markdown table, and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.field.variants import SHAPE
from benchmarks.flowunits.workload import CLOUD
from headwater.core.errors import RuntimeFailure, Unavailable

UPPER = {edge: site for site, edges in SHAPE.sites.items() for edge in edges} | dict.fromkeys(SHAPE.sites, CLOUD)
LINKS = {f"{lower}_bytes": f"bytes/row, link {lower}–{upper}" for lower, upper in UPPER.items()}
FIGURES = {
    "rows_per_s": "rows/s",
    "p50_s": "latency p50, s",
    "p99_s": "latency p99, s",
    **LINKS,
    "cores": "cores busy",
    "cpu_s_per_million_rows": "processor s per million rows",
    "pss_mb": "memory, MB",
}
NAMES = {
    "headwater": "Headwater",
    "spark-cloud": "Spark in the cloud",
    "spark-stretched": "Spark over all zones",
    "flink-cloud": "Flink in the cloud",
    "flink-stretched": "Flink over all zones",
}
BASE = "headwater"


def figures(run: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of one system; the bytes of both directions of a link together."""
    links = run["bytes_per_row"]
    sums = {f"{lower}_bytes": links[f"{lower} up"] + links[f"{lower} down"] for lower in UPPER}
    return {name: {**run, **sums}[name] for name in FIGURES}


def ratios(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each system's figures divided by Headwater's of the same run."""
    if "failed" in found.get(BASE, {"failed": ""}):
        return {}
    base = figures(found[BASE])
    return {
        system: {name: round(value / base[name], 2) for name, value in figures(run).items() if base[name]}
        for system, run in found.items()
        if "failed" not in run
    }


def markdown(result: Mapping[str, Any]) -> str:
    """Return a table for each dataflow, each figure with its ratio to Headwater's in brackets, and the conditions."""
    tables = (_table(name, found) for name, found in result["dataflows"].items())
    return "\n\n".join([*tables, _origin(result)])


def _origin(result: Mapping[str, Any]) -> str:
    """Say in one paragraph on what, and how often, was measured."""
    machine, link, load = result["machine"], result["link"], result["load"]
    runs = [run for found in result["dataflows"].values() for run in found.values() if "failed" not in run]
    rows = sorted({burst["rows"] for run in runs for burst in run["bursts"]}) or [0]
    return (
        f"All zones on {machine['cores']} cores ({machine['processor']}); each link {link['bandwidth']} and "
        f"{link['delay_ms']} ms one way. Spark {result['spark']}, Flink {result['flink']}, commit {result['commit']}. "
        f"Bursts: {load['bursts']}, of {rows[0]:,} to {rows[-1]:,} rows; latencies: {load['paced']} steps of event "
        f"time, one each {load['pace']} s. In brackets: divided by Headwater's."
    )


def _table(name: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    beside, systems = ratios(found), list(found)
    lines = [f"| {name} | {' | '.join(NAMES[s] for s in systems)} |", f"|---|{'---:|' * len(systems)}"]
    for figure, title in FIGURES.items():
        cells = []
        for system in systems:
            run = found[system]
            if "failed" in run:
                cells.append("not run" if figure == "rows_per_s" else "")
                continue
            ratio = beside.get(system, {}).get(figure) if system != BASE else None
            cells.append(_number(figures(run)[figure]) + (f" ({ratio:.2f}×)" if ratio is not None else ""))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    notes = [f"{NAMES[s]}: {found[s]['failed'].splitlines()[0]}" for s in systems if "failed" in found[s]]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def plot(result: Mapping[str, Any], file: Path) -> None:
    """Write a PNG: each figure of each dataflow as bars, one for each system."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unavailable("matplotlib is missing", where="plot", hint='pip install "headwater[bench]"') from None
    dataflows = {name: _ran(found) for name, found in result["dataflows"].items()}
    if not any(dataflows.values()):
        raise RuntimeFailure("nothing has been measured", where="plot", hint="run the benchmark first")
    size = (2.2 * len(FIGURES), 2.4 * len(dataflows))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(dataflows), len(FIGURES), squeeze=False)
    for row, (name, found) in zip(grid, dataflows.items(), strict=True):
        for axes, (key, title) in zip(row, FIGURES.items(), strict=True):
            systems = list(found)
            bars = axes.bar(range(len(systems)), [found[s][key] for s in systems], color=_colours(systems))
            axes.bar_label(bars, [_number(found[s][key]) for s in systems], fontsize=7)
            axes.set_xticks([])
            axes.margins(y=0.15)
            axes.set_title(f"{name}: {title}" if key == "rows_per_s" else title, fontsize=8)
            axes.tick_params(labelsize=7)
    from matplotlib.patches import Patch

    shown = [Patch(color=colour, label=NAMES[s]) for s, colour in zip(NAMES, _colours(NAMES), strict=True)]
    figure.legend(handles=shown, loc="outside lower center", ncols=len(NAMES), frameon=False, fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def _ran(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {system: figures(run) for system, run in found.items() if "failed" not in run}


def _colours(systems: Iterable[str]) -> list[str]:
    return [f"C{list(NAMES).index(system)}" for system in systems]
