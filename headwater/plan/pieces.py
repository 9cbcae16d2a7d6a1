"""Split a graph along its cuts into pieces, each of which can be one streaming query. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stateful import updates
from headwater.plan.deployment import Edge, HostNames
from headwater.plan.onepass import OWN_QUERY, hinders, one_pass, outputs_of

if TYPE_CHECKING:
    import networkx as nx

Hosts = Callable[[str], tuple[HostNames, ...]]


def pieces(
    dataflow: Dataflow,
    cuts: Iterable[Edge],
    hosts: Hosts = lambda operator: (),
    operators: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], ...]:
    """Return the pieces in topological order, with further cuts where a piece cannot be one query.

    ``hosts`` returns the hosts of an operator, once per group of locations for which it runs separately.
    ``operators``: the operators to group, in the dataflow's order; all others are in other pieces.

    A piece cannot be one query if it would wait for itself through another piece, if no single host meets all
    its requirements, if it has several outputs that one pass cannot serve, or results that change beside other
    state. Pieces that read one stream are merged if one pass serves them all: a query costs more than another output.
    """
    kept, remaining = set(cuts), set(cuts)
    while True:
        found = _components(dataflow, dataflow.order if operators is None else operators, remaining)
        of_hosts = _cuts_for_hosts(dataflow, found, hosts)
        kept |= of_hosts
        extra = (
            _cuts_of_torn(dataflow, found, remaining)
            or _cuts_of_cycles(dataflow, found, remaining)
            or of_hosts
            or _cuts_for_outputs(dataflow, found)
            or _cuts_for_updates(dataflow, found)
        )
        if not extra - remaining:
            return _side_by_side(dataflow, _rejoined(dataflow, found, kept, remaining - kept, hosts), hosts)
        remaining |= extra


def why_apart(dataflow: Dataflow, edge: Edge, cuts: Iterable[Edge], hosts: Hosts, *, operators: tuple[str, ...]) -> str:
    """Return which condition forbids one query for two operators that no cut separates, and where it fails."""
    producer, consumer = edge
    found = _components(dataflow, operators, set(cuts))
    piece = next((p for p in found if producer in p and consumer in p), operators)
    for one, other in combinations(piece, 2):
        for here, there in zip(hosts(one), hosts(other), strict=True):
            if not set(here) & set(there):
                return f"'{one}' runs on {', '.join(here)}, '{other}' on {', '.join(there)}: no host is common"
    if isinstance(dataflow[consumer], OWN_QUERY):
        return f"Spark writes '{consumer}' itself, in a query without other outputs"
    if _cuts_for_updates(dataflow, (piece,)):
        return f"Spark outputs results that change from no query with other state than that of '{consumer}'"
    if _cuts_of_torn(dataflow, (piece,), set(cuts)):
        return f"another way from '{producer}' to '{consumer}' leads through a channel"
    if _cuts_of_cycles(dataflow, found, set(cuts)):
        return f"the query of '{producer}' and '{consumer}' would wait for another unit, which waits for it"
    outputs = outputs_of(dataflow, piece)
    if len(outputs) < 2:
        return f"two branches read '{producer}', and each would keep a copy of its state"
    names = ", ".join(f"'{o}'" for o in outputs)
    kind = dataflow[consumer].kind
    return (
        f"one pass over the input cannot serve the outputs {names}: '{consumer}' ({kind}) is before some of them only"
    )


def _rejoined(
    dataflow: Dataflow,
    found: tuple[tuple[str, ...], ...],
    kept: set[Edge],
    extra: set[Edge],
    hosts: Hosts,
) -> tuple[tuple[str, ...], ...]:
    """Merge two pieces where they can be one query and all cuts between them are of ``extra``, none of ``kept``.

    Another cut may have ended the reason for theirs.
    """
    import networkx as nx

    place = {id_: n for n, id_ in enumerate(dataflow.order)}
    member = {id_: piece for piece in found for id_ in piece}
    todo = sorted(extra, key=lambda edge: (place[edge[0]], place[edge[1]]))
    before = len(todo) + 1
    while len(todo) < before:
        before = len(todo)
        for producer, consumer in todo:
            one, other = member[producer], member[consumer]
            if one == other:
                continue
            both = tuple(sorted((*one, *other), key=place.__getitem__))
            rest = tuple(dict.fromkeys(p for p in member.values() if p not in (one, other)))
            if (
                not _inner(dataflow, both) & kept
                and _one_host(hosts, both)
                and not _cuts_for_outputs(dataflow, (both,))
                and not _cuts_for_updates(dataflow, (both,))
                and nx.is_directed_acyclic_graph(_piece_graph(dataflow, (*rest, both)))
            ):
                member |= dict.fromkeys(both, both)
        todo = [edge for edge in todo if member[edge[0]] != member[edge[1]]]
    return _ordered(dataflow, tuple(dict.fromkeys(member.values())))


def _side_by_side(
    dataflow: Dataflow,
    found: tuple[tuple[str, ...], ...],
    hosts: Hosts,
) -> tuple[tuple[str, ...], ...]:
    """Merge pieces that read only the same stream, as far as one pass serves them."""
    place = {id_: n for n, id_ in enumerate(dataflow.order)}
    together: dict[str, tuple[str, ...]] = {}
    apart: list[tuple[str, ...]] = []
    for piece in found:
        parents = {p for c in piece for p in dataflow[c].inputs if p not in piece}
        if len(parents) != 1:
            apart.append(piece)
            continue
        (parent,) = parents
        both = tuple(sorted((*together.get(parent, ()), *piece), key=place.__getitem__))
        if parent not in together or (_in_one_pass(dataflow, both) and _one_host(hosts, both)):
            together[parent] = both
        else:
            apart.append(piece)
    return _ordered(dataflow, [*together.values(), *apart])


def connected(dataflow: Dataflow, operators: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the connected components of some operators."""
    return _components(dataflow, operators, set())


def _components(dataflow: Dataflow, operators: tuple[str, ...], cuts: set[Edge]) -> tuple[tuple[str, ...], ...]:
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(operators)
    graph.add_edges_from(_inner(dataflow, operators) - cuts)
    place = {id_: n for n, id_ in enumerate(dataflow.order)}
    return _ordered(dataflow, [tuple(sorted(c, key=place.__getitem__)) for c in nx.connected_components(graph)])


def _ordered(dataflow: Dataflow, found: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return pieces in topological order; unchanged if there is none."""
    import networkx as nx

    place = {id_: n for n, id_ in enumerate(dataflow.order)}
    pieces_graph = _piece_graph(dataflow, found)
    if nx.is_directed_acyclic_graph(pieces_graph):
        order = nx.lexicographical_topological_sort(pieces_graph, key=lambda n: place[found[n][0]])
        return tuple(found[n] for n in order)
    return tuple(found)


def _piece_graph(dataflow: Dataflow, found: Iterable[tuple[str, ...]]) -> nx.DiGraph[int]:
    import networkx as nx

    member = {id_: n for n, piece in enumerate(found) for id_ in piece}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(set(member.values()))
    graph.add_edges_from((member[p], member[c]) for p, c in _inner(dataflow, tuple(member)) if member[p] != member[c])
    return graph


def _inner(dataflow: Dataflow, piece: tuple[str, ...]) -> set[Edge]:
    inside = set(piece)
    return {(p, c) for c in piece for p in dataflow[c].inputs if p in inside}


def _cuts_of_cycles(dataflow: Dataflow, found: tuple[tuple[str, ...], ...], cuts: set[Edge]) -> set[Edge]:
    """Cut the pieces that form a cycle."""
    import networkx as nx

    extra: set[Edge] = set()
    for component in nx.strongly_connected_components(_piece_graph(dataflow, found)):
        if len(component) > 1:
            torn = tuple(o for number in component for o in found[number])

            def acyclic(parts: tuple[tuple[str, ...], ...]) -> bool:
                return bool(nx.is_directed_acyclic_graph(_piece_graph(dataflow, parts)))

            extra |= _cuts_where_streams_meet(dataflow, torn, cuts, acyclic)
    return extra


def _cuts_of_torn(dataflow: Dataflow, found: tuple[tuple[str, ...], ...], cuts: set[Edge]) -> set[Edge]:
    """Cut the pieces that contain a cut edge, because another path leads around it."""

    def whole(parts: tuple[tuple[str, ...], ...]) -> bool:
        return not any(_inner(dataflow, part) & cuts for part in parts)

    extra: set[Edge] = set()
    for piece in found:
        if not whole((piece,)):
            extra |= _cuts_where_streams_meet(dataflow, piece, cuts, whole)
    return extra


def _cuts_where_streams_meet(
    dataflow: Dataflow,
    operators: tuple[str, ...],
    cuts: set[Edge],
    good: Callable[[tuple[tuple[str, ...], ...]], bool],
) -> set[Edge]:
    """Cut before operators of several inputs, the last ones first, until the rest of the piece is valid.

    Every path around a cut, or back into a piece, leads through such an operator.
    """
    inner, extra = _inner(dataflow, operators), set[Edge]()
    for id_ in sorted(operators, key=dataflow.order.index, reverse=True):
        if len(dataflow[id_].inputs) > 1:
            extra |= {e for e in inner if e[1] == id_}
            if good(_components(dataflow, operators, cuts | extra)):
                return extra
    return inner


def _in_one_pass(dataflow: Dataflow, piece: tuple[str, ...]) -> bool:
    """Return whether one pass serves all outputs of a piece."""
    return one_pass(dataflow, piece, outputs_of(dataflow, piece)) is not None


def _one_host(hosts: Hosts, piece: tuple[str, ...]) -> bool:
    """Return whether all operators of a piece share a host, in each group of locations."""
    different = {hosts(id_) for id_ in piece}
    if len(different) == 1:
        return True
    return all(frozenset.intersection(*map(frozenset, place)) for place in zip(*different, strict=True))


def _cuts_for_hosts(dataflow: Dataflow, found: tuple[tuple[str, ...], ...], hosts: Hosts) -> set[Edge]:
    """Cut where the hosts change, in pieces whose operators share no host."""
    cuts: set[Edge] = set()
    for piece in found:
        if not _one_host(hosts, piece):
            cuts |= {(p, c) for p, c in _inner(dataflow, piece) if hosts(p) != hosts(c)}
    return cuts


def _cuts_of_shared_state(dataflow: Dataflow, piece: tuple[str, ...], inner: set[Edge]) -> set[Edge]:
    """Cut after an operator that two branches share if state lies behind it: each would keep a copy."""
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
    """Cut after the operators at which the paths to several outputs part, if one pass cannot serve them."""
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
        elif not _in_one_pass(dataflow, piece):
            forks = {p for p, _ in inner if p in outputs or sum(q == p for q, _ in inner) > 1}
            # Operators that fit into a pass stay with their input: a query costs more than another output.
            dear = hinders(dataflow, piece, forks)
            cuts |= dear or {(p, c) for p, c in inner if p in forks}
    return cuts


def _cuts_for_updates(dataflow: Dataflow, found: tuple[tuple[str, ...], ...]) -> set[Edge]:
    """Cut before an aggregate in update mode if there is other state in its piece: Spark has one mode for a query."""
    cuts: set[Edge] = set()
    for piece in found:
        state = [id_ for id_ in piece if dataflow[id_].stateful]
        updating = {id_ for id_ in state if updates(dataflow[id_])}
        if updating and len(state) > 1:
            cuts |= {(p, c) for p, c in _inner(dataflow, piece) if c in updating}
    return cuts
