"""Dependencies of routes: server settings, caller, and the dataflows and zones of requests."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from headwater.app.client import Client, PlanRequest, Proposal
from headwater.continuum.model import Continuum, Zone
from headwater.control.sharing import Role
from headwater.control.tables import HOME
from headwater.core.errors import ContinuumError, Denied, Missing, suggestion
from headwater.dataflow.graph import Dataflow
from headwater.web import trust
from headwater.web.access import Access, Asker
from headwater.web.api.requests import PlanForm
from headwater.web.computing import Computing
from headwater.web.lanes import Lanes

LOCATIONS, OPERATORS, ZONES = 10_000, 1000, 5000
"""Maximum numbers in a request's dataflow and zones."""
CONTINUUM_TEXT = 2**20
"""Maximum characters of zones as YAML."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """Settings of a server: its ``store_url``, and this machine's agents below ``home``."""

    store_url: str | None
    access: Access
    home: Path = HOME
    trust_code: bool = False
    """Whether dataflows with code, and zones at unknown addresses, are accepted."""
    zones: tuple[Zone, ...] = ()
    """Addresses known from the start."""
    ends: threading.Event = field(default_factory=threading.Event)
    lanes: Lanes = field(default_factory=Lanes)
    computing: Computing = field(default_factory=Computing)

    def propose(self, request: PlanRequest) -> Proposal:
        """Plan a request within the time limit."""
        return self.computing.run(partial(Client(self.store_url).propose, request))

    def turn(self, asker: Asker) -> AbstractContextManager[None]:
        """Wait for a turn of the caller's role to compute; raise Unavailable where none comes in time."""
        return self.lanes.of(asker.role).turn()


def known_query(request: Request) -> None:
    """Refuse unknown query parameters: a misspelled name would have no effect."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    wrong = []
    for name in request.query_params:
        if name not in known:
            hint = suggestion(name, known, "there are") if known else "it takes none"
            told = {
                "type": "extra_forbidden",
                "loc": ("query", name[:100]),
                "msg": f"no such parameter; {hint}",
            }
            wrong.append(told)
    if wrong:
        raise RequestValidationError(wrong)


_BEARER = HTTPBearer(
    auto_error=False,
    description="A token of `headwater owner NAME --token`. None is needed in trial mode, while no owner has one.",
)


def _served(request: Request) -> Served:
    found: Served = request.app.state.served
    return found


class AtLeast:
    """Returns the caller, if the role includes this one."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def __call__(
        self,
        request: Request,
        shown: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> Asker:
        # The guard has already authenticated the caller; the token is declared for OpenAPI only.
        asker: Asker = request.state.asker
        asker.check(self._role)
        return asker


Here = Annotated[Served, Depends(_served)]
Viewer = Annotated[Asker, Depends(AtLeast("viewer"))]
Operator = Annotated[Asker, Depends(AtLeast("operator"))]
Owner = Annotated[Asker, Depends(AtLeast("owner"))]


def as_owner(asker: Asker, named: str | None) -> str:
    """Return the requested owner: the caller, or in trial mode the one named."""
    if asker.name is None:
        if named is None:
            raise HTTPException(422, "owner: no owner has a token yet, so the owner must be given")
        return named
    if named not in (None, asker.name):
        raise Denied(
            f"this token is {asker.name}'s",
            where=f"owner {named}",
            hint="leave `owner` out, or use their token",
        )
    return asker.name


def read_continuum(given: dict[str, Any] | str) -> Continuum:
    """Parse the zones of a request."""
    _bounded(given if isinstance(given, str) else (), CONTINUUM_TEXT, "continuum", "characters")
    if isinstance(given, str):
        return Continuum.from_text(given, source="continuum")
    _bounded(given.get("zones", ()), ZONES, "continuum", "zones")
    return Continuum.from_data(given, source="continuum")


def _bounded(found: Any, most: int, where: str, of: str) -> None:
    """Refuse what would take very long, before it is parsed."""
    if isinstance(found, Collection) and len(found) > most:
        raise HTTPException(422, f"{where}: {len(found):,} {of}, {most:,} are allowed in a request")


def named(
    served: Served,
    dataflow: dict[str, Any] | str,
    continuum: dict[str, Any] | str | None,
    *,
    of: str | None = None,
) -> tuple[Dataflow, Continuum]:
    """Return the dataflow and the zones of a request, sent or named; raise Denied for untrusted ones.

    Without zones in the request, they are those of deployment ``of``, by default the dataflow's own.
    """
    if isinstance(dataflow, str):
        known = Client(served.store_url).stored(dataflow)
        flow, zones = known.dataflow, known.continuum if of is None else None
    else:
        _bounded(dataflow.get("locations"), LOCATIONS, "dataflow", "locations")
        _bounded(dataflow.get("operators"), OPERATORS, "dataflow", "operators")
        flow = Dataflow.from_data(dataflow)
        trust.check_dataflow(flow, trusted=served.trust_code)
        zones = None
    if continuum is not None:
        zones = read_continuum(continuum)
        trust.check_continuum(zones, served.store_url, known=served.zones, trusted=served.trust_code)
    if zones is None:
        try:
            zones = Client(served.store_url).stored(of or flow.name).continuum
        except Missing as error:
            raise ContinuumError(
                f"'{of or flow.name}' is new, and no zones are given",
                where="continuum",
                hint="give `continuum`",
            ) from error
    return flow, zones


def asked(served: Served, form: PlanForm) -> PlanRequest:
    """Return a request for a plan as the use case takes it."""
    flow, zones = named(served, form.dataflow, form.continuum)
    return PlanRequest(
        dataflow=flow,
        continuum=zones,
        strategy=form.strategy,
        limits=form.limits.limits(),
        weights=form.weights.weights(),
        profiles={} if form.profile is None else {flow.name: form.profile},
        compare=form.compare,
        rewrite=form.rewrite,
        without_rules=frozenset(form.without_rules),
        reset_state=frozenset(form.reset_state),
        canary=form.canary.settings() if form.canary else None,
        former_output=form.former_output,
    )
