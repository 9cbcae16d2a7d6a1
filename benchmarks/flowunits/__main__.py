"""The FlowUnits paper's grid: bandwidth x delay, one Spark stretched over the zones beside Headwater.

Each variant is deployed and warmed up once and goes through all cells; then the next one. For each
run the clock goes from the release of the events at the edges to the last result in the cloud; the
results are compared with the expected ones before a figure counts. The JSON is written after every
run. A run that takes too long counts as failed, and the variant is deployed again for the next cell.

    python -m benchmarks.flowunits [--quick] [--quota] [--json FILE] [--rows N] [--cells 10mbit/0,unlimited/100]

With `--quota`, each host has a share of the machine's cores of its own in the measured runs (a control group's quota;
both variants alike, deployment and warm-up without it), so that hosts work at the same time.
Delays are of each link, one way. It needs root and iproute2, see `python -m benchmarks.netlab`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
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
    bits,
    continuum_text,
    crossed,
    measure,
    whole,
)
from benchmarks.flowunits.zones import Zones
from benchmarks.netlab import Lab, ProcessorShares
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError, RuntimeFailure

VARIANTS: dict[str, Callable[[Lab, Path, ProcessorShares | None], Variant]] = {
    "headwater": Zones,
    "stretched": Stretched,
}
BANDWIDTHS = ("unlimited", "1gbit", "100mbit", "10mbit")
DELAYS = (0, 10, 100)
QUOTA_BANDWIDTHS = (*BANDWIDTHS, "1mbit")
QUOTA_CORES = 1.7  # of all hosts together; the rest of two cores is for delayed links and the clock
ROWS, QUICK_ROWS = 9_600_000, 120_000
WARM_UPS = 8  # at most; enough when a run is not a tenth faster than the best before
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
            bits(bandwidth)
            found.append((bandwidth, int(delay)))
        except (ValueError, HeadwaterError) as error:
            raise argparse.ArgumentTypeError(f"{word!r} is no cell ({error}); write 10mbit/100") from None
    return found


@dataclass
class Found:
    """The state of a variant: runs of each cell, and cells in which it failed."""

    runs: dict[Cell, list[dict[str, Any]]] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)


@dataclass
class Trial:
    """One variant on its way through the cells: deployed and warmed up, and again after a failure."""

    lab: Lab
    make: Callable[[int], Variant]
    """Make the variant for the nth time, with a new directory each time."""
    rows: int
    limit: float
    shares: ProcessorShares | None = None
    """Limits of the hosts' processor time in measured runs; None: no limits."""
    deployed: Variant | None = None
    _times: int = 0
    _first: int = 0

    def run(self, bandwidth: float | None, delay: float) -> dict[str, Any]:
        """Measure one run in one cell; return seconds, processor seconds by zone, and bytes on the links."""
        if self.deployed is None:
            self._deploy()
        self.lab.set_links(bandwidth=bandwidth, delay=delay)
        before, busy = crossed(self.lab), self._used()
        self._limit(QUOTA_CORES)
        seconds = self._burst(self.limit)
        self._limit(None)
        used = {zone: round(now - busy[zone], 2) for zone, now in self._used().items()}
        bytes_ = {name: count - before[name] for name, count in crossed(self.lab).items()}
        return {"seconds": round(seconds, 3), "cpu_s": used, "bytes": bytes_}

    def end(self) -> None:
        """End the variant, over links without limits."""
        variant, self.deployed = self.deployed, None
        if variant is not None:
            self.lab.set_links(bandwidth=None, delay=0.0)
            self._limit(None)
            variant.teardown()

    def _used(self) -> dict[str, float]:
        return self.shares.used() if self.shares is not None else {}

    def _limit(self, cores: float | None) -> None:
        if self.shares is not None:
            self.shares.limit(cores)

    def _deploy(self) -> None:
        self.lab.set_links(bandwidth=None, delay=0.0)
        self._times, self._first = self._times + 1, 0
        self.deployed = variant = self.make(self._times)
        self._arrivals = Arrivals(variant.results)
        say(f"{variant.name}: deploying")
        try:
            variant.deploy()
            best = float("inf")
            for _ in range(WARM_UPS):
                seconds = self._burst(max(self.limit, WARM_UP_SECONDS))
                say(f"{variant.name}: warm-up {seconds:.2f} s")
                if seconds > 0.9 * best:
                    break
                best = seconds
        except RuntimeFailure as error:
            raise NotDeployed(error.what, where=variant.name, hint=error.hint) from error

    def _burst(self, limit: float) -> float:
        assert self.deployed is not None
        burst = Burst(self._first, self.rows)
        self._first += self.rows
        return measure(self.deployed, burst, self._arrivals, limit=limit)


class NotDeployed(RuntimeFailure):
    """A variant failed before its first cell: other cells would fail as well."""


def run_variant(trial: Trial, wanted: list[Cell], found: Found, *, repeats: int, note: Callable[[], None]) -> None:
    """Go through the cells, and `note` after each run; after a failure deploy the variant again for the next cell."""
    try:
        for cell in wanted:
            try:
                for _ in range(repeats):
                    run = trial.run(bits(cell[0]), cell[1] / 1000)
                    found.runs.setdefault(cell, []).append(run)
                    say(f"{cell[0]}, {cell[1]} ms: {run['seconds']:.2f} s, results right")
                    note()
            except NotDeployed:
                raise
            except RuntimeFailure as error:
                found.failed[cell] = error.what
                say(f"{cell[0]}, {cell[1]} ms: {error}")
                note()
                trial.end()
    finally:
        trial.end()


def summary(found: dict[str, Found], wanted: list[Cell], *, quota: bool = False) -> list[dict[str, Any]]:
    """Return medians and ratio of each cell, and the runs behind them; ``quota``: each host had a share of its own."""
    cells_ = []
    for cell in wanted:
        mine = {name: each.runs[cell] for name, each in found.items() if each.runs.get(cell)}
        seconds = {name: common.middle([r["seconds"] for r in each]) for name, each in mine.items()}
        used = {name: common.middle([sum(r.get("cpu_s", {}).values()) for r in each]) for name, each in mine.items()}
        both = len(seconds) == len(VARIANTS)
        cells_.append(
            {
                "bandwidth": cell[0],
                "delay_ms": cell[1],
                "quota": quota,
                **{f"{name}_s": seconds.get(name) for name in VARIANTS},
                **{f"{name}_cpu_s": round(used[name], 2) for name in used if used[name]},
                "ratio": round(seconds["stretched"] / seconds["headwater"], 2) if both else None,
                "runs": mine,
                "failed": {name: each.failed[cell] for name, each in found.items() if cell in each.failed},
            }
        )
    return cells_


def say(text: str) -> None:
    """Print the progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(result: dict[str, Any]) -> str:
    """Return the table of the cells."""
    lines = [f"{result['rows']:,} events, seconds (medians of {result['repeats']}), all results right"]
    lines.append(f"{'bandwidth':>10} {'delay':>7} {'headwater':>10} {'stretched':>10} {'ratio':>6}")
    for cell in result["cells"]:
        shown = [cell["headwater_s"], cell["stretched_s"], cell["ratio"]]
        texts = ["-" if value is None else f"{value:.2f}" for value in shown]
        delay = f"{cell['delay_ms']} ms"
        lines.append(f"{cell['bandwidth']:>10} {delay:>7} {texts[0]:>10} {texts[1]:>10} {texts[2]:>6}")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = common.arguments("One Spark stretched over zones beside Headwater", repeats=3)
    made.add_argument("--rows", type=int, metavar="N", help=f"events a run (default {ROWS}; quick {QUICK_ROWS})")
    made.add_argument("--cells", type=cells, metavar="LIST", help="such as 10mbit/0,unlimited/100")
    made.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    made.add_argument("--quota", action="store_true", help="give each host a share of the cores of its own")
    made.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="of one run (default 600)")
    made.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR and keep it, for its logs")
    made.add_argument("--heatmap", type=Path, metavar="PNG", help="draw the result, such as docs/flowunits.png")
    return made


def main() -> int:
    """Measure, print a table, write JSON and figure."""
    options = parser().parse_args()
    common.leave_when_terminated()
    facts = common.facts(quick=options.quick)
    repeats = common.repeats_of(options)
    rows = whole(options.rows or (QUICK_ROWS if options.quick else ROWS))
    grid = [(b, d) for b in (QUOTA_BANDWIDTHS if options.quota else BANDWIDTHS) for d in DELAYS]
    wanted = options.cells or ([("unlimited", 0), ("10mbit", 0)] if options.quick else grid)
    place = options.keep or Path(tempfile.mkdtemp(prefix="headwater-flowunits-"))
    found: dict[str, Found] = {}
    result: dict[str, Any] = {
        "rows": rows,
        "cells": [],
        "repeats": repeats,
        "zones": {"edges": list(EDGES), "sites": list(SITES), "cloud": CLOUD, "cores": CORES},
    }

    def note() -> None:
        """Store the results so far: a later run may be stopped at any time."""
        result["cells"] = summary(found, wanted, quota=options.quota)
        common.write_result(options.json, result, facts=facts)

    failed = 0
    try:
        with contextlib.ExitStack() as opened:
            # Groups are removed last, when the lab has ended their processes.
            shares = opened.enter_context(ProcessorShares(str(os.getpid()), CORES)) if options.quota else None
            lab = opened.enter_context(Lab(Continuum.from_text(continuum_text())))
            result["delay_by"] = "netem" if lab.netem else "user-space forwarder"
            if shares is not None:
                result["quotas"] = shares.limit(QUOTA_CORES)
                shares.limit(None)
            for name in options.variants:
                found[name] = Found()

                def make(times: int, name: str = name) -> Variant:
                    return VARIANTS[name](lab, (place / (name if times == 1 else f"{name}-{times}")).resolve(), shares)

                trial = Trial(lab, make, rows, options.limit, shares)
                try:
                    run_variant(trial, wanted, found[name], repeats=repeats, note=note)
                except NotDeployed as error:
                    print(error, file=sys.stderr)
                    failed = error.exit_code
    except HeadwaterError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    note()
    print(table(result))
    if options.heatmap is not None:
        heatmap.draw(result, options.heatmap)
    return failed


if __name__ == "__main__":
    sys.exit(main())
