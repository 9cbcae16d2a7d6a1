"""Routes about decisions: what was proposed or done by itself, why, and what a person says to it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from headwater import live_loop
from headwater.app.client import Client, PlanRequest, Proposal
from headwater.control.records import DecisionState
from headwater.web.api.answers import DecisionAnswer, PlanAnswer, Wanted
from headwater.web.api.asking import Here, Operator, Viewer
from headwater.web.api.forms import NAME, NumberPath
from headwater.web.problems import responses

router = APIRouter(prefix="/decisions", tags=["decisions"])


@router.get("", response_model=list[DecisionAnswer], responses=responses())
def every(
    served: Here,
    asker: Viewer,
    deployment: Annotated[str | None, Query(pattern=NAME, description="Only on this one.")] = None,
    state: Annotated[list[DecisionState] | None, Query(description="Only in these states.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> object:
    """List the newest decisions, the oldest first."""
    states = frozenset(state) if state else None
    found = live_loop.decisions(deployment, served.place, limit=limit, states=states)
    return [d.to_data() for d in found]


@router.get("/{number}", response_model=DecisionAnswer, responses=responses())
def one(number: NumberPath, served: Here, asker: Viewer) -> object:
    """Tell why it was decided so, what the alternatives were, and what became of it."""
    return live_loop.decision(number, served.place).to_data()


@router.get(
    "/{number}/plan",
    response_model=PlanAnswer,
    response_model_exclude_unset=True,
    responses=responses(409),
)
def plan(number: NumberPath, served: Here, asker: Viewer) -> object:
    """Show what a proposed decision would change."""
    with served.turn():
        proposed = live_loop.proposed(number, served.place)
        client, request = Client(served.place), PlanRequest(of=None)
        return Proposal(request=request, plan=proposed, preview=client.preview(proposed)).to_data()


@router.post("/{number}/approve", status_code=202, response_model=Wanted, responses=responses(409))
def approve(number: NumberPath, served: Here, asker: Operator) -> object:
    """Store what a decision proposes as what is wanted."""
    version = live_loop.approve(number, served.place)
    return {"deployment": live_loop.decision(number, served.place).deployment, "wanted": version}


@router.post("/{number}/reject", response_model=DecisionAnswer, responses=responses(409))
def reject(number: NumberPath, served: Here, asker: Operator) -> object:
    """Turn down what a decision proposes."""
    live_loop.reject(number, served.place)
    return live_loop.decision(number, served.place).to_data()
