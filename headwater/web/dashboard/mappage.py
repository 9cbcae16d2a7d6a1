"""The map page, and the panel with details of the chosen zone or unit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from headwater.app import details
from headwater.app.details import StreamDetail, UnitDetail
from headwater.app.metrics import OperatorMetrics
from headwater.app.view import LinkSeen, UnitSeen, View, ZoneSeen
from headwater.core.errors import HeadwaterError
from headwater.web.dashboard import words
from headwater.web.dashboard.frame import Frame, address, banner, nothing_yet, trouble
from headwater.web.dashboard.rich import Node, Rich, facts, link, node, table, tag
from headwater.web.dashboard.zonemap import ZoneMap

DETAIL = 5.0
"""Seconds after which a unit's details are read again."""
STATES = {"running": "on", "failed": "bad", "unreachable": "bad", "starting": "busy"}


class MapPage:
    """The map with its panel."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._chosen: tuple[str, str, str | None] | None = None
        self._detail: UnitDetail | None = None
        self._detail_at = 0.0
        with frame.build("map"), ui.element("div").classes("hw-map-page") as self._page:
            ui.html("<h1>Map of zones</h1>", sanitize=False).classes("hw-sr")
            self._map = ZoneMap(frame.place.feed, self._selected)
            self._empty = Rich().classes("hw-map-empty")
            self._panel = ui.element("aside").classes("hw-panel").props('hidden aria-label="Details" tabindex="-1"')
            with self._panel:
                self._rich = Rich(on_act=self._acted)
        ui.keyboard(on_key=self._key, ignore=["input", "select", "textarea"])
        frame.on_view(self._show)

    async def _show(self, view: View) -> None:
        self._map.refresh()
        nothing = not view.zones
        self._empty.show(*([nothing_yet(view)] if nothing else []))
        warned = bool(banner(view))
        self._page.classes(add="hw-warned" if warned else "", remove="" if warned else "hw-warned")
        await self._refresh(view)

    async def _selected(self, kind: str, name: str, deployment: str | None) -> None:
        self._chosen, self._detail = (kind, name, deployment), None
        view = self._frame.place.feed.view
        if view is not None:
            self._panel.props(remove="hidden")
            await self._refresh(view)
            ui.run_javascript(f"getElement({self._panel.id}).focus({{preventScroll: true}})")

    async def _acted(self, what: Any) -> None:
        if what == "close":
            self._close()
        elif isinstance(what, dict):
            self._map.choose(f"{what['d']}/{what['unit']}" if "unit" in what else str(what["zone"]))
            await self._selected(
                "unit" if "unit" in what else "zone", str(what.get("unit") or what["zone"]), what.get("d")
            )

    def _key(self, event: Any) -> None:
        if event.key == "Escape" and event.action.keydown:
            self._close()

    def _close(self) -> None:
        if self._chosen is not None:
            self._chosen = None
            self._panel.props("hidden")
            self._map.choose(None)
            self._map.focus_back()

    async def _refresh(self, view: View) -> None:
        if self._chosen is None:
            return
        kind, name, deployment = self._chosen
        if kind == "zone":
            zone = next((z for z in view.zones if z.name == name), None)
            up = next((x for x in view.links if zone and (x.lower, x.upper) == (name, zone.parent)), None)
            self._rich.show(*(zone_nodes(zone, up, view.at) if zone else _gone(f"Zone {name}")))
            return
        unit = next((u for u in view.units if u.unit == name and u.deployment == deployment), None)
        if unit is None:
            self._rich.show(*_gone(f"Unit {name}"))
            return
        if self._detail is None or time.monotonic() - self._detail_at > DETAIL:
            self._detail_at = time.monotonic()
            try:
                self._detail = await run_in_threadpool(
                    details.unit, unit.deployment, unit.unit, self._frame.place.store
                )
            except HeadwaterError as error:
                self._rich.show(*unit_nodes(unit, None), trouble(error))
                return
        if self._chosen == (kind, name, deployment):  # another one may have been chosen meanwhile
            self._rich.show(*unit_nodes(unit, self._detail))


def _head(title: str, *about: Node) -> Node:
    close = node("button", "✕", act="close", type="button", aria_label="Close", cls="hw-icon")
    return node("div", node("div", node("h2", title), node("div", *about)), close, cls="hw-panel-head")


def _gone(title: str) -> list[Node]:
    text = "It no longer exists: it stopped, moved, or became part of another unit."
    return [_head(title), node("p", text, cls="hw-soft")]


def zone_nodes(zone: ZoneSeen, up: LinkSeen | None, now: float) -> list[Node]:
    """Render a zone: its hosts, its link, and its units."""
    found: list[Node] = [_head(f"Zone {zone.name}", tag(zone.layer), " ", *_where(zone.locations))]
    if zone.error:
        found.append(
            node(
                "p",
                f"It is unreachable: {zone.error}. ",
                "This is its last report.",
                cls="hw-bad",
            )
        )
    found.append(
        facts(
            [
                ("Last report", words.ago(zone.heartbeat, now)),
                ("Units", str(len(zone.units))),
                ("Parent", zone.parent),
            ]
        )
    )
    found.append(node("h3", "Hosts"))
    found += [
        facts(
            [
                (host.name, f"load {words.percent(host.load)}"),
                ("Cores", "–" if host.cores is None else f"{host.spark or 0:.2f} of {host.cores:g} by Spark"),
                ("Memory free", words.size(host.memory_free) if host.memory_free is not None else None),
            ]
        )
        for host in zone.hosts
    ]
    if up is not None:
        found += [node("h3", f"Link to {up.upper}"), facts(_link_facts(up))]
    found.append(node("h3", "Units"))
    if not zone.units:
        found.append(node("p", "None runs here.", cls="hw-soft"))
    found.append(
        node(
            "ul",
            *(
                node(
                    "li",
                    node(
                        "button",
                        u.unit,
                        type="button",
                        act={"unit": u.unit, "d": u.deployment},
                        cls="hw-unit-link",
                    ),
                    " ",
                    tag(u.status, STATES.get(u.status, "plain")),
                    node("div", f"{u.deployment} · {words.rate(u.rows_in_per_s)}", cls="hw-soft"),
                    key=f"{u.deployment}/{u.unit}",
                )
                for u in zone.units[:300]
            ),
        )
    )
    return found


def _where(locations: Iterable[str]) -> list[Node]:
    text = ", ".join(locations)
    return [node("span", text, cls="hw-soft")] if text else []


def _link_facts(up: LinkSeen) -> list[tuple[str, Node | None]]:
    return [
        ("Rows", words.rate(up.rows_per_s)),
        ("Traffic", words.speed(up.bytes_per_s)),
        ("Capacity", words.speed(up.capacity_bytes_per_s) if up.capacity_bytes_per_s else "no limit known"),
        ("Used", words.percent(up.used)),
        ("Delay", words.span(up.delay_s)),
        ("State", None if up.up is None else "up" if up.up else node("span", "down", cls="hw-bad")),
    ]


def unit_nodes(unit: UnitSeen, detail: UnitDetail | None) -> list[Node]:
    """Render a unit: its metrics, operators, inputs and outputs."""
    about = [
        tag(unit.status, STATES.get(unit.status, "plain")),
        " ",
        link(unit.deployment, address(unit.deployment)),
    ]
    lag = None if unit.status == "unreachable" else "reads sources"
    found: list[Node] = [_head(unit.unit, *about)]
    if unit.error:
        found.append(node("p", unit.error, cls="hw-bad"))
    if unit.waits:
        found.append(node("p", f"It waits: {unit.waits}"))
    found.append(
        facts(
            [
                ("Rows in", words.rate(unit.rows_in_per_s)),
                ("Rows out", words.rate(unit.rows_out_per_s)),
                ("Lag", lag if unit.lag is None or lag is None else f"{words.count(unit.lag)} rows"),
                ("Latency p50", words.span(unit.latency_p50_s)),
                ("Latency p95", words.span(unit.latency_p95_s)),
                ("Busy", words.percent(unit.busy)),
                ("Cores", words.count(unit.cpu)),
                (
                    "State",
                    f"{words.count(unit.state_rows)} rows, {words.size(unit.state_bytes)}"
                    if unit.state_rows
                    else "none",
                ),
                ("Dead letters", words.count(unit.dead_letters)),
                ("Late rows", words.count(unit.late_rows)),
                ("Watermark", unit.watermark),
                ("Idle, left out", ", ".join(unit.idle) or None),
            ]
        )
    )
    if detail is None:
        return found
    operators = detail.measured.operators if detail.measured else ()
    measured = {o.operator: o for o in operators if not o.location}
    found.append(node("h3", "Operators"))
    found.append(
        node(
            "ul",
            *(
                node(
                    "li",
                    node("strong", o.operator),
                    " ",
                    tag(o.kind),
                    *([" ", tag(f"shared by {len(o.users)}", "water")] if len(o.users) > 1 else []),
                    node("div", _flow(measured.get(o.operator)), cls="hw-soft"),
                    node("div", o.schema, cls="hw-schema"),
                    node("div", f"for {', '.join(o.users)}", cls="hw-soft") if o.users else None,
                    key=o.operator,
                )
                for o in detail.operators
            ),
        )
    )
    found += _streams("Reads", detail.reads, "from") + _streams("Writes", detail.writes, "to")
    spark = (
        "started by the zone's agent, without a page of its own" if detail.spark is None else node("code", detail.spark)
    )
    found += [
        node("h3", "Where"),
        facts(
            [
                (
                    "Zone",
                    node("button", detail.zone, type="button", act={"zone": detail.zone}, cls="hw-unit-link"),
                ),
                ("Hosts", " or ".join(detail.hosts)),
                ("Locations", ", ".join(detail.locations) or None),
            ]
        ),
        node("p", "Spark: ", spark, cls="hw-soft"),
    ]
    return found


def _flow(measured: OperatorMetrics | None) -> str:
    if measured is None:
        return "not measured"
    return f"{words.rate(measured.rows_in_per_s)} in, {words.rate(measured.rows_out_per_s)} out"


def _streams(title: str, streams: tuple[StreamDetail, ...], way: str) -> list[Node]:
    if not streams:
        return []
    rows = (
        node(
            "tr",
            node("td", s.operator),
            node("td", ", ".join(s.units)),
            node("td", ", ".join(s.links) or "–"),
            node("td", s.kept),
        )
        for s in streams
    )
    return [node("h3", title), table(["Stream", way.capitalize(), "Over", "Kept in"], rows, caption=title)]
