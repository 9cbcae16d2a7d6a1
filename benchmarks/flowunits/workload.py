"""The common part of every variant of the experiment: the zones, the events, the clock, the check.

A variant is deployed once and stays, as streaming jobs do. Then *bursts* of events are released at the
edges, one after the other, with the network set as wanted in between. The clock runs from the release
to the moment at which the last result has its name in the cloud zone's directory.

Count windows are per (location, key), and the events of a location come in order. So the result does
not depend on how the streams of several edges interleave, and every variant computes the same thing.
Each share is a multiple of 300, which fills every window: nothing is carried over from burst to burst.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import pipeline
from benchmarks.netlab import Lab
from headwater.core.errors import RuntimeFailure
from headwater.core.quantity import parse_bandwidth

# Location of each edge zone. One host a zone; the paper has two machines in its one site.
EDGES = {"E1": "L1", "E2": "L2", "E3": "L3", "E4": "L4"}
SITES = {"S1": ("E1", "E2"), "S2": ("E3", "E4")}
CLOUD = "C1"
# Of a host. The paper has 1, 4 and 16: on a machine with two real cores those 28 threads would measure
# the scheduler of the kernel, so the ratios shrink and their order stays.
CORES = {**dict.fromkeys(EDGES, 1), **dict.fromkeys(SITES, 2), CLOUD: 4}


@dataclass(frozen=True)
class Shape:
    """The zones of an experiment, one host in each: each edge's location, each site's edges, each host's cores."""

    edges: Mapping[str, str]
    sites: Mapping[str, tuple[str, ...]]
    cores: Mapping[str, int]


FLOWUNITS = Shape(EDGES, SITES, CORES)
UNIT = 300  # rows of a location that fill whole windows: every third, ten keys, ten to a window
BATCH_ROWS = 500_000  # of one location in one batch, at most, in every variant: few batches favour the baseline
TRIGGER = "0 seconds"  # in every variant: the next batch as soon as there is input
_POLL = 0.02
_SETTLE = 1.0  # seconds within which surplus results would show up


def continuum_text(at: dict[str, str] | None = None, shape: Shape = FLOWUNITS) -> str:
    """Return the continuum's text; `at` are the addresses of zone agents, where there are any."""
    rows = [f"  {CLOUD}: {{layer: cloud{_at(at, CLOUD)}}}"]
    for site, below in shape.sites.items():
        rows.append(f"  {site}: {{layer: site, parent: {CLOUD}{_at(at, site)}}}")
        for edge in below:
            place = f"locations: [{shape.edges[edge]}]"
            rows.append(f"  {edge}: {{layer: edge, parent: {site}, {place}{_at(at, edge)}}}")
    return "\n".join(["name: flowunits", "layers: [edge, site, cloud]", "zones:", *rows, ""])


def _at(at: dict[str, str] | None, zone: str) -> str:
    return f', at: "{at[zone]}"' if at else ""


def bits(bandwidth: str) -> float | None:
    """Read a cell's bandwidth, in bit/s; None where links have no limit."""
    return None if bandwidth == "unlimited" else parse_bandwidth(bandwidth)


@dataclass(frozen=True)
class Burst:
    """Events ``first .. first + rows - 1``: each location has a range of its own, one after the other."""

    first: int
    rows: int

    def share(self, edge: str) -> tuple[int, int]:
        """Return an edge's first event and its number of events."""
        each = self.rows // len(EDGES)
        return self.first + list(EDGES).index(edge) * each, each

    def expected(self) -> pa.Table:
        """Compute the result without Spark."""
        tables = []
        for edge, location in EDGES.items():
            table = pipeline.results(*self.share(edge))
            tables.append(table.append_column("location", pa.array(np.full(len(table), location))))
        return pipeline.ordered(pa.concat_tables(tables))


def whole(rows: int) -> int:
    """Round up to a number of rows that fills all windows at every edge."""
    unit = UNIT * len(EDGES)
    return max(1, -(-rows // unit)) * unit


class Variant(Protocol):
    """One way of running the pipeline over the zones of a lab."""

    name: str

    @property
    def results(self) -> Path:
        """Return the cloud's directory where results appear as whole Parquet files, by renaming."""

    def deploy(self) -> None:
        """Start everything and wait until it could take events; raise if it cannot."""

    def prepare(self, burst: Burst) -> None:
        """Do the work that is not timed."""

    def release(self, burst: Burst) -> None:
        """Release the events at the edges."""

    def check(self) -> None:
        """Raise RuntimeFailure, with the process's own message, if a process has ended."""

    def teardown(self) -> None:
        """End everything; it may have been deployed in part only."""


@dataclass
class Arrivals:
    """The files in a results directory: those of the burst under way, and those of earlier ones."""

    pattern: ClassVar[str] = "*.parquet"
    directory: Path
    old: set[Path] = field(default_factory=set)
    new: dict[Path, int] = field(default_factory=dict)

    def look(self) -> int:
        """Return how many rows of this burst have arrived."""
        for file in self.directory.rglob(self.pattern):
            hidden = any(p[0] in "._" for p in file.relative_to(self.directory).parts)
            if not hidden and file not in self.old and file not in self.new:
                self.new[file] = self.rows_in(file)
        return sum(self.new.values())

    def rows_in(self, file: Path) -> int:
        """Return the number of rows in a file."""
        return int(pq.ParquetFile(file).metadata.num_rows)

    def last(self) -> float:
        """Return when the last file with rows got its name: renaming sets the time of change."""
        return max(file.stat().st_ctime for file, rows in self.new.items() if rows)

    def turn(self) -> None:
        """Begin the next burst."""
        self.old |= self.new.keys()
        self.new.clear()


def measure(variant: Variant, burst: Burst, arrivals: Arrivals, *, limit: float) -> float:
    """Release a burst and return the seconds until its last result; check the result before."""
    wanted = burst.expected()
    variant.prepare(burst)
    arrivals.look()
    arrivals.turn()
    begun = time.time()
    variant.release(burst)
    while arrivals.look() < wanted.num_rows:
        variant.check()
        if time.time() - begun > limit:
            raise RuntimeFailure(
                f"{arrivals.look()} of {wanted.num_rows} results after {limit:.0f} s",
                where=variant.name,
                hint="use fewer --rows, or a longer --limit",
            )
        time.sleep(_POLL)
    seconds = arrivals.last() - begun
    time.sleep(_SETTLE)
    arrivals.look()
    pipeline.check(variant.name, pipeline.written(list(arrivals.new), ("location",)), wanted)
    return seconds


def crossed(lab: Lab) -> dict[str, int]:
    """Return the bytes that have crossed the links so far, by layer and direction."""
    found = {"edge_up": 0, "edge_down": 0, "site_up": 0, "site_down": 0}
    for layer, zones in (("edge", EDGES), ("site", SITES)):
        for zone in zones:
            bytes_ = lab.crossed(zone)
            found[f"{layer}_up"] += bytes_.up
            found[f"{layer}_down"] += bytes_.down
    return found
