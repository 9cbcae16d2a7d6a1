"""How one query serves a piece: the shared computation, and the outputs computed from it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Graph
from headwater.dataflow.sinks import JdbcSink, RealTimeKafkaSink, Sink
from headwater.dataflow.stateful import Scan, by_event_time
from headwater.sql.lexer import quoted
from headwater.sql.rewrite import substitute
from headwater.sql.schema import Column, Schema

OWN_QUERY = (JdbcSink, RealTimeKafkaSink)
"""Sinks written by Spark itself: they cannot share a query with other outputs."""


@dataclass(frozen=True)
class OnePass:
    """A path through filters and projections: its root or scan, and its operators in order."""

    origin: str
    steps: tuple[ops.Operator, ...]


@dataclass(frozen=True)
class Pass:
    """A single query for all outputs of a piece, computed from the rows of ``root``.

    Between root and outputs there are only filters, projections, unions of these and ``scans``, so each row of the
    root, or of a scan, gives at most one row per output and branch. The scans form one stateful operator of Spark.
    The root may be in another piece, if it is the only input of this one.
    """

    root: str
    scans: tuple[str, ...] = ()

    def branches(self, flow: Graph, id_: str) -> list[OnePass]:
        """Return each path on which rows reach an operator from the root or a scan; several after a union."""
        if id_ == self.root or id_ in self.scans:
            return [OnePass(id_, ())]
        operator = flow[id_]
        return [
            OnePass(branch.origin, (*branch.steps, operator))
            for parent in operator.inputs
            for branch in self.branches(flow, parent)
        ]


def outputs_of(flow: Graph, piece: Iterable[str]) -> tuple[str, ...]:
    """Return the operators whose stream leaves a piece: sinks, and operators read by another piece."""
    inside = set(piece)
    return tuple(
        id_ for id_ in piece if isinstance(flow[id_], Sink) or any(c not in inside for c in flow.consumers[id_])
    )


def one_pass(flow: Graph, piece: tuple[str, ...], outputs: tuple[str, ...]) -> Pass | None:
    """Return how one query serves the outputs of a piece; None if it cannot.

    The pass merges as many scans, and computes as much before the outputs part, as possible.
    """
    inside = set(piece)
    outside = {i for id_ in piece for i in flow[id_].inputs if i not in inside}
    best: Pass | None = None
    for id_ in (*reversed(piece), *(outside if len(outside) == 1 else ())):
        below = below_of(flow, id_, inside)
        if not all(o == id_ or o in below for o in outputs):
            continue
        found = _pass(flow, id_, [b for b in piece if b in below])
        if found is not None and (best is None or len(found.scans) > len(best.scans)):
            best = found
    return best


def root_of(flow: Graph, piece: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """Return the operator from which a piece's query is built upwards."""
    found = one_pass(flow, piece, outputs)
    return found.root if found is not None else outputs[0]


def passes(flow: Graph, id_: str) -> bool:
    """Return whether an operator may be behind the root of a pass."""
    return isinstance(flow[id_], (*ops.STATELESS_SQL, ops.Watermark, ops.Union, Sink, Scan))


def hinders(flow: Graph, piece: tuple[str, ...], roots: Collection[str]) -> set[tuple[str, str]]:
    """Return the edges at which a piece must be cut so that one pass from some roots serves the rest."""
    places: dict[str, _Place] = {}
    cuts: set[tuple[str, str]] = set()
    for id_ in piece:
        parents = [p for p in flow[id_].inputs if p in places]
        if parents:
            found = _place_of(flow, flow[id_], places)
            if found is not None:
                places[id_] = found
                continue
            cuts |= {(p, id_) for p in parents}
        if id_ in roots:
            places[id_] = _Place(id_, None)
    return cuts


@dataclass(frozen=True)
class _Place:
    """An operator's place in a pass: its root, and the nearest scan or union before it."""

    root: str
    behind: ops.Operator | None


def _place_of(flow: Graph, operator: ops.Operator, places: Mapping[str, _Place]) -> _Place | None:
    """Return an operator's place in a pass, from those of its inputs; None if it has none."""
    above = [places.get(p) for p in operator.inputs]
    first = above[0]
    if first is None or not passes(flow, operator.id) or {a and a.root for a in above} != {first.root}:
        return None
    before = first.behind
    if isinstance(operator, (Scan, ops.Watermark)) and before is not None:
        one_upon_another = isinstance(operator, Scan) and isinstance(before, Scan)
        if not one_upon_another or not _follows(cast(Scan, operator), cast(Scan, before)):
            return None
    return _Place(first.root, operator if isinstance(operator, (Scan, ops.Union)) else first.behind)


def _pass(flow: Graph, root: str, below: Sequence[str]) -> Pass | None:
    """Return the pass from a root over all operators below it; None if there is none."""
    within = {root, *below}
    if not all(passes(flow, b) and within.issuperset(flow[b].inputs) for b in below):
        return None
    scans = {b: one for b in below if isinstance(one := flow[b], Scan)}
    found = Pass(root, tuple(scans))
    kinds = {type(flow[b]) for b in below}
    if {ops.Union, ops.Watermark} <= kinds:
        return None
    if not scans:
        return found
    if any(isinstance(flow[b], (ops.Watermark, *OWN_QUERY)) for b in below):
        return None  # Spark has one watermark, which is above the scans
    for one in scans.values():
        first, *others = found.branches(flow, one.inputs[0])
        if others or (first.origin in scans and not _follows(one, scans[first.origin])):
            return None
    timed = {by_event_time(one, flow.types[one.inputs[0]]) is None for one in scans.values()}
    return found if len(timed) == 1 else None


def _follows(one: Scan, other: Scan) -> bool:
    """Return whether a scan can directly fold the output of another: no operator between, and equal keys."""
    keys = [[k.lower() for k in scan.keys] for scan in (one, other)]
    return one.inputs == (other.id,) and other.keeps_keys and keys[0] == keys[1]


def below_of(flow: Graph, id_: str, inside: Collection[str]) -> set[str]:
    """Return the operators of a piece that are downstream of an operator within the piece."""
    found: set[str] = set()
    todo = [id_]
    while todo:
        for consumer in flow.consumers[todo.pop()]:
            if consumer in inside and consumer not in found:
                found.add(consumer)
                todo.append(consumer)
    return found


def steps(
    flow: Graph, root: str, output: str, *, beside: tuple[type[ops.Operator], ...] = ()
) -> list[ops.Operator] | None:
    """Return the operators from root to output, the one next to the root first.

    None if operators other than filters, projections and the kinds ``beside`` are between.
    """
    kinds = (*ops.STATELESS_SQL, ops.Watermark, Sink, *beside)
    found: list[ops.Operator] = []
    current = output
    while current != root:
        operator = flow[current]
        if len(operator.inputs) != 1 or not isinstance(operator, kinds):
            return None
        found.append(operator)
        current = operator.inputs[0]
    return found[::-1]


def melted(flow: Graph, root: str, output: str) -> tuple[str, list[tuple[str, str]]]:
    """Write filters and projections from a root to an output as one condition and columns of the root."""
    return melted_along(flow, root, steps(flow, root, output) or ())


def melted_along(
    flow: Graph, root: str, path: Iterable[ops.Operator], *, within: str | None = None
) -> tuple[str, list[tuple[str, str]]]:
    """Like ``melted``, along a given path, which may lead through unions.

    ``within``: the column that holds the root's rows as structs; None: the columns are top-level.
    """
    schema = flow.types[root].schema
    columns = {n: quoted(n) for n in schema.names}
    if within is not None:
        columns = {n: f"{quoted(within)}.{quoted(n)}" for n in schema.names}
        schema = Schema((Column(within, schema.struct),), internal=True)
    conditions = ["true"]
    for step in path:
        if isinstance(step, ops.Where):
            conditions.append(f"({substitute(step.condition, columns, schema)})")
        elif isinstance(step, ops.Select):
            columns = {name: substitute(text, columns, schema) for name, text in step.columns}
        elif isinstance(step, ops.Union):
            by_name = {name.lower(): text for name, text in columns.items()}
            columns = {name: by_name[name.lower()] for name in flow.types[step.id].schema.names}
    return " AND ".join(conditions), list(columns.items())
