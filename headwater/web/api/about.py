"""Routes about the server itself: whether it is well, its version, who asks; and one look at everything."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic_core import to_json

import headwater
from headwater.control.store import NoStore
from headwater.live import existing
from headwater.live_seen import View
from headwater.live_view import look
from headwater.web.api.answers import Health, Me, Version
from headwater.web.api.asking import Here, Viewer
from headwater.web.problems import responses

router = APIRouter(tags=["about"])


@router.get("/health", response_model=Health, responses=responses())
def health(served: Here) -> object:
    """Tell whether the store can be read, and whether a controller acts on it. Anybody may ask."""
    try:
        with existing(served.place) as store:
            return {"status": "ok", "store": True, "controller": store.lease() is not None}
    except NoStore:
        return {"status": "ok", "store": False, "controller": False}


@router.get("/version", response_model=Version, responses=responses())
def version() -> object:
    """Tell what answers. Anybody may ask."""
    return {"name": "headwater", "version": headwater.__version__, "api": "v1"}


@router.get("/me", response_model=Me, responses=responses())
def me(asker: Viewer) -> object:
    """Tell whose token it is, and what may be done with it."""
    return {"name": asker.name, "role": asker.role, "on_trial": asker.on_trial}


@router.get("/view", response_model=View, responses=responses())
def view(served: Here, asker: Viewer) -> Response:
    """Look at everything at once: zones with hosts and units, links, deployments, pools, open decisions."""
    # It is large and comes from ourselves: it is not checked once more.
    data = look(served.place).to_data()
    return Response(to_json(data, inf_nan_mode="null"), media_type="application/json")
