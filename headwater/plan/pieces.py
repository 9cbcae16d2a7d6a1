"""Fall a graph apart along its cuts into pieces that can each be one streaming query. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import networkx as nx

from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import STATELESS_SQL, Watermark
from headwater.dataflow.sinks import JdbcSink, Sink
from headwater.plan.model import Edge

OWN_QUERY = (JdbcSink,)
"""Sinks that Spark itself writes: they cannot share a query with other outputs."""


def pieces(
    dataflow: Dataflow,
    cuts: Iterable[Edge],
    one_host: Callable[[tuple[str, ...]], bool],
    operators: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], ...]:
    """Give the pieces in topological order, cutting further where a piece cannot be one query.

    ``operators``: those to be put together, in the dataflow's order; all others are in other pieces.

    A piece cannot be one query when it would wait for itself through another piece, when no single
    host meets all its requirements, or when it has several outputs that one pass cannot serve.
    """
    remaining = set(cuts)
    while True:
        found = _components(dataflow, dataflow.order if operators is None else operators, remaining)
        extra = (
            _cuts_of_torn(dataflow, found, remaining)
            or _cuts_of_cycles(dataflow, found)
            or _cuts_for_hosts(dataflow, found, one_host)
            or _cuts_for_outputs(dataflow, found)
        )
        if not extra - remaining:
            return found
        remaining |= extra


def trunk(dataflow: Dataflow, piece: tuple[str, ...]) -> str | None:
    """Find the last operator that all outputs of a piece can be computed from in one pass, or None.

    Between it and every output there are only filters, projections and sinks, so that each of its
    rows gives at most one row per output.
    """
    inside = set(piece)
    outputs = outputs_of(dataflow, piece)
    for id_ in reversed(piece):
        below = _below(dataflow, id_, inside)
        if all(o == id_ or o in below for o in outputs) and all(_passes(dataflow, b) for b in below):
            return id_
    return None


def root_of(dataflow: Dataflow, piece: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """Give the operator from which a piece's query is built upwards: its output, or the trunk of several."""
    return (trunk(dataflow, piece) if len(outputs) > 1 else None) or outputs[0]


def outputs_of(dataflow: Dataflow, piece: Iterable[str]) -> tuple[str, ...]:
    """Operators of a piece whose stream leaves it: sinks, and those read by another piece."""
    inside = set(piece)
    return tuple(
        id_
        for id_ in piece
        if isinstance(dataflow[id_], Sink) or any(c not in inside for c in dataflow.consumers[id_])
    )


def _passes(dataflow: Dataflow, id_: str) -> bool:
    return isinstance(dataflow[id_], (*STATELESS_SQL, Watermark, Sink))


def _below(dataflow: Dataflow, id_: str, inside: set[str]) -> set[str]:
    found: set[str] = set()
    todo = [id_]
    while todo:
        for consumer in dataflow.consumers[todo.pop()]:
            if consumer in inside and consumer not in found:
                found.add(consumer)
                todo.append(consumer)
    return found


def _components(
    dataflow: Dataflow, operators: tuple[str, ...], cuts: set[Edge]
) -> tuple[tuple[str, ...], ...]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(operators)
    graph.add_edges_from(_inner(dataflow, operators) - cuts)
    place = {id_: n for n, id_ in enumerate(dataflow.order)}
    found = [tuple(sorted(c, key=place.__getitem__)) for c in nx.connected_components(graph)]
    pieces_graph = _piece_graph(dataflow, found)
    if nx.is_directed_acyclic_graph(pieces_graph):
        order = nx.lexicographical_topological_sort(pieces_graph, key=lambda n: place[found[n][0]])
        return tuple(found[n] for n in order)
    return tuple(found)


def _piece_graph(dataflow: Dataflow, found: Iterable[tuple[str, ...]]) -> nx.DiGraph[int]:
    member = {id_: n for n, piece in enumerate(found) for id_ in piece}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(set(member.values()))
    graph.add_edges_from(
        (member[p], member[c]) for p, c in _inner(dataflow, tuple(member)) if member[p] != member[c]
    )
    return graph


def _inner(dataflow: Dataflow, piece: tuple[str, ...]) -> set[Edge]:
    inside = set(piece)
    return {(p, c) for c in piece for p in dataflow[c].inputs if p in inside}


def _cuts_of_cycles(dataflow: Dataflow, found: tuple[tuple[str, ...], ...]) -> set[Edge]:
    """Cut up the pieces that feed each other."""
    cuts: set[Edge] = set()
    for component in nx.strongly_connected_components(_piece_graph(dataflow, found)):
        if len(component) > 1:
            for number in component:
                cuts |= _inner(dataflow, found[number])
    return cuts


def _cuts_of_torn(dataflow: Dataflow, found: tuple[tuple[str, ...], ...], cuts: set[Edge]) -> set[Edge]:
    """Cut up the pieces in which a cut edge lies because another path leads around it."""
    return {e for piece in found if (inner := _inner(dataflow, piece)) & cuts for e in inner}


def _cuts_for_hosts(
    dataflow: Dataflow, found: tuple[tuple[str, ...], ...], one_host: Callable[[tuple[str, ...]], bool]
) -> set[Edge]:
    """Cut where requirements change, in pieces whose requirements no host meets together."""
    cuts: set[Edge] = set()
    for piece in found:
        if not one_host(piece):
            cuts |= {
                (p, c) for p, c in _inner(dataflow, piece) if dataflow[p].requires != dataflow[c].requires
            }
    return cuts


def _cuts_of_shared_state(dataflow: Dataflow, piece: tuple[str, ...], inner: set[Edge]) -> set[Edge]:
    """Cut after an operator that two branches share when state lies behind it: each would keep a copy."""
    kept: set[str] = set()
    cuts: set[Edge] = set()
    for id_ in piece:
        if dataflow[id_].stateful or any(p in kept for p, c in inner if c == id_):
            kept.add(id_)
        edges = {e for e in inner if e[0] == id_}
        if id_ in kept and len(edges) > 1:
            cuts |= edges
    return cuts


def _cuts_for_outputs(dataflow: Dataflow, found: tuple[tuple[str, ...], ...]) -> set[Edge]:
    """Cut after the operators at which the way to several outputs parts, where one pass cannot serve them."""
    cuts: set[Edge] = set()
    for piece in found:
        outputs = outputs_of(dataflow, piece)
        inner = _inner(dataflow, piece)
        if len(outputs) < 2:
            cuts |= _cuts_of_shared_state(dataflow, piece, inner)
            continue
        own = {(p, c) for p, c in inner if isinstance(dataflow[c], OWN_QUERY)}
        if own:
            cuts |= own
        elif trunk(dataflow, piece) is None:
            forks = {p for p, _ in inner if p in outputs or sum(q == p for q, _ in inner) > 1}
            cuts |= {(p, c) for p, c in inner if p in forks}
    return cuts
