"""The figure of the result: the stretched cluster's time relative to Headwater's, by bandwidth and delay.

python -m benchmarks.flowunits.heatmap RESULT.json FIGURE.png
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.flowunits.workload import bits
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable


def grid(result: Mapping[str, Any], key: str) -> tuple[list[str], list[int], list[list[float | None]]]:
    """Arrange the cells: the widest link first, a row for each delay; None where unknown."""
    cells = result["cells"]
    bandwidths = sorted({c["bandwidth"] for c in cells}, key=lambda b: -(bits(b) or math.inf))
    delays = sorted({c["delay_ms"] for c in cells})
    found = {(c["bandwidth"], c["delay_ms"]): c.get(key) for c in cells}
    return bandwidths, delays, [[found.get((b, d)) for b in bandwidths] for d in delays]


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Write a PNG; the ratio where a cell has both variants, else the stretched cluster's seconds."""
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
        from matplotlib.patheffects import withStroke
    except ImportError:
        raise Unavailable("matplotlib is missing", where="heat map", hint='pip install "headwater[bench]"') from None
    ratios = any(cell.get("ratio") is not None for cell in result["cells"])
    bandwidths, delays, values = grid(result, "ratio" if ratios else "stretched_s")
    known = [v for row in values for v in row if v is not None]
    if not known:
        raise RuntimeFailure("no cell has been measured", where="heat map", hint="run the benchmark first")
    figure = Figure(figsize=(1.6 + 1.3 * len(bandwidths), 1.6 + 0.9 * len(delays)), layout="constrained")
    axes = figure.add_subplot()
    shown = [[float("nan") if v is None else v for v in row] for row in values]
    axes.imshow(shown, cmap="viridis", aspect="auto", norm=LogNorm(min(known), max(*known, min(known) * 1.01)))
    axes.set_xticks(range(len(bandwidths)), bandwidths)
    axes.set_yticks(range(len(delays)), [f"{d} ms" for d in delays])
    axes.set_xlabel("bandwidth of each link")
    axes.set_ylabel("delay of each link, one way")
    what = "stretched Spark / Headwater" if ratios else "stretched Spark, seconds"
    axes.set_title(f"{what}, {result['rows']:,} events")
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            text = "" if value is None else f"{value:.1f}" + ("×" if ratios else " s")
            edge = [withStroke(linewidth=2, foreground="black")]  # legible on light cells too
            axes.text(x, y, text, ha="center", va="center", color="white", path_effects=edge)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def draw_from(source: Path, file: Path) -> None:
    """Write the PNG of a stored result."""
    draw(json.loads(source.read_text()), file)


def main(words: list[str]) -> int:
    """Draw the figure of a stored result."""
    if len(words) != 2:
        print("usage: python -m benchmarks.flowunits.heatmap RESULT.json FIGURE.png", file=sys.stderr)
        return 2
    try:
        draw_from(Path(words[0]), Path(words[1]))
    except HeadwaterError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
