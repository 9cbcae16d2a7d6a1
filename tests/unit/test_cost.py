"""Attribution of processor time by ``benchmarks.cost``: samples are read, sorted into kinds, and sum up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.cost import processes, stacks
from benchmarks.cost.__main__ import attributed, graph
from benchmarks.cost.flame import flame_graph
from benchmarks.cost.processes import JVM, WORKER, Process, Spent
from benchmarks.cost.runs import SAMPLER, SAMPLES, Measured
from benchmarks.cost.stacks import Sampled, Stack

RECORDED = """
jdk.ExecutionSample {
  startTime = 12:00:00.000
  sampledThread = "Executor task launch worker for task 1.0 in stage 2.0 (TID 3)" (javaThreadId = 7)
  state = "STATE_RUNNABLE"
  stackTrace = [
    org.apache.arrow.vector.BigIntVector.setSafe(int, long) line: 12
    org.apache.spark.sql.execution.arrow.ArrowWriter.write(InternalRow) line: 90
    java.lang.Thread.run() line: 840
  ]
}

jdk.NativeMethodSample {
  startTime = 12:00:00.010
  sampledThread = "grpc-default-worker-ELG-1" (javaThreadId = 8)
  state = "STATE_RUNNABLE"
  stackTrace = [
    io.netty.channel.epoll.Native.epollWait(int, long, int, int)
    java.lang.Thread.run() line: 840
  ]
}

jdk.NativeMethodSample {
  startTime = 12:00:00.020
  sampledThread = "Executor task launch worker" (javaThreadId = 9)
  state = "STATE_RUNNABLE"
  stackTrace = [
    org.rocksdb.RocksDB.put(long, byte[], int, int)
    java.lang.Thread.run() line: 840
  ]
}
"""


def test_samples_of_java_are_read_without_waiting_calls() -> None:
    arrow, rocks = stacks.java_stacks(RECORDED)
    assert arrow.thread.startswith("Executor task")
    assert arrow.frames[0] == "java.lang.Thread.run"
    assert (arrow.weight, rocks.weight) == (0.01, 0.02)
    assert [stacks.kind_of_java(s.frames) for s in (arrow, rocks)] == [stacks.ARROW, stacks.CHECKPOINT]


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (("pyspark/daemon.py:worker", "headwater/channels/channel_spark.py:ChannelReader.read"), stacks.READ),
        (("headwater/channels/channel_spark.py:read", "headwater/channels/segments.py:read_segment"), stacks.READ),
        (("headwater/connectors/writers.py:_LogTask.write", "headwater/channels/segments.py:write"), stacks.WRITE),
        (("headwater/query/writer.py:commit", "headwater/disk/syncing.py:sync_checkpoint"), stacks.CHECKPOINT),
        (("headwater/agent/relays.py:pull", "headwater/channels/relay.py:Relay.run"), stacks.RELAY),
        (("pyspark/worker.py:main", "pyspark/sql/pandas/serializers.py:load_stream"), stacks.ARROW),
        (("pyspark/daemon.py:manager",), stacks.WORKERS),
    ],
)
def test_python_frames_have_kinds(frames: tuple[str, ...], kind: str) -> None:
    assert stacks.kind_of_python(frames) == kind


def test_kinds_sum_up_to_the_processes() -> None:
    spent = Spent(
        roles=Counter({JVM: 8.0, WORKER: 4.0, processes.AGENT: 1.0}),  # type: ignore[arg-type]  # seconds
        threads={7: Counter({"tasks": 6.0, "GC": 2.0})},  # type: ignore[dict-item]
    )
    task = "Executor task launch worker"
    java = {7: [Stack(task, ("Gen.GeneratedClass.x",), 0.01), Stack(task, ("org.rocksdb.RocksDB.put",), 0.02)]}
    zygote = "python -m headwater.spark.zygote /spark 7"
    reads = Stack("MainThread", ("headwater/channels/channel_spark.py:ChannelReader.read",), 0.5)
    run = Measured(spent, 3.0, java=java, python=[Sampled(zygote, fork=True, stacks=[reads])], names={7: "E1"})
    kinds = attributed(run)
    assert kinds == {
        stacks.OPERATORS: pytest.approx(2.0),
        stacks.CHECKPOINT: pytest.approx(4.0),
        "Spark: GC": 2.0,
        stacks.READ: pytest.approx(4.0),
        processes.AGENT: 1.0,
    }
    assert sum(graph(run, 7).values()) == pytest.approx(12.0)


def test_what_ended_children_took_goes_to_their_role() -> None:
    zygote = "python -m headwater.spark.zygote /spark 2"
    found = processes.by_role(
        [
            Process(1, 0, "python -m benchmarks.cost", 1.0, 0.0),
            Process(2, 1, "java SparkConnectServer", 5.0, 0.5),
            Process(3, 1, zygote, 0.25, 2.0),
            Process(4, 3, zygote, 1.0, 3.0),
        ]
    )
    assert found == {"client": 1.0, JVM: 5.0, "launchers": 0.5, "zygote": 0.25, WORKER: 6.0}


def test_a_process_and_its_forks_are_sampled_by_processor_time(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "def work():\n"
        "    while time.process_time() < 0.3: sum(range(1000))\n"
        "pid = os.fork()\n"
        "if pid == 0: work(); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SAMPLER), SAMPLES: str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    (fork,) = (s for s in stacks.python_stacks(tmp_path, 0, 1e12) if s.fork)
    assert sum(s.weight for s in fork.stacks) == pytest.approx(0.3, abs=0.05)
    assert all("work" in s.frames[-1] or "work" in s.frames[-2] for s in fork.stacks)


def test_flame_graph_names_its_frames(tmp_path: Path) -> None:
    flame_graph(tmp_path / "x.svg", "unit", {("a.b.Outer.run", "a.b.Inner<T>.get"): 3.0, ("a.b.Outer.run",): 1.0})
    text = (tmp_path / "x.svg").read_text()
    assert "a.b.Outer.run: 4.00 s, 100.0%" in text
    assert "Inner&lt;T&gt;.get: 3.00 s, 75.0%" in text
