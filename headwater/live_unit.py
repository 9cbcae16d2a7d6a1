"""The use cases of a closer look: one unit with all that is known of it, and a proposal beside what runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater import live, live_loop, live_share
from headwater.adapt.promise import Promise
from headwater.app.client import Client, Preview
from headwater.control.records import Decision
from headwater.errors import DeploymentError
from headwater.live import existing
from headwater.plan.model import DeploymentPlan
from headwater.plan.turns import Turn, turns


@dataclass(frozen=True, kw_only=True)
class OperatorDetail:
    """An operator of a unit: what it gives, by its schema, and which dataflows of a pool need it."""

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
    """A unit as it was planned; ``measured`` has the form of ``Metrics.to_data``, None where nothing was.

    ``spark``: the address of the zone's own Spark, None where the zone's agent starts one.
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
    measured: Mapping[str, Any] | None

    def to_data(self) -> dict[str, Any]:
        """Give it as JSON-able data."""
        return {
            **{name: own for name, own in vars(self).items() if name not in ("operators", "reads", "writes")},
            "operators": [dict(vars(o)) for o in self.operators],
            "reads": [dict(vars(s)) for s in self.reads],
            "writes": [dict(vars(s)) for s in self.writes],
        }


def unit(name: str, id_: str, place: str | None = None) -> UnitDetail:
    """Look at a unit of a deployment closely; raise DeploymentError where there is none."""
    with existing(place) as store:
        store.deployment(name)
        plan, pool = store.base(name), store.pool(name)
    found = None if plan is None else next((u for u in plan.units if u.id == id_), None)
    if plan is None or found is None:
        raise DeploymentError(
            f"no unit '{id_}'",
            where=f"deployment '{name}'",
            hint="it may have stopped or moved meanwhile: headwater status",
        )
    seen = live_loop.metrics(name, live_loop.NOW, place).to_data()
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
        measured=next((u for u in seen["units"] if u["unit"] == id_), None),
    )


def _schema(plan: DeploymentPlan, operator: str) -> str:
    return plan.dataflow.types[operator].schema.text


def _kept(node: str, broker: str | None) -> str:
    return f"filelog of {node}" if broker is None else f"Kafka of {broker}"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A decision with what carrying it out would do; ``preview`` is None where it cannot be any more.

    ``gone``: why it cannot.
    """

    decision: Decision
    preview: Preview | None
    turns: tuple[Turn, ...]
    gone: str | None = None

    @property
    def zones(self) -> tuple[dict[str, Any], ...]:
        """Say for each zone that runs anything which units it has before and after."""
        return () if self.preview is None else zones_of(self.preview)

    def to_data(self) -> dict[str, Any]:
        """Give it as JSON-able data."""
        return {
            "decision": self.decision.to_data(),
            "change": self.preview and self.preview.to_data(),
            "turns": [turn.to_data() for turn in self.turns],
            "zones": list(self.zones),
            "gone": self.gone,
        }


def zones_of(preview: Preview) -> tuple[dict[str, Any], ...]:
    """Say for each zone that runs anything which units it has before and after a change."""
    running, wanted = preview.diff.running, preview.diff.wanted
    before = [] if running is None else [(u.zone, u.id) for u in running.units]
    after = [(u.zone, u.id) for u in wanted.units]
    used = {zone for zone, _ in before + after}
    return tuple(
        {
            "zone": zone.name,
            "layer": zone.layer,
            "before": [u for name, u in before if name == zone.name],
            "after": [u for name, u in after if name == zone.name],
        }
        for zone in wanted.continuum.zones
        if zone.name in used
    )


def proposal(number: int, place: str | None = None) -> Proposal:
    """Look at a decision, and at what would stop, start and move if it were carried out."""
    decision = live_loop.decision(number, place)
    if decision.state != "proposed":
        return Proposal(decision=decision, preview=None, turns=())
    try:
        preview = Client(place).preview(live_loop.proposed(number, place))
    except DeploymentError as error:
        return Proposal(decision=decision, preview=None, turns=(), gone=str(error))
    return Proposal(decision=decision, preview=preview, turns=turns(preview.diff))


@dataclass(frozen=True, kw_only=True)
class Course:
    """What a deployment did in a span, with what was changed and decided meanwhile."""

    metrics: live_loop.Metrics
    history: live.History
    promise: Promise | None
    since: float

    def to_data(self) -> dict[str, Any]:
        """Give it as JSON-able data; what had ended before is left out."""
        found = self.history.to_data()
        return {
            "since": self.since,
            "metrics": self.metrics.to_data(),
            "promise": self.promise and self.promise.to_data(),
            "changes": [c for c in found["changes"] if (c["ended"] or self.since) >= self.since],
            "decisions": [d for d in found["decisions"] if d["updated"] >= self.since],
            "events": [e for e in found["events"] if e["at"] >= self.since],
        }


def course(name: str, seconds: float, place: str | None = None) -> Course:
    """Look at the last seconds of a deployment."""
    metrics = live_loop.metrics(name, seconds, place)
    return Course(
        metrics=metrics,
        history=live.history(name, place),
        promise=live_loop.promise(name, place),
        since=time.time() - seconds,
    )


def shared(place: str | None = None) -> Sequence[dict[str, Any]]:
    """Give the dataflows of all pools, each with its operators and who else needs them."""
    return [
        {
            "pool": pool.name,
            "name": one.name,
            "owner": one.owner,
            "operators": [
                {
                    "operator": own,
                    "shared": name,
                    "kind": one.runs[own].kind,
                    "users": [user for user in pool.users.get(name, ()) if user != one.name],
                }
                for own, name in one.ids.items()
            ],
        }
        for pool in live_share.pools(place)
        for one in pool.submissions
    ]
