"""Details: a unit with its operators, a proposal beside the running plan, the history of a deployment."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headwater.app import details
from headwater.control.store import Store
from headwater.core.errors import DeploymentError
from headwater.plan import edit
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from tests import crowd

HOLDER = "test:1"


def proposed(store: Store, plan: DeploymentPlan, **values: Any) -> int:
    store.hold(HOLDER, 60.0)
    given: dict[str, Any] = {"mode": "advise", "trigger": "gain", "why": "it costs less", "state": "proposed"}
    before = store.deployment("d0").active_plan
    return store.record_decision(HOLDER, "d0", plan=plan, before=before, data={}, **{**given, **values})


def test_a_unit_with_what_it_computes_reads_and_writes(store: Store) -> None:
    crowd.fill(store, 12, 1)
    found = details.unit("d0", "high@S1", store.where)
    assert (found.zone, found.layer, found.hosts) == ("S1", "site", ("s1",))
    assert [o.operator for o in found.operators] == ["high"] and "m double" in found.operators[0].schema
    assert {r.units for r in found.reads} == {("low@E1.1",), ("low@E1.2",), ("low@E1.3",)}
    assert found.reads[0].links == ("E1.1-S1",) and found.reads[0].kept == "filelog of E1.1"
    assert found.writes[0].units == ("out@C1",) and found.writes[0].links == ("S1-C1",)
    assert found.spark is None and found.measured is not None and found.measured.rows_in_per_s > 0
    assert found.operators[0].kind == "aggregate" and found.reads[0].channel.startswith("low-")
    with pytest.raises(DeploymentError, match="no unit 'high@S9'"):
        details.unit("d0", "high@S9", store.where)


def test_a_proposal_is_shown_beside_what_runs(store: Store) -> None:
    (plan,) = crowd.fill(store, 12, 1)
    other = build(plan.dataflow, plan.continuum, edit.split(plan, "low@E1.1", "watermark"))
    number = proposed(store, other)
    found = details.examine(number, store.where)
    assert {t.kind for t in found.change_summary} == {"split"} and found.preview is not None and not found.gone
    edge = next(z for z in details.zones_of(found.preview) if z.zone == "E1.1")
    assert edge.before == ("low@E1.1",) and set(edge.after) == {"watermark@E1.1", "low@E1.1"}
    assert found.preview.shown().units
    store.want("d0", "run", plan)  # another desired state is stored meanwhile
    gone = details.examine(number, store.where)
    assert gone.preview is None and "no longer active" in (gone.gone or "")
    store.settle_decision(None, number, "rejected")
    assert details.examine(number, store.where).gone is None


def test_the_course_has_what_was_changed_and_decided(store: Store) -> None:
    (plan,) = crowd.fill(store, 12, 1)
    number = proposed(store, plan)
    found = details.course("d0", 60.0, store.where)
    assert [d.id for d in found.decisions] == [number] and found.metrics.course
    assert found.since == pytest.approx(time.time() - 60.0, abs=30)
    assert all(d.updated >= found.since for d in found.decisions)
    nothing = details.course("d0", -99.0, store.where)  # since a time in the future
    assert nothing.decisions == () and nothing.events == ()
