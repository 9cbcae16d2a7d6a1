"""What the store keeps for decisions on deployments: samples, promises, profiles, and what was decided.

Samples are bounded: all of the last quarter of an hour, one a minute of the day before, none older. Of
decisions the newest thousand of a deployment are kept, also when it is forgotten; all else goes with it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, cast, delete, func, insert, select, tuple_, update

from headwater.adapt.promise import Mode, Promise
from headwater.control import rows
from headwater.control import tables as t
from headwater.control.database import Reader, Writer
from headwater.control.records import OPEN, Decision, DecisionState, Sample
from headwater.errors import DeploymentError, Missing
from headwater.metrics import Progress
from headwater.plan.model import DeploymentPlan
from headwater.profile import Profile
from headwater.quantity import format_duration, format_size

DENSE = 15 * 60.0
"""Seconds for which all samples are kept."""
APART = 60
"""Seconds between older ones."""
LASTING = 24 * 3600.0
"""Seconds after which none is kept."""
DECISIONS = 1000
"""Decisions that are kept of a deployment."""


class MemoryReader(Reader):
    """What is kept of deployments, to look at."""

    def samples(
        self, name: str, *, since: float = 0.0, until: float = math.inf, most: int = 3000
    ) -> tuple[Sample, ...]:
        """Give the newest ``most`` samples of a time (seconds since 1970), the oldest first."""
        column = t.samples.c
        mine = [column.deployment == name, column.at >= since]
        if math.isfinite(until):
            mine.append(column.at <= until)
        query = select(column.at, column.progress).where(and_(*mine)).order_by(column.at.desc()).limit(most)
        return tuple(Sample(at=at, progress=_progress(text)) for at, text in reversed(self._all(query)))

    def promises(self) -> dict[str, Promise]:
        """Give what is promised, by deployment."""
        own = select(t.memory.c.deployment, t.memory.c.document).where(t.memory.c.what == "promise")
        return {name: Promise.from_data(json.loads(text)) for name, text in self._all(own)}

    def promise(self, name: str) -> Promise | None:
        """Give what was promised of a deployment."""
        found = self._document(name, "promise")
        return None if found is None else Promise.from_data(found)

    def profile(self, name: str) -> Profile | None:
        """Give the profile that its newest plan was applied with."""
        found = self._document(name, "profile")
        return None if found is None else Profile.model_validate(found)

    def learned(self, name: str) -> dict[str, Any] | None:
        """Give what was learned of a deployment while it ran."""
        return self._document(name, "learned")

    def decisions(
        self,
        name: str | None = None,
        *,
        limit: int = 100,
        states: Collection[DecisionState] | None = None,
    ) -> tuple[Decision, ...]:
        """Give the newest decisions of a deployment or of all, the oldest first."""
        query = select(t.decisions).order_by(t.decisions.c.id.desc()).limit(limit)
        if name is not None:
            query = query.where(t.decisions.c.deployment == name)
        if states is not None:
            query = query.where(t.decisions.c.state.in_(states))
        return tuple(rows.decision_of(row) for row in reversed(self._all(query)))

    def decision(self, id_: int) -> Decision:
        """Give a decision, or raise Missing."""
        with self._reading() as connection:
            return _find(connection, id_, self.where)

    def proposed(self, id_: int) -> str:
        """Give the plan of a decision that can be wanted now, or raise DeploymentError."""
        with self._reading() as connection:
            return _proposed(connection, _find(connection, id_, self.where))

    def decided(self, name: str) -> dict[str, int]:
        """Count a deployment's decisions by state."""
        column = t.decisions.c
        query = select(column.state, func.count()).where(column.deployment == name).group_by(column.state)
        return {state: count for state, count in self._all(query)}

    def _document(self, name: str, what: str) -> dict[str, Any] | None:
        own = and_(t.memory.c.deployment == name, t.memory.c.what == what)
        row = self._one(select(t.memory.c.document).where(own))
        return None if row is None else json.loads(row.document)


class Memory(MemoryReader, Writer):
    """What is kept of deployments, to write to."""

    def set_promise(self, name: str, promise: Promise) -> None:
        """Keep what is promised of a deployment, which has to be there."""
        with self._writing() as connection:
            _put(connection, name, "promise", promise.to_data(), where=self.where)
            rows.tell(connection, name, f"promised: {in_words(promise)}")

    def keep_profile(self, name: str, profile: Profile) -> None:
        """Keep what its operators were measured to cost before it ran."""
        with self._writing() as connection:
            _put(connection, name, "profile", profile.model_dump(exclude_none=True), where=self.where)

    def keep_learned(self, holder: str, name: str, data: Mapping[str, Any]) -> None:
        """Keep what was learned while it ran."""
        with self._acting(holder) as connection:
            _put(connection, name, "learned", data, where=self.where)

    def record_decision(
        self,
        holder: str,
        deployment: str,
        *,
        mode: Mode,
        trigger: str,
        why: str,
        state: DecisionState,
        plan: DeploymentPlan | None,
        before: str | None,
        data: Mapping[str, Any],
    ) -> int:
        """Keep a decision and give its number; the oldest beyond the thousandth are dropped."""
        now, column = time.time(), t.decisions.c
        with self._acting(holder) as connection:
            made = connection.execute(
                insert(t.decisions).values(
                    deployment=deployment, at=now, updated=now, mode=mode, trigger=trigger, why=why,
                    state=state, before=before, data=_json(data),
                    plan=rows.keep_plan(connection, plan) if plan is not None else None,
                )
            )  # fmt: skip
            assert made.inserted_primary_key is not None
            number = int(made.inserted_primary_key[0])
            newest = select(column.id).where(column.deployment == deployment).order_by(column.id.desc())
            last = connection.execute(newest.offset(DECISIONS).limit(1)).scalar()
            if last is not None:
                old = and_(column.deployment == deployment, column.id <= last)
                connection.execute(delete(t.decisions).where(old))
            rows.tell(connection, deployment, f"decision {number}: {why}: {state}")
        return number

    def want_decided(self, holder: str | None, decision_id: int) -> int:
        """Store the wish for a proposed decision's plan, and give its version; without holder, a person's.

        Raises DeploymentError where it is not proposed, or where something else runs or is wanted by now.
        """
        with self._writing_as(holder) as connection:
            decision = _find(connection, decision_id, self.where)
            version = rows.add_wish(
                connection, decision.deployment, "run", _proposed(connection, decision), {}
            )
            _settle(connection, decision, "wanted", version=version)
        return version

    def settle_decision(
        self,
        holder: str | None,
        decision_id: int,
        state: DecisionState,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """Say what became of a decision; without holder, by a person.

        Raises DeploymentError where it has come to another end, or is rejected and was not proposed.
        """
        with self._writing_as(holder) as connection:
            decision = _find(connection, decision_id, self.where)
            fits = decision.state == "proposed" if state == "rejected" else decision.state in OPEN
            if not fits and decision.state != state:
                raise _unfit(decision, state)
            _settle(connection, decision, state, after=after)

    def _writing_as(self, holder: str | None) -> AbstractContextManager[Connection]:
        return self._writing() if holder is None else self._acting(holder)


def sample_text(progress: Progress) -> str:
    """Give what is kept of a progress."""
    return json.dumps(lean(progress), separators=(",", ":"))


def keep_samples(connection: Connection, at: float, texts: Mapping[str, str]) -> None:
    """Keep what all nodes said at a time, by deployment; once a minute older samples are thinned out."""
    column, mine = t.samples.c, t.samples.c.deployment.in_(texts)
    newest = select(column.deployment, func.max(column.at)).where(mine).group_by(column.deployment)
    last = {name: float(moment) for name, moment in connection.execute(newest)}
    connection.execute(delete(t.samples).where(and_(mine, column.at == at)))
    made = [{"deployment": name, "at": at, "progress": text} for name, text in texts.items()]
    connection.execute(insert(t.samples), made)
    if due := [name for name in texts if name not in last or last[name] // APART != at // APART]:
        _thin(connection, due, at)


def drop_memory(connection: Connection, name: str) -> None:
    """Drop what is kept of a deployment that is forgotten; its decisions stay, and none is open any more."""
    connection.execute(delete(t.samples).where(t.samples.c.deployment == name))
    connection.execute(delete(t.memory).where(t.memory.c.deployment == name))
    still = and_(t.decisions.c.deployment == name, t.decisions.c.state.in_(OPEN))
    connection.execute(update(t.decisions).where(still).values(state="expired", updated=time.time()))


def in_words(promise: Promise) -> str:
    """Say what is promised, in a line.

    >>> in_words(Promise(mode="auto", max_latency=3.0))
    'latency up to 3s, headroom 20%; mode auto, gain 10%, cool-down 60s, settle 20s'
    """
    limits = []
    if math.isfinite(promise.max_latency):
        limits.append(f"latency up to {format_duration(promise.max_latency)}")
    if math.isfinite(promise.max_bandwidth):
        limits.append(f"up to {format_size(promise.max_bandwidth)}/s into the top layer")
    if math.isfinite(promise.max_cost):
        limits.append(f"cost up to {promise.max_cost:g}")
    limits.append(f"headroom {promise.headroom * 100:g}%")
    calm = f"gain {promise.gain * 100:g}%, cool-down {format_duration(promise.cool_down)}"
    return f"{', '.join(limits)}; mode {promise.mode}, {calm}, settle {format_duration(promise.settle)}"


def lean(value: Any) -> Any:
    """Give a value of data classes as JSON-able data, without what is as its class has it anyway.

    >>> lean(Progress(seconds=1.0))
    {'seconds': 1.0}
    """
    if is_dataclass(value) and not isinstance(value, type):
        found = {f.name: (f.default, getattr(value, f.name)) for f in fields(value)}
        return {name: lean(own) for name, (usual, own) in found.items() if usual is MISSING or own != usual}
    return [lean(own) for own in value] if isinstance(value, tuple) else value


def _progress(text: str) -> Progress:
    return Progress.from_data({"units": (), "links": (), "channels": (), **json.loads(text)})


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(_plain(data), separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Give a value as JSON has it: numbers without end are null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(own) for name, own in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _put(connection: Connection, name: str, what: str, data: Mapping[str, Any], *, where: str) -> None:
    """Keep a document in the place of the one before."""
    there = select(t.deployments.c.name).where(t.deployments.c.name == name)
    if connection.execute(there).first() is None:
        raise Missing(f"no deployment '{name}'", where=where, hint="apply it first")
    own = and_(t.memory.c.deployment == name, t.memory.c.what == what)
    connection.execute(delete(t.memory).where(own))
    connection.execute(
        insert(t.memory).values(deployment=name, what=what, document=_json(data), updated=time.time())
    )


def _thin(connection: Connection, deployments: Sequence[str], now: float) -> None:
    """Drop old samples, and all but the first of each minute of those that are not quite new."""
    column = t.samples.c
    older = and_(column.deployment.in_(deployments), column.at < now - DENSE)
    minute = cast(column.at, BigInteger) // APART
    first = select(column.deployment, func.min(column.at)).where(older).group_by(column.deployment, minute)
    stays = and_(tuple_(column.deployment, column.at).in_(first), column.at >= now - LASTING)
    connection.execute(delete(t.samples).where(and_(older, ~stays)))


def _proposed(connection: Connection, decision: Decision) -> str:
    """Give the plan of a decision, if it can be wanted now."""
    if decision.state != "proposed" or decision.plan is None:
        raise _unfit(decision, "approved")
    record = rows.record_of(connection, decision.deployment)
    wish = and_(t.wishes.c.deployment == decision.deployment, t.wishes.c.version == record.version)
    goal = connection.execute(select(t.wishes.c.goal).where(wish)).scalar()
    if record.base != decision.before or record.version != record.dealt or goal != "run":
        raise DeploymentError(
            "what it was decided on is not in force any more",
            where=f"decision {decision.id}",
            hint=f"wait for another one: headwater history {decision.deployment}",
        )
    return decision.plan


def _find(connection: Connection, id_: int, where: str) -> Decision:
    row = connection.execute(select(t.decisions).where(t.decisions.c.id == id_)).first()
    if row is None:
        raise Missing(f"no decision {id_}", where=where, hint="headwater history NAME lists them")
    return rows.decision_of(row)


def _unfit(decision: Decision, what: str) -> DeploymentError:
    return DeploymentError(
        f"it is {decision.state} and cannot be {what}" if decision.plan else "there is nothing to change",
        where=f"decision {decision.id}",
        hint=f"headwater explain {decision.id} tells what became of it",
    )


def _settle(
    connection: Connection,
    decision: Decision,
    state: DecisionState,
    *,
    after: Mapping[str, Any] | None = None,
    version: int | None = None,
) -> None:
    values: dict[str, Any] = {"state": state, "updated": time.time()}
    if after is not None:
        values["after"] = _json(after)
    if version is not None:
        values["version"] = version
    connection.execute(update(t.decisions).where(t.decisions.c.id == decision.id).values(**values))
    said = [str(after["text"])] if after and after.get("text") else []
    told = ": ".join([f"decision {decision.id}", state, *said])
    rows.tell(connection, decision.deployment, told)
