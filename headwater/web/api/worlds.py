"""Routes that try things out: rates replayed through schedulers, a supposed world. Nothing is changed."""

from __future__ import annotations

from fastapi import APIRouter

from headwater import service
from headwater.live_whatif import Supposed, what_if
from headwater.plan.place import Wish
from headwater.render.simulate import simulation_data
from headwater.web.api.answers import SimulationAnswer, WhatIfAnswer
from headwater.web.api.asking import Here, Viewer, named
from headwater.web.api.forms import NamePath, SimulationForm, WhatIfForm
from headwater.web.problems import responses

router = APIRouter(tags=["simulation"])


@router.post("/simulations", response_model=SimulationAnswer, responses=responses(409, 413))
def simulate(form: SimulationForm, served: Here, asker: Viewer) -> object:
    """Replay rates: how would schedulers keep to limits, at what cost, with how many changes?"""
    with served.turn():
        flow, zones = named(served, form.dataflow, form.continuum)
        limits, weights = form.limits.limits(), form.weights.weights()
        wishes = [Wish(strategy=s, limits=limits, weights=weights) for s in dict.fromkeys(form.strategies)]
        found = service.simulate(
            flow, zones, "trace", wishes, profile=form.profile, forecast=form.forecast, text=form.trace
        )
        return simulation_data(found)


@router.post("/deployments/{name}/what-if", response_model=WhatIfAnswer, responses=responses(409, 413))
def suppose(name: NamePath, form: WhatIfForm, served: Here, asker: Viewer) -> object:
    """Foretell what a deployment would do at other rates and links, and what would be changed then."""
    with served.turn():
        return what_if(name, Supposed.read(form.rates, form.links), served.place).to_data()
