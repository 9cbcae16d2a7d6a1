"""Several dataflows as one running graph: common tasks run once, identified by content key. Pure.

Model: collaborative reuse, sections 3 and 4, except for its equivalence, which compares ancestors without their
edges and is unsound: here tasks are equal if their content keys are, and a key covers everything upstream. Merge
and unmerge are look-ups, whose time does not depend on the size of the running graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headwater.core.errors import DataflowError, RuntimeFailure


@dataclass(frozen=True)
class OperatorShape:
    """A dataflow by its tasks' keys: the inputs of each, and the sinks."""

    name: str
    inputs: Mapping[str, tuple[str, ...]]
    sinks: frozenset[str]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass
class _Task:
    inputs: tuple[str, ...]
    users: set[str] = field(default_factory=set)


class Commons:
    """The running graph of all submissions: each task once, with its users."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._shapes: dict[str, OperatorShape] = {}

    def __len__(self) -> int:
        """Count the running tasks."""
        return len(self._tasks)

    def submit(self, shape: OperatorShape) -> None:
        """Merge a dataflow. Raises DataflowError if its name is in use."""
        if shape.name in self._shapes:
            raise DataflowError(
                f"'{shape.name}' is already running", where="submit", hint="remove it first, or choose another name"
            )
        for key, inputs in shape.inputs.items():
            self._tasks.setdefault(key, _Task(inputs)).users.add(shape.name)
        self._shapes[shape.name] = shape

    def remove(self, name: str) -> None:
        """Remove a dataflow and the tasks that only it needs. Raises DataflowError if it does not run."""
        shape = self._shapes.pop(name, None)
        if shape is None:
            raise DataflowError(f"'{name}' does not run", where="remove", hint="see 'headwater status'")
        for key in shape.inputs:
            users = self._tasks[key].users
            users.remove(name)
            if not users:
                del self._tasks[key]

    def check(self, running: Iterable[str] | None = None) -> None:
        """Check both constraints of the model by walking the graph; raise RuntimeFailure if one is violated.

        (1) Every sink of every dataflow runs, with everything upstream. (2) Every running task leads to a sink.
        ``running``: the tasks reported as running, default those of the graph.
        """
        there = self._tasks.keys() if running is None else set(running)
        needed: set[str] = set()
        todo = [sink for shape in self._shapes.values() for sink in shape.sinks]
        while todo:
            key = todo.pop()
            if key in needed:
                continue
            if key not in there:
                raise RuntimeFailure(f"task {key} does not run", where="commons", hint="report this as a defect")
            needed.add(key)
            todo += self._tasks[key].inputs
        idle = there - needed
        if idle:
            raise RuntimeFailure(
                f"no dataflow needs {', '.join(sorted(idle)[:3])}", where="commons", hint="report this as a defect"
            )
