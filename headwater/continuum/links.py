"""The links of a continuum file: ``link:`` of a zone to its parent, and ``links:`` between any other two zones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.continuum.yamltree import Fields, Items, Leaf, Problems, YamlNode
from headwater.core.quantity import QuantityError, parse_bandwidth, parse_duration
from headwater.core.text import closest, shown

MAX_LATENCY = 86_400.0
"""Seconds; a link that takes longer than a day is a mistake."""
MAX_LINKS = 10_000
_EXAMPLE = "links: [{between: [S1, S2], bandwidth: 10Mbit/s, latency: 5ms}]"


@dataclass(frozen=True)
class LinkDraft:
    """A declared link between two zones: bits per second (None: unlimited) and seconds."""

    zones: tuple[str, str]
    where: str
    bandwidth: float | None = None
    latency: float = 0.0


def quantities(fields: Mapping[str, YamlNode], *, of: str, problems: Problems) -> tuple[float | None, float]:
    """Read bandwidth and latency of a link; errors are added to ``problems``."""
    bandwidth, latency = None, 0.0
    try:
        if (text := _quantity(fields.get("bandwidth"), "bandwidth", of, "10Mbit/s", problems)) is not None:
            bandwidth = parse_bandwidth(text)
            if bandwidth == 0:
                raise QuantityError("a bandwidth of 0 carries no data", hint="leave it out for unlimited")
            if bandwidth < 1:
                raise QuantityError(f"bandwidth {shown(text)} is too small", hint="write at least 1bit/s")
    except QuantityError as error:
        problems.add(f"bandwidth of {of}: {error.what}", where=fields["bandwidth"].where, hint=error.hint)
    try:
        if (text := _quantity(fields.get("latency"), "latency", of, "20ms", problems)) is not None:
            latency = parse_duration(text)
            if latency > MAX_LATENCY:
                raise QuantityError(f"latency {shown(text)} is too large", hint="write at most 24h")
    except QuantityError as error:
        problems.add(f"latency of {of}: {error.what}", where=fields["latency"].where, hint=error.hint)
    return bandwidth, latency


def _quantity(node: YamlNode | None, what: str, of: str, example: str, problems: Problems) -> str | None:
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    if isinstance(node, Leaf) and isinstance(node.value, str):
        return node.value
    if what == "latency" and isinstance(node, Leaf) and node.value == 0 and node.value is not False:
        return None
    # A number without a unit is ambiguous: bits or bytes, s or ms.
    problems.add(f"{of}: {what} {node} has no unit", where=node.where, hint=f"write {what}: {example}")
    return None


def links_of(node: YamlNode | None, zones: Collection[str], problems: Problems) -> list[LinkDraft]:
    """Read ``links:``, a list of links between two of the zones; errors are added to ``problems``."""
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return []
    if not isinstance(node, Items):
        problems.add(f"links must be a list, not {node}", where=node.where, hint=f"write {_EXAMPLE}")
        return []
    if len(node.nodes) > MAX_LINKS:
        problems.stop(f"more than {MAX_LINKS} links", where=node.where, hint="declare fewer")
    return [link for item in node.nodes if (link := _link(item, zones, problems)) is not None]


def _link(node: YamlNode, zones: Collection[str], problems: Problems) -> LinkDraft | None:
    if not isinstance(node, Fields):
        problems.add(f"a link must be a mapping, not {node}", where=node.where, hint=f"write {_EXAMPLE}")
        return None
    fields: dict[str, YamlNode] = {}
    keys = ("between", "bandwidth", "latency")
    for key, value in node.entries:
        if key.value in keys:
            fields[str(key.value)] = value
        else:
            hint = closest(key.text, keys) or f"the keys are {', '.join(keys)}"
            problems.add(f"unknown key {key} in a link", where=key.where, hint=hint)
    ends = _ends(fields.get("between"), node, zones, problems)
    of = "a link" if ends is None else f"the link between {ends[0]} and {ends[1]}"
    bandwidth, latency = quantities(fields, of=of, problems=problems)
    return None if ends is None else LinkDraft(ends, node.where, bandwidth, latency)


def _ends(node: YamlNode | None, link: YamlNode, zones: Collection[str], problems: Problems) -> tuple[str, str] | None:
    leaves = [item for item in node.nodes if isinstance(item, Leaf)] if isinstance(node, Items) else []
    if not isinstance(node, Items) or len(leaves) != 2 or len(node.nodes) != 2:
        where = link.where if node is None else node.where
        problems.add("a link needs the two zones that it joins", where=where, hint=f"write {_EXAMPLE}")
        return None
    unknown = [leaf for leaf in leaves if leaf.value not in zones]
    for leaf in unknown:
        hint = closest(leaf.text, zones) or "name two of the zones"
        problems.add(f"a link names the unknown zone {leaf}", where=leaf.where, hint=hint)
    if unknown:
        return None
    one, other = (str(leaf.value) for leaf in leaves)
    if one == other:
        problems.add(f"a link joins zone {one} to itself", where=node.where, hint="name two zones")
        return None
    return one, other


def check_links(
    links: Iterable[LinkDraft], ranks: Mapping[str, int], ways: Mapping[str, Sequence[str]], problems: Problems
) -> list[LinkDraft]:
    """Return the links with the zone of the lower layer first, and report those that cannot be declared.

    ``ranks``: the number of each zone's layer. ``ways``: each zone and those above it.
    """
    found: dict[str, LinkDraft] = {}
    names = {f"{way[0]}-{way[1]}" for way in ways.values() if len(way) > 1}
    joined: set[frozenset[str]] = set()
    for link in links:
        lower, upper = sorted(link.zones, key=ranks.__getitem__)
        name = f"{lower}-{upper}"
        if upper in ways[lower][1:2]:
            problems.add(
                f"zone {upper} is the parent of zone {lower}, which has a link to it already",
                where=link.where,
                hint=f"remove the link, or write link: {{...}} of zone {lower}",
            )
        elif frozenset(link.zones) in joined:
            problems.add(f"the link between {lower} and {upper} is declared twice", where=link.where, hint="keep one")
        elif name in names:
            problems.add(f"two links would be called {name}", where=link.where, hint="rename one of their zones")
        else:
            found[name] = replace(link, zones=(lower, upper))
        joined.add(frozenset(link.zones))
        names.add(name)
    return list(found.values())


def joined_to(start: str, edges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names that edges lead to from a start, itself included."""
    near: dict[str, list[str]] = {}
    for one, other in edges:
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    found, todo = {start}, [start]
    while todo:
        new = [name for name in near.get(todo.pop(), ()) if name not in found]
        found.update(new)
        todo += new
    return found
