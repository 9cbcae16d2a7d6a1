"""The page of a deployment: metrics, the course of latency and rate, changes and decisions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from headwater.app import details
from headwater.app.details import Course
from headwater.app.view import DeploymentSeen, View
from headwater.core.errors import HeadwaterError
from headwater.web.dashboard import words
from headwater.web.dashboard.frame import Frame, phase_tag, trouble
from headwater.web.dashboard.rich import Node, Rich, facts, link, node, tag

READ = 5.0
"""Seconds after which the course is read again."""
SPANS = {300: "5 minutes", 900: "15 minutes", 3600: "1 hour", 86400: "1 day"}
MOST = 80
"""Maximum lines of the timeline."""
_GREY, _WATER, _AMBER, _RED = "#8296a0", "#2b93b5", "#c88a1a", "#d0493e"


class DeploymentPage:
    """One deployment by name."""

    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name
        self._read_at = -READ
        self._seconds = 900
        with frame.build("dataflows"), ui.element("div").classes("hw-page"):
            self._head = Rich()
            with ui.element("div").classes("hw-actions"):
                ui.toggle(SPANS, value=self._seconds, on_change=self._spanned).props(
                    'dense unelevated no-caps aria-label="Span"'
                )
            self._chart = ui.echart(options(None)).classes("hw-chart")
            self._chart.props(
                'role="img" aria-label="Rows per second and latency over time, with changes and decisions"'
            )
            self._line = Rich()
        frame.on_view(self._show)

    async def _spanned(self, event: Any) -> None:
        self._seconds, self._read_at = int(event.value), -READ
        if self._frame.place.feed.view is not None:
            await self._show(self._frame.place.feed.view)

    async def _show(self, view: View) -> None:
        one = next((d for d in view.deployments if d.name == self._name), None)
        self._head.show(*head(self._name, one, view))
        if one is None or time.monotonic() - self._read_at < READ:
            return
        self._read_at = time.monotonic()
        try:
            course = await run_in_threadpool(details.course, self._name, self._seconds, self._frame.place.store)
        except HeadwaterError as error:
            self._line.show(trouble(error))
            return
        self._chart.options.update(options(course))
        self._chart.update()
        self._line.show(*timeline(course))


def head(name: str, one: DeploymentSeen | None, view: View) -> list[Node]:
    """Render a deployment's current state."""
    if one is None:
        text = view.error or "There is no deployment of this name: it was deleted, or never applied."
        return [node("h1", name), node("p", text, cls="hw-lead"), link("All dataflows", "/dataflows")]
    open_ones = [d for d in view.decisions if d.deployment == name]
    found: list[Node] = [
        node("h1", name),
        node(
            "p",
            phase_tag(one.phase, one.busy, one.failed),
            " ",
            f"version {one.version}",
            f" on {one.continuum}" if one.continuum else "",
            f", step {one.done} of {one.steps}" if one.busy and one.steps else "",
            cls="hw-lead",
        ),
    ]
    if one.message:
        found.append(node("p", one.message.replace("\n  -> ", " – "), cls="hw-bad"))
    slo = "none" if not one.has_slo else "kept" if not one.broken else "broken"
    found.append(
        node(
            "div",
            facts(
                [
                    ("Rows read", words.rate(one.rows_per_s)),
                    ("Latency p95", words.span(one.latency_p95_s)),
                    ("Lag, rows", words.count(one.lag)),
                    ("Units", f"{one.running} of {one.units}"),
                    ("Dead letters", words.count(one.dead_letters)),
                    ("Late rows", words.count(one.late_rows)),
                    ("SLO", slo),
                ]
            ),
            cls="hw-big",
        )
    )
    found += [node("p", text, cls="hw-bad") for text in one.broken]
    for decision in open_ones:
        about = "Proposed: " if decision.state == "proposed" else f"Being {decision.state}: "
        found.append(
            node(
                "p",
                tag(decision.state, "busy"),
                " ",
                link(f"{about}{decision.why}", f"/proposals/{decision.id}"),
            )
        )
    if one.dead_letters:
        found.append(node("p", link("See its dead letters", f"/letters?of={name}")))
    return found


# ---------------------------------------------------------------- the chart


def options(seen: Course | None) -> dict[str, Any]:
    """Return the chart: rates above, latency below; changes and decisions as lines."""
    course = seen.metrics.course if seen else ()
    since = seen.since if seen else 0.0
    limit = seen.slo.max_latency if seen and seen.slo else math.inf
    rates = [[m.at * 1000, round(m.rows_per_s, 2)] for m in course]
    latency = [[m.at * 1000, None if m.latency_s is None else round(m.latency_s, 3)] for m in course]
    lines = list(_lines(seen)) if seen else []
    axis = {
        "axisLabel": {"color": _GREY},
        "axisLine": {"lineStyle": {"color": _GREY}},
        "splitLine": {"show": False},
    }
    known = [m.at for m in course] + [c.begun for c in (seen.changes if seen else ())]
    begins = max(since, min(known) - 5.0) if known else since  # no empty hours before the first sample
    times = {"type": "time", "min": begins * 1000 or None, "max": time.time() * 1000, **axis}
    figures = {"type": "value", "splitNumber": 3, **axis, "nameTextStyle": {"color": _GREY, "align": "left"}}
    figures["splitLine"] = {"show": True, "lineStyle": {"color": _GREY, "opacity": 0.18}}
    usual = {"type": "line", "showSymbol": len(course) < 3, "smooth": 0.15, "lineStyle": {"width": 2}}
    marks = {"symbol": "none", "animation": False, "silent": False, "data": lines}
    limits = (
        [
            {
                "yAxis": limit,
                "name": "SLO",
                "lineStyle": {"color": _RED, "type": "dashed"},
                "label": {"formatter": "SLO", "color": _RED, "position": "insideEndTop"},
            }
        ]
        if math.isfinite(limit)
        else []
    )
    return {
        "animation": False,
        "grid": [
            {"left": 56, "right": 20, "top": 34, "height": "34%"},
            {"left": 56, "right": 20, "bottom": 30, "height": "34%"},
        ],
        "tooltip": {"trigger": "axis", "confine": True},
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
        "xAxis": [
            {**times, "gridIndex": 0, "axisLabel": {"show": False}},
            {**times, "gridIndex": 1},
        ],
        "yAxis": [
            {**figures, "gridIndex": 0, "name": "Rows read per second"},
            {**figures, "gridIndex": 1, "name": "Latency p95, s"},
        ],
        "series": [
            {
                **usual,
                "name": "rows/s",
                "data": rates,
                "xAxisIndex": 0,
                "yAxisIndex": 0,
                "itemStyle": {"color": _WATER},
                "areaStyle": {"opacity": 0.12},
                "markLine": marks,
            },
            {
                **usual,
                "name": "latency, s",
                "data": latency,
                "xAxisIndex": 1,
                "yAxisIndex": 1,
                "itemStyle": {"color": _AMBER},
                "markLine": {**marks, "data": [*({**x, "label": {"show": False}} for x in lines), *limits]},
            },
        ],
    }


def _lines(seen: Course) -> Iterator[dict[str, Any]]:
    for change in seen.changes:
        bad = change.outcome not in ("done", None)
        yield {
            "xAxis": change.begun * 1000,
            "name": f"version {change.version}",
            "lineStyle": {"color": _RED if bad else _WATER, "type": "solid", "width": 1},
            "label": {"formatter": f"v{change.version}", "color": _RED if bad else _WATER},
        }
    for decision in seen.decisions:
        yield {
            "xAxis": decision.at * 1000,
            "name": f"decision {decision.id}",
            "lineStyle": {"color": _AMBER, "type": "dotted", "width": 1.5},
            "label": {"formatter": f"d{decision.id}", "color": _AMBER},
        }


def timeline(seen: Course) -> list[Node]:
    """Render the events of the period, the newest first."""
    found: list[tuple[float, str, list[Node]]] = []
    for change in seen.changes:
        outcome = change.outcome or "under way"
        kind = "change" if change.outcome in ("done", None) else "bad"
        took = f" in {words.span(change.ended - change.begun)}" if change.ended else ""
        said: list[Node] = [
            node("strong", f"Version {change.version}"),
            f" {change.goal}: {outcome}{took}",
        ]
        if change.message:
            said.append(node("div", change.message.replace("\n  -> ", " – "), cls="hw-soft"))
        found.append((change.begun, kind, said))
    for decision in seen.decisions:
        about = link(f"Decision {decision.id}", f"/proposals/{decision.id}")
        found.append((decision.at, "decision", [about, f" {decision.why}: {decision.state}"]))
    for event in seen.events:
        if not event.text.startswith(("decision ", "version ")):  # these are listed already
            found.append((event.at, "event", [event.text.splitlines()[0]]))
    found.sort(key=lambda one: one[0], reverse=True)
    if not found:
        return [
            node("h2", "What happened"),
            node("p", "Nothing was changed or decided in this span.", cls="hw-soft"),
        ]
    lines = (
        node("li", node("span", words.clock(at), cls="hw-when"), *said, cls=f"hw-ev-{kind}")
        for at, kind, said in found[:MOST]
    )
    return [node("h2", "What happened"), node("ul", *lines, cls="hw-line")]
