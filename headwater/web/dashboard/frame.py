"""The common part of pages: the bar, the banner with errors, and the refresh."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from nicegui import ui

from headwater.app.view import View
from headwater.control.sharing import Role, includes
from headwater.core.errors import HeadwaterError
from headwater.web.access import Asker, NotKnown
from headwater.web.computing import Computing
from headwater.web.dashboard import words
from headwater.web.dashboard.feed import ViewFeed
from headwater.web.dashboard.rich import Node, Rich, empty, link, node, tag
from headwater.web.dashboard.sessions import COOKIE, Sessions, Visitor

PAUSE = 0.01
"""Seconds between two waits for a snapshot."""
ASKED = 2.0
"""Seconds after which a visitor's access is checked again: a page whose token is revoked gets nothing more."""
NAMED = 3
"""Deployments that the banner names."""
THEME = "headwater_theme"
_THEMES: dict[str, bool | None] = {"auto": None, "light": False, "dark": True}
_STYLE = (Path(__file__).parent / "dashboard.css").read_text(encoding="utf-8")
_PAGES = (
    ("map", "Map", "/"),
    ("dataflows", "Dataflows", "/dataflows"),
    ("proposals", "Proposals", "/proposals"),
    ("letters", "Dead letters", "/letters"),
    ("whatif", "What if", "/whatif"),
)
_TRIAL = "No owner has a token: the user of this server has all permissions. See docs/rest.md."
_HEAD = """<script>
addEventListener("DOMContentLoaded", () => {
  const lost = document.getElementById("popup");
  lost.setAttribute("role", "alert");
});
</script>"""
T = TypeVar("T")


@dataclass(frozen=True)
class DashboardContext:
    """Settings of a dashboard: its store, sessions, feed, and local agents."""

    store: str | None
    sessions: Sessions | None
    """None: all visitors are admitted."""
    feed: ViewFeed
    home: Path
    computing: Computing = field(default_factory=Computing)


class Frame:
    """An open page: its visitor, and its actions at each refresh."""

    def __init__(self, place: DashboardContext, visitor: Visitor, asker: Asker, request: Request) -> None:
        self.place = place
        self.visitor = visitor
        self.asker = asker
        self._path = request.url.path
        self._beats: list[Callable[[View], Any]] = []
        self._version = -1
        self._asked = time.monotonic()
        self._over = False
        self._theme = request.cookies.get(THEME, "auto")

    def build(self, active: str) -> ui.element:
        """Build the bar and the banner, and return the element for the page's own content."""
        ui.add_css(_STYLE)
        ui.add_head_html(_HEAD)
        self._dark = ui.dark_mode(_THEMES.get(self._theme))
        with ui.element("header").classes("hw-bar"):
            self._bar = Rich(on_act=self._acted).classes("hw-bar-inner")
        self._active = active
        self._banner = Rich().classes("hw-banner")
        self._banner.props('role="status" aria-live="polite"')
        main = ui.element("main").classes("hw-main").props('id="main"')
        self.on_view(self._show_frame)
        ui.timer(PAUSE, self._follow, immediate=False)
        return main

    def on_view(self, act: Callable[[View], Any]) -> None:
        """Run an action now, if a snapshot exists, and at each new snapshot."""
        self._beats.append(act)

    async def begin(self) -> None:
        """Show the current snapshot."""
        await self._beat()

    async def _follow(self) -> None:
        if self._over:
            await asyncio.sleep(ASKED)
            return
        await self.place.feed.newer(self._version, ASKED)
        await self._beat()

    async def _beat(self) -> None:
        if self._over:
            return
        if time.monotonic() - self._asked > ASKED:
            self._asked = time.monotonic()
            try:
                await run_in_threadpool(self.visitor.asker)
            except NotKnown:
                self._over = True
                ui.navigate.to(f"/signin?next={quote(self._path)}")
                return
            except HeadwaterError:
                pass  # the store is unreachable for a while, as the banner says
        view = self.place.feed.view
        if view is None or self.place.feed.version == self._version:
            return
        self._version = self.place.feed.version
        for act in self._beats:
            done = act(view)
            if isinstance(done, Awaitable):
                await done

    def may(self, role: Role) -> bool:
        """Return whether the visitor's role included this one when the page was opened."""
        return includes(self.asker.role, role)

    async def act(self, role: Role, do: Callable[[], T]) -> T | None:
        """Run an action that needs a role; show its error and return None where it fails."""

        def checked() -> T:
            self.visitor.check(role)
            return do()

        try:
            return await run_in_threadpool(checked)
        except HeadwaterError as error:
            say_error(error)
            return None

    # ------------------------------------------------------------ the bar

    def _show_frame(self, view: View) -> None:
        proposed = sum(d.state == "proposed" for d in view.decisions)
        links: list[Node] = []
        for key, title, href in _PAGES:
            mark = node("span", str(proposed), cls="hw-badge") if key == "proposals" and proposed else None
            here = {"aria_current": "page"} if key == self._active else {}
            links.append(node("a", title, mark, href=href, cls="hw-nav-link", **here))
        on = view.controller is not None and view.error is None
        self._bar.show(
            node("a", "Skip to content", href="#main", cls="hw-skip"),
            node(
                "a",
                node("span", "≈", cls="hw-wave", aria_hidden="true"),
                "Headwater",
                href="/",
                cls="hw-logo",
            ),
            node("div", *links, cls="hw-nav", role="navigation", aria_label="Pages"),
            node(
                "div",
                node(
                    "span",
                    "controller on" if on else "no controller",
                    cls=f"hw-state hw-state-{'on' if on else 'off'}",
                ),
                node("span", _who(self.asker), title=_TRIAL if self.asker.on_trial else None, cls="hw-who"),
                node(
                    "button",
                    "◐",
                    act="theme",
                    type="button",
                    title="Light, dark, or the system's setting",
                    aria_label="Change between light and dark",
                    cls="hw-icon",
                ),
                link("Sign out", "/signout", cls="hw-nav-link"),
                cls="hw-side-bar",
            ),
        )
        self._banner.show(*banner(view))

    async def _acted(self, what: Any) -> None:
        if what == "theme":
            names = list(_THEMES)
            self._theme = names[(names.index(self._theme) + 1) % 3] if self._theme in names else "auto"
            self._dark.value = _THEMES[self._theme]
            ui.run_javascript(f"document.cookie = '{THEME}={self._theme}; path=/; max-age=31536000; samesite=strict'")
            ui.notify(f"Colours: {self._theme}", position="bottom", timeout=1200)


async def opened(request: Request, place: DashboardContext) -> Frame | RedirectResponse:
    """Open a page for a visitor, or redirect to the sign-in page."""
    visitor = Visitor(place.sessions, request.cookies.get(COOKIE))
    try:
        asker = await run_in_threadpool(visitor.asker)
    except NotKnown:
        return RedirectResponse(f"/signin?next={quote(request.url.path)}", status_code=303)
    except HeadwaterError:
        # A visitor whose role cannot be read sees only the reason.
        asker = Asker(name="unknown", role="viewer")
    return Frame(place, visitor, asker, request)


def banner(view: View) -> list[Node]:
    """Return the errors of a snapshot; nothing where all is well."""
    if view.error is not None and no_store(view):
        return []  # the page shows it in full
    if view.error is not None:
        since = f" This page shows the state of {words.clock(view.at)}." if view.zones else ""
        return [_said("bad", "The store cannot be read. ", view.error.replace("\n  -> ", ": "), since)]
    if view.controller is None:
        told = "No controller acts on this store: nothing is measured and nothing will be changed. "
        return [_said("warn", told, "Start one: ", node("code", "headwater up"))]
    return _broken(view)


def _broken(view: View) -> list[Node]:
    """Name the deployments whose SLO is broken."""
    broken = [one for one in view.deployments if one.broken]
    if not broken:
        return []
    named: list[Node] = []
    for one in broken[:NAMED]:
        named += [link(one.name, address(one.name)), f" ({'; '.join(one.broken)}) "]
    more = f"and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    return [_said("warn", "SLO broken: ", *named, more)]


def no_store(view: View) -> bool:
    """Return whether there is no store yet."""
    return view.error is not None and "no store here" in view.error


def nothing_yet(view: View) -> Node:
    """Show that nothing runs, and how to start something."""
    if no_store(view):
        title, text = (
            "There is no store yet",
            f"The store is {view.store}. Applying the first dataflow creates it:",
        )
    else:
        title, text = "Nothing runs yet", "The store exists, but no dataflow was applied to it. Apply one:"
    return empty(title, text, "headwater apply flow.py -c plant.yaml")


def say_error(error: HeadwaterError) -> None:
    """Show an error, and what to do."""
    ui.notify(
        str(error).replace("\n  -> ", " – "),
        type="negative",
        position="top",
        timeout=12000,
        close_button="Close",
        multi_line=True,
    )


def trouble(error: HeadwaterError) -> Node:
    """Show an error, and what to do, in place of a page."""
    what, _, hint = str(error).partition("\n  -> ")
    return node(
        "div",
        node("h2", "This cannot be shown"),
        node("p", what),
        node("p", hint) if hint else None,
        cls="hw-empty",
    )


def address(name: str) -> str:
    """Return the address of a dataflow's page."""
    return f"/dataflows/{quote(name, safe='')}"


def phase_tag(phase: str, busy: bool, failed: int = 0) -> Node:
    """Show a phase with its colour."""
    kind = "bad" if failed or phase == "failed" else "busy" if busy else "on" if phase == "running" else "plain"
    return tag(phase.replace("_", " "), kind)


def _said(kind: str, *parts: Node) -> Node:
    return node("p", *parts, cls=f"hw-said hw-said-{kind}")


def _who(asker: Asker) -> str:
    return "trial mode" if asker.on_trial else f"{asker.name} ({asker.role})"
