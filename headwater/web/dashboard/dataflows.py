"""The page of all dataflows: single ones, and those shared in pools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from headwater.app import details
from headwater.app.details import MemberDetail
from headwater.app.view import DeploymentSeen, View
from headwater.core.errors import HeadwaterError
from headwater.web.dashboard import words
from headwater.web.dashboard.frame import Frame, address, nothing_yet, phase_tag
from headwater.web.dashboard.rich import Node, Rich, link, node, table, tag

SHARED = 10.0
"""Seconds after which pools are read again."""
SHOWN = 12
"""Maximum number of operators named per dataflow."""


class DataflowsPage:
    """The table of dataflows, filtered by the search field."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._members: Sequence[MemberDetail] = ()
        self._read_at = -SHARED
        with frame.build("dataflows"), ui.element("div").classes("hw-page"):
            ui.html("<h1>Dataflows</h1>", sanitize=False)
            self._find = ui.input("Find by name or owner").classes("hw-find")
            self._find.props('dense outlined clearable aria-label="Find by name or owner"')
            self._find.on_value_change(self._show_again)
            self._rich = Rich()
        frame.on_view(self._show)

    async def _show_again(self) -> None:
        if self._frame.place.feed.view is not None:
            await self._show(self._frame.place.feed.view)

    async def _show(self, view: View) -> None:
        if view.pools and time.monotonic() - self._read_at > SHARED:
            self._read_at = time.monotonic()
            with suppress(HeadwaterError):  # the banner shows the error; the last result stays
                self._members = await run_in_threadpool(details.shared, self._frame.place.store)
        if not view.deployments:
            self._rich.show(nothing_yet(view))
            return
        self._rich.show(*nodes(view, self._members, str(self._find.value or "").strip().lower()))


def nodes(view: View, members: Sequence[MemberDetail], wanted: str) -> list[Node]:
    """Render the dataflows whose name or owner's name contains the search text."""
    own = [d for d in view.deployments if wanted in d.name.lower()]
    head = [
        "Name",
        "Phase",
        "#Rows read",
        "#Latency p95",
        "#Waiting",
        "#Units",
        "#Dead letters",
        "SLO",
    ]
    found: list[Node] = [
        table(head, (_row(d) for d in own), caption="Deployments")
        if own
        else node("p", "No deployment matches.", cls="hw-soft"),
    ]
    for pool in view.pools:
        mine = [m for m in members if m.pool == pool.name and (wanted in m.name.lower() or wanted in m.owner.lower())]
        total, owners = sum(m.operators for m in pool.dataflows), len({m.owner for m in pool.dataflows})
        found += [
            node("h2", f"Pool {pool.name}"),
            node(
                "p",
                f"{len(pool.dataflows)} dataflows, {owners} owners, {total} operators; ",
                node("strong", f"{pool.operators} run", cls="hw-shared"),
                ", for all dataflows. Shared operators are marked.",
                cls="hw-lead",
            ),
            table(
                ["Dataflow", "Owner", "Operators"],
                (_member(m) for m in mine),
                caption=f"Dataflows in {pool.name}",
            ),
        ]
    return found


def _row(one: DeploymentSeen) -> Node:
    if not one.has_slo:
        slo: Node = node("span", "none", cls="hw-soft")
    elif one.broken:
        slo = node("span", "; ".join(one.broken), cls="hw-bad")
    else:
        slo = tag("kept", "on")
    done = f" {one.done} of {one.steps}" if one.busy and one.steps else ""
    return node(
        "tr",
        node("td", link(one.name, address(one.name))),
        node("td", phase_tag(one.phase, one.busy, one.failed), done),
        node("td", words.rate(one.rows_per_s), cls="n"),
        node("td", words.span(one.latency_p95_s), cls="n"),
        node("td", words.count(one.lag), cls="n"),
        node("td", f"{one.running} of {one.units}", cls="n"),
        node("td", words.count(one.dead_letters), cls="n"),
        node("td", slo),
        key=one.name,
    )


def _member(one: MemberDetail) -> Node:
    operators = sorted(one.operators, key=lambda o: not o.users)
    shown: list[Node] = [
        node(
            "span",
            o.operator,
            cls="hw-op hw-op-shared" if o.users else "hw-op",
            title=f"shared with {', '.join(o.users)}" if o.users else o.kind,
        )
        for o in operators[:SHOWN]
    ]
    if len(operators) > SHOWN:
        shown.append(node("span", f"and {len(operators) - SHOWN} more", cls="hw-soft"))
    return node(
        "tr",
        node("td", one.name),
        node("td", one.owner),
        node("td", node("div", *shown, cls="hw-ops")),
        key=f"{one.pool}/{one.name}",
    )
