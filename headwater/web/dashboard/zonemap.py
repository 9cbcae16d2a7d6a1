"""The map of zones, as a page element."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from headwater.web.dashboard.feed import ViewFeed

Selected = Callable[[str, str, str | None], Awaitable[None]]
"""Callback for a choice: kind (``zone`` or ``unit``), name and, of a unit, the deployment."""


class ZoneMap(Element, component="zonemap.js"):
    """Draws the zones of a feed, and reports the chosen zone or unit."""

    def __init__(self, feed: ViewFeed, on_select: Selected) -> None:
        super().__init__()
        self._feed = feed
        self._version = -1
        self._props["label"] = "Zones, their hosts and units, and the links between them"

        async def selected(event: GenericEventArguments) -> None:
            given: dict[str, Any] = event.args
            await on_select(str(given["kind"]), str(given["id"]), given.get("deployment"))

        def ready() -> None:
            self._version = 0
            self.refresh()

        self.on("select", selected)
        self.on("ready", ready)

    def refresh(self) -> None:
        """Send the changes since the last call to the browser; nothing before it is ready."""
        if self._version >= 0 and self._feed.version != self._version:
            self._version, piece = self._feed.since(self._version)
            if piece is not None:
                self.run_method("apply", piece)

    def choose(self, name: str | None) -> None:
        """Mark a zone, or a unit as ``deployment/unit``."""
        self.run_method("choose", name)

    def focus_back(self) -> None:
        """Restore the keyboard's focus on the map."""
        self.run_method("focusBack")
