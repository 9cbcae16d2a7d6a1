"""One system with one dataflow: bursts for throughput, then rows at a steady pace for latency, then the check."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks import common
from benchmarks.cost.processes import pss_mb
from benchmarks.field.feed import Feed
from benchmarks.field.variants import SHAPE, Variant
from benchmarks.netlab import Lab, ProcessorShares
from headwater.core.errors import RuntimeFailure
from headwater.testing import NotEquivalent, compare

_POLL = 0.02
_SETTLE = 1.0  # seconds within which surplus rows would show up


@dataclass(frozen=True)
class Load:
    """Numbers of releases: bursts to warm up, bursts that are measured, and steps at a pace of some seconds."""

    warm: int
    bursts: int
    paced: int
    pace: float


class Trial:
    """A system with a dataflow that runs, its input, and the rows that it is to give."""

    def __init__(
        self,
        variant: Variant,
        feed: Feed,
        wanted: pa.Table,
        lab: Lab,
        shares: ProcessorShares,
        *,
        limit: float,
    ) -> None:
        self._variant, self._feed, self._wanted = variant, feed, wanted
        self._arrived = variant.arrived(variant.results)
        self._lab, self._shares, self._limit = lab, shares, limit
        self._next = 0

    def run(self, load: Load, say: Callable[[str], None]) -> dict[str, Any]:
        """Measure; raise RuntimeFailure where the system fails or its rows are wrong."""
        for _ in range(load.warm):
            self._burst()
        say("warm")
        bursts = []
        for _ in range(load.bursts):
            used, crossed, rows = self._shares.used(), self._crossed(), self._feed.rows[self._next]
            seconds = self._burst()
            cpu = sum(self._shares.used().values()) - sum(used.values())
            bytes_ = {link: (now - crossed[link]) / rows for link, now in self._crossed().items()}
            bursts.append({"rows": rows, "seconds": seconds, "cpu_s": cpu, "bytes_per_row": bytes_})
            say(f"{rows} rows in {seconds:.2f} s")
        latencies = self._paced(load)
        memory = sum(pss_mb(pid) for pids in self._shares.processes().values() for pid in pids)
        self._check()
        links = bursts[0]["bytes_per_row"]
        return {
            "rows_per_s": round(median(b["rows"] / b["seconds"] for b in bursts)),
            "p50_s": round(common.quantile(latencies, 0.5), 3),
            "p99_s": round(common.quantile(latencies, 0.99), 3),
            "cpu_s_per_million_rows": round(median(b["cpu_s"] / b["rows"] for b in bursts) * 1e6, 1),
            "cores": common.middle([b["cpu_s"] / b["seconds"] for b in bursts], 2),
            "pss_mb": round(memory),
            "bytes_per_row": {link: common.middle([b["bytes_per_row"][link] for b in bursts], 2) for link in links},
            "results": sum(self._arrived.new.values()),
            "bursts": [{**b, "seconds": round(b["seconds"], 3), "cpu_s": round(b["cpu_s"], 2)} for b in bursts],
            "latencies_s": [round(value, 3) for value in latencies],
        }

    def _burst(self) -> float:
        """Release one burst; return the seconds until the rows of all windows that it ends have arrived."""
        begun = self._release()
        self._await(self._next - 1)
        ended = max(file.stat().st_ctime for file, rows in self._arrived.new.items() if rows)
        return max(ended - begun, _POLL)

    def _paced(self, load: Load) -> list[float]:
        """Release steps at a pace; return for each row of results the seconds since its window's end was released."""
        self._arrived.look()
        before = set(self._arrived.new)
        released: dict[int, float] = {}
        due = time.time()
        for _ in range(load.paced):
            time.sleep(max(0.0, due - time.time()))
            number = self._next
            released[number] = self._release()
            due += load.pace
        self._await(self._next - 1)
        found = []
        for file in self._arrived.new.keys() - before:
            at = file.stat().st_ctime
            for ends in self._arrived.table([file], self._wanted.schema)["ends"].to_pylist():
                found.append(at - released[self._feed.release_of(ends)])
        return found

    def _release(self) -> float:
        files = self._feed.files[self._next]
        self._variant.prepare(files)
        self._next += 1
        begun = time.time()
        self._variant.release(files)
        return begun

    def _await(self, release: int) -> None:
        count, begun = self._feed.closed(self._wanted, release).num_rows, time.time()
        while (there := self._arrived.look()) < count:
            self._variant.check()
            if time.time() - begun > self._limit:
                raise RuntimeFailure(
                    f"{there} of {count} result rows after {self._limit:.0f} s",
                    where=self._variant.name,
                    hint="use fewer --rows, or a longer --limit",
                )
            time.sleep(_POLL)

    def _check(self) -> None:
        """Compare all rows with those of the batch run."""
        time.sleep(_SETTLE)
        self._arrived.look()
        found = self._arrived.table(list(self._arrived.new), self._wanted.schema)
        different = compare(self._feed.closed(self._wanted, self._next - 1), found)
        if different:
            raise NotEquivalent(
                f"lost {different.lost}, too many {different.duplicated}: {'; '.join(different.examples)}",
                where=f"{self._variant.name}, {self._feed.workload.name}",
                hint="keep the files with --keep DIR",
            )

    def _crossed(self) -> dict[str, int]:
        found = {}
        for lower in [*SHAPE.edges, *SHAPE.sites]:
            bytes_ = self._lab.crossed(lower)
            found[f"{lower} up"], found[f"{lower} down"] = bytes_.up, bytes_.down
        return found
