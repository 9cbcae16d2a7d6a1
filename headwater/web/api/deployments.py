"""Routes that look at deployments: what runs, how it does, how it came to be."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from headwater import live, live_loop
from headwater.app.client import Client
from headwater.web.api.answers import (
    ContinuumAnswer,
    DeadLetters,
    Deployed,
    ExplainAnswer,
    HistoryAnswer,
    MetricsAnswer,
    ModelAnswer,
    PlanSeen,
    PromiseSeen,
    StatusAnswer,
)
from headwater.web.api.asking import Here, Viewer
from headwater.web.api.forms import NamePath
from headwater.web.api.zones import zones_data
from headwater.web.problems import responses

router = APIRouter(prefix="/deployments", tags=["deployments"])


@router.get("", response_model=list[Deployed], responses=responses())
def every(served: Here, asker: Viewer) -> object:
    """List all deployments, and where each stands."""
    with live.existing(served.place) as store:
        return [
            {
                "name": r.name, "phase": r.phase, "version": r.version, "dealt": r.dealt, "plan": r.base,
                "message": r.message, "updated": r.updated,
            }
            for r in store.deployments()
        ]  # fmt: skip


@router.get("/{name}", response_model=StatusAnswer, responses=responses())
def one(name: NamePath, served: Here, asker: Viewer) -> object:
    """Tell all there is to say of a deployment now."""
    return live.status(name, served.place)[0].to_data()


@router.get("/{name}/plan", response_model=PlanSeen, responses=responses())
def plan(name: NamePath, served: Here, asker: Viewer) -> object:
    """Give the plan that is in force."""
    return Client(served.place).in_force(name).to_data()


@router.get("/{name}/continuum", response_model=ContinuumAnswer, responses=responses())
def continuum(name: NamePath, served: Here, asker: Viewer) -> object:
    """Give the zones that a deployment was planned for."""
    return zones_data(Client(served.place).stored(name).continuum)


@router.get("/{name}/history", response_model=HistoryAnswer, responses=responses())
def history(name: NamePath, served: Here, asker: Viewer) -> object:
    """Tell what was wanted of a deployment, what became of it, and what happened."""
    return live.history(name, served.place).to_data()


@router.get("/{name}/explain", response_model=ExplainAnswer | None, responses=responses())
def explain(name: NamePath, served: Here, asker: Viewer) -> object:
    """Say in words what the change under way does, or the last one did; null before the first."""
    change, words, journal = live.explain(name, served.place)
    return live.change_data(change, words, journal) if change else None


@router.get("/{name}/metrics", response_model=MetricsAnswer, responses=responses())
def metrics(
    name: NamePath,
    served: Here,
    asker: Viewer,
    since_s: Annotated[float, Query(gt=0, le=86400, description="How far to look back.")] = 600.0,
) -> object:
    """Tell what units and operators take, give and cost, how busy hosts and links are, and how it went."""
    return live_loop.metrics(name, since_s, served.place).to_data()


@router.get("/{name}/model", response_model=ModelAnswer, responses=responses())
def model(name: NamePath, served: Here, asker: Viewer) -> object:
    """Hold what the model says of a deployment against what is measured."""
    found = live_loop.compared(name, served.place)
    return {kind: [pair.to_data() for pair in pairs] for kind, pairs in found.items()}


@router.get("/{name}/promise", response_model=PromiseSeen | None, responses=responses())
def promise(name: NamePath, served: Here, asker: Viewer) -> object:
    """Tell what is promised of a deployment; null where nothing is."""
    found = live_loop.promise(name, served.place)
    return found.to_data() if found else None


@router.get("/{name}/dead-letters", response_model=DeadLetters, responses=responses())
def dead_letters(
    name: NamePath,
    served: Here,
    asker: Viewer,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Letters at most.")] = 1000,
) -> object:
    """List the records that did not fit their source's schema, as the zones keep them."""
    unreached: list[str] = []
    letters = []
    with served.turn():
        for letter in live.dead_letters(name, served.place, home=served.home, say=unreached.append):
            letters.append(letter)
            if len(letters) >= limit:
                break
    return {"letters": letters, "unreached": unreached}
