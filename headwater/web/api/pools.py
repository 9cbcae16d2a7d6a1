"""Routes of sharing: pools of dataflows that run as one, their costs, owners and their rights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from headwater.app import pools
from headwater.app.pools import Joined, PoolOutline, pool_outline
from headwater.control.sharing import Owner as OwnerRecord
from headwater.core.errors import Missing
from headwater.reuse.costs import Account
from headwater.reuse.pool import Pool
from headwater.web.access import Asker
from headwater.web.api.dependencies import Here, Operator, Owner, Served, Viewer, as_owner, named
from headwater.web.api.requests import NAME, NamePath, OwnerForm, OwnerPath, PoolPath, RightForm, SubmitForm
from headwater.web.api.responses import answered
from headwater.web.problems import responses

router = APIRouter(tags=["pools"])
OwnerQuery = Annotated[str | None, Query(pattern=NAME, description="The owner; by default the token's owner.")]


@router.get("/pools", response_model=list[PoolOutline], responses=responses())
def every(served: Here, asker: Viewer) -> Response:
    """List the submitted dataflows: owner, shared operators, locations of results."""
    return answered([pool_outline(pool) for pool in pools.pools(served.store_url)])


@router.get("/pools/{pool}", response_model=PoolOutline, responses=responses())
def one(pool: PoolPath, served: Here, asker: Viewer) -> Response:
    """Return the dataflows of a pool."""
    return answered(pool_outline(_pool(pool, served)))


@router.get("/pools/{pool}/costs", response_model=list[Account], responses=responses())
def costs(pool: PoolPath, served: Here, asker: Viewer) -> Response:
    """Return the costs of a pool's dataflows, shared and alone; empty while nothing is measured."""
    _pool(pool, served)
    return answered(pools.costs(served.store_url).get(pool, ()))


@router.post("/pools/{pool}/dataflows", status_code=202, response_model=Joined, responses=responses(409, 413))
def submit(pool: PoolPath, form: SubmitForm, served: Here, asker: Owner) -> Response:
    """Add a dataflow to a pool: operators in common run once."""
    owner = as_owner(asker, form.owner)
    continuum = form.continuum
    with served.turn(asker):
        flow, zones = named(served, form.dataflow, continuum, of=pool)
        plan = partial(
            pools.plan_submission,
            flow,
            zones,
            owner,
            served.store_url,
            pool=pool,
            former_output=form.former_output,
            update=form.update,
            own_windows=form.own_windows,
            token=asker.token,
        )
        found = served.computing.run(plan).apply()
    return answered(found, 202)


@router.get("/pools/{pool}/dataflows/{name}", response_model=dict[str, Any], responses=responses())
def written(pool: PoolPath, name: NamePath, served: Here, asker: Owner, owner: OwnerQuery = None) -> Response:
    """Return a dataflow as it was submitted, to its owner or an owner with the right to read it."""
    _member(pool, name, served)
    who = as_owner(asker, owner)
    return answered(pools.written(name, who, served.store_url, token=asker.token).to_data())


@router.delete(
    "/pools/{pool}/dataflows/{name}",
    status_code=202,
    response_model=Joined,
    responses=responses(409),
)
def remove(pool: PoolPath, name: NamePath, served: Here, asker: Owner, owner: OwnerQuery = None) -> Response:
    """Remove a dataflow from its pool, with the operators that no other one needs; the others keep running."""
    _member(pool, name, served)
    who = as_owner(asker, owner)
    with served.turn(asker):
        plan = partial(pools.plan_removal, name, who, served.store_url, token=asker.token)
        return answered(served.computing.run(plan).apply(), 202)


@router.post("/pools/{pool}/defragment", status_code=202, response_model=Joined, responses=responses(409))
def defragment(pool: PoolPath, served: Here, asker: Operator) -> Response:
    """Merge the units that submissions and removals have split: fewer queries, all state kept."""
    with served.turn(asker):
        plan = partial(pools.plan_defragmentation, pool, served.store_url)
        return answered(served.computing.run(plan).apply(), 202)


@router.get("/owners", response_model=list[OwnerRecord], responses=responses())
def owners(served: Here, asker: Viewer) -> Response:
    """List owners: role, limits, and whether a token is required."""
    return answered(pools.owners(served.store_url))


@router.patch("/owners/{name}", response_model=OwnerRecord, responses=responses(409, 413))
def set_owner(name: OwnerPath, form: OwnerForm, served: Here, asker: Owner) -> Response:
    """Set an owner's role and limits; needs the token of `admin`, where `admin` has one, but to lower one's own role.

    Only `admin` changes other owners of the role `owner`; the last one keeps this role.

    Only `headwater owner NAME --token` creates tokens, so that none is sent over the network.
    """
    given = form.model_dump(exclude_unset=True)
    role = given.pop("role", None)
    if role is None and name not in {one.name for one in pools.owners(served.store_url)}:
        role = "viewer"
    limits = replace(pools.limits_of(name, served.store_url), **given)
    pools.set_owner(
        name, served.store_url, limits=limits if given else None, role=role, shown=asker.token, by=asker.name
    )
    return answered(next(o for o in pools.owners(served.store_url) if o.name == name))


@router.put("/rights", status_code=204, responses=responses(413))
def grant(form: RightForm, served: Here, asker: Owner) -> None:
    """Grant another owner the right to read or remove one's dataflows."""
    _set_right(form, served, asker, given=True)


@router.delete("/rights", status_code=204, responses=responses(413))
def revoke(form: RightForm, served: Here, asker: Owner) -> None:
    """Revoke a right of another owner."""
    _set_right(form, served, asker, given=False)


def _set_right(form: RightForm, served: Served, asker: Asker, *, given: bool) -> None:
    owner = as_owner(asker, form.owner)
    pools.grant(owner, form.other, form.what, served.store_url, given=given, token=asker.token)


def _pool(name: str, served: Served) -> Pool:
    found = pools.pools(served.store_url)
    for pool in found:
        if pool.name == name:
            return pool
    names = ", ".join(p.name for p in found) or "none"
    raise Missing(f"no pool '{name}'", where=f"pool {name}", hint=f"the pools are: {names}")


def _member(pool: str, name: str, served: Served) -> None:
    if name not in _pool(pool, served):
        raise Missing(f"no dataflow '{name}' is in it", where=f"pool {pool}", hint="GET /api/v1/pools lists all")
