"""The use cases of a deployment that is watched: its promise, its metrics, decisions on it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from headwater.adapt.calibrate import Compared, Learned, facts_of
from headwater.adapt.calibrate import compared as held_against
from headwater.adapt.model import predict
from headwater.adapt.promise import Promise
from headwater.adapt.window import window
from headwater.control.policy import SEEN, TRIGGER
from headwater.control.records import Decision, DecisionState, Sample
from headwater.control.store import Store
from headwater.live import existing, store_place
from headwater.plan.model import DeploymentPlan
from headwater.profile import Profile


def promise(name: str, place: str | None = None) -> Promise | None:
    """Give what is promised of a deployment."""
    with existing(place) as store:
        store.deployment(name)
        return store.promise(name)


def set_promise(name: str, promise: Promise, place: str | None = None) -> None:
    """Promise something of a deployment, which has to be there."""
    with existing(place) as reader:
        reader.deployment(name)
    with closing(Store(store_place(place))) as store:
        store.set_promise(name, promise)


def metrics(
    name: str, since_s: float, place: str | None = None
) -> tuple[DeploymentPlan | None, tuple[Sample, ...]]:
    """Give the plan in force and the samples of the last seconds, the oldest first."""
    with existing(place) as store:
        store.deployment(name)
        return store.base(name), store.samples(name, since=time.time() - since_s)


def decisions(
    name: str | None = None,
    place: str | None = None,
    *,
    limit: int = 100,
    states: frozenset[DecisionState] | None = None,
) -> tuple[Decision, ...]:
    """Give the newest decisions on one deployment, or on all, the oldest first."""
    with existing(place) as store:
        if name is not None:
            store.deployment(name)
        return store.decisions(name, limit=limit, states=states)


def decision(number: int, place: str | None = None) -> Decision:
    """Give a decision."""
    with existing(place) as store:
        return store.decision(number)


def proposed(number: int, place: str | None = None) -> DeploymentPlan:
    """Give the plan that a decision proposes; raise DeploymentError where it cannot be wanted any more."""
    with existing(place) as store:
        return store.plan(store.proposed(number))


def approve(number: int, place: str | None = None) -> int:
    """Store what a decision proposes as what is wanted, and give its version.

    Raises DeploymentError where it is not proposed, or where something else runs or is wanted by now.
    """
    with existing(place) as reader:
        reader.decision(number)
    with closing(Store(store_place(place))) as store:
        return store.want_decided(None, number)


def reject(number: int, place: str | None = None) -> None:
    """Turn down what a decision proposes."""
    with existing(place) as reader:
        reader.decision(number)
    with closing(Store(store_place(place))) as store:
        store.settle_decision(None, number, "rejected")


def compared(name: str, place: str | None = None) -> Mapping[str, tuple[Compared, ...]]:
    """Hold what the model says of a deployment now against what was measured in the last seconds.

    By ``latency`` (s, half of the rows, at units' ends), ``load`` (shares of hosts) and ``bytes`` (per
    second, over links); empty while too little was seen.
    """
    with existing(place) as store:
        record = store.deployment(name)
        kept, profile = store.learned(name), store.profile(name)
        plan = store.base(name)
        seen = window(store.samples(name, since=max(record.updated, time.time() - SEEN)))
    if plan is None or seen is None:
        return {"latency": (), "load": (), "bytes": ()}
    learned = Learned.from_data(kept) if kept else Learned(profile=profile or Profile(dataflow=name))
    return held_against(plan, predict(plan, facts_of(learned, plan, seen, TRIGGER)), seen)
