"""Routes that plan and change deployments: show a plan, then store it as the desired state."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response

from headwater.adapt.slo import SLO
from headwater.app import deadletters, deployments, objectives
from headwater.app.client import Client, PlanRequest, Proposal, ProposalOutline
from headwater.plan.edit import Edit, Fuse, Move, Split, Spread
from headwater.web.access import Asker
from headwater.web.api.dependencies import Here, Operator, Served, Viewer, asked
from headwater.web.api.requests import (
    ApplyForm,
    EditForm,
    FuseForm,
    MoveForm,
    NamePath,
    PlanForm,
    ReplayForm,
    SloForm,
    SplitForm,
    SpreadForm,
    StopForm,
)
from headwater.web.api.responses import ReplayAnswer, Stored, WantedVersion, answered
from headwater.web.problems import responses

router = APIRouter(tags=["changes"])

_STORES: dict[str, Any] = {
    "status_code": 202,
    "response_model": Stored,
    "responses": {
        200: {"model": Stored, "description": "Nothing is stored: the plan is active already, or only shown"},
        **responses(409, 413),
    },
}
"""Responses of routes that show a change and, if it changes anything, store it."""


@router.post("/plans", response_model=ProposalOutline, responses=responses(409, 413))
def plan(form: PlanForm, served: Here, asker: Viewer) -> Response:
    """Plan a dataflow: its units, the changes and steps of applying it, and its predictions."""
    with served.turn(asker):
        found = served.propose(asked(served, form))
        _ = found.change
    return answered(found.shown())


@router.post("/deployments", **_STORES)
def apply(form: ApplyForm, served: Here, asker: Operator) -> Response:
    """Store a dataflow's plan as the desired state; 200 where it is active already, and nothing is stored."""
    with served.turn(asker):
        found = served.propose(asked(served, form))
    return _store(found, served, preview=False, after=form.after)


@router.post("/deployments/{name}/move", **_STORES)
def move(name: NamePath, form: MoveForm, served: Here, asker: Operator) -> Response:
    """Move a running operator to another layer, host or zone, with its state."""
    return _edit(name, Move(operator=form.operator, to=form.to, at=form.at), form, served, asker)


@router.post("/deployments/{name}/split", **_STORES)
def split(name: NamePath, form: SplitForm, served: Here, asker: Operator) -> Response:
    """Cut a unit in two behind one of its operators, with a channel between them."""
    return _edit(name, Split(unit=form.unit, after=form.after_operator), form, served, asker)


@router.post("/deployments/{name}/fuse", **_STORES)
def fuse(name: NamePath, form: FuseForm, served: Here, asker: Operator) -> Response:
    """Join two neighbouring units into one query, without a channel between them."""
    return _edit(name, Fuse(first=form.first, second=form.second, to=form.to), form, served, asker)


@router.post("/deployments/{name}/spread", **_STORES)
def spread(name: NamePath, form: SpreadForm, served: Here, asker: Operator) -> Response:
    """Run a unit on one host of its zone, or divide its rows by key among several."""
    return _edit(name, Spread(unit=form.unit, over=tuple(form.over)), form, served, asker)


@router.post("/deployments/{name}/stop", status_code=202, response_model=WantedVersion, responses=responses(409, 413))
def stop(name: NamePath, served: Here, asker: Operator, form: StopForm | None = None) -> Response:
    """Stop a deployment at batch boundaries: its state stays, is deleted, or all input is used up first."""
    version = deployments.stop(name, served.store_url, how=(form or StopForm()).how)
    return answered(WantedVersion(deployment=name, wanted=version), 202)


@router.patch("/deployments/{name}/slo", response_model=SLO, responses=responses(413))
@router.patch("/deployments/{name}/promise", include_in_schema=False)
def slo(name: NamePath, form: SloForm, served: Here, asker: Operator) -> Response:
    """Set a deployment's SLO: its limits, and who decides on changes."""
    given = form.model_dump(exclude_unset=True)
    values: dict[str, Any] = {k: math.inf if v is None and k != "headroom" else v for k, v in given.items()}
    found = replace(objectives.slo(name, served.store_url) or SLO(), **values)
    objectives.set_slo(name, found, served.store_url)
    return answered(found)


@router.post("/deployments/{name}/dead-letters/replay", response_model=ReplayAnswer, responses=responses(409, 413))
def replay(name: NamePath, form: ReplayForm, served: Here, asker: Operator) -> Response:
    """Replay dead letters to their sources, corrected or not; each is accepted once."""
    unreached: list[str] = []
    records = {one.id: one.record for one in form.letters if one.record is not None}
    with served.turn(asker):
        found = deadletters.replay(
            name,
            [one.id for one in form.letters],
            served.store_url,
            records=records,
            force=form.force,
            home=served.home,
            say=unreached.append,
        )
    return answered(ReplayAnswer(letters=tuple(found), unreached=tuple(unreached)))


def _edit(name: str, edit: Edit, form: EditForm, served: Served, asker: Asker) -> Response:
    with served.turn(asker):
        found = served.propose(PlanRequest(of=name, edits=(edit,)))
    return _store(found, served, preview=form.preview, after=form.after)


def _store(found: Proposal, served: Served, *, preview: bool, after: int | None) -> Response:
    name, change = found.plan.dataflow.name, found.change.shown()
    if preview or found.change.same:
        return answered(Stored(**vars(change), deployment=name, stored=False, wanted=None))
    wanted = Client(served.store_url).apply(found, after=after)
    stored = Stored(**vars(change), deployment=name, stored=True, wanted=wanted)
    return answered(stored, 202, headers={"Location": f"/api/v1/deployments/{name}"})
