"""The use cases of a monitored deployment: its SLO, and decisions on it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from headwater.adapt.calibrate import Compared, facts_of
from headwater.adapt.calibrate import compared as held_against
from headwater.adapt.model import predict
from headwater.adapt.slo import SLO
from headwater.adapt.window import window
from headwater.app import storecache
from headwater.app.stores import existing
from headwater.control.records import Decision, DecisionState, Event
from headwater.control.store import Store
from headwater.control.tables import resolved_url
from headwater.plan.model import DeploymentPlan


def slo(name: str, store_url: str | None = None) -> SLO | None:
    """Return the SLO of a deployment."""
    with existing(store_url) as store:
        store.deployment(name)
        return store.slo(name)


def set_slo(name: str, slo: SLO, store_url: str | None = None) -> None:
    """Set the SLO of an existing deployment."""
    with existing(store_url) as reader:
        reader.deployment(name)
    with closing(Store(resolved_url(store_url))) as store:
        store.set_slo(name, slo)


def decisions(
    name: str | None = None,
    store_url: str | None = None,
    *,
    limit: int = 100,
    states: frozenset[DecisionState] | None = None,
) -> tuple[Decision, ...]:
    """Return the newest decisions on one deployment, or on all, the oldest first."""
    with existing(store_url) as store:
        if name is not None:
            store.deployment(name)
        return store.decisions(name, limit=limit, states=states)


def decision(number: int, store_url: str | None = None) -> Decision:
    """Return a decision."""
    with existing(store_url) as store:
        return store.decision(number)


def proposed(number: int, store_url: str | None = None) -> DeploymentPlan:
    """Return the plan of a decision; raise DeploymentError where it can no longer be applied."""
    with existing(store_url) as store:
        return store.plan(store.proposed(number))


def approve(number: int, store_url: str | None = None) -> int:
    """Store the plan of a decision as the desired state, and return its version.

    Raises DeploymentError where it is not proposed, or another plan is active or wanted by now.
    """
    with existing(store_url) as reader:
        reader.decision(number)
    with closing(Store(resolved_url(store_url))) as store:
        return store.want_decided(None, number)


def reject(number: int, store_url: str | None = None) -> None:
    """Reject the proposal of a decision."""
    with existing(store_url) as reader:
        reader.decision(number)
    with closing(Store(resolved_url(store_url))) as store:
        store.settle_decision(None, number, "rejected")


def told(
    after: int | None, name: str | None = None, store_url: str | None = None, *, limit: int = 100
) -> tuple[int, tuple[Event, ...]]:
    """Return the first events after a number, of one deployment or all, and the number to continue from.

    Without a number return no events, only the number of the newest one.
    """
    with existing(store_url) as store:
        if after is None:
            return store.last_told(), ()
        found = store.told(after=after, name=name, limit=limit)
    return (found[-1].id if found else after), found


def compared(name: str, store_url: str | None = None) -> Mapping[str, tuple[Compared, ...]]:
    """Compare the model of a deployment with the measurements of the last seconds.

    By ``latency`` (s, half of the rows, at the ends of units), ``load`` (shares of hosts) and ``bytes`` (per second,
    over links); empty while too little was measured.
    """
    with existing(store_url) as store:
        store.deployment(name)
        learned, plan = store.known(name), store.active_plan(name)
        seen = window(store.samples(name, since=time.time() - storecache.RECENT))
    if plan is None or seen is None:
        return {"latency": (), "load": (), "bytes": ()}
    return held_against(plan, predict(plan, facts_of(learned, plan, seen)), seen)
