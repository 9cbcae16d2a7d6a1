"""Use of a node's host: cores and memory taken by its Spark, its agent and all other processes.

A Spark consists of its server, the zygote of its Python workers, and the descendants of both. Core time is
counted from sample to sample, process by process, so that it never decreases when a process ends.
A Spark's core time is attributed to its units in proportion to the duration of their batches.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headwater import __version__
from headwater.continuum.model import Host
from headwater.core.metrics import HostProgress
from headwater.query.query import Running
from headwater.spark.cores import cpus_of, share_of
from headwater.spark.endpoint import Endpoint
from headwater.spark.memory import memory_free
from headwater.spark.sparks import Sparks

_SEEK = 5.0  # seconds between two searches for new processes; their time in between is not lost
_WEIGH = 30.0  # seconds between two sums of shared memory: the system walks through all pages of each process
_CALM = 60.0  # seconds without a batch after which all of this is done less often: it takes more than an idle query
_CALM_LOOK, _CALM_SEEK, _CALM_WEIGH = 5.0, 30.0, 300.0
_SAMPLES = 600  # samples kept: a batch that takes longer gets less than its share
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""Busy time of a cpu; stolen time, taken by other guests of the machine, included."""

Key = tuple[int, float]
"""A process: its id, and its time of creation, because ids are reused."""


@dataclass(frozen=True)
class Process:
    """A process at one moment: its own core seconds, those of its ended children that it has waited
    for, and its memory in bytes."""

    own: float
    ended: float
    memory: int = 0


class CpuClock:
    """Sum of the core time of a changing set of processes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last: Mapping[Key, Process] | None = None
        self._owed = 0.0
        """Core seconds of ended processes that their parents' accounts do not include yet."""

    def take(self, now: Mapping[Key, Process], share: float = 1.0) -> float:
        """Return the core seconds since the last sample; the first sample only sets the start.

        ``share``: the part of them that counts.

        A process that has ended is counted up to the sample before. Its later time is in
        its parent's account of ended children, if the parent has waited for it.
        """
        last, self._last = self._last, dict(now)
        if last is None:
            return 0.0
        none = Process(0.0, 0.0)
        own = sum(max(0.0, p.own - last.get(key, none).own) for key, p in now.items())
        ended = sum(max(0.0, p.ended - last.get(key, none).ended) for key, p in now.items())
        counted = sum(p.own + p.ended for key, p in last.items() if key not in now)
        taken = (own + max(0.0, ended - counted - self._owed)) * share
        self._owed = max(0.0, counted - ended)
        self.seconds += taken
        return taken


def since(samples: Sequence[tuple[float, float]], begin: float) -> float:
    """Return the growth of a count from ``begin`` to the newest (time, count), interpolated linearly.

    >>> since([(0.0, 0.0), (10.0, 5.0), (11.0, 6.0)], 8.0)
    2.0
    """
    if not samples:
        return 0.0
    newest = samples[-1][1]
    for (early, low), (late, high) in zip(reversed(samples[:-1]), reversed(samples[1:]), strict=True):
        if early <= begin:
            share = (begin - early) / (late - early) if late > early else 1.0
            return newest - (low + (high - low) * min(1.0, share))
    return newest - samples[0][1]


# ---------------------------------------------------------------- one Spark


class Meter:
    """Sample one Spark."""

    def __init__(self, host: Host, endpoint: Endpoint) -> None:
        self._host, self._endpoint = host, endpoint
        self._account, self._agent = CpuClock(), CpuClock()
        self._busy: float | None = None
        self._all = 0.0
        self._begun = time.monotonic()
        self._roots: tuple[int, ...] = ()
        self._sought = 0.0
        self._own = psutil.Process()
        self._processes: list[psutil.Process] = []
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._paid_until = 0.0
        self._batches_s = 0.0
        """Seconds that all batches took."""
        self._pss: int | None = None
        self._weighed = 0.0
        self._looked = -math.inf
        self._worked = time.monotonic()
        """When a new batch was last known."""
        self.seen: HostProgress | None = None
        """The last sample; None where the Spark is not on this machine, or does not run."""

    def is_due(self, units: Iterable[Running]) -> bool:
        """Return whether to take a sample: at each call, but seldom where no unit has had a batch for long."""
        now = time.monotonic()
        if any(unit.batches and unit.batches[-1].id > unit.paid for unit in units):
            self._worked = now
        return not self._is_calm or self._endpoint.processes != self._roots or now - self._looked >= _CALM_LOOK

    @property
    def _is_calm(self) -> bool:
        return time.monotonic() - self._worked >= _CALM

    def look(self) -> None:
        """Take a sample."""
        roots, self._looked = self._endpoint.processes, time.monotonic()
        if roots != self._roots or time.monotonic() - self._sought >= (_CALM_SEEK if self._is_calm else _SEEK):
            self._roots, self._sought = roots, time.monotonic()
            self._processes = _descent(roots)
        tree = _figures(self._processes)
        if not tree:
            self.seen = None
            return
        cpus = cpus_of(roots[0])
        busy = _busy(cpus)
        self._all += max(0.0, busy - self._busy) if self._busy is not None else 0.0
        self._busy = busy
        self._account.take(tree, self._endpoint.share(self._batches_s))
        part = self._endpoint.part
        own = _figures([self._own])
        self._agent.take({key: Process(p.own, 0.0, p.memory) for key, p in own.items()})
        self._samples.append((time.time(), self._account.seconds))
        if self._pss is None or time.monotonic() - self._weighed >= (_CALM_WEIGH if self._is_calm else _WEIGH):
            self._weighed = time.monotonic()
            whole, agent = pss_of(pid for pid, _ in tree), pss_of([self._own.pid])
            self._pss = None if whole is None or agent is None else round(whole * part) + agent
        before = self.seen.others_s if self.seen else 0.0
        self.seen = HostProgress(
            host=self._host.name,
            zone=self._host.zone,
            cores=min(share_of(roots[0]), float(self._endpoint.cores)),
            seconds=time.monotonic() - self._begun,
            cpu_s=self._account.seconds,
            agent_s=self._agent.seconds,
            others_s=max(before, self._all - self._account.seconds - self._agent.seconds),
            memory=round(sum(p.memory for p in tree.values()) * part),
            memory_free=memory_free(),
            agent_memory=sum(p.memory for p in own.values()),
            pss=self._pss,
            version=__version__,
        )

    def share(self, units: Iterable[Running]) -> None:
        """Attribute to units this Spark's core time since the start of the first of their new batches.

        Core time while no batch ran is attributed to no unit.
        """
        told = [(u, [b for b in u.batches if b.id > u.paid]) for u in units]
        told = [(unit, batches) for unit, batches in told if batches]
        total = sum(b.seconds for _, batches in told for b in batches)
        self._batches_s += total
        if not self._samples or total <= 0:
            return
        begin = min(b.begun for _, batches in told for b in batches)
        cpu = since(tuple(self._samples), max(begin, self._paid_until))
        self._paid_until = self._samples[-1][0]
        for unit, batches in told:
            unit.cpu_s += cpu * sum(b.seconds for b in batches) / total
            unit.paid = batches[-1].id


class HostMeter:
    """Meter of a node's Spark, for its agent."""

    def __init__(self, sparks: Sparks) -> None:
        self._sparks = sparks
        self._meter: Meter | None = None

    def look(self, units: Iterable[Running]) -> None:
        """Take a sample of the Spark and attribute its core time; ``units`` are those of all deployments."""
        if (known := self._sparks.known()) is None:
            return
        if self._meter is None:
            self._meter = Meter(*known)
        told = list(units)
        if self._meter.is_due(told):
            self._meter.look()
        self._meter.share(told)

    def progress(self) -> tuple[HostProgress, ...]:
        """Return the last sample of the Spark; empty if it is not on this machine."""
        return (self._meter.seen,) if self._meter is not None and self._meter.seen is not None else ()


# ---------------------------------------------------------------- data of the operating system


def _descent(roots: Collection[int]) -> list[psutil.Process]:
    """Return processes and all their descendants."""
    found: list[psutil.Process] = []
    if Path("/proc/self/stat").exists():
        for pid in descendants(roots):
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(pid))
        return found
    for root in roots:
        try:
            parent = psutil.Process(root)
            found += [parent, *parent.children(recursive=True)]
        except psutil.Error:
            continue
    return found


def descendants(roots: Collection[int], *, proc: Path = Path("/proc")) -> list[int]:
    """Return the ids of processes that run and of all their descendants, by one pass over the system's processes.

    psutil takes about ten times as long for each root: it also reads when each process of the system began.
    """
    children: defaultdict[int, list[int]] = defaultdict(list)
    running = [int(name) for name in os.listdir(proc) if name.isdigit()]
    for pid in running:
        with contextlib.suppress(OSError, IndexError), open(f"{proc}/{pid}/stat", "rb") as stat:
            # The name, in brackets, may have any characters; the parent is the second field after it.
            children[int(stat.read().rpartition(b")")[2].split(None, 2)[1])].append(pid)
    found = [root for root in roots if root in running]
    for pid in found:  # grows meanwhile
        found += children[pid]
    return list(dict.fromkeys(found))


def _figures(processes: Iterable[psutil.Process]) -> dict[Key, Process]:
    """Read processes' core time and memory; those that have ended are left out."""
    found: dict[Key, Process] = {}
    for process in processes:
        try:
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info().rss
        except psutil.Error:
            continue
        # Only Linux reports children that have ended.
        ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        key = (process.pid, process.create_time())
        found[key] = Process(times.user + times.system, ended, memory)
    return found


def pss_of(pids: Iterable[int], *, proc: Path = Path("/proc")) -> int | None:
    """Return the proportional set size of processes in bytes, without those that have ended; None if it is unknown."""
    found = []
    for pid in pids:
        try:
            lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")]
    return sum(found) if found else None


def _busy(cpus: Collection[int]) -> float:
    times = psutil.cpu_times(percpu=True)
    return float(sum(getattr(t, name, 0.0) for n, t in enumerate(times) if n in cpus for name in _BUSY))
