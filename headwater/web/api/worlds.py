"""Routes for trials: replay rates through schedulers, predict other rates and links. Nothing is changed."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response

from headwater.app import simulation
from headwater.app.whatif import Supposed, WhatIfOutline, what_if
from headwater.placement.replay import ReplayResult, simulated
from headwater.plan.place import PlacementRequest
from headwater.web.api.dependencies import Here, Viewer, named
from headwater.web.api.requests import NamePath, SimulationForm, WhatIfForm
from headwater.web.api.responses import answered
from headwater.web.problems import responses

router = APIRouter(tags=["simulation"])


@router.post("/simulations", response_model=ReplayResult, responses=responses(409, 413))
def replay(form: SimulationForm, served: Here, asker: Viewer) -> Response:
    """Replay rates through schedulers: limits kept, cost, and number of changes."""
    with served.turn(asker):
        flow, zones = named(served, form.dataflow, form.continuum)
        limits, weights = form.limits.limits(), form.weights.weights()
        requests = [
            PlacementRequest(strategy=s, limits=limits, weights=weights) for s in dict.fromkeys(form.strategies)
        ]
        simulate = partial(simulation.simulate, flow, zones, "trace", requests)
        found = served.computing.run(partial(simulate, profile=form.profile, forecast=form.forecast, text=form.trace))
    return answered(simulated(found))


@router.post("/deployments/{name}/what-if", response_model=WhatIfOutline, responses=responses(409, 413))
def suppose(name: NamePath, form: WhatIfForm, served: Here, asker: Viewer) -> Response:
    """Predict a deployment under other rates and links, and the change that would follow."""
    with served.turn(asker):
        supposed = Supposed.read(form.rates, form.links)
        found = served.computing.run(partial(what_if, name, supposed, served.store_url))
    return answered(found.shown())
