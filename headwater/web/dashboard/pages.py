"""The addresses of the dashboard, and how it is added to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from nicegui import ui

from headwater.control.tables import HOME
from headwater.web.access import Access
from headwater.web.computing import Computing
from headwater.web.dashboard.dataflows import DataflowsPage
from headwater.web.dashboard.deadletters import LettersPage
from headwater.web.dashboard.deployment import DeploymentPage
from headwater.web.dashboard.feed import ViewFeed
from headwater.web.dashboard.frame import DashboardContext, Frame, opened
from headwater.web.dashboard.mappage import MapPage
from headwater.web.dashboard.proposals import ProposalPage, ProposalsPage
from headwater.web.dashboard.sessions import Sessions
from headwater.web.dashboard.signin import attach_signin
from headwater.web.dashboard.whatif import WhatIfPage

_ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
    "<path d='M1 6c3-4 4 2 7-1s4 1 7-1M1 11c3-4 4 2 7-1s4 1 7-1' fill='none' stroke='#0a6c8a' "
    "stroke-width='2' stroke-linecap='round'/></svg>"
)


def attach(
    app: FastAPI, store_url: str | None, access: Access | None, home: Path = HOME, computing: Computing | None = None
) -> None:
    """Add the dashboard of a store to a server. ``access``: decides on visitors; None: all are admitted.

    ``home``: directory of this machine's agents, which are asked for dead letters. ``computing``: computes predictions.

    Call it after all other routes were added: it answers all other addresses. A process has one dashboard, the last one
    added.
    """
    sessions = None if access is None else Sessions(access)
    computing = computing or Computing()
    own = DashboardContext(store_url, sessions, ViewFeed(store_url), home, computing)
    attach_signin(app, own)
    _add_pages(own)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def looking(server: FastAPI) -> AsyncIterator[Any]:
        own.feed.start()
        try:
            async with inner(server) as state:
                yield state
        finally:
            own.feed.stop()

    app.router.lifespan_context = looking
    ui.run_with(
        app,
        title="Headwater",
        favicon=_ICON,
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10.0,
        binding_refresh_interval=None,
    )


def _add_pages(place: DashboardContext) -> None:
    @ui.page("/", title="Map · Headwater")
    async def map_page(request: Request) -> Any:
        return await _opened(request, place, MapPage)

    @ui.page("/dataflows", title="Dataflows · Headwater")
    async def dataflows_page(request: Request) -> Any:
        return await _opened(request, place, DataflowsPage)

    @ui.page("/dataflows/{name}", title="Dataflow · Headwater")
    async def deployment_page(request: Request, name: str) -> Any:
        return await _opened(request, place, lambda frame: DeploymentPage(frame, name))

    @ui.page("/proposals", title="Proposals · Headwater")
    async def proposals_page(request: Request) -> Any:
        return await _opened(request, place, ProposalsPage)

    @ui.page("/proposals/{number}", title="Proposal · Headwater")
    async def proposal_page(request: Request, number: int) -> Any:
        return await _opened(request, place, lambda frame: ProposalPage(frame, number))

    @ui.page("/letters", title="Dead letters · Headwater")
    async def letters_page(request: Request, of: str | None = None) -> Any:
        return await _opened(request, place, lambda frame: LettersPage(frame, of))

    @ui.page("/whatif", title="What if · Headwater")
    async def whatif_page(request: Request, of: str | None = None) -> Any:
        return await _opened(request, place, lambda frame: WhatIfPage(frame, of))


async def _opened(request: Request, place: DashboardContext, build: Any) -> Any:
    frame = await opened(request, place)
    if not isinstance(frame, Frame):
        return frame
    build(frame)
    await frame.begin()
    return None
