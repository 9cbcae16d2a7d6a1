"""Plans of older formats: golden documents, each upgraded to exactly the plan that it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import DeploymentError
from headwater.plan.document import FORMAT, from_document
from headwater.plan.model import Channel, DeploymentPlan, Unit
from headwater.plan.upgrade import upgraded

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "plans").glob("*.json"))


def unit_facts(unit: Unit) -> dict[str, Any]:
    part = unit.part
    return {
        "id": unit.id, "zone": unit.zone, "layer": unit.layer, "operators": list(unit.operators),
        "outputs": list(unit.outputs), "locations": list(unit.locations), "hosts": list(unit.hosts),
        "key": unit.key, "tag": unit.tag, "epoch": unit.epoch, "checkpoint": unit.checkpoint,
        "part": part and [part.index, part.count, part.column],
    }  # fmt: skip


def channel_facts(channel: Channel) -> dict[str, Any]:
    return {
        "id": channel.id, "operator": channel.operator, "zone": channel.zone, "tag": channel.tag,
        "producer": channel.producer, "routes": {u: list(way) for u, way in channel.routes.items()},
        "broker": channel.broker,
    }  # fmt: skip


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_a_golden_document_is_the_plan_that_it_was(file: Path) -> None:
    golden = json.loads(file.read_text())
    document = upgraded(golden["document"])
    assert document["plan"] == FORMAT
    plan = from_document(document)
    assert [unit_facts(u) for u in plan.units] == golden["plan"]["units"]
    found = sorted((channel_facts(c) for c in plan.channels), key=lambda c: c["id"])
    assert found == sorted(golden["plan"]["channels"], key=lambda c: c["id"])
    assert dict(plan.tags) == golden["plan"]["tags"]
    assert plan.pooled == golden["document"].get("shared", False)


def test_what_would_be_another_plan_is_refused() -> None:
    document = json.loads(GOLDEN[0].read_text())["document"]
    document["unit_tags"]["another@E1"] = "00000000"
    with pytest.raises(DeploymentError, match=r"another@E1.*would differ from the stored plan") as caught:
        upgraded(document)
    assert "apply it again" in (caught.value.hint or "")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(DeploymentError, match="format 99"):
        upgraded({"plan": 99})
    with pytest.raises(DeploymentError, match="format 1; this version reads format 2"):
        from_document({"plan": 1})


def plan() -> DeploymentPlan:
    return from_document(upgraded(json.loads(GOLDEN[0].read_text())["document"]))


def test_reading_never_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts that today's planner would not make stay as they are stored."""
    document = upgraded(json.loads((GOLDEN[0].parent / "cut_everywhere.json").read_text())["document"])
    document = {**document, "deployment": {**document["deployment"], "cuts": []}}
    kept = from_document(document)
    assert len(kept.units) == len(document["units"])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda d: d["units"].pop(), "not run exactly once|unknown"),
        (lambda d: d["units"].append(d["units"][0]), "twice"),
        (lambda d: d["units"][0].update(node="C1"), "of another node|unknown"),
        (lambda d: d["units"][0].update(hosts=["nobody"]), "of another node"),
        (lambda d: d["channels"][0].update(producer="x@E1"), "unknown"),
        (lambda d: d["channels"][0].update(operator="x"), "not an output of"),
        (lambda d: d["tags"].pop("where"), "no stored name"),
        (lambda d: d["units"][0].pop("key"), "units.0.key"),
        (lambda d: d["deployment"]["placement"].pop(0), "not placed for"),
        (lambda d: d["deployment"]["placement"].append(d["deployment"]["placement"][0]), "placed twice"),
    ],
)
def test_a_document_whose_parts_do_not_fit_is_refused(change: Any, what: str) -> None:
    document = json.loads(json.dumps(upgraded(json.loads(GOLDEN[1].read_text())["document"])))
    change(document)
    with pytest.raises(DeploymentError, match=what):
        from_document(document)


def test_a_plan_that_was_changed_has_another_name() -> None:
    from headwater.plan.document import plan_id

    one = plan()
    other = replace(one, units=(replace(one.units[0], epoch=one.units[0].epoch + 1), *one.units[1:]))
    assert plan_id(one) == plan_id(plan()) != plan_id(other)
