"""The what-if page: suppose other rates or another link, and see the predictions; nothing is changed."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from headwater.app import whatif
from headwater.app.view import View
from headwater.app.whatif import Supposed, WhatIf
from headwater.core.errors import HeadwaterError
from headwater.core.jsonform import dump
from headwater.plan.summary import change_summary
from headwater.web.dashboard import words
from headwater.web.dashboard.frame import Frame, nothing_yet, trouble
from headwater.web.dashboard.proposals import change_nodes, figures
from headwater.web.dashboard.rich import Node, Rich, node, table, tag

_KNOWN = {
    "measured": "from current measurements",
    "learned": "from learned costs",
    "profile": "from its profile",
    "assumed": "from assumptions: nothing was measured",
}


class WhatIfPage:
    """The form of suppositions for a deployment, and the result."""

    def __init__(self, frame: Frame, of: str | None) -> None:
        self._frame = frame
        self._names: list[str] = []
        self._zones: list[str] = []
        self._wanted = of
        with frame.build("whatif"), ui.element("div").classes("hw-page"):
            ui.html("<h1>What if</h1>", sanitize=False)
            lead = "Suppose other rates or another link, and see the predicted placement. Nothing is changed."
            Rich(node("p", lead, cls="hw-lead"))
            with ui.element("div").classes("hw-form") as self._form:
                usual = "dense outlined"
                self._of = ui.select([], label="Dataflow").props(usual).style("min-width: 180px")
                self._rates = ui.input("Rates", value="2x", placeholder="2x, readings=500").props(usual)
                self._rates.style("width: 190px")
                self._link = ui.select([], label="Link of zone", clearable=True).props(usual)
                self._link.style("min-width: 150px")
                self._bandwidth = ui.input("Bandwidth", placeholder="1Mbit/s").props(usual).style("width: 130px")
                self._delay = ui.input("Delay", placeholder="40ms").props(usual).style("width: 110px")
                ui.button("Predict", on_click=self._predict).props("unelevated color=primary")
            self._rich = Rich()
        frame.on_view(self._show)

    async def _show(self, view: View) -> None:
        names = [d.name for d in view.deployments if d.plan is not None]
        zones = [z.name for z in view.zones if z.parent is not None]
        self._form.set_visibility(bool(names))
        if not names:
            self._rich.show(nothing_yet(view))
        elif not self._names:
            self._rich.show()
        if names != self._names:
            self._names = names
            kept = self._of.value if self._of.value in names else self._wanted
            self._of.set_options(names, value=kept if kept in names else next(iter(names), None))
        if zones != self._zones:
            self._zones = zones
            self._link.set_options(zones, value=self._link.value if self._link.value in zones else None)

    async def _predict(self) -> None:
        self._rich.show(node("p", "Predicting…", cls="hw-soft"))
        rates, links = self._supposed()
        name, place = str(self._of.value), self._frame.place
        try:
            supposed = Supposed.read(rates, links)
            predict = partial(whatif.what_if, name, supposed, place.store)
            found = await run_in_threadpool(place.computing.run, predict)
        except HeadwaterError as error:
            self._rich.show(trouble(error))
            return
        self._rich.show(*nodes(found))

    def _supposed(self) -> tuple[list[str], list[str]]:
        """Return the entered values in the form of the command line."""
        rates = str(self._rates.value or "").replace(",", " ").split()
        parts = [str(text).strip() for text in (self._bandwidth.value, self._delay.value) if text]
        links = [f"{self._link.value or ''}={','.join(parts)}"] if self._link.value or parts else []
        return rates, links


def nodes(found: WhatIf) -> list[Node]:
    """Render the predictions, and the change that would follow."""
    data = dump(found.shown())
    supposed = "; ".join(data["supposed"]) or "all as it is"
    known = _KNOWN.get(found.basis, found.basis)
    shown: list[Node] = [
        node("h2", f"Supposed: {supposed}"),
        node("p", node("strong", found.why)),
        node("p", f"Predicted {known}.", cls="hw-soft"),
    ]
    if found.assumed:
        shown.append(node("p", f"Not measured, and assumed: {', '.join(found.assumed[:8])}.", cls="hw-soft"))
    rows = [_compared("now", data["now"]), _compared("as supposed, nothing changed", data["current"])]
    if data["wanted"] is not None:
        rows.append(_compared("as supposed, and changed", data["wanted"]))
    head = ["", "#Latency p95", "#Fullest host", "#Into the top layer", "#Cost", "Limits"]
    shown += [table(head, rows, caption="Now, and as supposed"), *_links(data)]
    if found.preview is not None:
        turned, placed = change_nodes(found.preview, change_summary(found.preview.diff))
        shown += [*turned, *placed]
    return [*shown, *figures(data)]


def _compared(name: str, one: dict[str, Any]) -> Node:
    load = max((v for v in (one.get("load") or {}).values() if v is not None), default=None)
    broken = one.get("breaks") or []
    return node(
        "tr",
        node("td", name),
        node("td", words.span(one.get("latency_s")), cls="n"),
        node("td", words.percent(load), cls="n"),
        node("td", words.speed(one.get("bandwidth_bytes_per_s")), cls="n"),
        node("td", words.count(one.get("cost")), cls="n"),
        node("td", node("span", "; ".join(broken), cls="hw-bad") if broken else tag("none is broken", "on")),
    )


def _links(data: dict[str, Any]) -> list[Node]:
    """Render the links whose traffic would change."""
    now, then = data["now"]["links"], (data["wanted"] or data["current"])["links"]
    rows = [
        node(
            "tr",
            node("td", name),
            node("td", words.speed(now[name]["bytes_per_s"]), cls="n"),
            node("td", words.speed(own["bytes_per_s"]), cls="n"),
            node("td", words.speed(own["capacity_bytes_per_s"]), cls="n"),
        )
        for name, own in then.items()
        if name in now and now[name] != own
    ]
    head = ["Link", "#Now", "#Then", "#Capacity then"]
    return [node("h2", "Links"), table(head, rows[:60], caption="Links whose traffic changes")] if rows else []
