"""Processor time and memory of the processes of a run, by role, and of a JVM's threads, from /proc."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_LOOK = 0.2  # seconds between two looks at threads
_SIZES = 5  # looks between two at memory, which takes longer

JVM, ZYGOTE, WORKER, LAUNCHER = "jvm", "zygote", "python workers", "launchers"
AGENT, CONTROLLER, CLIENT = "agent", "controller", "client"

THREADS = (
    ("Executor task", "tasks"),
    ("stream execut", "stream threads"),
    ("C1 Compiler", "JIT compiler"),
    ("C2 Compiler", "JIT compiler"),
    ("GC Thread", "GC"),
    ("G1 ", "GC"),
    ("VM Thread", "GC"),
    ("stateConnecti", "state server"),
    ("state-store", "state server"),
    ("JFR ", "sampling"),
    ("Attach List", "sampling"),
)
"""Beginnings of names of a JVM's threads (Linux keeps 15 characters), and their groups."""
DRIVER = "driver"
"""All other threads: scheduler, Connect server, listeners."""


@dataclass(frozen=True)
class Process:
    """One process at a look; times in seconds, ``reaped`` are those of children that have ended."""

    pid: int
    parent: int
    command: str
    own: float
    reaped: float


@dataclass
class Spent:
    """What a run has taken: processor seconds by role and by thread group of each JVM, and the largest PSS in MB."""

    roles: Counter[str] = field(default_factory=Counter)
    threads: dict[int, Counter[str]] = field(default_factory=dict)
    pss_mb: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Processor seconds of all processes."""
        return sum(self.roles.values())


def role_of(command: str) -> str:
    """Name the role of a process by its command line."""
    if "SparkConnectServer" in command:
        return JVM
    if "headwater.spark.zygote" in command:
        return ZYGOTE
    if "handover.py" in command:
        return LAUNCHER
    if "-m headwater zone" in command:
        return AGENT
    if "-m headwater up" in command:
        return CONTROLLER
    return CLIENT


def below(root: int) -> Iterator[Process]:
    """Yield all living descendants of a process, parents first, and itself."""
    found: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (one := process_of(int(entry))) is not None:
            found.setdefault(root if one.pid == root else one.parent, []).append(one)
    todo = [p for p in found.get(root, ()) if p.pid == root]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        yield one
        seen.add(one.pid)
        todo += [p for p in found.get(one.pid, ()) if p.pid not in seen]


def process_of(pid: int) -> Process | None:
    """Return a process, or None where it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    own, reaped = int(stat[11]) + int(stat[12]), int(stat[13]) + int(stat[14])
    return Process(pid, int(stat[1]), command, own * _TICK, reaped * _TICK)


def by_role(processes: list[Process]) -> Counter[str]:
    """Sum processor seconds since each process began, by role; what ended children took goes to their role."""
    roles = roles_of(processes)
    total: Counter[str] = Counter()
    for one in processes:
        role = roles[one.pid]
        total[role] += one.own
        # Forks of a zygote are workers; children of a JVM that end are launchers.
        total[{ZYGOTE: WORKER, JVM: LAUNCHER}.get(role, role)] += one.reaped
    return total


def roles_of(processes: list[Process]) -> dict[int, str]:
    """Return the role of each process: the forks of a zygote have its command line."""
    commands = {p.pid: p for p in processes}
    roles: dict[int, str] = {}
    for one in processes:
        role = role_of(one.command)
        parent = commands.get(one.parent)
        if role == ZYGOTE and parent is not None and role_of(parent.command) == ZYGOTE:
            role = WORKER
        roles[one.pid] = role
    return roles


def threads_of(pid: int) -> dict[int, tuple[str, float]]:
    """Return name and processor seconds of each thread of a process."""
    found: dict[int, tuple[str, float]] = {}
    try:
        entries = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for tid in entries:
        try:
            text = Path(f"/proc/{pid}/task/{tid}/stat").read_text()
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        found[int(tid)] = name, (int(fields[11]) + int(fields[12])) * _TICK
    return found


def group_of(thread: str) -> str:
    """Name the group of a JVM's thread."""
    return next((group for begin, group in THREADS if thread.startswith(begin)), DRIVER)


def pss_mb(pid: int) -> float:
    """Return the memory of a process, its share of what it shares; 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


class Meter:
    """Measure the processes below ``root`` between ``begin`` and ``end``."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._over = threading.Event()
        self._before: Counter[str] = Counter()
        self._first: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], tuple[str, float]] = {}
        self._own: dict[int, float] = {}
        self._pss: dict[str, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        """Begin measuring."""
        processes = list(below(self._root))
        self._before = by_role(processes)
        for pid, role in roles_of(processes).items():
            if role == JVM:
                self._own[pid] = next(p.own for p in processes if p.pid == pid)
                self._first |= {(pid, tid): cpu for tid, (_, cpu) in threads_of(pid).items()}
        self._thread.start()

    def end(self) -> Spent:
        """End measuring; return what the processes took since it began."""
        processes = list(below(self._root))
        roles = by_role(processes)
        roles.subtract(self._before)
        self._over.set()
        self._thread.join()
        threads: dict[int, Counter[str]] = {}
        for pid, before in self._own.items():
            groups: Counter[str] = Counter()
            for (owner, tid), (name, cpu) in self._last.items():
                if owner == pid:
                    groups[group_of(name)] += cpu - self._first.get((pid, tid), 0.0)
            now = next((p.own for p in processes if p.pid == pid), before)
            groups[DRIVER] += max(0.0, now - before - sum(groups.values()))  # threads that ended between two looks
            threads[pid] = groups
        return Spent(+roles, threads, {role: round(mb, 1) for role, mb in self._pss.items()})

    def _watch(self) -> None:
        looks = 0
        while True:
            over = self._over.wait(_LOOK)
            for pid in self._own:
                self._last |= {(pid, tid): seen for tid, seen in threads_of(pid).items()}
            if looks % _SIZES == 0 or over:
                self._weigh()
            looks += 1
            if over:
                return

    def _weigh(self) -> None:
        now: Counter[str] = Counter()
        for pid, role in roles_of(list(below(self._root))).items():
            now[role] += pss_mb(pid)
        for role, mb in now.items():
            self._pss[role] = max(mb, self._pss.get(role, 0.0))
