"""Routes about the server itself: health, version, caller; and a snapshot of everything."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Response

import headwater
from headwater.app.observe import look
from headwater.app.stores import existing
from headwater.app.view import View
from headwater.control.tables import NoStore
from headwater.web.api.dependencies import Here, Viewer
from headwater.web.api.responses import Health, Me, Version, answered
from headwater.web.problems import responses

router = APIRouter(tags=["about"])


@router.get("/health", response_model=Health, responses=responses())
async def health(served: Here) -> Response:
    """Report whether the store can be read, and whether a controller acts on it. Needs no token."""
    # Not behind other requests: in a thread of its own kind.
    return answered(await anyio.to_thread.run_sync(_health, served.store_url, limiter=served.lanes.health))


def _health(store_url: str | None) -> Health:
    try:
        with existing(store_url) as store:
            return Health(status="ok", store=True, controller=store.lease() is not None)
    except NoStore:
        return Health(status="ok", store=False, controller=False)


@router.get("/version", response_model=Version, responses=responses())
async def version() -> Response:
    """Return name and version of the server. Needs no token."""
    return answered(Version(name="headwater", version=headwater.__version__, api="v1"))


@router.get("/me", response_model=Me, responses=responses())
def me(asker: Viewer) -> Response:
    """Return the token's owner and role."""
    return answered(Me(name=asker.name, role=asker.role, on_trial=asker.on_trial))


@router.get("/view", response_model=View, responses=responses())
def view(served: Here, asker: Viewer) -> Response:
    """Return a snapshot of everything: zones with hosts and units, links, deployments, pools, open decisions."""
    return answered(look(served.store_url))
