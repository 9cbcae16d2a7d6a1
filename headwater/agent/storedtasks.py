"""The files of a deployment's directory on a node: orders (tasks.json) and descriptions of units (specs/)."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import DeploymentError, SpecUnknown
from headwater.core.jsonform import dump_json, load_json
from headwater.disk.durable import write_atomically
from headwater.plan.port import Wanted
from headwater.plan.spec import UnitSpec, read_spec
from headwater.plan.steps import Incarnation, incarnation


@dataclass(frozen=True)
class Task:
    """The newest order for a unit, which is described by the spec with this digest."""

    unit: str
    digest: str
    wanted: Wanted


class StoredTasks:
    """The newest order for each unit of a deployment on a node; every change is on disk before its method returns."""

    def __init__(self, node: str, root: Path) -> None:
        self._node = node
        self._root = root
        self.lock = threading.RLock()
        """Held briefly to read or change the tasks, or the owner's state of them; never during a call to Spark."""
        self._unit_locks: dict[str, threading.RLock] = {}
        """Held during work on a unit, which may take long."""
        self._specs: dict[str, UnitSpec] = {}
        upgrade_tasks(root)
        self._tasks = {entry["unit"]: Task(**entry) for entry in stored_tasks(self._file)}

    @property
    def _file(self) -> Path:
        return self._root / "tasks.json"

    def _spec_file(self, digest: str) -> Path:
        return self._root / "specs" / f"{digest}.json"

    def hold(self, spec: UnitSpec) -> str:
        """Store a unit's spec; return its digest."""
        self._specs.setdefault(spec.digest, spec)
        file = self._spec_file(spec.digest)
        if not file.exists():
            write_atomically(file, dump_json(spec).decode())
        return spec.digest

    def spec(self, digest: str) -> UnitSpec:
        """Return a stored spec; raise SpecUnknown where it is missing."""
        with self.lock:
            if digest not in self._specs:
                file = self._spec_file(digest)
                if not digest.isalnum() or not file.exists():
                    raise SpecUnknown("the unit's description is not here", where=f"{self._node}: {digest[:12]}")
                self._specs[digest] = read_spec(json.loads(file.read_text()), where=str(file))
            return self._specs[digest]

    def spec_of(self, task: Task) -> UnitSpec:
        """Return the spec of a task's unit."""
        return self.spec(task.digest)

    def all(self) -> tuple[Task, ...]:
        """Return all tasks."""
        with self.lock:
            return tuple(self._tasks.values())

    def get(self, unit: str) -> Task | None:
        """Return the newest order for a unit; None if there is none."""
        return self._tasks.get(unit)

    def want(self, spec: UnitSpec, wanted: Wanted) -> None:
        """Store a unit's spec, and the order for it."""
        self.hold(spec)
        self.note(Task(spec.id, spec.digest, wanted))

    def note(self, task: Task) -> None:
        """Store the order for a unit."""
        with self.lock:
            if self._tasks.get(task.unit) != task:
                self._tasks[task.unit] = task
                self._write()

    def remove(self, unit: str) -> None:
        """Remove the order for a unit."""
        with self.lock:
            self._tasks.pop(unit, None)
            self._write()

    def drop_unused(self, spec: UnitSpec) -> None:
        """Remove a spec from the disk if no order names it."""
        with self.lock:
            if spec.digest not in {task.digest for task in self._tasks.values()}:
                self._specs.pop(spec.digest, None)
                self._spec_file(spec.digest).unlink(missing_ok=True)

    def _write(self) -> None:
        write_atomically(self._file, json.dumps({"tasks": [asdict(t) for t in self._tasks.values()]}))

    @contextlib.contextmanager
    def alone(self, unit: str) -> Iterator[None]:
        """Hold the lock of a unit."""
        with self._lock_of(unit):
            yield

    @contextlib.contextmanager
    def free(self, task: Task) -> Iterator[bool]:
        """Hold the lock of a task's unit if it is free; yield whether it is, and the task is the newest order."""
        lock = self._lock_of(task.unit)
        if not lock.acquire(blocking=False):
            yield False
            return
        try:
            yield self._tasks.get(task.unit) == task
        finally:
            lock.release()

    def _lock_of(self, unit: str) -> threading.RLock:
        with self.lock:
            return self._unit_locks.setdefault(unit, threading.RLock())

    def in_force(self) -> list[UnitSpec]:
        """Return the units stored here, running or not."""
        with self.lock:
            return [self.spec_of(task) for task in self._tasks.values()]

    def wanted(self) -> dict[Incarnation, Wanted]:
        """Return the wanted state of each unit."""
        with self.lock:
            return {incarnation(self.spec_of(t).unit): t.wanted for t in self._tasks.values()}


def stored_tasks(file: Path) -> list[dict[str, Any]]:
    """Return the entries of a tasks file; raise DeploymentError if it is damaged."""
    try:
        return list(json.loads(file.read_text())["tasks"])
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise DeploymentError(
            f"damaged: {error!r}", where=str(file), hint="restore it, or delete it and apply again"
        ) from error


def specs_in(root: Path) -> list[UnitSpec]:
    """Return the specs in a deployment's directory."""
    files = sorted((root / "specs").glob("*.json"))
    return [load_json(UnitSpec, file.read_text(), what="a unit's description") for file in files]


def upgrade_tasks(root: Path) -> None:
    """Derive the specs of units in a directory that an older version left with whole plans."""
    plans, file = root / "plans", root / "tasks.json"
    if not plans.is_dir():
        return
    from headwater.plan.document import from_document
    from headwater.plan.spec import spec_of
    from headwater.plan.upgrade import upgraded

    tasks = []
    for entry in stored_tasks(file):
        document = json.loads((plans / f"{entry['digest']}.json").read_text())
        spec = spec_of(from_document(upgraded(document)), entry["unit"])
        write_atomically(root / "specs" / f"{spec.digest}.json", dump_json(spec).decode())
        tasks.append({**entry, "digest": spec.digest})
    write_atomically(file, json.dumps({"tasks": tasks}))
    shutil.rmtree(plans)
