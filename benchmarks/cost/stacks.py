"""Stacks of a run: sampled in JVMs by Java's flight recorder, in Python by ``sampler``; their kinds of work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PLANNING, CHECKPOINT, ARROW = "Spark planning", "checkpoint and state", "Arrow conversion"
WRITE, READ, FILES = "channel write", "channel read", "file sink"
OPERATORS, PYTHON_OPERATORS = "operators in Spark", "operators in Python"
SOURCE, SHUFFLE, PIPES = "source files", "shuffle", "pipes to Python"
WORKERS, SPARK, RELAY = "Python workers, other", "Spark, other", "relay"

JAVA_RULES = (
    (PIPES, r"PythonStreamingSourceRunner|PythonStreamingSinkCommitRunner|StreamingPythonRunner"),
    (ARROW, r"org\.apache\.arrow\.|execution\.arrow\.|ArrowColumnVector|PythonArrow|BasicPythonArrow"),
    (PIPES, r"org\.apache\.spark\.api\.python\.|execution\.python\.|UnixDomainSockets"),
    (CHECKPOINT, r"streaming\.checkpointing\.|streaming\.state\.|org\.rocksdb\.|MetadataLog|OffsetSeqLog|CommitLog"),
    (SHUFFLE, r"org\.apache\.spark\.shuffle\.|util\.collection\.|\.ShuffleExchangeExec"),
    (SOURCE, r"org\.apache\.parquet\.|execution\.datasources\.|catalyst\.csv\.|catalyst\.json\.|univocity"),
    (PLANNING, r"catalyst\.(optimizer|analysis|rules|plans|planning|trees)\.|codehaus\.(janino|commons)|"
               r"CodeGenerator|WholeStageCodegenExec\.doCodeGen|QueryExecution|execution\.adaptive\.|QueryPlanner"),
    (OPERATORS, r"GeneratedClass|catalyst\.expressions\.|sql\.execution\.|spark\.unsafe\."),
)  # fmt: skip
"""Kinds of work of a JVM's frames; the innermost frame that has one counts."""

PYTHON_RULES = (
    (RELAY, r"^headwater/channels/(relay|wire|linkmeter|logserver|flight)|^headwater/agent/relays"),
    (
        CHECKPOINT,
        r"^headwater/disk/(syncing|checkpoint)|^headwater/query/(ingest|latency)|stateful_processor|state_client",
    ),
    (ARROW, r"^pyspark/sql/(pandas/|conversion)|^pyarrow/|^pandas/"),
    (PYTHON_OPERATORS, r"^headwater/query/(countwindow|scan|compile)|^benchmarks/|/benchmarks/"),
    (READ, r"^headwater/channels/channel_spark"),
    (FILES, r"^headwater/connectors/(filewriter|deadletters)"),
    (WRITE, r"^headwater/connectors/writers|^headwater/query/writer|^headwater/channels/"),
)
"""The same of Python's frames; those of ``segments`` or ``journal`` are their caller's."""
_SHARED = re.compile(
    r"^headwater/channels/(segments|journal|store|filelog|log|logview|open|entry)|^headwater/disk/durable"
)
_WAITS = re.compile(
    r"epollWait|EPoll\.wait|\.accept|park\(|Object\.wait|SocketDispatcher\.read|socketRead|UnixDomainSockets\.connect|"
    r"Net\.poll|read0\(|Unsafe\.park|Thread\.sleep|NativeThread"
)
_PERIODS = {"jdk.ExecutionSample": "10 ms", "jdk.NativeMethodSample": "20 ms"}
_SAMPLES = "\n".join(
    [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<configuration version="2.0">',
        *(
            f'<event name="{event}"><setting name="enabled">true</setting>'
            f'<setting name="period">{period}</setting></event>'
            for event, period in _PERIODS.items()
        ),
        "</configuration>",
    ]
)


@dataclass(frozen=True)
class Stack:
    """One sample: its thread, its frames from the outermost inward, and its weight in processor seconds."""

    thread: str
    frames: tuple[str, ...]
    weight: float


def kind_of_java(frames: Sequence[str]) -> str:
    """Name the kind of work of a JVM's stack."""
    return _kind(reversed(frames), _JAVA, SPARK)


def kind_of_python(frames: Sequence[str]) -> str:
    """Name the kind of work of a Python stack."""
    return _kind((f for f in reversed(frames) if not _SHARED.search(f)), _PYTHON, WORKERS)


def _kind(inward: Iterable[str], rules: Sequence[tuple[str, re.Pattern[str]]], otherwise: str) -> str:
    for frame in inward:
        for kind, pattern in rules:
            if pattern.search(frame):
                return kind
    return otherwise


_JAVA = [(kind, re.compile(pattern)) for kind, pattern in JAVA_RULES]
_PYTHON = [(kind, re.compile(pattern)) for kind, pattern in PYTHON_RULES]


# ---------------------------------------------------------------- Java


def java_tool(name: str) -> str | None:
    """Find a tool of the JDK; None where Java comes without."""
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / name if home else None
    return str(beside) if beside is not None and beside.exists() else shutil.which(name)


class Recorder:
    """Sample the stacks of a JVM; without the JDK's tools there are none."""

    def __init__(self, pid: int, directory: Path) -> None:
        self._pid, self._file = pid, directory / f"{pid}.jfr"
        self._settings = directory / "samples.jfc"

    def begin(self) -> None:
        """Begin sampling."""
        self._settings.write_text(_SAMPLES)
        self._jcmd("JFR.start", "name=cost", f"settings={self._settings}")

    def end(self) -> list[Stack]:
        """End sampling; return the samples of threads that were working."""
        self._jcmd("JFR.stop", "name=cost", f"filename={self._file}")
        tool = java_tool("jfr")
        if tool is None or not self._file.exists():
            return []
        command = [tool, "print", "--events", ",".join(_PERIODS), "--stack-depth", "64", str(self._file)]
        text = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
        return list(java_stacks(text))

    def _jcmd(self, *words: str) -> None:
        tool = java_tool("jcmd")
        if tool is not None:
            subprocess.run([tool, str(self._pid), *words], capture_output=True, timeout=60, check=True)


def java_stacks(text: str) -> Iterator[Stack]:
    """Read the samples from the recorder's text; leave out native calls that only wait."""
    for block in text.split("\njdk."):
        thread = re.search(r'sampledThread = "(.*?)"', block)
        frames = re.findall(r"^    (\S.*?)\s*(?:line: \d+)?$", block.partition("stackTrace = [")[2], re.MULTILINE)
        frames = [f for f in frames if "(" in f]
        if thread is None or not frames:
            continue
        native = block.lstrip().startswith(("NativeMethodSample", "jdk.NativeMethodSample"))
        if native and _WAITS.search(frames[0]):
            continue
        named = tuple(re.sub(r"\(.*", "", f) for f in reversed(frames))
        yield Stack(thread.group(1), named, 0.02 if native else 0.01)


# ---------------------------------------------------------------- Python


@dataclass(frozen=True)
class Sampled:
    """The samples of a Python process, with its command line; a ``fork`` has that of the process it comes from."""

    command: str
    fork: bool
    stacks: list[Stack]


def python_stacks(directory: Path, begun: float, ended: float) -> list[Sampled]:
    """Read the samples between two times, by process."""
    found: list[Sampled] = []
    for file in directory.glob("*.samples"):
        first, *lines = file.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        kind, _, command = first.partition("\t")
        stacks = []
        for parts in (line.split("\t") for line in lines):
            if len(parts) == 4 and begun <= float(parts[0]) <= ended:
                stacks.append(Stack(parts[2], tuple(parts[3].split(";")), float(parts[1])))
        if stacks:
            found.append(Sampled(command, kind == "fork", stacks))
    return found


def scaled(stacks: Sequence[Stack], seconds: float) -> list[Stack]:
    """Scale the weights so that they sum up to the processor time that /proc shows."""
    total = sum(s.weight for s in stacks)
    return [Stack(s.thread, s.frames, s.weight * seconds / total) for s in stacks] if total else []


def folded(stacks: Iterable[Stack]) -> Counter[tuple[str, ...]]:
    """Sum up the weights of equal stacks."""
    total: Counter[tuple[str, ...]] = Counter()
    for one in stacks:
        total[one.frames] += one.weight  # type: ignore[assignment]  # seconds
    return total
