"""Routes about the server itself: whether it is well, its version, who asks; and one look at everything."""

from __future__ import annotations

from fastapi import APIRouter, Response

import headwater
from headwater.app.observe import look
from headwater.app.stores import existing
from headwater.app.view import View
from headwater.control.store import NoStore
from headwater.web.api.dependencies import Here, Viewer
from headwater.web.api.responses import Health, Me, Version, answered
from headwater.web.problems import responses

router = APIRouter(tags=["about"])


@router.get("/health", response_model=Health, responses=responses())
def health(served: Here) -> Response:
    """Tell whether the store can be read, and whether a controller acts on it. Anybody may ask."""
    try:
        with existing(served.store_url) as store:
            return answered(Health(status="ok", store=True, controller=store.lease() is not None))
    except NoStore:
        return answered(Health(status="ok", store=False, controller=False))


@router.get("/version", response_model=Version, responses=responses())
def version() -> Response:
    """Tell what answers. Anybody may ask."""
    return answered(Version(name="headwater", version=headwater.__version__, api="v1"))


@router.get("/me", response_model=Me, responses=responses())
def me(asker: Viewer) -> Response:
    """Tell whose token it is, and what may be done with it."""
    return answered(Me(name=asker.name, role=asker.role, on_trial=asker.on_trial))


@router.get("/view", response_model=View, responses=responses())
def view(served: Here, asker: Viewer) -> Response:
    """Look at everything at once: zones with hosts and units, links, deployments, pools, open decisions."""
    return answered(look(served.store_url))
