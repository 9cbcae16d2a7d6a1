"""Draw tolls and alerts of one direction by segment and minute: ``python -m examples.linearroad.picture FILE.png``."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from examples.linearroad.definition import Notice, noticed

RESULTS = Path(__file__).resolve().parent / "results"


def busiest(alerts: Mapping[Notice, int]) -> tuple[int, int]:
    """Return the expressway and direction with the most alerts."""
    return Counter({(n[2], n[3]): 0 for n in alerts} | Counter((n[2], n[3]) for n in alerts)).most_common(1)[0][0]


def draw(tolls: Mapping[Notice, int], alerts: Mapping[Notice, int], file: Path) -> None:
    """Write a PNG of the direction with the most alerts: the toll of each segment and minute, dots where alerts."""
    from matplotlib.figure import Figure

    road = busiest(alerts)
    paid = {(n[0] // 60, n[4]): n[6] for n in tolls if n[2:4] == road}
    warned = {(n[0] // 60, n[4]) for n in alerts if n[2:4] == road}
    begin = min(minute for minute, _ in paid)
    width, height = max(minute for minute, _ in paid) - begin + 1, max(segment for _, segment in paid) + 1
    cells = [[paid.get((begin + x, y), math.nan) for x in range(width)] for y in range(height)]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    shown = axes.imshow(cells, aspect="auto", origin="lower", cmap="YlOrRd", interpolation="nearest")
    figure.colorbar(shown, label="toll")
    points = sorted((minute - begin, segment) for minute, segment in warned)
    axes.plot(*zip(*points, strict=True), "k.", markersize=4, label="accident alerts")
    axes.set_xlabel("minutes")
    axes.set_ylabel("segment")
    axes.set_title(f"expressway {road[0]}, {'east' if road[1] == 0 else 'west'}bound")
    axes.legend(loc="upper left", fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def main(words: list[str]) -> int:
    """Draw the example's results."""
    if len(words) != 1:
        print("usage: python -m examples.linearroad.picture FILE.png", file=sys.stderr)
        return 2
    found = []
    for name in ("tolls", "alerts"):
        lines = [line for path in sorted((RESULTS / name).glob("*.json")) for line in path.read_text().splitlines()]
        found.append(noticed(map(json.loads, lines)))
    if not all(found):
        print(f"no results in {RESULTS}: run the dataflow first", file=sys.stderr)
        return 1
    draw(found[0], found[1], Path(words[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
