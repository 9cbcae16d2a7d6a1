"""Run a small deployment of two zones for long, and measure the resources that it holds.

``python -m tests.deployments.soaking SECONDS [times | counts]`` prints how each resource grows, with windows of time
or of counts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

import headwater as hw
from headwater.agent.agents import Agents, running_agent
from headwater.continuum.model import Continuum
from headwater.control.controller import Controller
from headwater.control.store import Store
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from tests.deployments.controllers import apply
from tests.faults import until

CONTINUUM = """
name: small
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 1, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
"""
NAME = "soak"
OPTIONS = ("--quick", "--trigger", "0 seconds")
EVERY = 3.0
"""Seconds between two samples."""
COLLECTED = 10
"""Samples after which the Sparks collect their garbage: else their heaps grow to their limit, leak or not."""


def planned(out: Path, windows: str) -> DeploymentPlan:
    """Plan units with a channel, a sink, and state: duplicates, and windows of ``times`` or of ``counts``."""
    builder = hw.flow(NAME, locations=["L1"])
    rows = builder.read.sensors(machines=2, interval="1 second", rows_per_second=20).with_watermark("ts", "2 seconds")
    unique = rows.drop_duplicates("machine", "seq").named("unique").to_layer("cloud")
    if windows == "times":
        grouped = unique.group_by(hw.window("ts", "10 seconds"), "machine")
    else:
        grouped = unique.count_window(10, keys="machine", order_by=["ts", "seq"])
    means = grouped.agg(n="count(*)", mean="avg(temperature)")
    means.select("machine", "n", "mean").write.json(str(out))
    return build(builder.build(), Continuum.from_text(CONTINUUM))


@dataclass(frozen=True)
class Sample:
    """What a deployment holds at one time, by name, and the batches that it has executed."""

    batches: int
    held: Mapping[str, float]


class Soak:
    """A deployment with a controller in this process, and an agent and a Spark for each zone."""

    def __init__(self, home: Path, windows: str = "times") -> None:
        self.home = home
        self.plan = planned(home / "out", windows)
        self.agents = Agents(home, options=OPTIONS)
        self._store = Store(home / "store.db")
        self._stop = threading.Event()
        controller = Controller(self._store, self.agents.open, poll=1.0)
        self._controller = threading.Thread(target=controller.run, args=(self._stop,), daemon=True)

    def __enter__(self) -> Soak:
        self._controller.start()
        version = apply(self.plan, str(self.home / "store.db"))
        until(lambda: self._store.deployment(NAME).observed_version >= version, "the start")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._controller.join()
        self._store.close()
        self.agents.end()

    def spark(self, zone: str) -> LocalEndpoint:
        (directory,) = (self.home / "zones" / zone / "spark").iterdir()
        found = LocalEndpoint.attach(directory)
        assert found is not None
        return found

    def sample(self, *, collect: bool = False) -> Sample:
        """Measure all processes and directories; ``collect``: after the Sparks have collected their garbage."""
        held: Counter[str] = Counter()
        batches = 0
        for node in self.plan.continuum.nodes:
            zone = self.home / "zones" / node.name
            batches += sum(u.batch + 1 for u in self.agents.find(node).progress(NAME).units)
            record = running_agent(zone)
            assert record is not None
            server, *others = self.spark(node.name).processes
            if collect:
                collect_garbage(server)
            held += measured("agent", [int(record["pid"])])
            held += measured("spark", [server])
            held += measured("python", descendants([server, *others])[1:])
            held["sockets"] += len(os.listdir(self.spark(node.name).directory / "sockets" / ""))
            for path in zone.rglob("*"):
                held["files"] += "sinks" not in path.parts and path.name != "spark.log"
        held["store bytes"] = sum(f.stat().st_size for f in self.home.glob("store.db*"))
        held += measured("controller", [os.getpid()])
        return Sample(batches, held)

    def run(self, seconds: float, *, see: Callable[[Sample], None] = lambda sample: None) -> list[Sample]:
        """Take samples for some time."""
        samples, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # it has ended between two looks
                samples.append(self.sample(collect=len(samples) % COLLECTED == 0))
                see(samples[-1])
            time.sleep(EVERY)
        return samples


def descendants(roots: Sequence[int]) -> list[int]:
    """Return processes with all that they have started; the first root is first."""
    found = dict.fromkeys(roots)
    for root in roots:
        found |= dict.fromkeys(child.pid for child in psutil.Process(root).children(recursive=True))
    return list(found)


def measured(role: str, pids: Sequence[int]) -> Counter[str]:
    """Return the handles, threads and memory (MiB) of some processes, and their number."""
    held: Counter[str] = Counter({f"{role} processes": len(pids)})
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            process = psutil.Process(pid)
            handles = [os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            held[f"{role} handles"] += len(handles)
            held[f"{role} sockets"] += sum("socket:" in handle for handle in handles)
            held[f"{role} threads"] += process.num_threads()
            held[f"{role} MiB"] += process.memory_info().rss // 2**20
    return held


def collect_garbage(pid: int) -> None:
    """Let a Java process collect all garbage, by the protocol of the tools of a JDK, which is perhaps not installed."""
    answers, asked = Path(f"/tmp/.java_pid{pid}"), Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    if not answers.exists():
        asked.touch()
        try:
            os.kill(pid, signal.SIGQUIT)
            until(answers.exists, "Java's answer")
        finally:
            asked.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(str(answers))
        line.sendall(b"1\0jcmd\0GC.run\0\0\0")
        said = line.makefile("rb").read()
    assert said.startswith(b"0\n"), said


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return by how much the medians of the last quarter are above those of the second one."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    names = sorted(set().union(*(s.held for s in samples)))
    return {n: median(s.held.get(n, 0) for s in late) - median(s.held.get(n, 0) for s in early) for n in names}


def batches_between(samples: Sequence[Sample]) -> int:
    """Return the batches between the middles of the quarters that ``growth`` compares."""
    quarter = len(samples) // 4
    return samples[-quarter // 2].batches - samples[quarter + quarter // 2].batches


def main() -> None:
    with tempfile.TemporaryDirectory() as home, Soak(Path(home), *sys.argv[2:3]) as soak:
        samples = soak.run(float(sys.argv[1]), see=lambda s: print(s.batches, dict(sorted(s.held.items())), flush=True))
        print(f"{batches_between(samples)} batches between the middles of the second and the last quarter")
        for name, more in growth(samples).items():
            print(f"{name:20} {more:+10.0f}")


if __name__ == "__main__":
    main()
