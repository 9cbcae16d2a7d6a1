"""Show how Headwater compares with plain Spark, commit by commit, from the kept results of ``benchmarks.overhead``.

``benchmarks/releases/DATE-COMMIT/overhead.json`` is a result of the full form. Figures of one file are from
one run, so its ratios hold whatever the machine did that day.

    python -m benchmarks.history [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import common

RELEASES = common.ROOT / "benchmarks" / "releases"


def kept(place: Path = RELEASES) -> list[dict[str, Any]]:
    """Return the kept results, oldest first, as ratios by shape and rows, and seconds of latency."""
    found = []
    for file in sorted(place.glob("*/overhead.json")):
        result = json.loads(file.read_text())
        ratios = {
            shape: {int(rows): of[f"{shape}_of_plain"] for rows, of in result["sizes"].items()}
            for shape in ("one_unit", "three_units")
        }
        latency = {q: result["two_hop_latency_s"][q] for q in ("p50", "p95")}
        date, _, commit = file.parent.name.rpartition("-")
        found.append({"date": date, "commit": commit, "of_plain": ratios, "two_hop_latency_s": latency})
    return found


def show(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the results as a table."""
    table = Table("date", "commit", "rows", "one unit", "three units", "two hops p50, p95 (s)")
    for one in found:
        latency = one["two_hop_latency_s"]
        for rows, ratio in one["of_plain"]["one_unit"].items():
            three = one["of_plain"]["three_units"][rows]
            hops = f"{latency['p50']:.2f}, {latency['p95']:.2f}"
            table.add_row(one["date"], one["commit"], f"{rows:,}", f"{ratio:.2f}", f"{three:.2f}", hops)
    console.print(table)


def plot(found: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw throughput as a share of plain Spark's, and the latency of two hops, over commits."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4))
    ratios, latency = figure.subplots(1, 2)
    names = [f"{one['commit']}\n{one['date'][5:]}" for one in found]
    sizes = sorted({rows for one in found for rows in one["of_plain"]["one_unit"]})
    for shape, marker in (("one_unit", "o"), ("three_units", "s")):
        for rows, style in zip(sizes, (":", "-", "--"), strict=False):
            values = [one["of_plain"][shape].get(rows) for one in found]
            ratios.plot(
                names, values, marker=marker, linestyle=style, label=f"{shape.replace('_', ' ')}, {rows:,} rows"
            )
    ratios.axhline(1.0, color="grey", linewidth=0.8)
    ratios.set(ylim=(0, None), ylabel="throughput, of plain Spark's")
    ratios.legend(fontsize="small")
    for quantile in ("p50", "p95"):
        latency.plot(names, [one["two_hop_latency_s"][quantile] for one in found], marker="o", label=quantile)
    latency.set(ylim=(0, None), ylabel="two hops, newest row (s)")
    latency.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    """Read the kept results; print, write and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the result, such as docs/performance.png")
    options = parser.parse_args()
    found = kept()
    if not found:
        sys.exit(
            f"no results in {RELEASES}\n  -> python -m benchmarks.overhead --json {RELEASES}/DATE-COMMIT/overhead.json"
        )
    show(found, Console())
    common.write_result(options.json, {"releases": found}, facts={})
    if options.plot is not None:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
