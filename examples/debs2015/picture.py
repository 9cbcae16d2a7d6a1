"""Draw the first query's results, the ranks of routes over time: ``python -m examples.debs2015.picture FILE.png``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from examples.debs2015.definition import Listed, listed

RESULTS = Path(__file__).resolve().parent / "results"


def draw(found: Listed, file: Path) -> None:
    """Write a PNG: a line for each route that was among the ten, with its rank; the strongest in colour."""
    from matplotlib.figure import Figure

    times = sorted(found)
    minutes = [(at - times[0]).total_seconds() / 60 for at in times]
    ranks: dict[tuple[str, str], list[float]] = {}
    for place, at in enumerate(times):
        for rank, (origin, destination, _) in enumerate(found[at], start=1):
            ranks.setdefault((origin, destination), [float("nan")] * len(times))[place] = rank
    longest = sorted(ranks, key=lambda route: sum(11 - r for r in ranks[route] if r == r), reverse=True)
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for route in reversed(longest):
        known = {"color": "0.85", "linewidth": 1.0}
        if route in longest[:6]:
            known = {"label": " → ".join(route), "linewidth": 2.2}
        axes.step(minutes, ranks[route], where="post", **known)
    axes.invert_yaxis()
    axes.set_yticks(range(1, 11))
    axes.set_xlabel("minutes")
    axes.set_ylabel("rank of a route")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small", title="cells")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def main(words: list[str]) -> int:
    """Draw the example's results."""
    if len(words) != 1:
        print("usage: python -m examples.debs2015.picture FILE.png", file=sys.stderr)
        return 2
    lines = [line for path in sorted((RESULTS / "routes").glob("*.json")) for line in path.read_text().splitlines()]
    if not lines:
        print(f"no results in {RESULTS}: run the dataflow first", file=sys.stderr)
        return 1
    draw(listed(map(json.loads, lines)), Path(words[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
