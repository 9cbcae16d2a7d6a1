"""Workloads as graphs of tasks, and traces of their arrivals and departures.

``riot21`` are 21 dataflows over three streams of a city, ``opmw35_synth`` 35 of the sizes and overlaps of
scientific workflows. ``opmw35`` are real workflows, used if they are beside the project.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import networkx as nx

from benchmarks.common import ROOT
from headwater.reuse.commons import OperatorShape

Trace = Literal["SEQ", "RW1", "RW2"]
TRACES: tuple[Trace, ...] = ("SEQ", "RW1", "RW2")
WALK = 100
_HERE = Path(__file__).parent / "workloads"
_BESIDE = ROOT.parent / "shared" / "workloads"
_FIRST = {"riot21": 15}  # dataflows before a random walk; of others two thirds
_SEEDS: Mapping[Trace, int] = {"SEQ": 1, "RW1": 2, "RW2": 3}


@dataclass(frozen=True)
class Graph:
    """One dataflow: for each task its type and configuration, and the edges between tasks."""

    name: str
    tasks: Mapping[str, tuple[str, Any]]
    edges: tuple[tuple[str, str], ...]

    def inputs(self, task: str) -> tuple[str, ...]:
        """Return the inputs of a task."""
        return tuple(p for p, c in self.edges if c == task)

    @property
    def order(self) -> list[str]:
        """Return the tasks, inputs first."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.tasks)
        graph.add_edges_from(self.edges)
        return list(nx.lexicographical_topological_sort(graph))


def workload(name: str) -> list[Graph]:
    """Read a workload; raise FileNotFoundError if it is absent."""
    file = _HERE / f"{name}.json"
    if file.exists():
        return [
            Graph(d["id"], {i: (kind, config) for i, kind, config in d["tasks"]}, _edges(d))
            for d in json.loads(file.read_text())
        ]
    found = sorted((_BESIDE / name).glob("*.json"))
    if not found:
        raise FileNotFoundError(name)
    data = [json.loads(f.read_text()) for f in found]
    return [Graph(d["id"], {t["id"]: (t["type"], t["config"]) for t in d["tasks"]}, _edges(d)) for d in data]


def _edges(data: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((e[0], e[1]) if isinstance(e, list) else (e["from"], e["to"]) for e in data["edges"])


def shape(graph: Graph, *, name: str | None = None, salt: str = "") -> OperatorShape:
    """Return a graph by its tasks' keys: type, configuration, all that leads to them; ``salt``: of sources."""
    keys: dict[str, str] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    for task in graph.order:
        parents = sorted(keys[p] for p in graph.inputs(task))
        kind, config = graph.tasks[task]
        content = json.dumps([kind, config, parents, "" if parents else salt], sort_keys=True)
        keys[task] = hashlib.sha256(content.encode()).hexdigest()
        inputs[keys[task]] = tuple(parents)
    fed = {p for p, _ in graph.edges}
    return OperatorShape(name or graph.name, inputs, frozenset(keys[t] for t in graph.tasks if t not in fed))


def trace(name: str, kind: Trace, names: list[str]) -> Iterator[tuple[Literal["submit", "remove"], str]]:
    """Return the arrivals and departures, step by step, until no dataflow is left.

    SEQ: all come, one after the other, then all go. RW: two thirds come, then one comes or goes, a hundred
    times, then all go.
    """
    drawn = random.Random(f"{name} {_SEEDS[kind]}")
    away, there = list(names), list[str]()

    def come() -> tuple[Literal["submit", "remove"], str]:
        there.append(away.pop(drawn.randrange(len(away))))
        return "submit", there[-1]

    def go() -> tuple[Literal["submit", "remove"], str]:
        away.append(there.pop(drawn.randrange(len(there))))
        return "remove", away[-1]

    for _ in range(len(names) if kind == "SEQ" else _FIRST.get(name, round(len(names) * 20 / 35))):
        yield come()
    for _ in range(0 if kind == "SEQ" else WALK):
        yield come() if away and (not there or drawn.random() < 0.5) else go()
    while there:
        yield go()
