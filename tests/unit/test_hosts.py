"""CPU time of processes while some end and others start; its attribution to units; CPU quotas."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from headwater.cli.zone import offers_of
from headwater.continuum.model import Host
from headwater.query.query import Batch, Running
from headwater.spark import cores
from headwater.spark import hosts as hosts_module
from headwater.spark.cores import quota, quota_of
from headwater.spark.hosts import CpuClock, HostMeter, Meter, Process, descendants, pss_of, since
from headwater.spark.memory import memory_total

HOST = Host("host", "zone")
SERVER, ZYGOTE, WORKER, OTHER = (1, 1.0), (2, 1.0), (3, 2.0), (3, 9.0)


def test_the_first_look_tells_only_where_to_begin() -> None:
    account = CpuClock()
    assert account.take({SERVER: Process(100.0, 50.0)}) == 0.0
    assert account.take({SERVER: Process(102.0, 50.0)}) == 2.0
    assert account.seconds == 2.0


def test_a_worker_that_ended_is_counted_once() -> None:
    account = CpuClock()
    account.take({ZYGOTE: Process(5.0, 1.0)})
    assert account.take({ZYGOTE: Process(5.0, 1.0), WORKER: Process(3.0, 0.0)}) == 3.0
    # The worker used another 0.5 s and ended; the zygote's account of ended children has its 3.5 s.
    assert account.take({ZYGOTE: Process(5.1, 4.5)}) == pytest.approx(0.6)
    assert account.seconds == pytest.approx(3.6)


def test_a_parent_may_be_told_of_the_end_a_look_later() -> None:
    account = CpuClock()
    account.take({ZYGOTE: Process(5.0, 0.0), WORKER: Process(3.0, 0.0)})
    assert account.take({ZYGOTE: Process(5.0, 0.0)}) == 0.0
    assert account.take({ZYGOTE: Process(5.0, 3.25)}) == 0.25
    assert account.take({ZYGOTE: Process(5.0, 4.25)}) == 1.0


def test_nothing_goes_backward_when_nobody_waits_for_the_ended() -> None:
    account = CpuClock()
    account.take({ZYGOTE: Process(5.0, 0.0), WORKER: Process(3.0, 0.0)})
    assert account.take({ZYGOTE: Process(5.5, 0.0)}) == 0.5
    assert account.take({}) == 0.0
    assert account.seconds == 0.5


def test_one_that_came_and_went_between_two_looks_is_counted() -> None:
    account = CpuClock()
    account.take({ZYGOTE: Process(5.0, 0.0)})
    assert account.take({ZYGOTE: Process(5.0, 2.0)}) == 2.0


def test_an_id_that_was_given_away_again_is_another_process() -> None:
    account = CpuClock()
    account.take({ZYGOTE: Process(0.0, 0.0), WORKER: Process(7.0, 0.0)})
    assert account.take({ZYGOTE: Process(0.0, 7.0), OTHER: Process(0.25, 0.0)}) == 0.25


def test_growth_since_a_moment() -> None:
    samples = [(0.0, 0.0), (1.0, 2.0), (3.0, 2.0), (4.0, 6.0)]
    assert since(samples, 3.5) == 2.0
    assert since(samples, 2.0) == 4.0
    assert since(samples, -10.0) == 6.0
    assert since(samples, 9.0) == 0.0
    assert since(samples[:1], 0.0) == 0.0
    assert since([], 0.0) == 0.0


def test_quotas() -> None:
    assert quota("50000 100000\n") == 0.5
    assert quota("max 100000\n") is None
    for damaged in ("", "max", "x y", "1 0"):
        assert quota(damaged) is None


def test_an_agent_offers_the_cores_and_memory_of_its_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cpus_of", lambda pid: frozenset({0, 1, 2}))
    for limit, share, tasks in ((None, 3, 3), (0.5, 0.5, 1), (1.5, 1.5, 2), (2.0, 2, 2), (8.0, 3, 3)):
        monkeypatch.setattr(cores, "quota_of", lambda pid, limit=limit, **_: limit)
        assert cores.cores_here() == tasks
        assert dict(offers_of(())) == {"n_cpu": share, "memory": memory_total()}
    assert dict(offers_of(("n_cpu=7 and gpu=true",))) == {"n_cpu": 7, "memory": memory_total(), "gpu": True}


def test_the_least_quota_of_a_process_bounds_it(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroups"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("1:cpu:/x\n0::/a/b\n")
    (cgroups / "a" / "b").mkdir(parents=True)
    assert quota_of(7, proc=proc, cgroups=cgroups) is None
    (cgroups / "a" / "cpu.max").write_text("150000 100000\n")
    (cgroups / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert quota_of(7, proc=proc, cgroups=cgroups) == 1.5
    (cgroups / "cpu.max").write_text("100000 100000\n")
    assert quota_of(7, proc=proc, cgroups=cgroups) == 1.0
    assert quota_of(8, proc=proc, cgroups=cgroups) is None


@dataclass
class Spark:
    """An endpoint of which the tests use only the processes."""

    processes: tuple[int, ...] = ()
    cores: int = 64
    part: float = 1.0

    def share(self, busy_s: float) -> float:
        return self.part

    def known(self) -> Any:
        """Return the endpoint with its host, as a node's Sparks do."""
        return HOST, self


class Clock:
    """A clock that a test moves."""

    at = 100.0

    def monotonic(self) -> float:
        return self.at

    def time(self) -> float:
        return self.at


def running(*batches: Batch) -> Running:
    return Running(None, batches=deque(batches))  # type: ignore[arg-type]


def test_a_spark_is_shared_by_how_long_batches_took() -> None:
    meter = Meter(HOST, Spark())  # type: ignore[arg-type]
    meter._samples.extend([(100.0, 10.0), (110.0, 10.0), (111.0, 14.0)])
    one, two, idle = running(Batch(0, 110.0, 0.3, 5)), running(Batch(4, 110.5, 0.1, 5)), running()
    meter.share([one, two, idle])
    assert (one.cpu_s, two.cpu_s, idle.cpu_s) == (pytest.approx(3.0), pytest.approx(1.0), 0.0)
    meter.share([one, two, idle])  # no new batch is reported
    assert one.cpu_s + two.cpu_s == pytest.approx(4.0)
    meter._samples.append((112.0, 20.0))  # no query was busy
    meter.share([one, two, idle])
    assert one.cpu_s + two.cpu_s == pytest.approx(4.0)
    meter._samples.append((113.0, 21.0))
    idle.batches.append(Batch(1, 112.5, 0.4, 0))
    meter.share([one, two, idle])
    assert idle.cpu_s == pytest.approx(0.5)


def test_a_process_that_works_is_seen() -> None:
    code = "print(sum(i * i for i in range(4_000_000)), flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        spark = Spark(processes=(one.pid,))
        hosts = HostMeter(spark)  # type: ignore[arg-type]
        quarter = HostMeter(Spark(processes=(one.pid,), part=0.25))  # type: ignore[arg-type]
        hosts.look(())
        quarter.look(())
        assert one.stdin is not None and one.stdout is not None
        one.stdout.readline()
        quarter.look(())
        hosts.look(())
        (seen,), (part,) = hosts.progress(), quarter.progress()
        assert part.cpu_s < seen.cpu_s / 2 and part.memory < seen.memory / 2, "others use that Spark, too"
        assert (seen.host, seen.zone) == ("host", "zone")
        assert seen.cpu_s > 0 and seen.memory > 2**20 and seen.memory_free
        assert seen.agent_memory > 2**20
        if Path("/proc/self/smaps_rollup").exists():
            assert seen.pss is not None and 2**20 < seen.pss <= seen.memory + seen.agent_memory
        assert 0 < seen.cores <= (os.cpu_count() or 1)
        one.stdin.close()
    hosts.look(())
    assert hosts.progress() == ()


def test_a_calm_spark_is_looked_at_less_often_until_there_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(hosts_module, "time", clock)
    meter = Meter(HOST, Spark(processes=(os.getpid(),)))  # type: ignore[arg-type]

    def looks(seconds: int, *units: Running) -> int:
        found = 0
        for _ in range(seconds):
            clock.at += 1.0
            if meter.is_due(units):
                found += 1
                meter.look()
        return found

    unit = running(Batch(3, 1.0, 0.1, 5))
    unit.paid = 3
    assert looks(59, unit) == 59, "it has just been found"
    assert looks(50, unit) == 10
    unit.batches.append(Batch(4, 2.0, 0.1, 5))
    assert looks(1, unit) == 1, "its time is due to the units of the batch"
    unit.paid = 4
    assert looks(59, unit) == 59 and looks(50, unit) == 10
    assert meter._endpoint.processes
    meter._endpoint.processes = ()  # type: ignore[misc]
    assert looks(1, unit) == 1 and meter.seen is None


def test_descendants_are_those_of_the_roots_that_run(tmp_path: Path) -> None:
    for pid, parent, name in ((1, 0, "init"), (7, 1, "java"), (8, 7, "a) R 1 (b"), (9, 8, "c"), (10, 1, "other")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 0 0\n")
    (tmp_path / "11").mkdir()  # it has just ended
    (tmp_path / "meminfo").touch()
    assert descendants([7], proc=tmp_path) == [7, 8, 9]
    assert descendants([7, 8, 12], proc=tmp_path) == [7, 8, 9]
    assert descendants([12], proc=tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_descendants_of_this_process_are_found() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as child:
        try:
            deadline = time.monotonic() + 30
            while not (own := psutil.Process(child.pid).children()) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert own and {os.getpid(), child.pid, own[0].pid} <= set(descendants([os.getpid()]))
            assert set(descendants([child.pid])) == {child.pid, own[0].pid}
        finally:
            for process in psutil.Process(child.pid).children():
                process.kill()
            child.kill()


def test_of_a_spark_elsewhere_nothing_is_said() -> None:
    hosts = HostMeter(Spark())  # type: ignore[arg-type]
    hosts.look([running(Batch(0, 1.0, 1.0, 1))])
    assert hosts.progress() == ()


def test_shared_memory_is_divided_between_the_processes_that_share_it(tmp_path: Path) -> None:
    for pid, size in ((7, 100), (8, 50)):
        (tmp_path / str(pid)).mkdir()
        text = f"00400000-7ffd00000000 ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss: {size} kB\nPss_Anon: 1 kB\n"
        (tmp_path / str(pid) / "smaps_rollup").write_text(text)
    assert pss_of([7, 8, 9], proc=tmp_path) == 150 << 10, "one has ended"
    assert pss_of([9], proc=tmp_path) is None
