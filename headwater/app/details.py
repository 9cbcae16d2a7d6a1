"""The use cases of a close look: one unit in full, and a proposal beside the active plan."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headwater.adapt.slo import SLO
from headwater.app import deployments, objectives, pools
from headwater.app.client import Client, Preview
from headwater.app.metrics import NOW, Metrics, UnitMetrics, metrics_of
from headwater.app.stores import existing
from headwater.control.records import Change, Decision, Event
from headwater.core.errors import DeploymentError
from headwater.plan.model import DeploymentPlan
from headwater.plan.summary import SummaryLine, change_summary


@dataclass(frozen=True, kw_only=True)
class OperatorDetail:
    """An operator of a unit: its output columns, and the dataflows of a pool that share it."""

    operator: str
    kind: str
    schema: str
    users: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StreamDetail:
    """A channel that a unit reads or writes; ``links`` are those that its rows cross."""

    channel: str
    operator: str
    units: tuple[str, ...]
    links: tuple[str, ...]
    schema: str
    kept: str


@dataclass(frozen=True, kw_only=True)
class UnitDetail:
    """A unit of a plan; ``measured``: its newest metrics, None where there are none.

    ``spark``: the address of the node's own Spark, None where its agent starts one.
    """

    unit: str
    deployment: str
    zone: str
    layer: str
    hosts: tuple[str, ...]
    locations: tuple[str, ...]
    operators: tuple[OperatorDetail, ...]
    reads: tuple[StreamDetail, ...]
    writes: tuple[StreamDetail, ...]
    spark: str | None
    measured: UnitMetrics | None


def unit(name: str, id_: str, store_url: str | None = None) -> UnitDetail:
    """Return a unit of a deployment in full; raise DeploymentError where there is none."""
    with existing(store_url) as store:
        store.deployment(name)
        plan, pool = store.active_plan(name), store.pool(name)
    found = None if plan is None else next((u for u in plan.units if u.id == id_), None)
    if plan is None or found is None:
        raise DeploymentError(
            f"no unit '{id_}'",
            where=f"deployment '{name}'",
            hint="it may have stopped or moved meanwhile: headwater status",
        )
    seen = metrics_of(name, NOW, store_url)
    node, users = plan.continuum.node(found.node), pool.users if pool else {}
    return UnitDetail(
        unit=found.id,
        deployment=name,
        zone=found.zone,
        layer=found.layer,
        hosts=found.hosts,
        locations=found.locations,
        operators=tuple(
            OperatorDetail(
                operator=o, kind=plan.dataflow[o].kind, schema=_schema(plan, o), users=tuple(users.get(o, ()))
            )
            for o in found.operators
        ),
        reads=tuple(
            StreamDetail(
                channel=c.id,
                operator=c.operator,
                units=(c.producer,),
                links=c.routes[found.id],
                schema=_schema(plan, c.operator),
                kept=_kept(c.node, c.broker),
            )
            for c in plan.inputs(found)
        ),
        writes=tuple(
            StreamDetail(
                channel=c.id,
                operator=c.operator,
                units=c.consumers,
                links=c.links,
                schema=_schema(plan, c.operator),
                kept=_kept(c.node, c.broker),
            )
            for c in plan.outputs(found)
        ),
        spark=node.spark,
        measured=next((u for u in seen.units if u.unit == id_), None),
    )


def _schema(plan: DeploymentPlan, operator: str) -> str:
    return plan.dataflow.types[operator].schema.text


def _kept(node: str, broker: str | None) -> str:
    return f"filelog of {node}" if broker is None else f"Kafka of {broker}"


@dataclass(frozen=True, kw_only=True)
class ZoneSummary:
    """The units of a zone before and after a change."""

    zone: str
    layer: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A decision and the effect of applying it; ``preview`` is None where it can no longer be applied.

    ``gone``: why it cannot.
    """

    decision: Decision
    preview: Preview | None
    change_summary: tuple[SummaryLine, ...]
    gone: str | None = None


def zones_of(preview: Preview) -> tuple[ZoneSummary, ...]:
    """Return the units before and after a change, for each zone that has any."""
    running, wanted = preview.diff.running, preview.diff.wanted
    before = [] if running is None else [(u.zone, u.id) for u in running.units]
    after = [(u.zone, u.id) for u in wanted.units]
    used = {zone for zone, _ in before + after}
    return tuple(
        ZoneSummary(
            zone=zone.name,
            layer=zone.layer,
            before=tuple(u for name, u in before if name == zone.name),
            after=tuple(u for name, u in after if name == zone.name),
        )
        for zone in wanted.continuum.zones
        if zone.name in used
    )


def examine(number: int, store_url: str | None = None) -> Examined:
    """Return a decision, and the units that it would stop, start and move."""
    decision = objectives.decision(number, store_url)
    if decision.state != "proposed":
        return Examined(decision=decision, preview=None, change_summary=())
    try:
        preview = Client(store_url).preview(objectives.proposed(number, store_url))
    except DeploymentError as error:
        return Examined(decision=decision, preview=None, change_summary=(), gone=str(error))
    return Examined(decision=decision, preview=preview, change_summary=change_summary(preview.diff))


@dataclass(frozen=True, kw_only=True)
class Course:
    """A deployment's metrics since a time, with the changes and decisions of that period."""

    since: float
    metrics: Metrics
    slo: SLO | None
    changes: tuple[Change, ...]
    decisions: tuple[Decision, ...]
    events: tuple[Event, ...]


def course(name: str, seconds: float, store_url: str | None = None) -> Course:
    """Return a deployment's last ``seconds``; changes that ended before are left out."""
    metrics, found = metrics_of(name, seconds, store_url), deployments.history(name, store_url)
    since = time.time() - seconds
    return Course(
        since=since,
        metrics=metrics,
        slo=objectives.slo(name, store_url),
        changes=tuple(c for c in found.changes if (c.ended or since) >= since),
        decisions=tuple(d for d in found.decisions if d.updated >= since),
        events=tuple(e for e in found.events if e.at >= since),
    )


@dataclass(frozen=True, kw_only=True)
class OperatorShared:
    """An operator of a dataflow, its name in the pool, and the other dataflows that share it."""

    operator: str
    shared: str
    kind: str
    users: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MemberDetail:
    """A dataflow of a pool with its operators."""

    pool: str
    name: str
    owner: str
    operators: tuple[OperatorShared, ...]


def shared(store_url: str | None = None) -> tuple[MemberDetail, ...]:
    """Return the dataflows of all pools, each with its operators and the dataflows that share them."""
    return tuple(
        MemberDetail(
            pool=pool.name,
            name=one.name,
            owner=one.owner,
            operators=tuple(
                OperatorShared(
                    operator=own,
                    shared=name,
                    kind=one.runs[own].kind,
                    users=tuple(user for user in pool.users.get(name, ()) if user != one.name),
                )
                for own, name in one.ids.items()
            ),
        )
        for pool in pools.pools(store_url)
        for one in pool.submissions
    )
