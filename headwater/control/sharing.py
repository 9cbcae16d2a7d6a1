"""Shared dataflows in the store: pools, submissions, owners and their rights.

A submission takes effect with the pool's version that added it, and ends with the version that removes it; a version
that was refused or rolled back has no effect. Only hashes of owners' tokens and of names of sessions are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import Connection, and_, delete, insert, or_, select, update

from headwater.control import rows
from headwater.control import tables as t
from headwater.control.database import DatabaseReader, DatabaseWriter
from headwater.core.errors import Missing
from headwater.core.jsonform import dump_json, load_json
from headwater.dataflow.graph import Dataflow
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import FormerOutputChoice
from headwater.reuse.pool import Pool, Submission

Right = Literal["read", "remove"]
"""A right of one owner to another owner's dataflows."""
Role = Literal["viewer", "operator", "owner"]
"""Rights of a token's owner: read; act on deployments as well; submit dataflows as well."""
ROLES: tuple[Role, ...] = ("viewer", "operator", "owner")
"""Each role includes the ones before it."""
UNDONE = ("refused", "rolled back", "failed")
_REMEMBERED = 256
"""Stored dataflows that are kept as read: each change of a pool reads all of them several times."""


def includes(role: Role, other: Role) -> bool:
    """Return whether a role includes another one."""
    return ROLES.index(role) >= ROLES.index(other)


@dataclass(frozen=True, kw_only=True)
class OwnerLimits:
    """An owner's limits; None: no limit.

    ``dataflows`` and ``operators`` are counted, ``cores`` is the owner's fair share of the measured load.
    """

    dataflows: int | None = None
    operators: int | None = None
    cores: float | None = None


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A person or program that submits dataflows, or only reads. ``guarded``: whether it has a token."""

    name: str
    guarded: bool
    limits: OwnerLimits
    role: Role = "owner"


class SharingReader(DatabaseReader):
    """Pools, owners and rights, to read."""

    def pools(self) -> tuple[str, ...]:
        """Name the pools that have ever held a dataflow."""
        found = self._all(select(t.submissions.c.pool).distinct().order_by(t.submissions.c.pool))
        return tuple(row.pool for row in found)

    def every_pool(self) -> tuple[Pool, ...]:
        """Return all pools with their current dataflows."""
        return tuple(p for name in self.pools() if (p := self.pool(name)) is not None)

    def pool(self, name: str) -> Pool | None:
        """Return a pool with its current dataflows; None where there never was one."""
        ever = self._one(select(t.submissions.c.id).where(t.submissions.c.pool == name).limit(1))
        return None if ever is None else Pool(name, tuple(map(_submission, self._present(name))))

    def _present(self, pool: str) -> list[Any]:
        """Return the rows of a pool's current dataflows: of a change that was undone, nothing counts."""
        changes = select(t.changes.c.version, t.changes.c.outcome).where(t.changes.c.deployment == pool)
        undone = {row.version for row in self._all(changes) if row.outcome in UNDONE}
        found = self._all(select(t.submissions).where(t.submissions.c.pool == pool).order_by(t.submissions.c.id))
        return [row for row in found if row.added not in undone and (row.removed is None or row.removed in undone)]

    def names_used(self, pool: str) -> frozenset[str]:
        """Return all names that operators of a pool's dataflow ever had."""
        found = self._all(select(t.submissions.c.ids).where(t.submissions.c.pool == pool))
        return frozenset(shared for row in found for shared in json.loads(row.ids).values())

    def find_submission(self, name: str) -> tuple[Pool, Submission]:
        """Return a submitted dataflow and its pool; raise Missing where there is none."""
        names: list[str] = []
        for pool in self.every_pool():
            if name in pool:
                return pool, pool[name]
            names += [s.name for s in pool.submissions]
        raise Missing(
            f"no dataflow '{name}' was submitted",
            where=self.where,
            hint=f"there are: {', '.join(names) or 'none'}",
        )

    def owner(self, name: str) -> Owner | None:
        """Return an owner's record; None for an owner without token and limits."""
        row = self._one(select(t.owners).where(t.owners.c.name == name))
        return None if row is None else _owner(row)

    def owners(self) -> tuple[Owner, ...]:
        """Return all owners that have a record."""
        return tuple(_owner(row) for row in self._all(select(t.owners).order_by(t.owners.c.name)))

    def is_owner(self, name: str, token: str | None) -> bool:
        """Return whether ``token`` is the owner's; True for any token where the owner has none."""
        row = self._one(select(t.owners.c.secret).where(t.owners.c.name == name))
        if row is None or row.secret is None:
            return True
        return token is not None and hmac.compare_digest(row.secret, _hashed(name, token))

    def owner_by(self, token: str) -> Owner | None:
        """Return the owner of a token; None for an unknown token. It takes equally long for any token."""
        found = None
        for row in self._all(select(t.owners).where(t.owners.c.secret.is_not(None))):
            if hmac.compare_digest(row.secret, _hashed(row.name, token)):
                found = _owner(row)
        return found

    def owner_of_session(self, session: str) -> Owner | None:
        """Return the owner who has signed in; None where the session is over, or the owner's token is another one."""
        current = and_(t.owners.c.name == t.sessions.c.owner, t.owners.c.secret == t.sessions.c.secret)
        mine = and_(t.sessions.c.id == _session_id(session), t.sessions.c.until > time.time())
        row = self._one(select(t.owners).join(t.sessions, current).where(mine))
        return None if row is None else _owner(row)

    def is_guarded(self) -> bool:
        """Return whether any owner has a token."""
        return self._one(select(t.owners.c.name).where(t.owners.c.secret.is_not(None)).limit(1)) is not None

    def may(self, who: str, what: Right, owner: str) -> bool:
        """Return whether one owner has a right to another owner's dataflows."""
        given = and_(t.rights.c.owner == owner, t.rights.c.other == who, t.rights.c.what == what)
        return who == owner or self._one(select(t.rights).where(given)) is not None

    def rights(self, owner: str) -> tuple[tuple[str, Right], ...]:
        """Return the rights to an owner's dataflows, with their holders."""
        query = select(t.rights).where(t.rights.c.owner == owner).order_by(t.rights.c.other, t.rights.c.what)
        return tuple((row.other, row.what) for row in self._all(query))


class Sharing(SharingReader, DatabaseWriter):
    """Pools, owners and rights, to write."""

    def keep_pool(
        self, pool: Pool, plan: DeploymentPlan | None, *, after: int, former_output: FormerOutputChoice = "refuse"
    ) -> int:
        """Store a pool's dataflows, and its plan as the desired state; return the version.

        ``plan``: None where no dataflow is left. ``former_output`` is for the sinks that the plan adds. Raises
        DeploymentError where the newest version of the deployment is not ``after``: another change came first.
        """
        with self._writing() as connection:
            plan_id = rows.keep_plan(connection, plan) if plan is not None else None
            options: dict[str, Any] = {"reset_state": [], "canary": None, "former_output": former_output}
            goal: Literal["run", "forget"] = "run" if plan is not None else "forget"
            version = rows.add_desired_state(connection, pool.name, goal, plan_id, options, after=after)
            rows_before = self._present(pool.name)
            known, now = [_submission(row) for row in rows_before], pool.submissions
            gone = [row.id for row, one in zip(rows_before, known, strict=True) if one not in now]
            ended = update(t.submissions).where(t.submissions.c.id.in_(gone))
            connection.execute(ended.values(removed=version))
            for one in now:
                if one not in known:
                    _add(connection, pool.name, one, version)
        return version

    def set_owner(self, name: str, limits: OwnerLimits, *, role: Role | None = None, token: bool = False) -> str | None:
        """Set an owner's limits, and the role where one is given; with ``token`` create and return a token.

        A new owner with a token gets the least role where none is given.
        """
        given = secrets.token_urlsafe(24) if token else None
        values: dict[str, Any] = {"limits": dump_json(limits).decode()}
        if role is not None:
            values["role"] = role
        if given is not None:
            values["secret"] = _hashed(name, given)
        with self._writing() as connection:
            mine = t.owners.c.name == name
            if not connection.execute(update(t.owners).where(mine).values(**values)).rowcount:
                least: Role = "viewer" if token else "owner"
                connection.execute(insert(t.owners).values(**{"name": name, "role": least, **values}))
        return given

    def begin_session(self, token: str, *, seconds: float, most: int) -> str | None:
        """Begin a session of a token's owner and return its name, which is not stored; None for an unknown token.

        It ends after ``seconds``, with ``end_session``, or with the token; of more than ``most`` the oldest end.
        """
        owner = self.owner_by(token)
        if owner is None:
            return None
        session, now = secrets.token_urlsafe(32), time.time()
        with self._writing() as connection:
            values = {"owner": owner.name, "secret": _hashed(owner.name, token), "until": now + seconds}
            connection.execute(insert(t.sessions).values(id=_session_id(session), **values))
            kept = select(t.sessions.c.id).order_by(t.sessions.c.until.desc()).limit(most)
            over = or_(t.sessions.c.until <= now, t.sessions.c.id.not_in(kept))
            connection.execute(delete(t.sessions).where(over))
        return session

    def end_session(self, session: str) -> None:
        """End a session, if there is one."""
        with self._writing() as connection:
            connection.execute(delete(t.sessions).where(t.sessions.c.id == _session_id(session)))

    def grant(self, owner: str, other: str, what: Right, *, given: bool = True) -> None:
        """Grant a right to an owner's dataflows to another owner, or revoke it."""
        mine = and_(t.rights.c.owner == owner, t.rights.c.other == other, t.rights.c.what == what)
        with self._writing() as connection:
            connection.execute(delete(t.rights).where(mine))
            if given:
                connection.execute(insert(t.rights).values(owner=owner, other=other, what=what))


def _submission(row: Any) -> Submission:
    return Submission(
        name=row.name,
        owner=row.owner,
        written=_dataflow(row.written),
        runs=_dataflow(row.runs),
        ids=json.loads(row.ids),
    )


@lru_cache(_REMEMBERED)
def _dataflow(document: str) -> Dataflow:
    return Dataflow.from_data(json.loads(document))


def _add(connection: Connection, pool: str, one: Submission, version: int) -> None:
    connection.execute(
        insert(t.submissions).values(
            pool=pool, name=one.name, owner=one.owner, written=json.dumps(one.written.to_data()),
            runs=json.dumps(one.runs.to_data()), ids=json.dumps(dict(one.ids)), added=version, at=time.time(),
        )
    )  # fmt: skip


def _owner(row: Any) -> Owner:
    limits = load_json(OwnerLimits, row.limits, what="an owner's limits")
    return Owner(name=row.name, guarded=row.secret is not None, limits=limits, role=row.role)


def _session_id(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


def _hashed(name: str, token: str) -> str:
    return hashlib.sha256(f"{name}\0{token}".encode()).hexdigest()
