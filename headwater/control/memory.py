"""Stored knowledge for decisions: samples, SLOs, profiles and decisions.

Samples are bounded: all of the last 15 minutes, one per minute of the last day, none older. The newest thousand
decisions of a deployment are kept, even when it is forgotten; all else is deleted with it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, cast, delete, func, insert, select, tuple_, update

from headwater.adapt.calibrate import Learned
from headwater.adapt.slo import SLO, Mode
from headwater.control import rows
from headwater.control import tables as t
from headwater.control.database import DatabaseReader, DatabaseWriter
from headwater.control.records import OPEN, Decision, DecisionState, Sample
from headwater.core.errors import DeploymentError, Missing
from headwater.core.jsonform import dump, dump_json, load, load_json
from headwater.core.metrics import Progress
from headwater.core.quantity import format_duration, format_size
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import Profile

DENSE = 15 * 60.0
"""Seconds for which all samples are kept."""
APART = 60
"""Seconds between older samples."""
LASTING = 24 * 3600.0
"""Seconds after which no sample is kept."""
DECISIONS = 1000
"""Number of decisions kept per deployment."""


_SLOS = select(t.memory.c.deployment, t.memory.c.document).where(t.memory.c.what == "slo")
"""Asked for again and again: built once."""


class MemoryReader(DatabaseReader):
    """Stored knowledge of deployments, to read."""

    def samples(self, name: str, *, since: float = 0.0, most: int = 3000) -> tuple[Sample, ...]:
        """Return the newest ``most`` samples after a time (seconds since 1970), the oldest first."""
        column = t.samples.c
        mine = and_(column.deployment == name, column.at >= since)
        query = select(column.at, column.progress).where(mine).order_by(column.at.desc()).limit(most)
        return tuple(Sample(at=at, progress=_progress(text)) for at, text in reversed(self._all(query)))

    def slos(self) -> dict[str, SLO]:
        """Return the SLOs by deployment."""
        return {name: load_json(SLO, text, what="an SLO") for name, text in self._all(_SLOS)}

    def slo(self, name: str) -> SLO | None:
        """Return the SLO of a deployment."""
        found = self._document(name, "slo")
        return None if found is None else load(SLO, found, what="an SLO")

    def profile(self, name: str) -> Profile | None:
        """Return the profile that the newest plan was applied with."""
        found = self._document(name, "profile")
        return None if found is None else Profile.model_validate(found)

    def learned(self, name: str) -> Learned | None:
        """Return the learned costs of a running deployment; None before there are any."""
        found = self._document(name, "learned")
        return None if found is None else load(Learned, found, what="learned costs")

    def known(self, name: str) -> Learned:
        """Return the learned costs of a deployment, or its profile before there are any."""
        return self.learned(name) or Learned(profile=self.profile(name) or Profile(dataflow=name))

    def decisions(
        self,
        name: str | None = None,
        *,
        limit: int = 100,
        states: Collection[DecisionState] | None = None,
    ) -> tuple[Decision, ...]:
        """Return the newest decisions of a deployment or of all, the oldest first."""
        query = select(t.decisions).order_by(t.decisions.c.id.desc()).limit(limit)
        if name is not None:
            query = query.where(t.decisions.c.deployment == name)
        if states is not None:
            query = query.where(t.decisions.c.state.in_(states))
        return tuple(rows.decision_of(row) for row in reversed(self._all(query)))

    def decision(self, id_: int) -> Decision:
        """Return a decision; raise Missing where there is none."""
        with self._reading() as connection:
            return _find(connection, id_, self.where)

    def proposed(self, id_: int) -> str:
        """Return the plan of a decision that can be applied now; raise DeploymentError where it cannot."""
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


class Memory(MemoryReader, DatabaseWriter):
    """Stored knowledge of deployments, to write."""

    def set_slo(self, name: str, slo: SLO) -> None:
        """Store the SLO of a deployment; raise Missing where there is no such deployment."""
        with self._writing() as connection:
            _put(connection, name, "slo", dump(slo), where=self.where)
            rows.tell(connection, name, f"SLO: {in_words(slo)}")

    def keep_profile(self, name: str, profile: Profile) -> None:
        """Store the profile of a deployment: the costs of its operators, measured before it ran."""
        with self._writing() as connection:
            _put(connection, name, "profile", profile.model_dump(exclude_none=True), where=self.where)

    def keep_learned(self, holder: str, name: str, learned: Learned) -> None:
        """Store the learned costs of a deployment."""
        with self._acting(holder) as connection:
            _put(connection, name, "learned", dump(learned), where=self.where)

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
        """Store a decision and return its number; decisions beyond the newest thousand are deleted."""
        now, column = time.time(), t.decisions.c
        with self._acting(holder) as connection:
            made = connection.execute(
                insert(t.decisions).values(
                    deployment=deployment, at=now, updated=now, mode=mode, trigger=trigger, why=why,
                    state=state, before=before, data=dump_json(data).decode(),
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
        """Store the plan of a proposed decision as the desired state and return its version.

        ``holder``: of the lease; None for a decision of a person. Raises DeploymentError where the decision is not
        proposed, or another plan is active or wanted by now.
        """
        with self._writing_as(holder) as connection:
            decision = _find(connection, decision_id, self.where)
            version = rows.add_desired_state(
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
        """Record the outcome of a decision.

        ``holder``: of the lease; None for a decision of a person. Raises DeploymentError where it already has another
        outcome, or is rejected and was not proposed.
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
    """Return the stored form of a sample."""
    return dump_json(progress, lean=True).decode()


def keep_samples(connection: Connection, at: float, texts: Mapping[str, str]) -> None:
    """Store a sample per deployment, as :func:`sample_text` gives it; thin out older samples once a minute.

    Samples of a later time are deleted: the clock was set back, and the newest sample is the one that counts.
    """
    if not texts:
        return
    column, mine = t.samples.c, t.samples.c.deployment.in_(texts)
    newest = select(column.deployment, func.max(column.at)).where(mine).group_by(column.deployment)
    last = {name: float(moment) for name, moment in connection.execute(newest)}
    connection.execute(delete(t.samples).where(and_(mine, column.at >= at)))
    made = [{"deployment": name, "at": at, "progress": text} for name, text in texts.items()]
    connection.execute(insert(t.samples), made)
    if due := [name for name in texts if name not in last or last[name] // APART != at // APART]:
        _thin(connection, due, at)


def drop_memory(connection: Connection, name: str) -> None:
    """Delete the stored knowledge of a deployment that is forgotten; its decisions stay, and open ones expire."""
    connection.execute(delete(t.samples).where(t.samples.c.deployment == name))
    connection.execute(delete(t.memory).where(t.memory.c.deployment == name))
    still = and_(t.decisions.c.deployment == name, t.decisions.c.state.in_(OPEN))
    connection.execute(update(t.decisions).where(still).values(state="expired", updated=time.time()))


def in_words(slo: SLO) -> str:
    """Describe the SLO in a line.

    >>> in_words(SLO(mode="auto", max_latency=3.0))
    'latency up to 3s, headroom 20%; mode auto, gain 10%, cool-down 60s, settle 20s'
    """
    limits = []
    if math.isfinite(slo.max_latency):
        limits.append(f"latency up to {format_duration(slo.max_latency)}")
    if math.isfinite(slo.max_bandwidth):
        limits.append(f"up to {format_size(slo.max_bandwidth)}/s into the top layer")
    if math.isfinite(slo.max_cost):
        limits.append(f"cost up to {slo.max_cost:g}")
    limits.append("no headroom" if slo.headroom is None else f"headroom {slo.headroom * 100:g}%")
    calm = f"gain {slo.gain * 100:g}%, cool-down {format_duration(slo.cool_down)}"
    return f"{', '.join(limits)}; mode {slo.mode}, {calm}, settle {format_duration(slo.settle)}"


def _progress(text: str) -> Progress:
    return load_json(Progress, text, what="a sample")


def _put(connection: Connection, name: str, what: str, data: Mapping[str, Any], *, where: str) -> None:
    """Store a document in place of the former one."""
    there = select(t.deployments.c.name).where(t.deployments.c.name == name)
    if connection.execute(there).first() is None:
        raise Missing(f"no deployment '{name}'", where=where, hint="apply it first")
    own = and_(t.memory.c.deployment == name, t.memory.c.what == what)
    connection.execute(delete(t.memory).where(own))
    connection.execute(
        insert(t.memory).values(deployment=name, what=what, document=dump_json(data).decode(), updated=time.time())
    )


def _thin(connection: Connection, deployments: Sequence[str], now: float) -> None:
    """Delete expired samples, and all but the first of each minute of the older ones."""
    column = t.samples.c
    older = and_(column.deployment.in_(deployments), column.at < now - DENSE)
    minute = cast(column.at, BigInteger) // APART
    first = select(column.deployment, func.min(column.at)).where(older).group_by(column.deployment, minute)
    stays = and_(tuple_(column.deployment, column.at).in_(first), column.at >= now - LASTING)
    connection.execute(delete(t.samples).where(and_(older, ~stays)))


def _proposed(connection: Connection, decision: Decision) -> str:
    """Return the plan of a decision; raise DeploymentError where it cannot be applied now."""
    if decision.state != "proposed" or decision.plan is None:
        raise _unfit(decision, "approved")
    record = rows.record_of(connection, decision.deployment)
    desired = and_(t.desired_states.c.deployment == decision.deployment, t.desired_states.c.version == record.version)
    goal = connection.execute(select(t.desired_states.c.goal).where(desired)).scalar()
    if record.active_plan != decision.before or record.version != record.observed_version or goal != "run":
        raise DeploymentError(
            "it was decided on a plan that is no longer active",
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
        f"it is {decision.state} and cannot be {what}" if decision.plan else "it changes nothing",
        where=f"decision {decision.id}",
        hint=f"headwater explain {decision.id} shows its outcome",
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
        values["after"] = dump_json(after).decode()
    if version is not None:
        values["version"] = version
    connection.execute(update(t.decisions).where(t.decisions.c.id == decision.id).values(**values))
    said = [str(after["text"])] if after and after.get("text") else []
    told = ": ".join([f"decision {decision.id}", state, *said])
    rows.tell(connection, decision.deployment, told)
