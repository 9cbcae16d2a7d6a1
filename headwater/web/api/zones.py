"""Routes about zones: check a continuum."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Response

from headwater.continuum.model import Continuum
from headwater.web.api.dependencies import Viewer, read_continuum
from headwater.web.api.requests import ContinuumForm
from headwater.web.api.responses import ContinuumAnswer, answered
from headwater.web.problems import responses

router = APIRouter(prefix="/continuum", tags=["continuum"])
_CONNECT = re.compile(r"(sc://[^/]+)/.*")


@router.post("/check", response_model=ContinuumAnswer, responses=responses(413))
def check(form: ContinuumForm, asker: Viewer) -> Response:
    """Parse zones and return them in normal form; every error has its line."""
    return answered(zones_data(read_continuum(form.continuum)))


def zones_data(continuum: Continuum) -> dict[str, Any]:
    """Return zones as JSON-able data, without secrets in Spark's address."""
    data: dict[str, Any] = continuum.to_data()
    for zone in data["zones"].values():
        if isinstance(zone.get("spark"), str):
            zone["spark"] = _CONNECT.sub(r"\1", zone["spark"])
    return data
