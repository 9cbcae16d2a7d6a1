"""Check the declarations of a continuum file, and report all errors at once.

The result is a draft: plain names and numbers that `model.py` turns into
the model. Checks of one value come first, then those of the whole tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from headwater.continuum.access import access_of
from headwater.continuum.broker import Broker, ChannelKind, broker_of, channels_of, check_reach
from headwater.continuum.links import LinkDraft, check_links, joined_to, links_of, quantities
from headwater.continuum.sparksettings import SparkSettings, settings_of, small_of
from headwater.continuum.yamltree import Fields, Items, Leaf, Problems, YamlNode
from headwater.core.address import ADDRESS, PLACE
from headwater.core.permissions import Permissions
from headwater.core.quantity import QuantityError
from headwater.core.requirement import ATTRIBUTE, Capabilities, offered
from headwater.core.text import closest, shown

MAX_LAYERS = 64
DEFAULT_NAME = "continuum"

# Names become names of files: no separators, no hidden files, no names that look like options.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NAME_HINT = "use 1 to 100 of A-Z a-z 0-9 _ . - and do not begin with . or -"
_AT = re.compile(ADDRESS)
_PORT = re.compile(r":([0-9]{1,5})(?=,|$)")
_HOST_AT = re.compile(rf"{ADDRESS}|local")
_SPARK = re.compile(rf"sc://{PLACE}(?:/[^\s]*)?|spark://{PLACE}(?:,{PLACE})*|local")
# YAML 1.2 reads these as text, but people read them as truths.
_TRUTHS = {"yes": True, "no": False}


@dataclass
class HostDraft:
    """A declared host."""

    where: str
    capabilities: Capabilities = field(default_factory=Capabilities)
    at: str | None = None
    spark: str | None = None


@dataclass
class ZoneDraft:
    """A declared zone."""

    name: str
    where: str
    layer: Leaf | None = None
    parent: Leaf | None = None
    # An unreadable parent differs from none: such a zone is no root.
    has_parent: bool = False
    locations: list[Leaf] = field(default_factory=list)
    hosts: dict[str, HostDraft] = field(default_factory=dict)
    bandwidth: float | None = None
    latency: float = 0.0
    at: str | None = None
    spark: str | None = None
    spark_settings: SparkSettings = field(default_factory=SparkSettings)
    broker: Broker | None = None
    channels: ChannelKind | None = None
    access: Permissions | None = None

    @property
    def parent_name(self) -> str | None:
        """Return the name of the parent."""
        return None if self.parent is None else str(self.parent.value)

    @property
    def layer_name(self) -> str:
        """Return the name of the layer, empty if none was declared."""
        return "" if self.layer is None else str(self.layer.value)


@dataclass
class ContinuumDraft:
    """A declared continuum, its zones in written order."""

    name: str = DEFAULT_NAME
    layers: list[str] = field(default_factory=list)
    zones: dict[str, ZoneDraft] = field(default_factory=dict)
    links: list[LinkDraft] = field(default_factory=list)
    """Those beside the links to parents; each names first the zone of the lower layer."""


def draft_of(root: YamlNode, problems: Problems) -> ContinuumDraft:
    """Return the checked draft; raise an ErrorList of every problem found."""
    draft = _Declarations(problems).continuum(root)
    _ZoneTree(draft, problems).check()
    problems.raise_any()
    return draft


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _line(where: str) -> str:
    position = where.rpartition(":")[2].strip()
    return f"line {position}" if position.isdigit() else position


class _Declarations:
    """Read the values of the file one by one."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._hosts: dict[str, tuple[str, str]] = {}

    def continuum(self, root: YamlNode) -> ContinuumDraft:
        if not isinstance(root, Fields):
            self._problems.stop(
                f"a continuum is a mapping, not {root}",
                where=root.where,
                hint="begin with name:, layers:, zones:",
            )
        fields = self._known(root, ("name", "layers", "zones", "links"), of="the continuum")
        draft = ContinuumDraft()
        if (name := fields.get("name")) is not None:
            draft.name = self._name(name, "the continuum's name") or draft.name
        draft.layers = self._layers(fields.get("layers"), root.where)
        zones = fields.get("zones")
        if not isinstance(zones, Fields) or not zones.entries:
            where = root.where if zones is None else zones.where
            self._problems.add("no zones", where=where, hint="write zones: {NAME: {layer: ..., parent: ...}}")
            return draft
        for key, node in zones.entries:
            zone_name = self._name(key, "a zone's name")
            if zone_name is not None:
                draft.zones[zone_name] = self._zone(zone_name, node, key=key, layers=draft.layers)
        for zone in draft.zones.values():
            self._name_anonymous_host(zone)
            self._check_nodes(zone, draft.zones)
        draft.links = links_of(fields.get("links"), draft.zones, self._problems)
        return draft

    def _layers(self, node: YamlNode | None, root_where: str) -> list[str]:
        if not isinstance(node, Items) or not node.nodes:
            where = root_where if node is None else node.where
            self._problems.add("no layers", where=where, hint="write layers: [edge, site, cloud]")
            return []
        if len(node.nodes) > MAX_LAYERS:
            self._problems.stop(f"more than {MAX_LAYERS} layers", where=node.where, hint="use fewer")
        layers: list[str] = []
        for item in node.nodes:
            name = self._name(item, "a layer's name")
            if name in layers:
                self._problems.add(f"layer {name} is listed twice", where=item.where, hint="remove one of them")
            elif name is not None:
                layers.append(name)
        return layers

    def _zone(self, name: str, node: YamlNode, *, key: Leaf, layers: list[str]) -> ZoneDraft:
        zone = ZoneDraft(name, key.where)
        of = f"zone {name}"
        if not isinstance(node, Fields):
            self._problems.add(f"{of} must be a mapping, not {node}", where=node.where, hint="write {layer: ...}")
            # Its place in the tree is unknown: neither root nor child.
            zone.has_parent = True
            return zone
        known = (
            "layer", "parent", "locations", "link", "hosts", "broker", "channels", "at", "spark", "access", "profile",
        )  # fmt: skip
        fields = self._known(node, known, of=of)
        zone.at = self._address(fields.get("at"), f"at of {of}", _AT, "at: 10.0.0.7:7070")
        self._spark(zone, fields.get("spark"))
        if small_of(fields.get("profile"), of=of, problems=self._problems):
            zone.spark_settings = replace(zone.spark_settings, small=True)
        self._layer(zone, fields.get("layer"), layers=layers)
        self._parent(zone, fields.get("parent"))
        self._locations(zone, fields.get("locations"))
        self._link(zone, fields.get("link"))
        zone.broker = broker_of(fields.get("broker"), of=of, problems=self._problems)
        zone.access = access_of(fields.get("access"), of=of, problems=self._problems)
        zone.channels = channels_of(fields.get("channels"), of=of, problems=self._problems)
        for host, node_of_host in self._entries(fields.get("hosts"), f"hosts of {of}", "{vm1: {n_cpu: 4}}"):
            self._host(zone, host, node_of_host)
        return zone

    def _spark(self, zone: ZoneDraft, node: YamlNode | None) -> None:
        of = f"zone {zone.name}"
        if isinstance(node, Fields):
            zone.spark_settings = settings_of(node, of=of, problems=self._problems)
            node = next((value for key, value in node.entries if key.text == "at"), None)
        zone.spark = self._address(node, f"spark of {of}", _SPARK, "sc://10.0.0.7:15002")

    def _layer(self, zone: ZoneDraft, node: YamlNode | None, *, layers: list[str]) -> None:
        if node is None:
            hint = f"write layer: with one of {', '.join(layers)}" if layers else "write layer: ..."
            self._problems.add(f"zone {zone.name} has no layer", where=zone.where, hint=hint)
            return
        name = self._name(node, f"the layer of zone {zone.name}")
        if name in layers and isinstance(node, Leaf):
            zone.layer = node
        elif name is not None and layers:
            self._problems.add(
                f"zone {zone.name} has the unknown layer {shown(name)}",
                where=node.where,
                hint=closest(name, layers) or f"the layers are {', '.join(layers)}",
            )

    def _parent(self, zone: ZoneDraft, node: YamlNode | None) -> None:
        if node is None or (isinstance(node, Leaf) and node.value is None):
            return
        zone.has_parent = True
        if isinstance(node, Items):
            self._problems.add(
                f"zone {zone.name} has {len(node.nodes)} parents listed; zones form a tree",
                where=node.where,
                hint="name one parent, without brackets",
            )
        elif self._name(node, f"the parent of zone {zone.name}") is not None and isinstance(node, Leaf):
            zone.parent = node

    def _locations(self, zone: ZoneDraft, node: YamlNode | None) -> None:
        if node is None or (isinstance(node, Leaf) and node.value is None):
            return
        if not isinstance(node, Items):
            self._problems.add(
                f"locations of zone {zone.name} must be a list, not {node}",
                where=node.where,
                hint="write locations: [L1]",
            )
            return
        seen: set[str] = set()
        for item in node.nodes:
            name = self._name(item, f"a location of zone {zone.name}")
            if name in seen:
                self._problems.add(
                    f"location {name} is listed twice by zone {zone.name}",
                    where=item.where,
                    hint="remove one of them",
                )
            elif name is not None and isinstance(item, Leaf):
                seen.add(name)
                zone.locations.append(item)

    def _link(self, zone: ZoneDraft, node: YamlNode | None) -> None:
        if node is None or (isinstance(node, Leaf) and node.value is None):
            return
        of = f"the link of zone {zone.name}"
        if not zone.has_parent:
            self._problems.add(f"{of} leads nowhere", where=node.where, hint="name a parent or remove the link")
        if not isinstance(node, Fields):
            self._problems.add(
                f"{of} must be a mapping, not {node}",
                where=node.where,
                hint="write link: {bandwidth: 10Mbit/s, latency: 20ms}",
            )
            return
        fields = self._known(node, ("bandwidth", "latency"), of=of)
        zone.bandwidth, zone.latency = quantities(fields, of=of, problems=self._problems)

    def _address(self, node: YamlNode | None, of: str, form: re.Pattern[str], example: str) -> str | None:
        if node is None or (isinstance(node, Leaf) and node.value is None):
            return None
        if isinstance(node, Leaf) and isinstance(node.value, str) and form.fullmatch(node.value):
            for port in _PORT.findall(node.value.rpartition("://")[2].partition("/")[0].partition("#")[0]):
                if not 0 < int(port) < 65_536:
                    self._problems.add(
                        f"{of} is {node}, and there is no port {port}",
                        where=node.where,
                        hint=f"ports are 1 to 65535: write {example}",
                    )
                    return None
            return node.value
        self._problems.add(f"{of} is {node}, not an address", where=node.where, hint=f"write {example}")
        return None

    def _host(self, zone: ZoneDraft, key: Leaf, node: YamlNode) -> None:
        name = self._name(key, f"a host of zone {zone.name}")
        values: dict[str, object] = {}
        host, of = HostDraft(key.where), f"host {key}"
        for attribute, value in self._entries(node, f"capabilities of {of}", "{n_cpu: 4}"):
            if attribute.value == "at":
                host.at = self._address(value, f"at of {of}", _HOST_AT, "at: 10.0.0.7:7070, or at: local")
            elif attribute.value == "spark":
                host.spark = self._address(value, f"spark of {of}", _SPARK, "sc://10.0.0.7:15002")
            else:
                self._capability(values, attribute, value, of=of)
        if name is None:
            return
        if name in self._hosts:
            other, where = self._hosts[name]
            self._problems.add(
                f"host {name} of zone {zone.name} has the name of a host of zone {other}, {_line(where)}",
                where=key.where,
                hint="give every host of the continuum its own name",
            )
        self._hosts.setdefault(name, (zone.name, key.where))
        host.capabilities = Capabilities(values)
        zone.hosts[name] = host

    def _name_anonymous_host(self, zone: ZoneDraft) -> None:
        if zone.hosts:
            return
        if zone.name in self._hosts:
            other, where = self._hosts[zone.name]
            self._problems.add(
                f"zone {zone.name} lists no host and gets one of its own name, "
                f"but zone {other} has a host {zone.name}, {_line(where)}",
                where=zone.where,
                hint=f"rename that host, or list the hosts of zone {zone.name}",
            )
        zone.hosts[zone.name] = HostDraft(zone.where)

    def _check_nodes(self, zone: ZoneDraft, zones: Iterable[str]) -> None:
        """Check that either each host of a zone has an agent of its own, or the zone has one for all."""
        own = [name for name, host in zone.hosts.items() if host.at is not None]
        without = [name for name, host in zone.hosts.items() if host.at is None]
        if len(without) == 1 and not own and zone.spark is None:
            zone.spark, zone.hosts[without[0]].spark = zone.hosts[without[0]].spark, None
        for name in [n for n, host in zone.hosts.items() if host.spark is not None and host.at is None]:
            self._problems.add(
                f"host {name} of zone {zone.name} has a Spark of its own, but no address",
                where=zone.hosts[name].where,
                hint=f"give it an agent: at: host:port, or write spark: of zone {zone.name}",
            )
        given = [s for s in (zone.spark, *(h.spark for h in zone.hosts.values())) if s and s != "local"]
        if given and zone.spark_settings.small:
            self._problems.add(
                f"zone {zone.name} has profile: small, and a Spark that its agents do not start alone: {given[0]}",
                where=zone.where,
                hint="remove one of them: the profile is for Sparks beside the agents",
            )
        remote = [s for s in given if s.startswith("sc://")]
        if remote and replace(zone.spark_settings, small=False) != SparkSettings():
            self._problems.add(
                f"zone {zone.name} has packages or conf for a Spark, and uses one that runs already: {remote[0]}",
                where=zone.where,
                hint="give them to that server where it is started, and remove them here",
            )
        if not own:
            return
        where = zone.hosts[own[0]].where
        if without:
            self._problems.add(
                f"{_some(own)} of zone {zone.name} {'has' if len(own) == 1 else 'have'} an address, but not "
                f"{_some(without)}",
                where=zone.hosts[without[0]].where,
                hint="give every host of the zone an address (at: host:port), or none of them",
            )
        for key, value in (("at", zone.at), ("spark", zone.spark)):
            if value is not None:
                self._problems.add(
                    f"zone {zone.name} has {key}: {value}, and hosts with addresses",
                    where=where,
                    hint=f"a zone has one agent, or one per host: move {key}: to its hosts, or drop theirs",
                )
        for name in own:
            if name in zones:
                self._problems.add(
                    f"host {name} of zone {zone.name} has an agent of its own, but also the name of a zone",
                    where=zone.hosts[name].where,
                    hint="rename the host: these names identify agents",
                )

    def _capability(self, values: dict[str, object], key: Leaf, node: YamlNode, *, of: str) -> None:
        name = key.value
        if not isinstance(name, str) or not ATTRIBUTE.fullmatch(name) or name.lower() in ("and", "or"):
            self._problems.add(
                f"{key} of {of} is not an attribute name",
                where=key.where,
                hint="begin with a letter, continue with A-Z a-z 0-9 _ . -",
            )
            return
        value: object = node
        if isinstance(node, Leaf):
            value = _TRUTHS.get(node.text.lower(), node.value) if node.plain else node.value
        try:
            values[name] = offered(name, value)
        except QuantityError as error:
            self._problems.add(f"{name} of {of} cannot be {node}: {error.what}", where=node.where, hint=error.hint)
        except TypeError:
            self._problems.add(
                f"{name} of {of} cannot be {node}",
                where=node.where,
                hint="write true or false, a number, a size or a text; leave out missing capabilities",
            )

    def _entries(self, node: YamlNode | None, what: str, example: str) -> Iterator[tuple[Leaf, YamlNode]]:
        if isinstance(node, Fields):
            yield from node.entries
        elif node is not None and not (isinstance(node, Leaf) and node.value is None):
            self._problems.add(f"{what} must be a mapping, not {node}", where=node.where, hint=f"write {example}")

    def _known(self, node: Fields, allowed: tuple[str, ...], *, of: str) -> dict[str, YamlNode]:
        fields: dict[str, YamlNode] = {}
        for key, value in node.entries:
            if isinstance(key.value, str) and key.value in allowed:
                fields[key.value] = value
            else:
                self._problems.add(
                    f"unknown key {key} in {of}",
                    where=key.where,
                    hint=closest(key.text, allowed) or f"the keys are {', '.join(allowed)}",
                )
        return fields

    def _name(self, node: YamlNode, what: str) -> str | None:
        """Return a name, reported as a problem when it is invalid; None if it is not text."""
        if not isinstance(node, Leaf) or not isinstance(node.value, str):
            quotable = isinstance(node, Leaf) and node.value is not None
            hint = f'write it in quotes: "{node.text[:60]}"' if quotable and isinstance(node, Leaf) else "write a name"
            self._problems.add(f"{what} must be text, not {node}", where=node.where, hint=hint)
            return None
        if not _NAME.fullmatch(node.value):
            self._problems.add(f"{what} cannot be {node}", where=node.where, hint=_NAME_HINT)
        return node.value


class _ZoneTree:
    """Check the zones together."""

    def __init__(self, draft: ContinuumDraft, problems: Problems) -> None:
        self._draft = draft
        self._zones = draft.zones
        self._index = {name: position for position, name in enumerate(draft.layers)}
        self._problems = problems
        self._in_cycle: set[str] = set()
        self._whole = True

    def check(self) -> None:
        self._check_parents()
        self._check_cycles()
        self._check_links()
        self._check_roots()
        self._check_layer_order()
        self._check_locations()
        if self._whole:
            wanted = {zone.name: (zone.channels, zone.where) for zone in self._zones.values()}
            check_reach(self._brokers_up, wanted, self._problems)

    def _brokers_up(self, name: str) -> list[tuple[str, Broker | None]]:
        return [(zone.name, zone.broker) for zone in self._chain(self._zones[name])]

    def _check_parents(self) -> None:
        for zone in self._zones.values():
            self._whole &= zone.parent is not None or not zone.has_parent
            if zone.parent is not None and zone.parent_name not in self._zones:
                self._whole = False
                self._problems.add(
                    f"zone {zone.name} has the unknown parent {zone.parent}",
                    where=zone.parent.where,
                    hint=closest(str(zone.parent_name), self._zones) or "name one of the zones",
                )

    def _above(self, zone: ZoneDraft) -> ZoneDraft | None:
        return self._zones.get(zone.parent_name) if zone.parent_name is not None else None

    def _check_cycles(self) -> None:
        settled: set[str] = set()
        for start in self._zones.values():
            path: dict[str, ZoneDraft] = {}
            zone: ZoneDraft | None = start
            while zone is not None and zone.name not in settled and zone.name not in path:
                path[zone.name] = zone
                zone = self._above(zone)
            if zone is not None and zone.name in path:
                self._report_cycle(list(path)[list(path).index(zone.name) :])
            settled.update(path)

    def _report_cycle(self, names: list[str]) -> None:
        self._in_cycle.update(names)
        self._whole = False
        order = {name: position for position, name in enumerate(self._zones)}
        first = names.index(min(names, key=order.__getitem__))
        cycle = [*names[first:], *names[: first + 1]]
        if len(cycle) > 12:
            cycle[6:-5] = ["..."]
        parent = self._zones[cycle[0]].parent
        self._problems.add(
            f"the parents form a cycle: {' -> '.join(cycle)}",
            where=self._zones[cycle[0]].where if parent is None else parent.where,
            hint="one of these zones needs a parent nearer to the root, or none",
        )

    def _check_links(self) -> None:
        ranks = {zone.name: self._index.get(zone.layer_name, 0) for zone in self._zones.values()}
        ways = {zone.name: [above.name for above in self._chain(zone)] for zone in self._zones.values()}
        self._draft.links = check_links(self._draft.links, ranks, ways, self._problems)

    def _check_roots(self) -> None:
        """Check that there is one root, or that links join the others' zones to the first one's."""
        roots = [zone for zone in self._zones.values() if not zone.has_parent]
        if len(roots) < 2:
            return
        tops = {zone.name: self._chain(zone)[-1].name for zone in self._zones.values()}
        near = joined_to(roots[0].name, [(tops[a], tops[b]) for a, b in (link.zones for link in self._draft.links)])
        for zone in roots[1:]:
            if zone.name in near:
                continue
            self._whole = False
            self._problems.add(
                f"zone {zone.name} has no parent, but zone {roots[0].name}, {_line(roots[0].where)}, "
                "is already the root, and no link joins them",
                where=zone.where,
                hint=f"write a parent for {zone.name}; or, for a second cloud, "
                f"links: [{{between: [{roots[0].name}, {zone.name}]}}]",
            )

    def _check_layer_order(self) -> None:
        for zone in self._zones.values():
            parent = self._above(zone)
            if parent is None or zone.layer is None or parent.layer is None or zone.name in self._in_cycle:
                continue
            if self._index[zone.layer_name] >= self._index[parent.layer_name]:
                same = zone.layer_name == parent.layer_name
                self._problems.add(
                    f"zone {zone.name} of layer {zone.layer_name} is below zone {parent.name} of "
                    + ("the same layer" if same else f"the lower layer {parent.layer_name}"),
                    where=zone.layer.where,
                    hint="a parent's layer comes later in layers: than its child's",
                )

    def _chain(self, zone: ZoneDraft) -> list[ZoneDraft]:
        """Return the zone and those above it, at most as many as a valid tree has."""
        chain: list[ZoneDraft] = []
        at: ZoneDraft | None = zone
        while at is not None and len(chain) < MAX_LAYERS:
            chain.append(at)
            at = self._above(at)
        return chain

    def _check_locations(self) -> None:
        """Check that the zones listing a location lie on one path to the root.

        Then each layer covers the location at most once, and its data can go
        from every covering zone to the next. One zone per layer is not
        enough: where a layer is skipped, the zones could be on two branches.
        """
        lowest: dict[str, ZoneDraft] = {}
        for zone in self._zones.values():
            if not zone.locations or zone.name in self._in_cycle:
                continue
            chain = self._chain(zone)
            names = {above.name for above in chain}
            for leaf in zone.locations:
                other = lowest.setdefault(str(leaf.value), zone)
                if other.name in names:
                    lowest[str(leaf.value)] = zone
                elif zone.name not in {above.name for above in self._chain(other)}:
                    self._report_location(leaf, other, chain)

    def _report_location(self, leaf: Leaf, other: ZoneDraft, chain: list[ZoneDraft]) -> None:
        zone = chain[0]
        covering = {above.layer_name: above for above in reversed(self._chain(other))}
        for mine in chain:
            theirs = covering.get(mine.layer_name, mine)
            if mine.layer is not None and theirs is not mine:
                through = [
                    f"{cover.name}" if cover is lister else f"{cover.name} (through {lister.name})"
                    for cover, lister in ((theirs, other), (mine, zone))
                ]
                self._problems.add(
                    f"location {leaf.value} is covered twice in layer {mine.layer_name}: "
                    f"by zone {through[0]} and by zone {through[1]}",
                    where=leaf.where,
                    hint=f"zone {other.name} lists it as well, {_line(other.where)}; keep one of them",
                )
                return
        # Where a part of the tree is unreadable, the two may be on one path.
        if self._whole:
            self._problems.add(
                f"location {leaf.value} is listed by zones {other.name} and {zone.name}, "
                "which are not on one path to the root",
                where=leaf.where,
                hint="data cannot go from one to the other; remove it from one, or put one above the other",
            )
