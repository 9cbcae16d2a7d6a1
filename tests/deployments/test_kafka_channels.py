"""Deployments whose channels are on Kafka: the sinks equal the batch run, as with filelogs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.app.local import LocalRun
from headwater.channels.channelspec import channel_spec, drop_topics
from headwater.channels.open import open_log
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.spec import spec_of
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, check_equivalent
from tests.deployments.flows import CONTINUUM, FLOWS, rows


def with_brokers(broker: LocalBroker) -> Continuum:
    """Give site S1 and the cloud brokers; E1 keeps its channels, E4 and S2 write to the cloud's broker."""
    at = f"broker: '{broker.address}'"
    text = CONTINUUM.replace("C1: {layer: cloud}", f"C1: {{layer: cloud, {at}}}")
    text = text.replace("S1: {layer: site, parent: C1}", f"S1: {{layer: site, parent: C1, {at}}}")
    return Continuum.from_text(text.replace("locations: [L1]}", "locations: [L1], channels: filelog}"))


def test_equals_one_batch_run(broker: LocalBroker, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(60, seed=7), rows_per_file=20)
    source.release_all()
    flow = FLOWS["acme"](source.path).build()
    continuum = with_brokers(broker)
    plan = build(flow, continuum)
    kinds = {c.node: c.broker for c in plan.channels}
    assert kinds == {"E1": None, "E2": "S1", "E4": None, "S1": "S1", "S2": "C1"}
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", source=source)
    assert all(count > 0 for count in outcome.rows.values()), "an empty result proves nothing"
    layout = Layout(tmp_path / "run")
    specs = [spec_of(plan, unit.id) for unit in plan.units]
    logs = {c.id: open_log(channel_spec(spec, c, layout)) for spec in specs for c in spec.outputs}
    assert all(log.stats().ended for log in logs.values())
    used = [c for c in plan.channels if c.broker and logs[c.id].stats().rows]
    assert {c.node for c in used} == {"E2", "S1", "S2"}
    members = json.loads(next((tmp_path / "run" / "units").glob("*@C1/*.members.json")).read_text())
    assert {m["kind"] for m in members["writers"].values()} == {"kafka"}

    # The topics outlive the directory: a run in a new directory must not take them for its own.
    other = LocalRun(plan, tmp_path / "other", endpoint, UnitSettings(trigger="100 milliseconds"))
    other.start()
    try:
        with pytest.raises(HeadwaterError, match="another checkpoint has numbered"):
            other.drain()
    finally:
        other.stop()
    drop_topics(specs, layout)
    assert all(log.latest() == 0 for c in plan.channels if c.broker and (log := logs[c.id]))
