"""Where a dataflow can run: trees of zones with hosts and links.

There is one tree, or several that links join: several clouds. Further links
join zones of one tree. A zone covers the locations it lists and those its
children cover. The zones that list a location lie on one path to the root, so
each layer covers a location at most once and its data can always go up from
zone to zone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from headwater.continuum.access import access_data
from headwater.continuum.broker import Broker, ChannelKind
from headwater.continuum.draft import ZoneDraft, draft_of
from headwater.continuum.sparksettings import SparkSettings
from headwater.continuum.yamltree import Problems, YamlNode, read_text, tree_of_data, tree_of_text
from headwater.core.address import Address
from headwater.core.errors import ContinuumError
from headwater.core.jsonform import custom_schema
from headwater.core.permissions import Permissions
from headwater.core.place import place_of_zone, zone_named
from headwater.core.quantity import format_bandwidth, format_duration
from headwater.core.requirement import Capabilities, Requirement
from headwater.core.text import closest


@dataclass(frozen=True)
class Layer:
    """A level between the places where data arises (index 0) and the centre."""

    name: str
    index: int


LOCAL = "local"
"""The address of an agent that ``headwater up`` starts on its own machine."""


@dataclass(frozen=True)
class Host:
    """A machine of a zone. Its name is unique in the continuum.

    ``at``: the address of its own agent, ``local`` for one started on this machine; None: it has no agent.
    ``spark``: its agent's Spark, as for a zone.
    """

    name: str
    zone: str
    capabilities: Capabilities = field(default_factory=Capabilities)
    at: str | None = None
    spark: str | None = None


@dataclass(frozen=True)
class Node:
    """One agent with one Spark: on a host with an address, or for a whole zone whose hosts have none.

    ``at``: the agent's address; None: on this machine. ``spark_settings``, ``access``: those of its zone.
    """

    name: str
    zone: str
    hosts: tuple[Host, ...]
    at: str | None = None
    spark: str | None = None
    spark_settings: SparkSettings = field(default_factory=SparkSettings)
    access: Permissions | None = None

    @property
    def host(self) -> Host:
        """The strongest host, which represents the node in figures."""
        return strongest(self.hosts)


def strongest(hosts: Iterable[Host]) -> Host:
    """Choose the host with the most processors, then the most memory, then the first written."""

    def strength(host: Host) -> tuple[float, float]:
        found = (host.capabilities.get(name, 0) for name in ("n_cpu", "memory"))
        cpu, memory = (float(v) if isinstance(v, (int, float)) else 0.0 for v in found)
        return cpu, memory

    return max(hosts, key=strength)


@dataclass(frozen=True)
class Link:
    """The connection from a zone to its parent, or to any other: bits per second (None: unlimited) and seconds."""

    lower: str
    upper: str
    bandwidth: float | None = None
    latency: float = 0.0

    @property
    def name(self) -> str:
        """Return the name, such as `E1-S1`."""
        return f"{self.lower}-{self.upper}"


@dataclass(frozen=True)
class Zone:
    """Well-connected hosts of one layer. `locations` are those listed, not those of its children.

    `channels` is the kind of its units' channels; None: Kafka where the zone or one above it has a broker.
    """

    name: str
    layer: str
    hosts: tuple[Host, ...]
    locations: tuple[str, ...] = ()
    link: Link | None = None
    at: str | None = None
    """The address of the zone's agent: ``host:port``, or ``grpc+tls://host:port``; None: on this machine."""
    spark: str | None = None
    """``sc://host:port`` of a Spark Connect server or ``spark://host:port`` of a master; None: started by
    the agent."""
    spark_settings: SparkSettings = field(default_factory=SparkSettings)
    """Packages, settings and size of the Sparks that agents of the zone start."""
    broker: Broker | None = None
    channels: ChannelKind | None = None
    access: Permissions | None = None
    """The resources that dataflows may use there; None: those that its agents allow."""

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The zone's nodes: each host that has an address, or the zone itself."""
        if any(host.at is not None for host in self.hosts):
            return tuple(
                Node(
                    h.name, self.name, (h,), None if h.at == LOCAL else h.at, h.spark, self.spark_settings, self.access
                )
                for h in self.hosts
            )
        return (Node(self.name, self.name, self.hosts, self.at, self.spark, self.spark_settings, self.access),)

    @property
    def parent(self) -> str | None:
        """Return the name of the parent, None for the root."""
        return None if self.link is None else self.link.upper


@dataclass(frozen=True)
class Continuum:
    """Zones in trees, in written order; ``cross_links`` join zones that are not parent and child.

    Build one with `from_yaml`, `from_text` or `from_data`, which check
    everything; the constructor trusts its arguments.
    """

    name: str
    layers: tuple[Layer, ...]
    zones: tuple[Zone, ...]
    cross_links: tuple[Link, ...] = ()
    locations: tuple[str, ...] = field(init=False, compare=False)
    _zones: Mapping[str, Zone] = field(init=False, repr=False, compare=False)
    _children: Mapping[str, tuple[Zone, ...]] = field(init=False, repr=False, compare=False)
    _layers: Mapping[str, int] = field(init=False, repr=False, compare=False)
    # The lowest zone listing each location: every other covering zone is above it.
    _lowest: Mapping[str, Zone] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        layers = {layer.name: layer.index for layer in self.layers}
        children: dict[str, list[Zone]] = {}
        lowest: dict[str, Zone] = {}
        for zone in self.zones:
            if zone.parent is not None:
                children.setdefault(zone.parent, []).append(zone)
            for location in zone.locations:
                other = lowest.setdefault(location, zone)
                if layers[zone.layer] < layers[other.layer]:
                    lowest[location] = zone
        object.__setattr__(self, "locations", tuple(lowest))
        object.__setattr__(self, "_zones", {zone.name: zone for zone in self.zones})
        object.__setattr__(self, "_children", {name: tuple(below) for name, below in children.items()})
        object.__setattr__(self, "_layers", layers)
        object.__setattr__(self, "_lowest", lowest)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Continuum:
        """Read a YAML file; raise an ErrorList of ContinuumErrors, each at `file:line`."""
        problems = Problems()
        text = read_text(Path(path), problems)
        return cls._from_tree(tree_of_text(text, source=str(path), problems=problems), problems)

    @classmethod
    def from_text(cls, text: str, *, source: str = "<text>") -> Continuum:
        """Read YAML text; raise an ErrorList of ContinuumErrors, each at `source:line`."""
        problems = Problems()
        return cls._from_tree(tree_of_text(text, source=source, problems=problems), problems)

    @classmethod
    def from_data(cls, data: object, *, source: str = "<data>") -> Continuum:
        """Read the JSON form (`to_data`); raise an ErrorList of ContinuumErrors, each at `source: path`."""
        problems = Problems()
        return cls._from_tree(tree_of_data(data, source=source, problems=problems), problems)

    @classmethod
    def _from_tree(cls, root: YamlNode, problems: Problems) -> Continuum:
        draft = draft_of(root, problems)
        return cls(
            name=draft.name,
            layers=tuple(Layer(name, index) for index, name in enumerate(draft.layers)),
            zones=tuple(_zone(zone) for zone in draft.zones.values()),
            cross_links=tuple(Link(*link.zones, link.bandwidth, link.latency) for link in draft.links),
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_schema(cls, cls.from_data, cls.to_data)

    def to_data(self) -> dict[str, object]:
        """Return the JSON form, structured as the YAML file."""
        return {
            "name": self.name,
            "layers": [layer.name for layer in self.layers],
            "zones": {zone.name: _zone_data(zone) for zone in self.zones},
            **({"links": [_link_data(link) for link in self.cross_links]} if self.cross_links else {}),
        }

    @cached_property
    def root(self) -> Zone:
        """Return the zone without a parent; of several, the first."""
        return self.tops[0]

    @cached_property
    def tops(self) -> tuple[Zone, ...]:
        """Return the zones without a parent: the root of each tree."""
        return tuple(zone for zone in self.zones if zone.link is None)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of all zones."""
        return tuple(node for zone in self.zones for node in zone.nodes)

    @cached_property
    def clear_text(self) -> tuple[str, ...]:
        """Return the nodes whose traffic crosses a network without TLS, with their addresses."""
        found = [(node.name, node.at) for node in self.nodes if node.at is not None]
        return tuple(f"{name} at {at}" for name, at in found if Address.parse(at).exposed)

    @cached_property
    def _nodes(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _by_host(self) -> Mapping[str, tuple[Host, Node]]:
        return {host.name: (host, node) for node in self.nodes for host in node.hosts}

    @cached_property
    def _links(self) -> Mapping[str, Link]:
        return {link.name: link for link in self.links}

    def link(self, name: str) -> Link:
        """Return the link of this name."""
        return self._links[name]

    def node(self, name: str) -> Node:
        """Return the node; raise ContinuumError with close matches if there is none."""
        if (node := self._nodes.get(name)) is not None:
            return node
        hint = closest(name, self._nodes) or f"the nodes are {_some(list(self._nodes))}"
        raise ContinuumError(f"no node {name!r} in continuum {self.name}", hint=hint)

    def host(self, name: str) -> Host:
        """Return the host; raise ContinuumError with close matches if there is none."""
        return self._placed(name)[0]

    def node_of(self, host: str) -> Node:
        """Return the node that a host belongs to."""
        return self._placed(host)[1]

    def _placed(self, host: str) -> tuple[Host, Node]:
        if (found := self._by_host.get(host)) is not None:
            return found
        hint = closest(host, self._by_host) or f"the hosts are {_some(list(self._by_host))}"
        raise ContinuumError(f"no host {host!r} in continuum {self.name}", hint=hint)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts of all zones."""
        return tuple(host for zone in self.zones for host in zone.hosts)

    @property
    def links(self) -> tuple[Link, ...]:
        """Return the links of zones to their parents, then all others."""
        return (*(zone.link for zone in self.zones if zone.link is not None), *self.cross_links)

    def zone(self, name: str) -> Zone:
        """Return the zone; raise ContinuumError with close matches if there is none."""
        if (zone := self._zones.get(name)) is not None:
            return zone
        hint = closest(name, self._zones) or f"the zones are {_some(list(self._zones))}"
        raise ContinuumError(f"no zone {name!r} in continuum {self.name}", hint=hint)

    def parent(self, name: str) -> Zone | None:
        """Return the zone above, None for the root."""
        above = self.zone(name).parent
        return None if above is None else self.zone(above)

    def children(self, name: str) -> tuple[Zone, ...]:
        """Return the zones directly below, in written order."""
        return self._children.get(self.zone(name).name, ())

    def ancestors(self, name: str) -> tuple[Zone, ...]:
        """Return the zones above, the nearest first."""
        above: list[Zone] = []
        at = self.parent(name)
        while at is not None:
            above.append(at)
            at = self.parent(at.name)
        return tuple(above)

    def path_up(self, lower: str, upper: str) -> tuple[Zone, ...]:
        """Return the zones from `lower` to `upper`, both included; raise if `upper` is not above."""
        self.zone(upper)
        path = (self.zone(lower), *self.ancestors(lower))
        for length, zone in enumerate(path, start=1):
            if zone.name == upper:
                return path[:length]
        raise ContinuumError(
            f"zone {upper} is not above zone {lower}",
            hint=f"data from {lower} goes up through {' -> '.join(zone.name for zone in path)}",
        )

    def links_up(self, lower: str, upper: str) -> tuple[Link, ...]:
        """Return the links that data crosses from `lower` to `upper`, in that order."""
        return tuple(zone.link for zone in self.path_up(lower, upper)[:-1] if zone.link is not None)

    def links_between(self, one: str, other: str, *, named: Collection[str] = ()) -> tuple[Link, ...]:
        """Return the links that rows cross from one zone to another; ``named``: the zones that their dataflow names.

        Between a zone and one above it, those of the tree, lowest first. Between any others, and where one of the two
        is named and a link joins them past the zones between, the route with the fewest links, from ``one`` on; of
        several, one that goes up the tree first. Raises ContinuumError if there is none.
        """
        ends = frozenset((one, other))
        if ends not in self._shortcuts or ends.isdisjoint(named):
            if any(zone.name == one for zone in self.ancestors(other)):
                return self.links_up(other, one)
            if any(zone.name == other for zone in self.ancestors(one)):
                return self.links_up(one, other)
        return self._route(self.zone(one).name, self.zone(other).name)

    @cached_property
    def _shortcuts(self) -> frozenset[frozenset[str]]:
        """Zones and zones above them, of which a declared link joins the two."""
        joined = ((link.lower, link.upper) for link in self.cross_links)
        return frozenset(frozenset(ends) for ends in joined if ends[1] in (z.name for z in self.ancestors(ends[0])))

    def _route(self, one: str, other: str) -> tuple[Link, ...]:
        if one not in self._last:
            last: dict[str, tuple[str, Link]] = {}
            todo = deque([one])
            while todo:
                at = todo.popleft()
                for zone, link in self._near[at]:
                    if zone != one and zone not in last:
                        last[zone] = at, link
                        todo.append(zone)
            self._last[one] = last
        links: list[Link] = []
        at = other
        while at != one:
            if at not in self._last[one]:
                raise ContinuumError(f"no link leads from zone {one} to zone {other}", hint="declare one under links:")
            at, link = self._last[one][at]
            links.append(link)
        return tuple(reversed(links))

    @cached_property
    def _last(self) -> dict[str, dict[str, tuple[str, Link]]]:
        """By zone, for each other zone the one before it on the way, and the link between them; filled on demand."""
        return {}

    @cached_property
    def _near(self) -> Mapping[str, tuple[tuple[str, Link], ...]]:
        """By zone, the zones that it has a link to: the parent, those below it, and others."""
        found: dict[str, list[tuple[str, Link]]] = {zone.name: [] for zone in self.zones}
        for zone in self.zones:
            if zone.link is not None:
                found[zone.name].append((zone.link.upper, zone.link))
        for link in self.links:
            found[link.upper].append((link.lower, link))
        for link in self.cross_links:
            found[link.lower].append((link.upper, link))
        return {name: tuple(near) for name, near in found.items()}

    def layer_index(self, layer: str) -> int:
        """Return the index of the layer, 0 where data arises; raise if there is no such layer."""
        if (index := self._layers.get(layer)) is not None:
            return index
        hint = closest(layer, self._layers) or f"the layers are {_some(list(self._layers))}"
        raise ContinuumError(f"no layer {layer!r} in continuum {self.name}", hint=hint)

    def height(self, place: str) -> int:
        """Return the index of the layer of a place (``headwater.core.place``); raise if there is no such place."""
        name = zone_named(place)
        return self.layer_index(place if name is None else self.zone(name).layer)

    def zone_at(self, place: str, location: str) -> Zone | None:
        """Return the zone in which a place takes the rows of a location; None if no zone of a layer covers it."""
        name = zone_named(place)
        return self.covering(place, location) if name is None else self.zone(name)

    def place_of(self, zone: str, location: str) -> str:
        """Return the place in which a zone takes the rows of a location: its layer, where it covers the location."""
        covering = self.covering(self.zone(zone).layer, location)
        return covering.layer if covering is not None and covering.name == zone else place_of_zone(zone)

    def covering(self, layer: str, location: str) -> Zone | None:
        """Return the one zone of the layer that covers the location, None if none does."""
        self.layer_index(layer)
        lowest = self._lowest.get(location)
        if lowest is None:
            return None
        return next((z for z in (lowest, *self.ancestors(lowest.name)) if z.layer == layer), None)

    def covered(self, name: str) -> tuple[str, ...]:
        """Return the locations the zone lists and those its children cover, in the order of `locations`."""
        return self._covered.get(self.zone(name).name, ())

    @cached_property
    def _covered(self) -> Mapping[str, tuple[str, ...]]:
        """The locations of each zone that covers any: each location is passed up its path once."""
        found: dict[str, list[str]] = {}
        listed = {zone.name: frozenset(zone.locations) for zone in self.zones}
        for location, lowest in self._lowest.items():
            layers: set[str] = set()
            for zone in (lowest, *self.ancestors(lowest.name)):
                if zone.layer not in layers or location in listed[zone.name]:
                    found.setdefault(zone.name, []).append(location)
                layers.add(zone.layer)
        return {name: tuple(covered) for name, covered in found.items()}

    def unmet(self, zone: str, requirement: Requirement) -> dict[str, tuple[str, ...]]:
        """Return, for each host of the zone that does not satisfy the requirement, the reasons."""
        reasons = {host.name: requirement.unmet(host.capabilities) for host in self.zone(zone).hosts}
        return {name: unmet for name, unmet in reasons.items() if unmet}


def _zone(draft: ZoneDraft) -> Zone:
    above = draft.parent_name
    return Zone(
        name=draft.name,
        layer=draft.layer_name,
        hosts=tuple(
            Host(name, draft.name, host.capabilities, host.at, host.spark) for name, host in draft.hosts.items()
        ),
        locations=tuple(str(leaf.value) for leaf in draft.locations),
        link=None if above is None else Link(draft.name, above, draft.bandwidth, draft.latency),
        at=draft.at,
        spark=draft.spark,
        spark_settings=draft.spark_settings,
        broker=draft.broker,
        channels=draft.channels,
        access=draft.access,
    )


def _quantities(link: Link) -> dict[str, object]:
    data: dict[str, object] = {}
    if link.bandwidth is not None:
        data["bandwidth"] = format_bandwidth(link.bandwidth, exact=True)
    if link.latency:
        data["latency"] = format_duration(link.latency, exact=True)
    return data


def _link_data(link: Link) -> dict[str, object]:
    return {"between": [link.lower, link.upper], **_quantities(link)}


def _zone_data(zone: Zone) -> dict[str, object]:
    data: dict[str, object] = {"layer": zone.layer}
    if zone.link is not None:
        link = _quantities(zone.link)
        data |= {"parent": zone.link.upper} | ({"link": link} if link else {})
    if zone.at is not None:
        data["at"] = zone.at
    if settings := zone.spark_settings.to_data():
        data["spark"] = {**({} if zone.spark is None else {"at": zone.spark}), **settings}
    elif zone.spark is not None:
        data["spark"] = zone.spark
    if zone.spark_settings.small:
        data["profile"] = "small"
    if zone.locations:
        data["locations"] = list(zone.locations)
    if zone.broker is not None:
        data["broker"] = zone.broker.to_data()
    if zone.channels is not None:
        data["channels"] = zone.channels
    if zone.access is not None:
        data["access"] = access_data(zone.access)
    return data | {"hosts": {host.name: _host_data(host) for host in zone.hosts}}


def _host_data(host: Host) -> dict[str, object]:
    own = {"at": host.at, "spark": host.spark}
    return {**host.capabilities, **{key: value for key, value in own.items() if value is not None}}


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
