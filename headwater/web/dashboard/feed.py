"""The current state for all pages: one read for all of them, and each page's missing changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from headwater.app import observe
from headwater.app.view import LinkSeen, UnitSeen, View, ZoneSeen
from headwater.web.dashboard import words
from headwater.web.dashboard.quietgc import QuietCollector

EVERY = 1.0
"""Seconds between two reads while nothing is written."""
DRAWN = 12
"""Units of a zone that the map shows; it counts the others."""
Seen = TypeVar("Seen", ZoneSeen, LinkSeen)
_STATES = ("failed", "unreachable", "starting", "running", "planned", "finished", "stopped")


@dataclass
class _Stamped:
    """A shown value, its part of the map, and the version of the feed since which it is unchanged."""

    version: int
    seen: ZoneSeen | LinkSeen
    piece: dict[str, Any]


class ViewFeed:
    """Reads a store while started; ``view`` is the newest snapshot, ``version`` counts them."""

    def __init__(self, store_url: str | None) -> None:
        self._place = store_url
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._alone = threading.Lock()
        self._zones: dict[str, _Stamped] = {}
        self._links: dict[str, _Stamped] = {}
        self._order: tuple[str, ...] = ()
        self._ordered = 0
        self._waiting: set[Callable[[], Any]] = set()
        """Wake the pages that wait for the next snapshot."""
        self.view: View | None = None
        self.version = 0

    async def newer(self, version: int, seconds: float) -> None:
        """Wait until there is a newer snapshot than a version, at most for so many seconds."""
        arrived = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, arrived.set)
        with self._alone:
            if self.view is not None and self.version > version:
                return
            self._waiting.add(wake)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(arrived.wait(), seconds)
        finally:
            with self._alone:
                self._waiting.discard(wake)

    def start(self) -> None:
        """Start to read."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None

    def _run(self) -> None:
        collector = QuietCollector()
        collector.start()
        try:
            for view in observe.watch(self._place, every=EVERY, at_once=True, stop=self._stop):
                self.take(view)
                collector.rest(quiet=self.since(self.version - 1)[1] is None)
        finally:
            collector.stop()

    def take(self, view: View) -> None:
        """Store a snapshot, and mark its differences from the former one."""
        version = self.version + 1
        zones = _stamped(self._zones, {zone.name: zone for zone in view.zones}, zone_piece, version)
        parents = {zone.name: zone.parent for zone in view.zones}

        def drawn(link: LinkSeen) -> dict[str, Any]:
            return {**link_piece(link), "cross": parents.get(link.lower) != link.upper}

        links = _stamped(self._links, {link.link: link for link in view.links}, drawn, version)
        order = tuple(zones)
        with self._alone:
            self._zones, self._links = zones, links
            if order != self._order:
                self._order, self._ordered = order, version
            self.view, self.version = view, version
            waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            with suppress(RuntimeError):  # its event loop has ended
                wake()

    def since(self, version: int) -> tuple[int, dict[str, Any] | None]:
        """Return the newest version, and the map's changes since an older one; None without changes."""
        with self._alone:
            zones = [s.piece for s in self._zones.values() if s.version > version]
            links = [s.piece for s in self._links.values() if s.version > version]
            whole = version == 0 or self._ordered > version
            if not (zones or links or whole):
                return self.version, None
            if whole:
                zones = [s.piece for s in self._zones.values()]
                links = [s.piece for s in self._links.values()]
            piece: dict[str, Any] = {"zones": zones, "links": links}
            if whole:
                layers = self.view.layers if self.view else ()
                piece |= {"whole": version == 0, "order": list(self._order), "layers": list(layers)}
            return self.version, piece


def _stamped(
    before: Mapping[str, _Stamped],
    seen: Mapping[str, Seen],
    piece_of: Callable[[Seen], dict[str, Any]],
    version: int,
) -> dict[str, _Stamped]:
    found = {}
    for name, one in seen.items():
        old = before.get(name)
        if old is None or old.seen != one:
            piece = piece_of(one)
            same = old is not None and old.piece == piece
            found[name] = _Stamped(old.version if old and same else version, one, piece)
        else:
            found[name] = old
    return found


def zone_piece(zone: ZoneSeen) -> dict[str, Any]:
    """Return the map's data of a zone."""
    units = sorted(zone.units, key=lambda u: _STATES.index(u.status) if u.status in _STATES else 9)
    loads = [host.load for host in zone.hosts if host.load is not None]
    rates = [u.rows_in_per_s for u in zone.units if u.rows_in_per_s is not None]
    return {
        "id": zone.name,
        "layer": zone.layer,
        "parent": zone.parent,
        "locations": ", ".join(zone.locations[:6]),
        "hosts": [{"load": None if h.load is None else round(h.load, 2)} for h in zone.hosts[:12]],
        "units": [unit_piece(u) for u in units[:DRAWN]],
        "count": len(zone.units),
        "failed": sum(u.status == "failed" for u in zone.units),
        "rate": words.rate(sum(rates)) if rates else "",
        "load": round(max(loads), 2) if loads else None,
        "error": zone.error,
    }


def unit_piece(unit: UnitSeen) -> dict[str, Any]:
    """Return the map's data of a unit."""
    lag = f"lag {words.count(unit.lag)} rows" if unit.lag else ""
    return {
        "id": unit.unit,
        "d": unit.deployment,
        "s": unit.status,
        "r": words.rate(unit.rows_in_per_s) if unit.rows_in_per_s is not None else "",
        "lag": unit.status if unit.status == "unreachable" else lag,
    }


def link_piece(link: LinkSeen) -> dict[str, Any]:
    """Return the map's data of a link: its bed as wide as its capacity, its stream as its traffic."""
    used, flows = link.used, link.bytes_per_s
    bed = 3.0 if not link.capacity_bytes_per_s else _wide(link.capacity_bytes_per_s)
    state = "down" if link.up is False else "quiet" if not flows else "calm"
    if used is not None and state == "calm":
        state = "full" if used > 0.85 else "busy" if used > 0.6 else "calm"
    shown = [words.rate(link.rows_per_s)] if link.rows_per_s is not None else []
    shown += [] if flows is None else [words.speed(flows)]
    text = " · ".join(shown)
    if link.up is False:
        text = "down"
    share = "" if used is None else f" ({words.percent(used)})"
    known = f"{words.speed(link.capacity_bytes_per_s)} at most" if link.capacity_bytes_per_s else "not limited"
    return {
        "id": link.link,
        "lower": link.lower,
        "upper": link.upper,
        "bed": bed,
        "flow": 0.0 if not flows else round(bed * min(1.0, used if used is not None else 0.5), 1),
        "state": state,
        "text": text,
        "about": f"{link.link}: {text or 'nothing measured'}; {known}{share}",
    }


def _wide(capacity: float) -> float:
    """Return the width of a bed: 4 for 100 kB/s, 3 more for each tenfold of it."""
    steps = len(str(int(capacity))) - 6
    return float(max(3, min(14, 4 + 3 * steps)))
