"""Traces, received by a collector: of a change with its steps and calls, and of rows from zone to zone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.batchspans import spans_of
from headwater.channels.arrival import arrival_of, record_arrival
from headwater.channels.entry import Entry
from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.logserver import LogServer
from headwater.channels.relay import Relay
from headwater.channels.segments import Segment
from headwater.channels.wire import Credentials, Wire
from headwater.continuum.model import Continuum
from headwater.control.calls import Calls
from headwater.control.changespans import change_context
from headwater.core.errors import DeploymentError
from headwater.plan.build import build
from headwater.plan.spec import UnitSpec, spec_of
from headwater.query.batchtrace import BatchTrace
from headwater.query.ingest import Inputs
from headwater.query.latency import LatencyTracking
from headwater.testing.nodes import SimulatedNodes
from headwater.tracing.context import TraceContext
from headwater.tracing.spans import begin_tracing, call, end_tracing, inside, is_tracing, send
from tests.collector import Collector, Received, collecting
from tests.conftest import ZONE
from tests.patience import PATIENCE
from tests.unit.changes import FIRST
from tests.unit.controlled import Site


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as (found, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        begin_tracing("headwater-test")
        assert is_tracing()
        try:
            yield found
        finally:
            end_tracing()


def received(collector: Collector) -> list[Received]:
    end_tracing()
    return collector.spans


def test_without_a_collector_nothing_is_imported() -> None:
    code = (
        "import sys; from headwater.tracing import spans; spans.begin_tracing('x'); "
        "print(spans.is_tracing(), spans.sampled_share(), [m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "False 0.0 []\n", done.stderr


def test_without_the_extra_a_warning_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    begin_tracing("x")
    assert not is_tracing() and "headwater[otel]" in caplog.text


def test_the_share_of_samples_is_kept_in_each_process() -> None:
    rng = random.Random(4)
    contexts = [TraceContext.derived(rng.random()) for _ in range(4000)]
    assert all(c.is_sampled(1.0) for c in contexts) and not any(c.is_sampled(0.0) for c in contexts)
    sampled = {c for c in contexts if c.is_sampled(0.1)}
    assert 0.07 < len(sampled) / len(contexts) < 0.13
    assert all(c.is_sampled(0.5) for c in sampled)


@pytest.mark.parametrize(
    "text", ["", "00-0-0-01", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'g' * 32}-{'1' * 16}-01", 5, None]
)
def test_a_malformed_header_is_no_context(text: object) -> None:
    assert TraceContext.parse(text) is None


# ---------------------------------------------------------------- changes


class CalledNodes(SimulatedNodes):
    """Simulated nodes of which each call first crosses a real wire, as that to an agent does."""

    def __init__(self, wire: Wire, **options: Any) -> None:
        super().__init__(before=lambda call: wire.ask(call.name, {"unit": call.unit}), **options)


def test_a_change_is_one_trace_of_its_steps_and_calls(tmp_path: Path, collector: Collector) -> None:
    def answer(body: dict[str, Any]) -> None:
        if body["unit"] in failing:
            raise DeploymentError("no room", where="test", hint="none")

    failing: set[str] = set()
    calls = ("check", "prepare", "start", "stop", "drained", "update_inputs", "forget", "former_output", "report",
             "preflight", "warm_up", "catch_up", "save", "load", "finish", "end", "settle")  # fmt: skip
    server = LogServer("127.0.0.1:0", credential=ZONE, find=FileLog, actions=dict.fromkeys(calls, answer))
    try:
        wire = Wire(f"127.0.0.1:{server.port}", Credentials(ZONE.order_token), "E1")
        site = Site(tmp_path, CalledNodes(wire))
        assert site.apply(FIRST).phase == "running"
        begun = site.store.changes("f")[0]
        site.restart()  # another controller carries out the next change
        failing |= {call.unit for call in site.zones.calls if call.name == "start"}
        assert site.apply(replace(FIRST, alarm=2)).phase == "failed"
        journal = site.store.journal(begun.id)
        store = site.store.id
    finally:
        server.shutdown()
    spans = received(collector)
    first = [s for s in spans if s.trace == change_context(store, begun.id).trace]
    by_id = {s.span: s for s in first}
    assert len(by_id) == len(first)
    (root,) = [s for s in first if not s.parent]
    assert (root.name, root.attributes["headwater.outcome"], root.error) == ("change f", "done", "")
    assert all(s.parent in by_id for s in first if s is not root), "no span hangs loose"
    steps = [s for s in first if s.parent == root.span and s.name != "plan"]
    assert len(steps) == len(journal) and {s.attributes["headwater.step"] for s in steps} == {e.number for e in journal}
    assert len([s for s in first if s.name == "plan"]) == 1
    clients = [s for s in first if s.kind == 3]
    servers = [s for s in first if s.kind == 2]
    assert {by_id[s.parent].span for s in clients} <= {s.span for s in steps}
    assert sorted(s.parent for s in servers) == sorted(s.span for s in clients), "each call has its other side"
    for asked in clients:
        assert by_id[asked.parent].name.startswith(asked.attributes["rpc.method"].split("_")[0].removesuffix("ed"))
    failed = [s for s in spans if s.trace != root.trace and not s.parent]
    assert [s.name for s in failed] == ["change f"] and "no room" in failed[0].error
    assert any("no room" in s.error for s in spans if s.kind == 2)


# ---------------------------------------------------------------- rows


def specs() -> tuple[UnitSpec, UnitSpec]:
    f = hw.flow("two", locations=["L1"])
    f.read.csv("/in/{location}", "id bigint").where("id > 1").to_layer("cloud").where("id > 2").write.memory("out")
    zones = "layers: [edge, cloud]\nzones: {C1: {layer: cloud}, E1: {layer: edge, parent: C1, locations: [L1]}}"
    plan = build(f.build(), Continuum.from_text(zones))
    low, high = (next(u for u in plan.units if u.node == node) for node in ("E1", "C1"))
    return spec_of(plan, low.id), spec_of(plan, high.id)


class Hop:
    """A unit's query on disk, whose batches are committed as its writer does."""

    def __init__(self, root: Path, spec: UnitSpec, share: float) -> None:
        self.spec, self.root = spec, root
        (root / "checkpoint/offsets").mkdir(parents=True)
        (root / "checkpoint/metadata").write_text("{}")
        self.members = root / "members.json"
        self.out = FileLog(root / "out", fsync=False)
        inputs = Inputs(root / "checkpoint", (self.members,))
        self.tracking = LatencyTracking(inputs, root / "passed", unit=spec.id, share=share)

    def batch(self, number: int, offset: str) -> None:
        (self.root / f"checkpoint/offsets/{number}").write_text(f"v2\n{{}}\ns_1:{offset}")
        ingested = self.tracking.ingested(number)
        trace = self.tracking.trace(number, ingested)
        times = (ingested.oldest, ingested.newest) if ingested else None
        piece = Segment(file=None, rows=3, bytes=1, crc32=0, frontier=number + 1)
        self.out.commit(1, number, [piece], ingested=times, trace=trace and trace.publish.text)
        self.tracking.note(number, 3, ingested, trace)

    def read(self, number: int, entries: list[Entry], position: int) -> None:
        end = {"out@E1": position}
        record_arrival(self.members, end, arrival_of(entries))
        self.batch(number, json.dumps(end))

    def send(self) -> None:
        for passed in self.tracking.passed(0.0):
            for span in spans_of(self.spec, passed):
                send(span)


def test_the_way_of_rows_over_two_zones_is_one_trace(tmp_path: Path, collector: Collector) -> None:
    low, high = specs()
    edge, cloud = Hop(tmp_path / "E1", low, share=1.0), Hop(tmp_path / "C1", high, share=0.0)
    edge.batch(0, "5")
    edge.batch(1, "9")
    server = LogServer("127.0.0.1:0", credential=ZONE, find=lambda name: edge.out)
    replica = FileLog(tmp_path / "replica", fsync=False)
    replica.create()
    try:
        wire = Wire(f"127.0.0.1:{server.port}", Credentials(ZONE.order_token), "E1")
        relay = Relay(lambda: FlightLog(wire, "two/out@E1"), "out@E1", replica, reader="r", link="E1-C1")
        for item in FlightLog(wire, "two/out@E1").follow(0):
            if isinstance(item, Entry):
                relay._publish(item)
                if item.seq == 1:
                    break
    finally:
        server.shutdown()
    cloud.read(0, list(replica.entries(0, 2)), 2)
    edge.send()
    cloud.send()
    spans = received(collector)
    roots = [s for s in spans if not s.parent]
    assert [s.name for s in roots] == [f"read {low.id}"] * 2
    way = []
    (at,) = [s for s in spans if s.name == f"publish {high.id}"]
    by_id = {s.span: s for s in spans}
    while True:
        way.append(at.name)
        if not at.parent:
            break
        assert by_id[at.parent].trace == at.trace
        at = by_id[at.parent]
    expected = [f"read {low.id}", f"batch {low.id}", f"publish {low.id}", "relay out@E1", f"batch {high.id}"]
    assert way[::-1] == [*expected, f"publish {high.id}"]
    (joined,) = [s for s in spans if s.name == f"batch {high.id}"]
    second = [s for s in spans if s.name == "relay out@E1" and s.trace != joined.trace]
    assert joined.links == tuple(s.span for s in second), "the other trace whose rows it has read"
    assert joined.attributes["headwater.zone"] == "C1"


def test_a_repeated_batch_adds_to_the_same_trace(tmp_path: Path) -> None:
    edge = Hop(tmp_path / "E1", specs()[0], share=1.0)
    edge.batch(0, "5")
    (first,) = edge.tracking.passed(0.0)
    assert first.trace is not None
    again = edge.tracking.trace(0, edge.tracking.ingested(0))
    assert again is not None and again.own == BatchTrace.from_data(first.trace).own
    assert next(iter(edge.out.entries(0, 1))).trace == again.publish.text


def test_nothing_is_traced_without_a_share(tmp_path: Path) -> None:
    edge = Hop(tmp_path / "E1", specs()[0], share=0.0)
    edge.batch(0, "5")
    (passed,) = edge.tracking.passed(0.0)
    assert passed.trace is None and "trace" not in next(iter(edge.out.entries(0, 1))).to_record()


@pytest.mark.parametrize("damaged", [{}, {"own": "x"}, {"own": None, "parents": [], "first": 1}])
def test_a_damaged_record_sends_nothing(tmp_path: Path, damaged: dict[str, Any]) -> None:
    edge = Hop(tmp_path / "E1", specs()[0], share=1.0)
    edge.batch(0, "5")
    (passed,) = edge.tracking.passed(0.0)
    assert list(spans_of(edge.spec, replace(passed, trace=damaged))) == []


def test_a_call_in_another_thread_is_in_the_same_trace(collector: Collector) -> None:
    step = TraceContext.derived("step")

    def ask() -> None:
        with call("prepare", "CLIENT", {}):
            pass

    with inside(step):
        Calls("call").begin(ask).result(PATIENCE)
    (span,) = received(collector)
    assert (span.trace, span.parent) == (step.trace, step.span)
