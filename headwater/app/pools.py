"""The use cases of sharing: dataflows of many owners in one pool, submitted, removed, with shared costs.

They take values and store URLs and write desired states, like ``headwater.app.deployments``; the controller executes
them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

from pydantic import Field

from headwater.adapt.calibrate import facts_of
from headwater.adapt.model import Facts
from headwater.adapt.window import Window, window
from headwater.app import storecache
from headwater.app.client import Client, PlanRequest, Proposal
from headwater.app.stores import existing
from headwater.continuum.model import Continuum
from headwater.control.lifecycle import BUSY
from headwater.control.sharing import Owner, OwnerLimits, Right, Role, includes
from headwater.control.store import Store, StoreReader
from headwater.control.tables import NoStore, resolved_url
from headwater.core.errors import Busy, Denied, DeploymentError, Missing
from headwater.dataflow.graph import Dataflow
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import FormerOutputChoice
from headwater.reuse.costs import Account, accounts
from headwater.reuse.pool import Pool, Submission
from headwater.reuse.regroup import shorter_windows
from headwater.reuse.ways import cheapest, put_together, ways, whole
from headwater.reuse.ways import costs as costs_of

POOL = "commons"
"""The default pool."""
TOKEN = "HEADWATER_OWNER_TOKEN"
"""The environment variable with an owner's token."""
TURN_SECONDS = 600.0
"""Seconds that a submission waits for the changes before it."""
_LOOK = 0.2  # seconds between two tries
ADMIN = "admin"
"""The owner who sets everybody's limits; before this owner has a token, anybody does."""


@dataclass(frozen=True, kw_only=True)
class PoolChange:
    """A planned change of a pool: the pool and its plan afterwards, None for its end, and the version it follows."""

    pool: Pool
    plan: DeploymentPlan | None
    follows: int
    result: Joined
    store_url: str | None
    former_output: FormerOutputChoice = "refuse"

    def apply(self) -> Joined:
        """Store the pool and its plan as the desired state; raise Busy where another change came first."""
        proposal = self.proposal
        if proposal is None:
            with closing(Store(resolved_url(self.store_url))) as store:
                version = store.keep_pool(self.pool, None, after=self.follows)
        else:
            version = Client(self.store_url).apply(proposal, after=self.follows)
        return replace(self.result, version=version)

    @cached_property
    def proposal(self) -> Proposal | None:
        """The plan with its effect on the running pool; None for the end of the pool."""
        if self.plan is None:
            return None
        request = PlanRequest(
            dataflow=self.plan.dataflow,
            continuum=self.plan.continuum,
            decided=self.plan.deployment,
            pool=self.pool,
            former_output=self.former_output,
        )
        return Client(self.store_url).propose(request)


def in_turn(
    planned: Callable[[], PoolChange],
    *,
    patience: float = TURN_SECONDS,
    waits: Callable[[], None] = lambda: None,
    agree: Callable[[PoolChange], None] = lambda change: None,
) -> Joined:
    """Plan a change of a pool and apply it, behind the change that is under way; raise Busy after ``patience`` seconds.

    ``waits`` is called once, when there is another change to wait for. ``agree`` is called with each change that is
    about to be applied: another one where another change came first.
    """
    deadline = time.monotonic() + patience
    told = False
    while True:
        try:
            change = planned()
            agree(change)
            return change.apply()
        except Busy:
            if time.monotonic() >= deadline:
                raise
        if not told:
            waits()
            told = True
        time.sleep(_LOOK)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The result of a submission or removal: the pool's version, and the shared and new operators."""

    pool: str
    version: int = 0
    reused: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    queries: Annotated[tuple[int, ...], Field(min_length=2, max_length=2)] = (0, 0)
    """Number of the pool's queries, before and after."""
    ended: tuple[str, ...] = ()
    """Operators that an update ends."""
    how: str = ""
    """The chosen way of joining the pool."""
    cores: Mapping[str, float] = field(default_factory=dict)
    """Predicted cores of the pool for each way of joining; empty while nothing is measured."""
    notes: tuple[str, ...] = ()
    """Differences from running alone."""


def plan_submission(
    dataflow: Dataflow,
    continuum: Continuum,
    owner: str,
    store_url: str | None = None,
    *,
    pool: str = POOL,
    former_output: FormerOutputChoice = "refuse",
    update: bool = False,
    own_windows: bool = False,
    token: str | None = None,
) -> PoolChange:
    """Plan to add a dataflow to a pool, so that operators in common run once.

    ``update``: replace the owner's running dataflow of this name; operators of both keep their state. A continuum
    other than the pool's takes its place, as in a deployment. ``own_windows``: do not compute its windows from shorter
    ones of other dataflows; rows that are too late for those would be missing.

    Its results begin with the change: new operators start with the next input; shared operators, with state or without,
    deliver their results from then on. ``former_output``: the treatment of output of other runs, and of dataflows that
    have left the pool, in the dataflow's sinks. Raises DataflowError where a dataflow of the pool writes other rows to
    one of these sinks, and ``former_output`` is not append; Denied where the owner lacks the right, DeploymentError
    where the name is taken, Missing where there is nothing to update, Busy while a change of the pool is under way.
    """
    with closing(Store(resolved_url(store_url))) as store:
        _identify(store, owner, token)
        _check_role(store, owner)
        if update:
            pool = _updated(store, dataflow.name, owner)
        else:
            _check_name(store, dataflow.name)
        before = store.pool(pool) or Pool(pool)
        version, running = _stands(store, pool)
        found = ways(before, dataflow, owner, continuum, running, used=store.names_used(pool), own_windows=own_windows)
        facts = _facts(store, pool, running)
        way = cheapest(found, facts)
        after, plan = way.pool, way.plan
        if former_output != "append":
            after.check_targets(dataflow.name)
        _check_limits(store, owner, after)
        ids = set(after[dataflow.name].ids.values())
        there = {shared for one in before.submissions for shared in one.ids.values()}
        result = Joined(
            pool=pool,
            reused=tuple(sorted(ids & there)),
            new=tuple(sorted(ids - there)),
            ended=tuple(sorted(there.difference(*(one.ids.values() for one in after.submissions)))),
            queries=(len(running.units) if running else 0, len(plan.units)),
            how=way.how,
            cores=costs_of(found, facts),
            notes=_notes(after[dataflow.name]),
        )
        return PoolChange(
            pool=after,
            plan=plan,
            follows=version,
            result=result,
            store_url=store_url,
            former_output=former_output,
        )


def _notes(one: Submission) -> tuple[str, ...]:
    return tuple(
        f"'{id_}' is computed from running windows of {size}: rows that are too late for these are missing in it, even "
        "if they are in time for its own (--own-windows: it reads all rows itself)"
        for id_, size in shorter_windows(one.written, one.runs).items()
    )


def plan_removal(name: str, owner: str, store_url: str | None = None, *, token: str | None = None) -> PoolChange:
    """Plan to remove a dataflow from its pool, with the operators that no other one needs; the others keep running.

    Raises Missing where there is no such dataflow, Denied where another owner has it and has not granted the right.
    """
    with closing(Store(resolved_url(store_url))) as store:
        _identify(store, owner, token)
        _check_role(store, owner)
        pool, gone = store.find_submission(name)
        _check_right(store, owner, "remove", gone)
        version, running = _stands(store, pool.name)
        after = pool.remove(name)
        after.check()
        plan = None
        if after.submissions and running is not None:
            plan = put_together(after, running.continuum, running)
        there = {shared for one in after.submissions for shared in one.ids.values()}
        result = Joined(
            pool=pool.name,
            reused=tuple(sorted(there & set(gone.ids.values()))),
            new=tuple(sorted(set(gone.ids.values()) - there)),
            queries=(len(running.units) if running else 0, len(plan.units) if plan else 0),
        )
        return PoolChange(pool=after, plan=plan, follows=version, result=result, store_url=store_url)


def plan_defragmentation(pool: str = POOL, store_url: str | None = None) -> PoolChange:
    """Plan to merge the units that submissions and removals have split: fewer queries, all state kept."""
    with closing(Store(resolved_url(store_url))) as store:
        found = store.pool(pool)
        version, running = _stands(store, pool)
        if found is None or running is None:
            raise Missing("nothing runs in it", where=f"pool {pool}", hint="headwater submit")
        plan = whole(found, running.continuum, running)
        result = Joined(pool=pool, queries=(len(running.units), len(plan.units)))
        return PoolChange(pool=found, plan=plan, follows=version, result=result, store_url=store_url)


@dataclass(frozen=True, kw_only=True)
class MemberOutline:
    """A dataflow of a pool: operators, those shared with others, and sinks by their names in the pool.

    ``locations``: none where it runs at all locations of the continuum.
    """

    name: str
    owner: str
    locations: tuple[str, ...]
    operators: int
    shared: int
    sinks: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class CommonPart:
    """Operators that the same dataflows share, by their names in the pool, inputs first."""

    dataflows: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PoolOutline:
    """A pool of dataflows that run as one; of other owners' dataflows only the public part."""

    pool: str
    locations: tuple[str, ...]
    operators: int
    dataflows: tuple[MemberOutline, ...]
    common: tuple[CommonPart, ...]


def pool_outline(pool: Pool) -> PoolOutline:
    """Return the outline of a pool."""
    parts: dict[tuple[str, ...], list[str]] = {}
    for shared in pool.dataflow.order if pool.submissions else ():
        if len(pool.users[shared]) > 1:
            parts.setdefault(pool.users[shared], []).append(shared)
    return PoolOutline(
        common=tuple(CommonPart(dataflows=users, operators=tuple(own)) for users, own in parts.items()),
        pool=pool.name,
        locations=tuple(pool.locations),
        operators=len(pool.users),
        dataflows=tuple(
            MemberOutline(
                name=one.name,
                owner=one.owner,
                locations=one.runs.locations,
                operators=len(set(one.ids.values())),
                shared=sum(len(pool.users[i]) > 1 for i in set(one.ids.values())),
                sinks=one.sinks,
            )
            for one in pool.submissions
        ),
    )


def pools(store_url: str | None = None) -> tuple[Pool, ...]:
    """Return all pools with their dataflows."""
    with existing(store_url) as store:
        return store.every_pool()


def written(name: str, owner: str, store_url: str | None = None, *, token: str | None = None) -> Dataflow:
    """Return a dataflow as it was submitted, to its owner or an owner with the right to read it."""
    with existing(store_url) as store:
        _identify(store, owner, token)
        _, found = store.find_submission(name)
        _check_right(store, owner, "read", found)
        return found.written


def costs(store_url: str | None = None) -> Mapping[str, tuple[Account, ...]]:
    """Return the costs of each pool's dataflows, shared and alone; empty while nothing is measured."""
    with existing(store_url) as store:
        return {name: _accounts(store, name) for name in store.pools()}


def _accounts(store: StoreReader, name: str) -> tuple[Account, ...]:
    pool, plan = store.pool(name), store.active_plan(name)
    if pool is None or plan is None or not pool.submissions:
        return ()
    seen = _seen(store, name)
    return accounts(pool, plan, store.known(name), seen) if seen is not None else ()


def _facts(store: StoreReader, name: str, running: DeploymentPlan | None) -> Facts | None:
    """Return the known data of a running pool; None while nothing is measured."""
    seen = _seen(store, name) if running is not None else None
    return facts_of(store.known(name), running, seen) if running is not None and seen is not None else None


def _seen(store: StoreReader, name: str) -> Window | None:
    return window(store.samples(name, since=time.time() - storecache.RECENT))


# ---------------------------------------------------------------- owners


def owners(store_url: str | None = None) -> tuple[Owner, ...]:
    """Return all owners that have a record."""
    with existing(store_url) as store:
        return store.owners()


def limits_of(name: str, store_url: str | None = None) -> OwnerLimits:
    """Return an owner's limits; none where there is no store yet."""
    known = _known(name, store_url)
    return known.limits if known else OwnerLimits()


def role_of(name: str, store_url: str | None = None) -> Role:
    """Return an owner's role; ``owner`` where none is set."""
    known = _known(name, store_url)
    return known.role if known else "owner"


def _known(name: str, store_url: str | None) -> Owner | None:
    try:
        with existing(store_url) as store:
            return store.owner(name)
    except NoStore:
        return None


def set_owner(
    name: str,
    store_url: str | None = None,
    *,
    limits: OwnerLimits | None = None,
    role: Role | None = None,
    token: bool = False,
    shown: str | None = None,
    by: str | None = None,
) -> str | None:
    """Set an owner's limits and role, or create a token, which is returned only this once.

    A new owner with a token is a viewer unless a role is given; ``ADMIN`` is an owner. ``shown``: the owner's token,
    where there is one; for limits and role that of ``ADMIN``, if ``ADMIN`` has one. ``by``: the owner who asks over
    HTTP; None: the command line. Over HTTP only ``ADMIN`` changes other owners, and the last one stays an owner.
    Raises Denied and DeploymentError accordingly.
    """
    if name == ADMIN and role not in (None, "owner"):
        raise DeploymentError(f"{ADMIN} may do all", where=f"owner {name}", hint="give another one this role")
    with closing(Store(resolved_url(store_url))) as store:
        known = store.owner(name)
        if (limits is not None or role is not None) and not _lowers_own(store, known, limits, role, shown):
            _identify(store, ADMIN, shown)
        if by is not None:
            _check_owner_change(store, by, name, role)
        if token:
            _identify(store, name, shown)
        limits = limits or (known.limits if known else OwnerLimits())
        if name == ADMIN:
            role = "owner"
        return store.set_owner(name, limits, role=role, token=token)


def _lowers_own(
    store: StoreReader, known: Owner | None, limits: OwnerLimits | None, role: Role | None, token: str | None
) -> bool:
    """Return whether an owner gives up rights, which needs nobody else."""
    if known is None or role is None or limits is not None or not includes(known.role, role):
        return False
    return known.guarded and store.is_owner(known.name, token if token is not None else os.environ.get(TOKEN))


def _check_owner_change(store: StoreReader, by: str, name: str, role: Role | None) -> None:
    """Check a change of an owner over HTTP."""
    owners = {one.name for one in store.owners() if one.guarded and one.role == "owner"}
    if name in owners and by not in (name, ADMIN):
        raise Denied(
            f"{name} is an owner, and {by} another one",
            where=f"owner {name}",
            hint=f"{name} and {ADMIN} can change that, or the command line at the store: headwater owner {name} --role",
        )
    if owners == {name} and role not in (None, "owner"):
        raise DeploymentError(
            f"{name} is the last owner: nobody could set roles then",
            where=f"owner {name}",
            hint="make another one an owner first",
        )


def begin_session(token: str, store_url: str | None = None, *, seconds: float, most: int) -> str | None:
    """Begin a session of a token's owner and return its name; None for an unknown token."""
    with closing(Store(resolved_url(store_url))) as store:
        return store.begin_session(token, seconds=seconds, most=most)


def end_session(session: str, store_url: str | None = None) -> None:
    """End a session, if there is one."""
    with closing(Store(resolved_url(store_url))) as store:
        store.end_session(session)


def grant(
    owner: str,
    other: str,
    what: Right,
    store_url: str | None = None,
    *,
    given: bool = True,
    token: str | None = None,
) -> None:
    """Grant a right to an owner's dataflows to another owner, or revoke it."""
    with closing(Store(resolved_url(store_url))) as store:
        _identify(store, owner, token)
        store.grant(owner, other, what, given=given)


# ---------------------------------------------------------------- common checks


def _identify(store: StoreReader, owner: str, token: str | None) -> None:
    if not store.is_owner(owner, token if token is not None else os.environ.get(TOKEN)):
        raise Denied(f"{owner} needs a token, and this is not it", where=f"owner {owner}", hint=f"set {TOKEN}")


def _check_role(store: StoreReader, name: str) -> None:
    known = store.owner(name)
    if known is not None and not includes(known.role, "owner"):
        raise Denied(
            f"{name} has the role {known.role}, which neither submits nor removes dataflows",
            where=f"owner {name}",
            hint=f"{ADMIN} can change that: headwater owner {name} --role owner",
        )


def _check_right(store: StoreReader, who: str, what: Right, one: Submission) -> None:
    if not store.may(who, what, one.owner):
        raise Denied(
            f"it is {one.owner}'s, and {who} may not {what} it",
            where=f"dataflow '{one.name}'",
            hint=f"{one.owner} can allow it: headwater owner {one.owner} --grant {what} --to {who}",
        )


def _updated(store: StoreReader, name: str, owner: str) -> str:
    """Return the pool of an owner's dataflow, which is to be replaced."""
    pool, one = store.find_submission(name)
    if one.owner != owner:
        raise Denied(
            f"it is {one.owner}'s, and {owner} may not update it",
            where=f"dataflow '{name}'",
            hint=f"give another name to the dataflow, or ask {one.owner}",
        )
    return pool.name


def _check_name(store: StoreReader, name: str) -> None:
    for pool in store.every_pool():
        if name in pool:
            raise DeploymentError(
                f"'{name}' is {pool[name].owner}'s",
                where=f"pool {pool.name}",
                hint="choose another name; its owner can replace it, with --update",
            )


def _check_limits(store: StoreReader, name: str, pool: Pool) -> None:
    owner = store.owner(name)
    if owner is None:
        return
    mine = [s for s in pool.submissions if s.owner == name]
    others = [p for p in store.every_pool() if p.name != pool.name]
    mine += [s for p in others for s in p.submissions if s.owner == name]
    limits = owner.limits
    count = sum(len(s.written.operators) for s in mine)
    found = [
        f"{what} {has}, {most} are allowed"
        for what, has, most in (
            ("dataflows", len(mine), limits.dataflows),
            ("operators", count, limits.operators),
        )
        if most is not None and has > most
    ]
    if limits.cores is not None:
        used = sum(a.shared for p in store.pools() for a in _accounts(store, p) if a.owner == name)
        if used >= limits.cores:
            found.append(f"cores {used:.2f} are used, {limits.cores:g} are allowed")
    if found:
        raise Denied("; ".join(found), where=f"owner {name}", hint="remove a dataflow, or ask for a higher limit")


def _stands(store: StoreReader, pool: str) -> tuple[int, DeploymentPlan | None]:
    """Return a pool's newest version and its active plan; refuse while a change is under way."""
    record = store.find(pool)
    if record is None:
        return 0, None
    if record.phase in BUSY or record.observed_version < record.version:
        raise Busy("a change is under way", where=f"pool {pool}", hint="try again when it is done: headwater status")
    return record.version, store.active_plan(pool)
