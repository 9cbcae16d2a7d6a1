"""The placement problem of a dataflow on a continuum. Pure.

An operator that can run separately for each location is one operator of the problem per location.
Placement strategies keep these in one layer; schedulers choose for each location. Any other operator occurs once,
and only where one zone sees all locations. Sources and sinks stay where their data is; so does every operator
that leads to a declaration of event time. The problem's hosts are the continuum's nodes. Work is in core seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headwater.continuum.model import Continuum, Host, Node, strongest
from headwater.core.errors import ContinuumError, PlacementError
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import ToLocations, Watermark
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.placement import Application, Hosts, PlacedOperator, Problem, Topology
from headwater.placement.cost import usage_of
from headwater.placement.network import Link as NetworkLink
from headwater.placement.problem import Placement, Stream
from headwater.plan.build import in_layers
from headwater.plan.deployment import Deployment, Edge, HostNames, layers_of
from headwater.plan.deployment import Placement as HostPlacement
from headwater.plan.model import DeploymentPlan
from headwater.plan.networks import routed, tree
from headwater.plan.profile import Known, Profile
from headwater.plan.zoned import divided_edges, zones_by_name
from headwater.rewrite.gathering import is_gathering

BATCH_S = 0.5
"""Seconds added by a channel: its reader takes rows batch by batch."""

Instance = tuple[str, str | None]
"""An operator and its location; None: all locations."""

Beside = tuple[DeploymentPlan, Profile | None]
"""Another running dataflow and its measured profile; None: assumed costs."""


@dataclass(frozen=True)
class Setting:
    """A dataflow on a continuum, with the layers of its own marks, or of the running deployment.

    ``decided``: the running deployment; fixed operators stay on its hosts. ``apart``: each location may have
    layers of its own, and operators take rows batch by batch. ``on_tree``: the network is the tree of zones; the
    streams from and to zones by name are left out of the problem, and the operators at their ends stay.
    """

    dataflow: Dataflow
    continuum: Continuum
    layers: Mapping[str, str]
    known: Known
    batch_s: float = BATCH_S
    decided: Deployment | None = None
    apart: bool = False
    on_tree: bool = False
    beside: tuple[Beside, ...] = ()
    """Other dataflows that run on these zones."""

    @cached_property
    def marked(self) -> Deployment:
        """The deployment of the marks, or the running one; raise ErrorList if it is impossible."""
        return self.decided or in_layers(self.dataflow, self.continuum, self.layers)

    @cached_property
    def locations(self) -> tuple[str, ...]:
        return self.dataflow.locations or self.continuum.locations

    def _at(self, name: str) -> tuple[str, ...]:
        """Return the locations whose rows an operator takes: in a pool, those of the dataflows that need it."""
        if self.decided is None:
            return self.locations
        placed = self.decided.placement.of(name)
        return tuple(x for x in self.locations if x in placed)

    def _here(self, instance: Instance) -> tuple[str, ...]:
        """Return the locations of an instance."""
        name, location = instance
        return self._at(name) if location is None else (location,)

    @cached_property
    def _split(self) -> Mapping[str, bool]:
        """Return, for each operator, whether it can run separately for each location."""
        found: dict[str, bool] = {}
        for name in self.dataflow.order:
            operator = self.dataflow[name]
            if isinstance(operator, Source):
                found[name] = operator.per_location
                continue
            keys = operator.partition_keys()
            located = frozenset.intersection(*(self.dataflow.types[i].located_by for i in operator.inputs))
            apart = keys is None or bool({k.lower() for k in keys} & {c.lower() for c in located})
            apart = apart and not any(isinstance(self.dataflow[c], ToLocations) for c in self.dataflow.consumers[name])
            apart = apart and name not in self.in_zones
            found[name] = apart and all(found[i] or (i, name) in self._down for i in operator.inputs)
        return found

    @cached_property
    def _places(self) -> tuple[Mapping[str, str], ...]:
        """The places of the operators: as marked, and those of the running deployment, which may differ by location."""
        if self.decided is None:
            return (self.layers,)
        layers, others = layers_of(self.decided.placement, self.continuum, self.dataflow.order)
        return self.layers, layers, *({**layers, **own} for own in others.values())

    @cached_property
    def in_zones(self) -> Mapping[str, str]:
        """Return the zone of each operator that takes all rows in a zone: by name, or as it runs."""
        return zones_by_name(self.dataflow, self._places)

    @cached_property
    def _down(self) -> frozenset[Edge]:
        """Return the edges over which data is divided among locations: operators behind them stay in their places.

        The problem's networks lead up, and to zones by name. So these edges are left out of it, and the operators
        behind them start with the rows that they get.
        """
        return divided_edges(self.dataflow, self.continuum, self._places)

    @cached_property
    def _beside_tree(self) -> frozenset[Edge]:
        """Return the edges from and to zones by name that are left out of a problem on the tree."""
        edges = ((i, name) for name in self.dataflow.order for i in self.dataflow[name].inputs)
        return frozenset(e for e in edges if self.on_tree and self.in_zones.keys() & {*e})

    @cached_property
    def _left_out(self) -> frozenset[Edge]:
        return self._down | self._beside_tree

    @property
    def ways_down(self) -> tuple[str, ...]:
        """The operators that read a stream from above, or from a zone by name, for their locations."""
        behind = {id_ for _, id_ in self._down}
        return tuple(id_ for id_ in self.dataflow.order if id_ in behind)

    @cached_property
    def _rates(self) -> Mapping[str, float]:
        """The rows per second that leave each operator, over all locations."""
        found: dict[str, float] = {}
        for name in self.dataflow.order:
            operator = self.dataflow[name]
            if isinstance(operator, Source):
                places = self._at(name) if operator.per_location else self._at(name)[:1]
                came = sum(self.known.rate(operator, x if operator.per_location else None) for x in places)
            else:
                came = sum(found[i] for i in operator.inputs)
            found[name] = came * self.known.operator(name).selectivity
        return found

    def _given(self, name: str, location: str | None) -> float:
        """Return the rows per second that an instance starts with: those of a source, or those that come down."""
        what = self.dataflow[name]
        if isinstance(what, Source):
            return self.known.rate(what, location)
        left_out = [i for i in what.inputs if (i, name) in self._left_out]
        if len(left_out) < len(what.inputs):
            return 0.0
        copied = location is None or (isinstance(what, ToLocations) and what.copies)
        return sum(self._rates[i] for i in left_out) * (1.0 if copied else 1 / len(self.locations))

    @cached_property
    def _staying(self) -> frozenset[str]:
        """Return the operators that stay in their layers.

        These are sources, sinks, operators that read from above, operators in a zone by name, and operators that lead
        to a declaration of event time: where several zones are merged before it, rows of a slow one could be late.
        Operators that gather streams are of use in one layer only.
        On the tree, so are the operators before and behind a zone by name: its streams keep their ends.
        """
        flow = self.dataflow
        found = {o for o in flow.order if isinstance(flow[o], (Source, Sink)) or is_gathering(flow[o])}
        found |= {id_ for _, id_ in self._down} | set(self.in_zones) | {o for edge in self._beside_tree for o in edge}
        todo = [o for o in self.dataflow.order if isinstance(self.dataflow[o], Watermark)]
        while todo:
            name = todo.pop()
            found.add(name)
            todo += self.dataflow[name].inputs
        return frozenset(found)

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """The problem's operators, in order."""
        return tuple(
            (name, location)
            for name in self.dataflow.order
            for location in (self._at(name) if self._split[name] else (None,))
        )

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that units can run on, in the order of the problem's hosts."""
        return self.continuum.nodes

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """The problem's hosts: the representative host of each node."""
        return tuple(node.host for node in self.nodes)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {node.name: n for n, node in enumerate(self.nodes)}

    def _able(self, operator: str, node: Node) -> HostNames:
        """Return the hosts of a node that meet an operator's requirements."""
        requirement = self.dataflow[operator].requires
        return tuple(host.name for host in node.hosts if requirement.holds(host.capabilities))

    def _nodes_in(self, operator: str, zone: str) -> list[int]:
        """Return the numbers of a zone's nodes that could run an operator; for schedulers, the strongest only."""
        found = [node for node in self.continuum.zone(zone).nodes if self._able(operator, node)]
        if self.apart and len(found) > 1:
            best = strongest(node.host for node in found)
            found = [node for node in found if node.host is best]
        return [self._numbers[node.name] for node in found]

    def _zones_of(self, instance: Instance, layer: str) -> set[str]:
        """Return the zones of a layer in which an instance would run; more than one is not possible."""
        covering = [self.continuum.zone_at(layer, x) for x in self._here(instance)]
        return {"" if zone is None else zone.name for zone in covering}

    def _choices(self, instance: Instance) -> frozenset[int]:
        name, _ = instance
        stays = name in self._staying
        if stays and self.decided is not None:
            return frozenset({self._running_on(self.decided, instance)})
        layers = [self.layers[name]] if stays else [layer.name for layer in self.continuum.layers]
        found: set[int] = set()
        for layer in layers:
            zones = self._zones_of(instance, layer)
            if len(zones) == 1 and (zone := next(iter(zones))):
                found |= set(self._nodes_in(name, zone))
        return frozenset(found)

    def _running_on(self, deployment: Deployment, instance: Instance) -> int:
        """Return the number of an instance's node, the strongest of several that share its rows. Raise
        PlacementError if it has none, or several for an operator that cannot run separately per location."""
        name, _ = instance
        found: set[HostNames] = {deployment.placement[name, x] for x in self._here(instance)}
        if len(found) != 1:
            raise PlacementError(f"'{name}' cannot run separately for each location")
        best = strongest(self.continuum.host(host) for host in found.pop())
        return self._numbers[self.continuum.node_of(best.name).name]

    @cached_property
    def problem(self) -> Problem:
        """The placement problem. Raise PlacementError if an operator can run nowhere."""
        numbers = {instance: n for n, instance in enumerate(self.instances)}
        operators = []
        for name, location in self.instances:
            hosts = self._choices((name, location))
            if not hosts:
                raise PlacementError(
                    f"'{name}' can run in no layer" + (f" at {location}" if location else ""),
                    where=self.dataflow[name].where,
                    hint="check the zones' hosts and its .require(...)",
                )
            operators.append(self._operator(name, location, hosts))
        streams: dict[Stream, float] = {}
        for name in self.dataflow.order:
            for below in dict.fromkeys(self.dataflow[name].inputs):
                if (below, name) in self._left_out:
                    continue
                for location in self._at(name) if self._split[below] else (None,):
                    reader = (name, location if self._split[name] else None)
                    share = 1.0 if location is not None else len(self._at(name)) / len(self._at(below))
                    streams[numbers[below, location], numbers[reader]] = share
        groups = tuple(
            tuple(numbers[name, location] for location in self._at(name))
            for name in self.dataflow.order
            if self._split[name] and len(self._at(name)) > 1 and not self.apart
        )
        return Problem(self._topology(), Application(tuple(operators), streams), together=groups)

    def _operator(self, name: str, location: str | None, hosts: frozenset[int]) -> PlacedOperator:
        figures = self.known.operator(name)
        share = 1 / len(self._at(name)) if location is not None else 1.0
        return PlacedOperator(
            name=name if location is None else f"{name} at {location}",
            logical=name,
            span=self.batch_s if self.apart else 0.0,
            cpu=figures.cpu_s,
            memory=figures.state_bytes * share,
            selectivity=figures.selectivity,
            rate=self._given(name, location),
            size=self.known.bytes_out(name),
            hosts=hosts,
        )

    @cached_property
    def _others(self) -> tuple[tuple[Problem, Placement], ...]:
        """The other dataflows, restricted to these zones."""
        found = []
        for plan, profile in self.beside:
            known = Known(plan.dataflow, profile)
            other = Setting(
                plan.dataflow,
                self.continuum,
                plan.layers,
                known,
                self.batch_s,
                plan.deployment,
                apart=True,
            )
            placement = running_placement(other, plan.deployment)
            if placement is not None:
                found.append((other.problem, placement))
        return tuple(found)

    def _topology(self) -> Topology:
        continuum = self.continuum
        cpu, memory, processes = (np.zeros(len(self.hosts)) for _ in range(3))
        taken: dict[NetworkLink, float] = {}
        for problem, placement in self._others:
            usage = usage_of(problem, placement)
            np.add.at(cpu, list(usage.work), list(usage.work.values()))
            np.add.at(memory, list(usage.memory), list(usage.memory.values()))
            for link, bits in usage.links.items():
                taken[link] = taken.get(link, 0.0) + bits
            whats = zip(problem.application.operators, placement, strict=True)
            np.add.at(processes, [host for _, host in {(what.logical, host) for what, host in whats}], 1)
        for link, bits in self._bits_beside_tree().items():
            taken[link] = taken.get(link, 0.0) + bits
        number = {zone.name: n for n, zone in enumerate(continuum.zones)}
        level = np.array([continuum.layer_index(zone.layer) for zone in continuum.zones], dtype=np.int32)
        hosts = Hosts(
            cpu=np.array([_number(h, "n_cpu", 1.0) for h in self.hosts]),
            memory=np.array([_number(h, "memory", np.inf) for h in self.hosts]),
            zone=np.array([number[h.zone] for h in self.hosts], dtype=np.int32),
            # Half of a channel's delay at either end.
            lan_latency=np.full(len(self.hosts), self.batch_s / 2),
            lan_bandwidth=np.full(len(self.hosts), np.inf),
            cpu_used=cpu,
            memory_used=memory,
            processes=processes.astype(np.int64),
            names=[f"{h.name} ({h.zone})" for h in self.hosts],
        )
        on_tree = self.on_tree or not self.in_zones
        network = tree(continuum, taken) if on_tree else routed(continuum, self.in_zones.values(), taken)
        return Topology(hosts, network, level == len(continuum.layers) - 1, level, tuple(number))

    def _bits_beside_tree(self) -> Mapping[NetworkLink, float]:
        """Return the bits/s over each link of the streams that are left out of a problem on the tree.

        Their ends stay, so these streams are the same in all placements.
        """
        found: dict[NetworkLink, float] = {}
        if not self._beside_tree:
            return found
        whole = replace(self, on_tree=False).problem
        ends = [whole.zone_of(min(self._choices(instance))) for instance in self.instances]
        for u, v in whole.application.streams:
            if (self.instances[u][0], self.instances[v][0]) in self._beside_tree:
                flow = whole.application.flow((u, v), ends[u])
                for link in whole.network.route(flow.zone, ends[v]) or ():
                    found[link] = found.get(link, 0.0) + flow.bandwidth
        return found

    def deployment(self, placement: Placement) -> Deployment:
        """Return the deployment of a placement, without cuts except the marked ones."""
        found: dict[str, dict[str, HostNames]] = {}
        for (name, location), number in zip(self.instances, placement, strict=True):
            hosts = self._able(name, self.nodes[number])
            found.setdefault(name, {}).update(dict.fromkeys(self._here((name, location)), hosts))
        cuts = self.decided.cuts if self.decided is not None else frozenset[Edge]()
        return Deployment(cuts, HostPlacement(found))

    def placement(self, deployment: Deployment) -> Placement:
        """Return the placement of a deployment; raise PlacementError if there is none."""
        found = []
        for instance in self.instances:
            number = self._running_on(deployment, instance)
            if not self._able(instance[0], self.nodes[number]):
                raise PlacementError(f"'{instance[0]}' cannot run on {self.nodes[number].name}")
            found.append(number)
        return tuple(found)

    def joined(self, placement: Placement) -> Placement:
        """Keep merged locations together: an operator takes their rows on the node of the zone that most of
        them have."""
        numbers = {instance: n for n, instance in enumerate(self.instances)}
        found = list(placement)
        for name in self.dataflow.order:
            if not self._split[name]:
                continue
            for parent in dict.fromkeys(self.dataflow[name].inputs):
                if (parent, name) in self._down:
                    continue
                together: dict[int, list[int]] = {}
                for location in self._at(name):
                    own = numbers[name, location]
                    together.setdefault(found[numbers[parent, location]], []).append(own)
                for own_ones in together.values():
                    zones = {self.nodes[found[n]].zone for n in own_ones}
                    if len(zones) == 1 and len(own_ones) > 1:
                        most = Counter(found[n] for n in own_ones).most_common(1)[0][0]
                        for n in own_ones:
                            found[n] = most
        return tuple(found)


def _number(host: Host, capability: str, otherwise: float) -> float:
    value = host.capabilities.get(capability)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


def running_placement(setting: Setting, running: Deployment) -> Placement | None:
    """Return the placement of the running deployment; None if it does not fit this dataflow."""
    try:
        return setting.placement(running)
    except (KeyError, ContinuumError, PlacementError):
        return None  # no such operator, layer or host
