"""The pages of decisions: the list, and one decision beside the active plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from headwater.app import details, objectives
from headwater.app.client import Preview
from headwater.app.details import Examined, ZoneSummary
from headwater.app.view import View
from headwater.control.records import Decision
from headwater.core.errors import HeadwaterError
from headwater.plan.summary import SummaryLine
from headwater.web.dashboard import words
from headwater.web.dashboard.frame import Frame, address, trouble
from headwater.web.dashboard.rich import Node, Rich, empty, link, node, table, tag

SHOWN = 60
_STATES = {
    "proposed": "busy",
    "wanted": "busy",
    "watched": "busy",
    "kept": "on",
    "undone": "bad",
    "failed": "bad",
}
_TURNS = {"start": "on", "stop": "bad", "move": "water", "split": "water", "fuse": "water", "change": "plain"}


class ProposalsPage:
    """All decisions, the open ones first."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._seen: tuple[Any, ...] | None = None
        with frame.build("proposals"), ui.element("div").classes("hw-page"):
            ui.html("<h1>Proposals</h1>", sanitize=False)
            self._rich = Rich()
        frame.on_view(self._show)

    async def _show(self, view: View) -> None:
        open_ones = tuple((d.id, d.state) for d in view.decisions)
        if open_ones == self._seen:
            return
        try:
            decisions = await run_in_threadpool(objectives.decisions, None, self._frame.place.store)
        except HeadwaterError as error:
            self._rich.show(trouble(error))
            return
        self._seen = open_ones
        self._rich.show(*listed(decisions))


def listed(decisions: Sequence[Decision]) -> list[Node]:
    """List decisions, the ones for approval first."""
    if not decisions:
        text = "Once a deployment has an SLO, changes that keep it are proposed here."
        return [empty("Nothing was proposed yet", text, "headwater slo NAME --max-latency 2s --mode advise")]
    newest = sorted(decisions, key=lambda d: (d.state != "proposed", -d.id))[:SHOWN]
    rows = (
        node(
            "tr",
            node("td", link(f"{d.id}", f"/proposals/{d.id}")),
            node("td", link(d.deployment, address(d.deployment))),
            node("td", tag(d.state, _STATES.get(d.state, "plain"))),
            node("td", link(d.why, f"/proposals/{d.id}") if d.state == "proposed" else d.why),
            node("td", words.clock(d.at), cls="n"),
            key=d.id,
        )
        for d in newest
    )
    lead = "Decisions for SLOs. Proposed ones wait for approval."
    return [
        node("p", lead, cls="hw-lead"),
        table(["No.", "Dataflow", "State", "Why", "#At"], rows, caption="Decisions"),
    ]


class ProposalPage:
    """One decision by number."""

    def __init__(self, frame: Frame, number: int) -> None:
        self._frame = frame
        self._number = number
        self._seen: Any = None
        with frame.build("proposals"), ui.element("div").classes("hw-page"):
            self._head = Rich()
            self._buttons = ui.element("div").classes("hw-actions")
            with self._buttons:
                ui.button("Approve", on_click=self._approve).props("unelevated color=primary")
                ui.button("Reject", on_click=self._reject).props("outline color=primary")
            self._may = frame.may("operator")
            self._note = Rich()
            self._rich = Rich()
        self._buttons.set_visibility(False)
        frame.on_view(self._show)

    async def _show(self, view: View) -> None:
        mine = next((d.state for d in view.decisions if d.id == self._number), None)
        running = next((d.version for d in view.deployments if self._of == d.name), None)
        if self._seen is not None and (mine, running) == self._seen:
            return
        await self._read()
        self._seen = (mine, next((d.version for d in view.deployments if self._of == d.name), None))

    _of: str | None = None

    async def _read(self) -> None:
        try:
            found = await run_in_threadpool(details.examine, self._number, self._frame.place.store)
        except HeadwaterError as error:
            self._head.show(trouble(error))
            self._buttons.set_visibility(False)
            return
        self._of = found.decision.deployment
        self._head.show(*head(found.decision))
        waits = found.preview is not None
        self._buttons.set_visibility(waits and self._may)
        asked = "An operator can approve or reject it; you may look." if waits and not self._may else None
        self._note.show(*([node("p", asked, cls="hw-soft")] if asked else []))
        self._rich.show(*body(found))

    async def _approve(self) -> None:
        version = await self._frame.act("operator", lambda: objectives.approve(self._number, self._frame.place.store))
        if version is not None:
            ui.notify(f"Version {version} is wanted now.", type="positive", position="top")
        await self._read()

    async def _reject(self) -> None:
        def reject() -> bool:
            objectives.reject(self._number, self._frame.place.store)
            return True

        if await self._frame.act("operator", reject):
            ui.notify("Rejected: nothing changes.", position="top")
        await self._read()


def head(decision: Decision) -> list[Node]:
    """Render a decision and its reason."""
    return [
        node("h1", f"Decision {decision.id}"),
        node(
            "p",
            tag(decision.state, _STATES.get(decision.state, "plain")),
            " on ",
            link(decision.deployment, address(decision.deployment)),
            f", {words.clock(decision.at)}, because of {decision.trigger}",
            cls="hw-lead",
        ),
        node("p", node("strong", decision.why)),
    ]


def body(found: Examined) -> list[Node]:
    """Render the effect of a decision, and its predictions."""
    shown = figures(found.decision.data)
    if found.decision.after:
        text = str(found.decision.after.get("text") or "Its outcome was measured.")
        shown += [node("h2", "Outcome"), node("p", text)]
    if found.gone:
        return [node("p", found.gone.replace("\n  -> ", " – "), cls="hw-bad"), *shown]
    if found.preview is None:
        return shown
    turned, placed = change_nodes(found.preview, found.change_summary)
    return [*turned, *shown, *placed]


def change_nodes(preview: Preview, turned: Sequence[SummaryLine]) -> tuple[list[Node], list[Node]]:
    """Render the changed units, the units before and after, and the steps."""
    lines = (
        node(
            "li",
            tag(turn.kind, _TURNS[turn.kind]),
            node(
                "div",
                node("span", ", ".join(turn.before) or "nothing", cls="hw-soft" if turn.after else "hw-gone"),
                " → ",
                node("span", ", ".join(turn.after) or "nothing", cls="hw-new" if turn.after else "hw-soft"),
                node("div", turn.reason, cls="hw-soft") if turn.reason else None,
            ),
        )
        for turn in turned
    )
    same = len(preview.diff.units) - len(preview.diff.changed)
    rows = (_zone(zone) for zone in details.zones_of(preview))
    return [
        node("h2", "What would change"),
        node("ul", *lines, cls="hw-turns"),
        node("p", f"{same} units stay as they are.", cls="hw-soft"),
    ], [
        node("h2", "Before and after"),
        table(["Zone", "Now", "Then"], rows, caption="Units of each zone, before and after"),
        node("h2", "Step by step"),
        node("ol", *(node("li", step) for step in preview.words)),
    ]


def _zone(zone: ZoneSummary) -> Node:
    before, after = set(zone.before), set(zone.after)

    def units(own: Sequence[str], others: set[str], cls: str) -> Node:
        return node("td", *(node("div", u, cls=None if u in others else cls) for u in own))

    return node(
        "tr",
        node("td", zone.zone, " ", node("span", zone.layer, cls="hw-soft")),
        units(zone.before, after, "hw-gone"),
        units(zone.after, before, "hw-new"),
        key=zone.zone,
    )


def figures(data: Mapping[str, Any]) -> list[Node]:
    """Tabulate figures of the active plan, measured or predicted, and of its alternatives."""
    current, others, chosen = data.get("current"), data.get("alternatives") or [], data.get("chosen")
    if not isinstance(current, Mapping):
        return []
    rows = [_figures("as it is", current, None)]
    rows += [
        _figures(str(o.get("name", "?")), o, current if n == chosen else None, chosen=n == chosen)
        for n, o in enumerate(others)
        if isinstance(o, Mapping)
    ]
    head_ = [
        "",
        "#Latency p95",
        "#Fullest host",
        "#Into the top layer",
        "#Cost",
        "Keeps the SLO",
    ]
    return [node("h2", "Predictions"), table(head_, rows, caption="Predicted figures")]


def _figures(name: str, one: Mapping[str, Any], before: Mapping[str, Any] | None, *, chosen: bool = False) -> Node:
    load = max((v for v in (one.get("load") or {}).values() if v is not None), default=None)
    broken = one.get("breaks") or []
    keeps: Node = (
        tag("kept", "on")
        if one.get("keeps")
        else node("span", "; ".join(broken) or str(one.get("why_not") or "no"), cls="hw-soft")
    )
    return node(
        "tr",
        node(
            "td",
            node("strong", name) if chosen else name,
            *([" ", tag("proposed", "water")] if chosen else []),
            *(node("div", rule, cls="hw-soft") for rule in (one.get("rules") or ())[1:]),
        ),
        node("td", words.span(one.get("latency_s")), cls="n"),
        node("td", words.percent(load), cls="n"),
        node("td", words.speed(one.get("bandwidth_bytes_per_s")), cls="n"),
        node("td", words.count(one.get("cost")), cls="n"),
        node("td", keeps),
    )
