"""Routes that show deployments: state, metrics, history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from headwater.adapt.calibrate import Compared
from headwater.adapt.slo import SLO
from headwater.app import deadletters, deployments, objectives, stores
from headwater.app.client import Client
from headwater.app.deployments import Explained, History
from headwater.app.metrics import Metrics, metrics_of
from headwater.app.observe import status
from headwater.app.view import Status
from headwater.plan.outline import PlanOutline, outline
from headwater.web.api.dependencies import Here, Viewer
from headwater.web.api.requests import NamePath
from headwater.web.api.responses import ContinuumAnswer, DeadLetters, DeploymentSummary, answered
from headwater.web.api.zones import zones_data
from headwater.web.problems import responses

router = APIRouter(prefix="/deployments", tags=["deployments"])


@router.get("", response_model=list[DeploymentSummary], responses=responses())
def every(served: Here, asker: Viewer) -> Response:
    """List all deployments with their phases."""
    with stores.existing(served.store_url) as store:
        found = [
            DeploymentSummary(
                name=r.name, phase=r.phase, version=r.version, observed_version=r.observed_version, plan=r.active_plan,
                message=r.message, updated=r.updated,
            )
            for r in store.deployments()
        ]  # fmt: skip
    return answered(found)


@router.get("/{name}", response_model=Status, responses=responses())
def one(name: NamePath, served: Here, asker: Viewer) -> Response:
    """Return the full status of a deployment."""
    return answered(status(name, served.store_url)[0])


@router.get("/{name}/plan", response_model=PlanOutline, responses=responses())
def plan(name: NamePath, served: Here, asker: Viewer) -> Response:
    """Return the active plan."""
    return answered(outline(Client(served.store_url).in_force(name)))


@router.get("/{name}/continuum", response_model=ContinuumAnswer, responses=responses())
def continuum(name: NamePath, served: Here, asker: Viewer) -> Response:
    """Return the continuum of a deployment's plan."""
    return answered(zones_data(Client(served.store_url).stored(name).continuum))


@router.get("/{name}/history", response_model=History, responses=responses())
def history(name: NamePath, served: Here, asker: Viewer) -> Response:
    """Return a deployment's desired states, changes and events."""
    return answered(deployments.history(name, served.store_url))


@router.get("/{name}/explain", response_model=Explained | None, responses=responses())
def explain(name: NamePath, served: Here, asker: Viewer) -> Response:
    """Explain in words the change under way, or the last one; null before the first."""
    return answered(deployments.explain(name, served.store_url))


@router.get("/{name}/metrics", response_model=Metrics, responses=responses())
def metrics(
    name: NamePath,
    served: Here,
    asker: Viewer,
    since_s: Annotated[float, Query(gt=0, le=86400, description="Seconds to cover.")] = 600.0,
) -> Response:
    """Return rates and costs of units and operators, loads of hosts and links, and their course."""
    return answered(metrics_of(name, since_s, served.store_url))


@router.get("/{name}/model", response_model=dict[str, tuple[Compared, ...]], responses=responses())
def model(name: NamePath, served: Here, asker: Viewer) -> Response:
    """Compare the model's predictions for a deployment with measurements."""
    return answered(objectives.compared(name, served.store_url))


@router.get("/{name}/slo", response_model=SLO | None, responses=responses())
@router.get("/{name}/promise", include_in_schema=False)
def slo(name: NamePath, served: Here, asker: Viewer) -> Response:
    """Return the SLO of a deployment; null where none is set."""
    return answered(objectives.slo(name, served.store_url))


@router.get("/{name}/dead-letters", response_model=DeadLetters, responses=responses())
def dead_letters(
    name: NamePath,
    served: Here,
    asker: Viewer,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of dead letters.")] = 1000,
) -> Response:
    """List the dead letters that the zones keep."""
    unreached: list[str] = []
    letters = []
    with served.turn(asker):
        for letter in deadletters.dead_letters(name, served.store_url, home=served.home, say=unreached.append):
            letters.append(letter)
            if len(letters) >= limit:
                break
    return answered(DeadLetters(letters=tuple(letters), unreached=tuple(unreached)))
