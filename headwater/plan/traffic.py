"""Bytes per second over the links between zones, and the layers with the least of them. Pure.

A stream crosses a link once, however many operators behind it read it: it is one channel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from headwater.continuum.model import Continuum, Zone
from headwater.core.errors import PlacementError
from headwater.dataflow.operators import ToLocations
from headwater.plan.figures import FlowFigures
from headwater.plan.setting import Setting
from headwater.plan.zoned import zones_by_name

Traffic = Mapping[str, float]
"""By link, bytes per second."""


def traffic(figures: FlowFigures, layers: Mapping[str, str]) -> Traffic:
    """Return the bytes per second over each link, with each operator in a place."""
    flow, continuum = figures.dataflow, figures.continuum
    found: dict[str, float] = defaultdict(float)
    named = frozenset(zones_by_name(flow, [layers]).values())
    for id_ in flow.order:
        others = {layers[c] for c in flow.consumers[id_]} - {layers[id_]}
        if not others:
            continue
        size = figures.bytes_out(id_)
        for location, rows in figures.rows[id_].items():
            here = continuum.zone_at(layers[id_], location)
            there = [continuum.zone_at(layer, location) for layer in others]
            if here is None or None in there:
                raise PlacementError(f"no zone for '{id_}' covers location {location}")
            links = {
                link.name
                for zone in there
                if zone is not None
                for link in continuum.links_between(here.name, zone.name, named=named)
            }
            for name in links:
                found[name] += rows * size
    return found


def least_traffic(setting: Setting, figures: FlowFigures) -> dict[str, str]:
    """Return the layer of each operator with the least bytes per second over all links; sources and sinks stay.

    It is a minimum cut: an operator is above a boundary of layers or below it, and a stream that crosses the boundary
    costs its bytes there. Of equally good layers an operator gets the highest, which has more resources. Raises
    PlacementError if an operator can run in no layer.
    """
    import networkx as nx

    flow, names = setting.dataflow, [layer.name for layer in setting.continuum.layers]
    if any(isinstance(o, ToLocations) for o in flow.operators):
        raise PlacementError(
            "rows that go down to locations need layers", hint="mark the layers: .to_layer('cloud') before the way down"
        )
    allowed = _allowed(setting)
    graph: nx.DiGraph[object] = nx.DiGraph()
    boundaries = range(len(names) - 1)
    for id_ in flow.order:
        low, high = min(allowed[id_]), max(allowed[id_])
        for k in boundaries:
            if k < low:
                graph.add_edge((id_, k), "above")
            if k >= high:
                graph.add_edge("below", (id_, k))
            if k + 1 in boundaries:
                graph.add_edge((id_, k), (id_, k + 1))
            for reader in flow.consumers[id_]:
                graph.add_edge((reader, k), (id_, k))
                graph.add_edge((id_, k, "read"), (reader, k))
            if flow.consumers[id_]:
                graph.add_edge((id_, k), (id_, k, "read"), capacity=_crossing(figures, id_, names[k], names[k + 1]))
    graph.add_nodes_from(("below", "above"))
    try:
        # Of equal cuts networkx returns the one with the least behind it: of the reversed graph, with the least below.
        _, (_, below) = nx.minimum_cut(graph.reverse(), "above", "below")
    except nx.NetworkXUnbounded:
        raise PlacementError("no layers fit all operators", hint="mark them: .to_layer(...)") from None
    found = {id_: sum((id_, k) not in below for k in boundaries) for id_ in flow.order}
    for id_, level in found.items():
        if level not in allowed[id_]:
            raise PlacementError(f"'{id_}' cannot run in layer {names[level]}", hint="mark its layer: .to_layer(...)")
    return {id_: names[level] for id_, level in found.items()}


def _allowed(setting: Setting) -> Mapping[str, frozenset[int]]:
    """Return, for each operator, the numbers of the layers in which it can run at all its locations."""
    found: dict[str, frozenset[int]] = {}
    index = setting.continuum.layer_index
    for (name, _), operator in zip(setting.instances, setting.problem.application.operators, strict=True):
        zones = {setting.nodes[host].zone for host in operator.hosts or ()}
        here = frozenset(index(setting.continuum.zone(zone).layer) for zone in zones)
        found[name] = found.get(name, here) & here
    for name, levels in found.items():
        if not levels:
            raise PlacementError(f"'{name}' can run in no layer at all locations")
    return found


def _crossing(figures: FlowFigures, id_: str, lower: str, upper: str) -> float:
    """Return the bytes per second of a stream over all links between two neighbouring layers."""
    continuum, size = figures.continuum, figures.bytes_out(id_)
    found = 0.0
    for location, rows in figures.rows[id_].items():
        here, there = _up_to(continuum, lower, location), _up_to(continuum, upper, location)
        if here is not None and there is not None:
            found += rows * size * len(continuum.links_between(here.name, there.name))
    return found


def _up_to(continuum: Continuum, layer: str, location: str) -> Zone | None:
    """Return the highest zone of a location that is in a layer or below it."""
    names = [one.name for one in continuum.layers[: continuum.layer_index(layer) + 1]]
    zones = [continuum.covering(name, location) for name in reversed(names)]
    return next((zone for zone in zones if zone is not None), None)
