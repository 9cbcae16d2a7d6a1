"""The network of a placement problem: a continuum's tree, or all its links where a dataflow names zones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from headwater.continuum.model import Continuum
from headwater.placement.network import Link, Tree
from headwater.placement.routed import DirectedLink, Routed


def tree(continuum: Continuum, used: Mapping[Link, float]) -> Tree:
    """Return the trees of a continuum, over which data goes up; ``used``: bits/s of others by link."""
    number = {zone.name: n for n, zone in enumerate(continuum.zones)}
    links = [zone.link for zone in continuum.zones]
    parents = [-1 if link is None else number[link.upper] for link in links]
    widths = [None if link is None else link.bandwidth for link in links]
    return Tree(
        np.array(parents, dtype=np.int32),
        np.array([0.0 if link is None else link.latency for link in links]),
        np.array([np.inf if width is None else width for width in widths]),
        np.array([used.get((zone, parent), 0.0) for zone, parent in enumerate(parents)]),
    )


def routed(continuum: Continuum, zones: Iterable[str], used: Mapping[Link, float]) -> Routed:
    """Return the network of all links, over which data goes up, and from and to some zones on any way.

    Its routes are those of ``Continuum.links_between``. ``used``: bits/s of others by link.
    """
    names = [zone.name for zone in continuum.zones]
    number = {name: n for n, name in enumerate(names)}
    named = frozenset(zones)
    open_zones = {number[zone] for zone in named if zone in number}
    above = [{number[zone.name] for zone in continuum.ancestors(name)} for name in names]
    known: dict[Link, tuple[Link, ...] | None] = {}

    def route(lower: int, upper: int) -> tuple[Link, ...] | None:
        key = lower, upper
        if key not in known:
            known[key] = None
            if upper in above[lower] or open_zones.intersection(key):
                links = continuum.links_between(names[lower], names[upper], named=named)
                crossed = [lower]
                for link in reversed(links) if lower in above[upper] else links:  # a way down is told from below
                    ends = number[link.lower], number[link.upper]
                    crossed.append(ends[1] if crossed[-1] == ends[0] else ends[0])
                known[key] = tuple(pairwise(crossed))
        return known[key]

    links: dict[Link, DirectedLink] = {}
    for link in continuum.links:
        ends = number[link.lower], number[link.upper]
        for way in (ends, ends[::-1]):
            width = np.inf if link.bandwidth is None else link.bandwidth
            links[way] = DirectedLink(latency=link.latency, bandwidth=width, used=used.get(way, 0.0))
    return Routed(len(names), links, route)
