"""Routes about decisions: proposals, reasons, outcomes, approval and rejection."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from headwater.app import objectives
from headwater.app.client import Client, PlanRequest, Proposal, ProposalOutline
from headwater.control.records import Decision, DecisionState
from headwater.web.api.dependencies import Here, Operator, Viewer
from headwater.web.api.requests import NAME, NumberPath
from headwater.web.api.responses import WantedVersion, answered
from headwater.web.problems import responses

router = APIRouter(prefix="/decisions", tags=["decisions"])


@router.get("", response_model=list[Decision], responses=responses())
def every(
    served: Here,
    asker: Viewer,
    deployment: Annotated[str | None, Query(pattern=NAME, description="Only of this deployment.")] = None,
    state: Annotated[list[DecisionState] | None, Query(description="Only in these states.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the newest decisions, the oldest first."""
    states = frozenset(state) if state else None
    return answered(objectives.decisions(deployment, served.store_url, limit=limit, states=states))


@router.get("/{number}", response_model=Decision, responses=responses())
def one(number: NumberPath, served: Here, asker: Viewer) -> Response:
    """Return a decision's reason, its alternatives, and its outcome."""
    return answered(objectives.decision(number, served.store_url))


@router.get("/{number}/plan", response_model=ProposalOutline, responses=responses(409))
def plan(number: NumberPath, served: Here, asker: Viewer) -> Response:
    """Show what a proposed decision would change."""
    with served.turn(asker):
        proposed = objectives.proposed(number, served.store_url)
        client, request = Client(served.store_url), PlanRequest(of=None)
        found = Proposal(request=request, plan=proposed, preview=client.preview(proposed))
    return answered(found.shown())


@router.post("/{number}/approve", status_code=202, response_model=WantedVersion, responses=responses(409))
def approve(number: NumberPath, served: Here, asker: Operator) -> Response:
    """Store the plan of a decision as the desired state."""
    version = objectives.approve(number, served.store_url)
    name = objectives.decision(number, served.store_url).deployment
    return answered(WantedVersion(deployment=name, wanted=version), 202)


@router.post("/{number}/reject", response_model=Decision, responses=responses(409))
def reject(number: NumberPath, served: Here, asker: Operator) -> Response:
    """Reject the proposal of a decision."""
    objectives.reject(number, served.store_url)
    return answered(objectives.decision(number, served.store_url))
