"""A unit that repeats the batches of the one that it replaces: which can, the steps, and the file between them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

import headwater as hw
from headwater.agent import catchup
from headwater.agent.catchupquery import CatchUpQuery
from headwater.channels.catchupinput import CatchUpInput
from headwater.channels.filelog import FileLog
from headwater.core.errors import ChannelError
from headwater.core.metrics import HostProgress, Progress, UnitProgress
from headwater.disk.catchup import CatchUpBatches, CatchUpRecord, end_catch_up, read_catch_up, write_catch_up
from headwater.disk.checkpoint import begin_run, has_written_nothing, may_be_taken_back, newest_batch, take_back
from headwater.disk.layout import Layout
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.deployment import Edge
from headwater.plan.diff import diff
from headwater.plan.document import plan_id
from headwater.plan.explain import explain
from headwater.plan.model import DeploymentPlan
from headwater.plan.order import steps_to
from headwater.plan.steps import CatchUp, Load, Prepare, Step, Stop, Switch, unit_statuses_of
from headwater.query.query import Running
from headwater.query.writer import HeadwaterSink, UnitWriter
from headwater.state.savedstate import Saved, StateStore, describe, put_batches, put_early
from tests.deployments.flows import lifted
from tests.deployments.test_handover import CONTINUUM, planned
from tests.patience import PATIENCE
from tests.unit.changes import steps_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from headwater.plan.spec import UnitSpec


def kinds(before: DeploymentPlan, after: DeploymentPlan) -> list[str]:
    return [s.kind for s in steps_of(diff(before, after))]


def cut_out(*cuts: Edge, first: str = "list") -> DeploymentPlan:
    return planned("/in", "/out", first, *cuts)


def test_a_unit_that_moves_as_a_whole_catches_up_before_the_running_one_stops() -> None:
    steps = steps_of(diff(cut_out(("once", "rising")), cut_out(("counted", "list"), first="rising")))
    (catch_up,) = [s for s in steps if isinstance(s, CatchUp)]
    assert catch_up.unit == "counted@C1" and catch_up.transfer.source_units == ("counted@E1",) and catch_up.saved[0]
    at = steps.index(catch_up)
    stop = steps[at + 1]
    assert isinstance(stop, Stop) and stop.unit == "counted@E1"
    earlier = [s for s in steps[:at] if isinstance(s, Prepare)]
    assert ("prepare", "counted@C1") in [(s.kind, s.unit) for s in earlier]
    after = [s for s in steps[at:] if isinstance(s, Load | Switch | Prepare)]
    assert [type(s) for s in after[:2]] == [Load, Switch], "it is not prepared twice"
    text = "\n".join(explain(steps))
    assert "let counted@C1 catch up with counted@E1 while that one runs" in text


def test_the_price_is_shown_and_a_host_without_room_for_two_units_is_spared() -> None:
    change = diff(cut_out(("once", "rising")), cut_out(("counted", "list"), first="rising"))
    running = UnitProgress(
        unit="counted@E1", zone="E1", layer="edge", status="running",
        batches=20, trigger_s=0.5, busy_s=4.0, cpu_s=3.0, state_bytes=2**20,
    )  # fmt: skip

    def steps(free: int | None) -> tuple[Step, ...]:
        host = HostProgress(host="c1", zone="C1", cores=2.0, seconds=10.0, memory_free=free)
        assert change.running is not None
        statuses = unit_statuses_of(change.running)
        plans = {plan_id(p): p for p in (change.running, change.wanted)}
        return steps_to(change, statuses, plans, seen=Progress(seconds=10.0, units=(running,), hosts=(host,)))

    for free in (None, 2**30):
        assert "meanwhile it needs about 0.30 cores, and 1MiB of state" in "\n".join(explain(steps(free)))
    assert not any(isinstance(s, CatchUp) for s in steps(2**28))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(cut_out(), cut_out(first="rising"), id="fission"),
        pytest.param(cut_out(first="rising"), cut_out(), id="fusion"),
        pytest.param(cut_out(("once", "rising")), cut_out(first="rising"), id="moved and fused"),
        pytest.param(
            cut_out(("once", "rising")),
            cut_out(("rising", "counted"), ("counted", "list"), first="rising"),
            id="moved and split",
        ),
    ],
)
def test_operators_that_are_cut_otherwise_are_stopped_first(before: DeploymentPlan, after: DeploymentPlan) -> None:
    found = kinds(before, after)
    assert "load" in found and "catch_up" not in found


def joined(first: str, *cuts: Edge, table: bool) -> DeploymentPlan:
    """Plan windows behind a filter, with a reference table or a watermark of their own in front."""
    builder = hw.flow("other", locations=["L1"])
    read = builder.read.json("/in", "id bigint, ts timestamp, k string", location_as="location").named("read")
    if table:
        prices = builder.table.csv("/prices.csv", "k string, price double")
        timed = read.with_watermark("ts", "1 second").join(prices, "k").named("next")
    else:
        timed = read.where("id > 0").named("kept").with_watermark("ts", "1 second").named("next")
    counted = timed.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)").named("counted")
    counted.select("k", "n").named("list").write.parquet("/out").named("out")
    return lifted(builder.build(), CONTINUUM, first, *cuts)


@pytest.mark.parametrize("table", [True, False], ids=["reference table", "watermark"])
def test_units_with_inputs_beside_channels_are_stopped_first(table: bool) -> None:
    above = [i for i in joined("list", table=table).dataflow.order]
    into: Edge = (above[above.index("next") - 1], "next")
    found = kinds(joined("list", into, table=table), joined("next", ("counted", "list"), table=table))
    assert "load" in found and "catch_up" not in found


# ---------------------------------------------------------------- the file, and its readers


class Query:
    """The directory of a query whose sources end their batches where another query did."""

    def __init__(self, root: Path) -> None:
        self.file, self.checkpoint = root / "catch_up.json", root / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)

    def plan(self, batch: int) -> None:
        (self.checkpoint / "offsets" / str(batch)).touch()

    def input(self, name: str = "c") -> CatchUpInput:
        return CatchUpInput(CatchUpBatches(self.file, self.checkpoint), name)


def ends(**at: int) -> dict[str, str]:
    return {name: json.dumps({"x@E1": position}) for name, position in at.items()}


def waiting(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Do something in a thread; return it and the list of its result."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(act())
        except ChannelError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_a_source_ends_each_batch_where_the_other_unit_did(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.plan(6)
    write_catch_up(query.file, CatchUpRecord(source="s", batches={7: ends(c=3, d=1), 8: ends(c=5, d=1)}))
    one, other = query.input("c"), query.input("d")
    assert one.next_end(lambda end: True) == {"x@E1": 3} and other.next_end(lambda end: True) == {"x@E1": 1}
    query.plan(7)
    assert one.next_end(lambda end: True) == {"x@E1": 5}
    query.plan(8)
    thread, found = waiting(lambda: one.next_end(lambda end: True))
    write_catch_up(query.file, CatchUpRecord(source="s", batches={9: ends(c=6, d=2)}))
    thread.join(PATIENCE)
    assert found == [{"x@E1": 6}]


def test_a_batch_is_repeated_when_its_entries_have_come(tmp_path: Path) -> None:
    query, come = Query(tmp_path), threading.Event()
    query.plan(0)
    write_catch_up(query.file, CatchUpRecord(source="s", batches={1: ends(c=3)}))
    asked = threading.Event()

    def has_come(end: dict[str, int]) -> bool:
        asked.set()
        return come.is_set() and end == {"x@E1": 3}

    thread, found = waiting(lambda: query.input().next_end(has_come))
    assert asked.wait(PATIENCE) and not found
    come.set()
    thread.join(PATIENCE)
    assert found == [{"x@E1": 3}]


def test_a_released_query_goes_on_by_itself_and_one_that_is_given_up_plans_nothing(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.plan(4)
    write_catch_up(query.file, CatchUpRecord(source="s", until=4))
    thread, found = waiting(lambda: query.input().next_end(lambda end: True))
    write_catch_up(query.file, CatchUpRecord(source="s", until=4, released=True))
    thread.join(PATIENCE)
    assert found == [None]
    write_catch_up(query.file, CatchUpRecord(source="s"))
    thread, found = waiting(lambda: query.input().next_end(lambda end: True))
    end_catch_up(query.file)
    thread.join(PATIENCE)
    assert isinstance(found[0], ChannelError)
    again = read_catch_up(query.file)
    assert again is not None and again.ending


def test_a_query_is_cold_until_it_has_repeated_two_batches_or_none_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("headwater.agent.catchupquery.time.monotonic", lambda: clock[0])
    may_start = threading.Event()

    def start() -> Running:
        assert may_start.wait(PATIENCE)
        return Running(cast("StreamingQuery", None))

    query = CatchUpQuery("u@C1", start, begun=7)
    clock[0] = 100.0
    assert query.left(7) == 2, "as long as it is being started, nothing is given up"
    may_start.set()
    query._thread.join(PATIENCE)
    assert [query.left(7), query.left(8), query.left(9), query.left(10)] == [2, 1, 0, 0]
    query = CatchUpQuery("u@C1", start, begun=7)
    query._thread.join(PATIENCE)
    assert query.left(8) == 1
    clock[0] += 1.9
    assert query.left(8) == 1
    clock[0] += 0.2
    assert query.left(8) == 0, "the other unit has no input"


def test_where_batches_are_rare_none_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("headwater.agent.catchupquery.time.monotonic", lambda: clock[0])
    for trigger, left in (("4 seconds", 2), ("20 seconds", 0)):
        rare = UnitSettings(trigger=trigger).rare_batches
        query = CatchUpQuery("u@C1", lambda: Running(cast("StreamingQuery", None)), begun=7, rare_batches=rare)
        query._thread.join(PATIENCE)
        assert query.left(7) == 2, "it has just been started"
        clock[0] += 0.1
        assert query.left(7) == left


def test_the_other_unit_is_stopped_while_it_does_a_batch_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("headwater.agent.catchupquery.time.monotonic", lambda: clock[0])
    query = CatchUpQuery("u@C1", lambda: Running(cast("StreamingQuery", None)), begun=7)
    query._thread.join(PATIENCE)
    assert query.left(9, in_progress=False) == 1 and query.left(9, in_progress=True) == 0
    assert query.left(8, in_progress=False) == 1
    clock[0] += 2.1
    assert query.left(8, in_progress=False) == 0, "the other unit has no input"


class Checkpoint:
    """The logs of a query: each batch ends at ten times its number in the one channel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for log in ("offsets", "commits"):
            (root / log).mkdir(parents=True)

    def plans(self, batch: int, end: int | None = None) -> None:
        header = json.dumps({"batchWatermarkMs": batch, "batchTimestampMs": 0, "conf": {}})
        at = json.dumps({"c@E1": 10 * batch if end is None else end})
        (self.root / "offsets" / str(batch)).write_text(f"v2\n{header}\nc:{at}")

    def does(self, batch: int, end: int | None = None) -> None:
        self.plans(batch, end)
        (self.root / "commits" / str(batch)).write_text(f'v1\n{{"nextBatchWatermarkMs":{batch + 1}}}')


def test_a_batch_is_known_when_it_is_planned_and_then_it_is_not_taken_back(tmp_path: Path) -> None:
    old, store = Checkpoint(tmp_path / "old"), StateStore(str(tmp_path / "store"))
    assert not put_batches(old.root, "d/u", store), "no state was stored yet"
    old.does(3)
    early = put_early(old.root, "d/u", store)
    assert early is not None and early.newest == early.batch == 3
    begin_run(old.root)
    old.does(4)
    old.plans(5)
    assert put_batches(old.root, "d/u", store)
    early = store.saved("d/u", early=True)
    assert (early.batch, early.newest, max(early.recent)) == (3, 4, 5)
    assert json.loads(early.recent[5]["c"]) == {"c@E1": 50}
    assert has_written_nothing(old.root) and not may_be_taken_back(old.root) and not take_back(old.root)
    old.does(5)
    old.plans(6)
    assert take_back(old.root), "nobody knows of it"
    for batch in range(6, 10):
        old.does(batch)
    assert not put_batches(old.root, "d/u", store), "the state is to be stored anew"


def repeating(tmp_path: Path) -> tuple[Any, Any, Checkpoint]:
    """Return the units of an agent and the spec of a unit that began to repeat batches at the third one."""
    (unit,) = (u for u in cut_out(("once", "rising")).units if "rising" in u.operators)
    layout = Layout(tmp_path)
    spec = SimpleNamespace(unit=unit, id=unit.id, named={})
    query = SimpleNamespace(error=None)
    settings = UnitSettings(channel=ChannelSettings(fsync=False))
    units = SimpleNamespace(
        layout=layout, catching_up={unit.id: query}, end_catch_up=lambda spec: None, settings=settings
    )
    new = Checkpoint(layout.checkpoint(unit))
    new.does(3)
    write_catch_up(layout.catch_up(unit), CatchUpRecord(source="s", begun=3))
    return units, spec, new


def stopped_after(batch: int, end: int | None = None, root: Path | None = None) -> Saved:
    """Describe the other unit, stopped after a batch."""
    assert root is not None
    old = Checkpoint(root)
    for n in range(2, batch):
        old.does(n)
    old.does(batch, end)
    return describe(old.root, {}, rows_in=0, late_rows=0)[0]


def test_a_unit_takes_over_where_the_other_one_stopped(tmp_path: Path) -> None:
    units, spec, new = repeating(tmp_path)
    new.does(4)
    new.does(5)
    assert catchup.take_over(units, spec, "s", stopped_after(5, root=tmp_path / "old"))
    found = read_catch_up(units.layout.catch_up(spec.unit))
    assert found is not None and found.until == 5 and not found.batches


@pytest.mark.parametrize("case", ["other positions", "a batch more", "planned a batch more", "far behind"])
def test_a_unit_that_stands_elsewhere_does_not_take_over(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units, spec, new = repeating(tmp_path)
    for batch in (4, 5):
        new.does(batch)
    last, end = 5, None
    match case:
        case "other positions":  # the batch was cut off in the other unit, and planned otherwise
            end = 51
        case "a batch more":
            new.does(6)
        case "planned a batch more":  # its output would be discarded
            new.plans(6)
        case "far behind":  # it would repeat them all
            last = 9
            rest = range(6, 10)
            monkeypatch.setattr("headwater.agent.catchup.time.sleep", lambda seconds: [new.does(n) for n in rest])
    assert not catchup.take_over(units, spec, "s", stopped_after(last, end, tmp_path / "old"))
    assert newest_batch(new.root / "commits") < 0, "its state is loaded instead"


def test_a_batch_that_was_planned_otherwise_meanwhile_is_noticed_while_both_run(tmp_path: Path) -> None:
    units, spec, new = repeating(tmp_path)
    new.does(4)
    new.does(5)
    begun: list[int] = []
    active = SimpleNamespace(isActive=True)
    units.catch_up = lambda spec: Running(cast("StreamingQuery", active))
    units.end_catch_up = lambda spec: units.catching_up.clear()
    early = stopped_after(5, 51, tmp_path / "old")
    catchup.catch_up(units, spec, "s", early, lambda: begun.append(new.root.exists()))
    assert begun, "it begins again from the state of the other unit"


def test_what_an_agent_left_that_ended_while_it_made_the_checkpoint_is_not_taken_for_loaded_state(
    tmp_path: Path,
) -> None:
    plan = cut_out(("once", "rising"))
    (unit,) = (u for u in plan.units if "rising" in u.operators)
    spec, layout = SimpleNamespace(unit=unit, id=unit.id, named={}), Layout(tmp_path)
    gone = SimpleNamespace(query=None)
    units: Any = SimpleNamespace(layout=layout, catching_up={}, end_catch_up=lambda spec: gone)
    checkpoint = layout.checkpoint(unit)

    def begin() -> None:
        (checkpoint / "commits").mkdir(parents=True)
        (checkpoint / "commits" / "7").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catchup.catch_up(units, cast("UnitSpec", spec), "s", Saved(batch=7), begin)
    assert not catchup.take_over(units, cast("UnitSpec", spec), "s", Saved(batch=7))
    assert newest_batch(checkpoint / "commits") < 0 and not layout.catch_up(unit).exists()


def test_output_that_another_unit_has_published_is_discarded(tmp_path: Path) -> None:
    file, log = tmp_path / "catch_up.json", FileLog(tmp_path / "log")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})

    def written(batch: int) -> None:
        from pyspark.sql.types import LongType, StructField, StructType

        writers = [{"tag": 0, "kind": "filelog", "path": str(tmp_path / "log")}]
        config = {"epoch": 1, "sink_writers": writers, "catch_up": str(file)}
        sink = HeadwaterSink({"config": json.dumps(config)})
        writer = sink.streamWriter(StructType([StructField("id", LongType())]), False)
        assert isinstance(writer, UnitWriter)
        writer.commit([writer.write(iter(rows.to_batches()))], batch)

    write_catch_up(file, CatchUpRecord(source="s"))
    written(1)
    write_catch_up(file, CatchUpRecord(source="s", until=2))
    written(2)
    assert not (tmp_path / "log").exists(), "no sink writer is opened"
    write_catch_up(file, replace(CatchUpRecord(source="s"), until=2, released=True))
    written(3)
    assert log.totals(log.latest())[0] == 2
