"""The lab's test of itself: compare the settings of a link with TCP's measurements over it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from benchmarks.netlab.lab import Lab
from benchmarks.netlab.namespaces import LabError
from headwater.continuum.model import Continuum
from headwater.core.quantity import format_bandwidth

CONTINUUM = """
name: check
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
"""
CELLS: tuple[tuple[float | None, float], ...] = tuple(
    (bandwidth, delay) for bandwidth in (None, 1e9, 100e6, 10e6) for delay in (0.0, 0.01, 0.1)
)
QUICK: tuple[tuple[float | None, float], ...] = ((100e6, 0.0), (10e6, 0.01))
_PROBE = str(Path(__file__).with_name("probe.py"))
_PORT = 7001
_STREAMS = 8  # one connection's send buffer, 4 MiB by default, does not fill 1 Gbit/s at 100 ms
_TRIPS = 15


@dataclass(frozen=True)
class Measured:
    """One setting of a link: bit/s and seconds there and back, set and measured."""

    bandwidth: float | None
    delay: float
    got_bandwidth: float
    got_round_trip: float

    @property
    def round_trip(self) -> float:
        """Return the round trip that is set."""
        return 2 * self.delay


class Probe:
    """A server in one zone, asked from another."""

    def __init__(self, lab: Lab, server: str, client: str) -> None:
        self.lab, self.client, self.address = lab, client, lab.address(server)
        self.server = lab.popen(server, self._argv("serve"), stdout=subprocess.PIPE, text=True)
        self._line()

    def round_trip(self) -> float:
        """Return the median of single-byte round trips in seconds."""
        client = self.lab.popen(self.client, self._argv("trips", _TRIPS), stdout=subprocess.PIPE, text=True)
        out, _ = client.communicate(timeout=60)
        values = [float(line) for line in out.split()][3:]
        if not values:
            raise LabError("no round trip came back", hint="run `python -m benchmarks.netlab clean`")
        return median(values)

    def bandwidth(self, *, warm: float, seconds: float) -> float:
        """Return the bandwidth of several connections together, in bit/s, after a warm-up."""
        client = self.lab.popen(self.client, self._argv("load", _STREAMS, warm, seconds))
        try:
            return sum(float(self._line()) for _ in range(_STREAMS))
        finally:
            self.lab.end(client)

    def close(self) -> None:
        """End the server."""
        self.lab.end(self.server)

    def _argv(self, kind: str, *words: Any) -> list[str]:
        return [sys.executable, "-I", _PROBE, kind, self.address, str(_PORT), *map(str, words)]

    def _line(self) -> str:
        out: IO[str] | None = self.server.stdout
        assert out is not None
        line = out.readline().strip()
        if not line:
            raise LabError("the probe's server has ended", hint="see its message above")
        return line


def measure(lab: Lab, cells: Sequence[tuple[float | None, float]], *, seconds: float = 3.0) -> list[Measured]:
    """Set the link E1-S1 to each cell in turn and measure."""
    probe = Probe(lab, "S1", "E1")
    found = []
    for bandwidth, delay in cells:
        lab.set_link("E1", bandwidth=bandwidth, delay=delay)
        trip = probe.round_trip()
        # TCP needs some twenty round trips to find the capacity of a long path.
        warm = 0.5 + 20 * 2 * delay
        found.append(Measured(bandwidth, delay, probe.bandwidth(warm=warm, seconds=seconds), trip))
        time.sleep(0.3)  # bytes still on the way do not count for the next
    probe.close()
    return found


def check(*, quick: bool) -> dict[str, Any]:
    """Build a small lab, measure it, and return the results."""
    with Lab(Continuum.from_text(CONTINUUM)) as lab:
        found = measure(lab, QUICK if quick else CELLS, seconds=1.5 if quick else 3.0)
        return {
            "delay_by": "netem" if lab.netem else "user-space forwarder",
            "tcp": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
            "streams": _STREAMS,
            "cells": [{**asdict(m), "round_trip": m.round_trip} for m in found],
        }


def table(result: dict[str, Any]) -> str:
    """Return the result of `check` as a table."""
    lines = [
        f"delay by {result['delay_by']}; {result['streams']} TCP connections ({result['tcp']})",
        f"{'bandwidth':>12} {'measured':>13} {'of it':>6}   {'round trip':>10} {'measured':>10}",
    ]
    for cell in result["cells"]:
        wanted, got = cell["bandwidth"], cell["got_bandwidth"]
        share = f"{got / wanted:.0%}" if wanted else ""
        lines.append(
            f"{format_bandwidth(wanted):>12} {format_bandwidth(got):>13} {share:>6}   "
            f"{cell['round_trip'] * 1e3:>7.0f} ms {cell['got_round_trip'] * 1e3:>7.2f} ms"
        )
    return "\n".join(lines)
