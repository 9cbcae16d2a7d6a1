"""The FlowUnits paper's grid: bandwidth x delay, one Spark stretched over the zones beside Headwater.

Each variant is deployed and warmed up once and goes through all cells; then the next one. For each
run the clock goes from the release of the events at the edges to the last result in the cloud; the
results are compared with the expected ones before a figure counts.

    python -m benchmarks.flowunits [--quick] [--json FILE] [--rows N] [--cells 10mbit/0,unlimited/100]

Delays are of each link, one way. It needs root and iproute2, see `python -m benchmarks.netlab`.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import common
from benchmarks.flowunits import heatmap
from benchmarks.flowunits.stretched import Stretched
from benchmarks.flowunits.workload import (
    CLOUD,
    CORES,
    EDGES,
    SITES,
    Arrivals,
    Burst,
    Variant,
    continuum_text,
    crossed,
    measure,
    whole,
)
from benchmarks.flowunits.zones import Zones
from benchmarks.netlab import Lab
from headwater.continuum import Continuum
from headwater.errors import HeadwaterError
from headwater.quantity import parse_bandwidth

VARIANTS: dict[str, Callable[[Lab, Path], Variant]] = {"headwater": Zones, "stretched": Stretched}
BANDWIDTHS = ("unlimited", "1gbit", "100mbit", "10mbit")
DELAYS = (0, 10, 100)
ROWS, QUICK_ROWS = 4_800_000, 120_000
WARM_UPS = 3
WARM_UP_SECONDS = 600.0  # sixteen cold JVMs on two cores

Cell = tuple[str, int]


def cells(text: str) -> list[Cell]:
    """Read cells such as `10mbit/0,unlimited/100`.

    >>> cells("10mbit/0,unlimited/100")
    [('10mbit', 0), ('unlimited', 100)]
    """
    found = []
    for word in text.split(","):
        bandwidth, slash, delay = word.strip().partition("/")
        try:
            if not slash:
                raise ValueError("there is no delay")
            _bits(bandwidth)
            found.append((bandwidth, int(delay)))
        except (ValueError, HeadwaterError) as error:
            raise argparse.ArgumentTypeError(f"{word!r} is no cell ({error}); write 10mbit/100") from None
    return found


def _bits(bandwidth: str) -> float | None:
    return None if bandwidth == "unlimited" else parse_bandwidth(bandwidth)


def run_variant(
    lab: Lab, variant: Variant, wanted: list[Cell], *, rows: int, repeats: int, limit: float
) -> dict[Cell, list[dict[str, Any]]]:
    """Deploy, warm up, go through the cells; return seconds and bytes on the links of every run."""
    lab.set_links(bandwidth=None, delay=0.0)
    arrivals, first = Arrivals(variant.results), 0
    found: dict[Cell, list[dict[str, Any]]] = {cell: [] for cell in wanted}
    try:
        say(f"{variant.name}: deploying")
        variant.deploy()
        for _ in range(WARM_UPS):
            seconds = measure(variant, Burst(first, rows), arrivals, limit=max(limit, WARM_UP_SECONDS))
            say(f"{variant.name}: warm-up {seconds:.2f} s")
            first += rows
        for bandwidth, delay in wanted:
            lab.set_links(bandwidth=_bits(bandwidth), delay=delay / 1000)
            for _ in range(repeats):
                before = crossed(lab)
                seconds = measure(variant, Burst(first, rows), arrivals, limit=limit)
                bytes_ = {name: count - before[name] for name, count in crossed(lab).items()}
                found[bandwidth, delay].append({"seconds": round(seconds, 3), "bytes": bytes_})
                say(f"{variant.name}: {bandwidth}, {delay} ms: {seconds:.2f} s, results right")
                first += rows
        return found
    finally:
        lab.set_links(bandwidth=None, delay=0.0)
        variant.teardown()


def summary(runs: dict[str, dict[Cell, list[dict[str, Any]]]], wanted: list[Cell]) -> list[dict[str, Any]]:
    """Give medians and ratio of each cell, and the runs behind them."""
    found = []
    for cell in wanted:
        mine = {name: by_cell[cell] for name, by_cell in runs.items() if by_cell.get(cell)}
        seconds = {name: common.middle([r["seconds"] for r in each]) for name, each in mine.items()}
        both = len(seconds) == len(VARIANTS)
        found.append(
            {
                "bandwidth": cell[0],
                "delay_ms": cell[1],
                **{f"{name}_s": seconds.get(name) for name in VARIANTS},
                "ratio": round(seconds["stretched"] / seconds["headwater"], 2) if both else None,
                "runs": mine,
            }
        )
    return found


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(result: dict[str, Any]) -> str:
    """Show the cells."""
    lines = [f"{result['rows']:,} events, seconds (medians of {result['repeats']}), all results right"]
    lines.append(f"{'bandwidth':>10} {'delay':>7} {'headwater':>10} {'stretched':>10} {'ratio':>6}")
    for cell in result["cells"]:
        shown = [cell["headwater_s"], cell["stretched_s"], cell["ratio"]]
        texts = ["-" if value is None else f"{value:.2f}" for value in shown]
        delay = f"{cell['delay_ms']} ms"
        lines.append(f"{cell['bandwidth']:>10} {delay:>7} {texts[0]:>10} {texts[1]:>10} {texts[2]:>6}")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Make the command line's parser."""
    made = common.arguments("One Spark stretched over zones beside Headwater", repeats=3)
    made.add_argument(
        "--rows", type=int, metavar="N", help=f"events a run (default {ROWS}; quick {QUICK_ROWS})"
    )
    made.add_argument("--cells", type=cells, metavar="LIST", help="such as 10mbit/0,unlimited/100")
    made.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    made.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="of one run (default 600)")
    made.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR and keep it, for its logs")
    made.add_argument(
        "--heatmap", type=Path, metavar="PNG", help="draw the result, such as docs/flowunits.png"
    )
    return made


def main() -> int:
    """Measure, print a table, write JSON and figure."""
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)  # so that `with` and `finally` do their work
    facts = common.facts(quick=options.quick)
    repeats = common.repeats_of(options)
    rows = whole(options.rows or (QUICK_ROWS if options.quick else ROWS))
    grid = [(b, d) for b in BANDWIDTHS for d in DELAYS]
    wanted = options.cells or ([("unlimited", 0), ("10mbit", 0)] if options.quick else grid)
    place = options.keep or Path(tempfile.mkdtemp(prefix="headwater-flowunits-"))
    runs: dict[str, dict[Cell, list[dict[str, Any]]]] = {}
    try:
        with Lab(Continuum.from_text(continuum_text())) as lab:
            for name in options.variants:
                variant = VARIANTS[name](lab, (place / name).resolve())
                runs[name] = run_variant(
                    lab, variant, wanted, rows=rows, repeats=repeats, limit=options.limit
                )
            delay_by = "netem" if lab.netem else "user-space forwarder"
    except HeadwaterError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    result = {
        "rows": rows,
        "cells": summary(runs, wanted),
        "repeats": repeats,
        "delay_by": delay_by,
        "zones": {"edges": list(EDGES), "sites": list(SITES), "cloud": CLOUD, "cores": CORES},
    }
    print(table(result))
    common.write_result(options.json, result, facts=facts)
    if options.heatmap is not None:
        heatmap.draw(result, options.heatmap)
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
