"""Counters from a query's progress; requests to a Spark that has gone, as distinct from other errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from headwater.agent.units import Units
from headwater.agent.watch import progress_of
from headwater.agent.work import Work
from headwater.core.errors import RuntimeFailure, SparkStumbled, Unavailable, UserCodeError
from headwater.disk.layout import Layout
from headwater.disk.ports import free_ports
from headwater.disk.settings import UnitSettings
from headwater.plan.spec import spec_of
from headwater.query.counting import Counting, Read, Tally
from headwater.query.failure import translated
from headwater.query.query import BATCHES, Batch, Running, reaching_spark
from tests.unit.changes import FIRST


@dataclass
class Query:
    """A query that reports the given progress."""

    recentProgress: list[dict[str, Any]] = field(default_factory=list)  # noqa: N815 (Spark's name)
    isActive: bool = True  # noqa: N815
    runId: str = "r"  # noqa: N815


def told(batch: int, rows: int, ms: int = 100, **more: Any) -> dict[str, Any]:
    """Return one batch's progress as Spark reports it, with one file source."""
    source = {"description": "FileStreamSource[f]", "endOffset": {"logOffset": batch}, "numInputRows": rows}
    return {
        "batchId": batch,
        "timestamp": f"2026-01-01T00:00:{batch % 60:02d}.500Z",
        "durationMs": {"addBatch": 1, "triggerExecution": ms},
        "sources": [source],
        "stateOperators": [],
        **more,
    }


def test_batches_are_kept_once_each_with_their_time() -> None:
    query = Query([told(0, 5), told(1, 0, ms=40)])
    running = Running(query)  # type: ignore[arg-type]
    running.observe()
    query.recentProgress.append({**told(2, 0), "durationMs": {"triggerExecution": 3}})  # idle
    running.observe()
    assert list(running.batches) == [
        Batch(0, 1767225600.5, 0.1, 5),
        Batch(1, 1767225601.5, 0.04, 0),
    ]


def test_what_is_counted_goes_on_where_another_agent_stopped() -> None:
    kept = {"numRowsTotal": 7, "memoryUsedBytes": 10, "customMetrics": {"rocksdbSstFileSize": 900}}
    query = Query([told(0, 5), told(1, 0, ms=40, stateOperators=[kept, {**kept, "customMetrics": {}}])])
    running = Running(query, tally=Tally(Counting([Read("source", "L1")])))  # type: ignore[arg-type]
    running.observe()
    assert (running.done, running.busy_s) == (2, pytest.approx(0.14))
    assert (running.state_rows, running.state_bytes) == (14, 910)
    again = Running.resumed(query, json.loads(json.dumps(running.note())))  # type: ignore[arg-type]
    query.recentProgress.append(told(2, 3))
    again.observe()
    assert (again.done, again.busy_s, again.last_batch) == (3, pytest.approx(0.24), 2)
    assert again.tally.known() == {"source": 8}


def test_a_query_is_looked_at_before_spark_forgets() -> None:
    query = Query([told(n, 1) for n in range(3)])
    running = Running(query)  # type: ignore[arg-type]
    running.keep_up()
    query.recentProgress.append(told(3, 1))
    running.keep_up()  # at one batch per second, the query is not read again at once
    assert running.last_batch == 2
    running._looked -= 20.0
    running.keep_up()
    assert running.last_batch == 3


def test_spark_is_asked_for_batches_only_where_some_were_committed(tmp_path: Path) -> None:
    commits = tmp_path / "commits"
    commits.mkdir()
    (commits / "4").touch()
    query = Query()
    running = Running(query, checkpoint=tmp_path, before=4)  # type: ignore[arg-type]
    query.recentProgress.append(told(5, 1))
    running.observe()
    assert running.last_batch == -1, "no batch was committed since its start"
    (commits / "5").touch()
    running.observe()
    assert running.last_batch == 5
    (commits / "6").touch()
    running.observe()  # Spark reports a batch a moment after its commit
    query.recentProgress.append(told(6, 1))
    running.observe()
    assert running.last_batch == 6
    query.recentProgress.append(told(7, 1))
    running.observe()
    assert running.last_batch == 6
    running.real_time = 5.0
    running.observe()
    assert running.last_batch == 7, "in real-time mode the commit comes at the end of a long batch"


def test_only_the_newest_batches_are_kept() -> None:
    query = Query([told(n, 1) for n in range(BATCHES + 7)])
    running = Running(query)  # type: ignore[arg-type]
    running.observe()
    assert [b.id for b in running.batches] == list(range(7, BATCHES + 7))


def ask_nobody() -> None:
    """Send a request to a port without a server."""
    with grpc.insecure_channel(f"127.0.0.1:{free_ports(1)[0]}") as channel:
        channel.unary_unary("/spark.connect.SparkConnectService/Config")(b"", timeout=10)


def test_where_nobody_answers_it_may_be_tried_again() -> None:
    with pytest.raises(Unavailable, match="Spark does not answer") as raised, reaching_spark("zone E1"):
        try:
            ask_nobody()
        except grpc.RpcError as error:
            raise ConnectionError("gave up") from error
    assert raised.value.retryable and raised.value.where == "zone E1"


def test_where_another_thread_has_closed_the_client_it_may_be_tried_again() -> None:
    channel = grpc.insecure_channel(f"127.0.0.1:{free_ports(1)[0]}")
    call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
    channel.close()
    with pytest.raises(Unavailable, match="Spark does not answer"), reaching_spark("zone E1"):
        call(b"", timeout=10)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), reaching_spark("zone E1"):
        raise ZeroDivisionError
    with pytest.raises(RuntimeFailure, match="its own"), reaching_spark("zone E1"):
        try:
            ask_nobody()
        except grpc.RpcError as error:
            raise RuntimeFailure("its own", where="unit U") from error


def test_headwaters_own_error_is_found_in_sparks_stack_trace() -> None:
    cause = UserCodeError("the function raised ValueError: no", where="operator 'f'", hint="correct the function")
    name = f"{type(cause).__module__}.{type(cause).__qualname__}"
    trace = (
        f"pyspark.errors.PythonException: Traceback (most recent call last):\n  ...\n{name}: {cause}\n\nat org.apache"
    )
    error = translated(trace, "out@C1")
    assert isinstance(error, UserCodeError) and error.hint == "correct the function"
    assert "the function raised ValueError: no" in error.what


def test_no_lag_is_negative_while_rows_arrive(tmp_path: Path) -> None:
    plan = FIRST.plan()
    writer = spec_of(plan, next(u.id for u in plan.units if "read" in u.operators))
    (channel,) = writer.outputs
    reader = spec_of(plan, next(u for u in channel.consumers))
    units = Units(Layout(tmp_path), Endpoint(tmp_path), UnitSettings(), share=True)  # type: ignore[arg-type]
    units.prepare(writer)
    units.prepare(reader)
    log = units.channels.log(writer, channel)

    class Arriving(Query):
        """A query that reads a batch which arrives while the query is observed."""

        @property
        def recentProgress(self) -> list[dict[str, Any]]:  # type: ignore[override]  # noqa: N802
            log.append(pa.table({"id": [1, 2, 3]}), epoch=writer.unit.epoch, batch=0)
            read = {"description": "x", "endOffset": json.dumps({channel.id: log.latest()}), "numInputRows": 3}
            return [told(0, 3, sources=[read])]

    read = Work(reader, Running(object.__new__(Arriving)))
    found = progress_of([(units, Work(writer)), (units, read)])
    assert [u.lag for u in found.units] == [None, 0]
    assert [u.rows_in for u in found.units] == [0, 3]


@dataclass
class Endpoint:
    """A Spark of which the tests use only the liveness."""

    directory: Path
    alive: bool = True
    generation: str = "1"


def test_all_units_are_asked_for_at_once(tmp_path: Path) -> None:
    """Each request costs some milliseconds of Spark and of Python, each second."""
    asked: list[str] = []

    class Asked(Query):
        @property
        def isActive(self) -> bool:  # type: ignore[override]  # noqa: N802
            asked.append(self.runId)
            return self.runId != "ended"

        @property
        def status(self) -> dict[str, str]:
            return {"message": "Waiting for next trigger"}

        def exception(self) -> str | None:
            return "it broke"

    def query(run: str) -> Running:
        made = object.__new__(Asked)
        made.recentProgress, made.runId = [], run
        return Running(made)  # type: ignore[arg-type]

    spark = Endpoint(tmp_path)
    streams = SimpleNamespace(active=[SimpleNamespace(runId=run) for run in ("a", "b")])
    spark.session = lambda: SimpleNamespace(streams=streams)  # type: ignore[attr-defined]
    units = Units(Layout(tmp_path), spark, UnitSettings(), share=True)  # type: ignore[arg-type]
    plan = FIRST.plan()
    works = [Work(spec_of(plan, u.id), query(run)) for u, run in zip(plan.units, ("a", "b", "ended"), strict=False)]
    units._work.update({work.unit.id: work for work in works})
    found = progress_of([(units, work) for work in works])
    assert [u.status for u in found.units] == ["running", "running", "failed"]
    assert asked == ["ended"]
    del spark.session  # type: ignore[attr-defined]
    asked.clear()
    progress_of([(units, work) for work in works])
    assert asked == ["a", "b"], "without an answer each is asked; the ended one is known"


def test_a_query_that_ended_after_its_stop_is_not_asked_for_again() -> None:
    asked: list[str] = []

    class Ended(Query):
        @property
        def isActive(self) -> bool:  # type: ignore[override]  # noqa: N802
            asked.append("isActive")
            return False

        def exception(self) -> str | None:
            asked.append("exception")
            return None

    running = Running(object.__new__(Ended))
    for _ in range(2):  # it may have ended by an error that Spark is about to tell
        assert running.failure("u") is None
    assert asked == ["isActive", "exception"] * 2
    asked.clear()
    running.stopped = True
    for _ in range(3):
        assert running.failure("u") is None
    assert asked == ["isActive", "exception"]


def test_a_query_whose_error_is_told_before_its_end_has_not_settled(tmp_path: Path) -> None:
    """Input that was taken for used up would be late, and lost, once the query starts again."""

    class Failing(Query):
        asked = 0

        @property
        def isActive(self) -> bool:  # type: ignore[override]  # noqa: N802
            self.asked += 1
            return self.asked < 3

        def processAllAvailable(self) -> None:  # noqa: N802 (Spark's name)
            raise RuntimeError("stream failed")

        def exception(self) -> str:
            return "java.io.OptionalDataException"

    units = Units(Layout(tmp_path), Endpoint(tmp_path), UnitSettings(), share=True)  # type: ignore[arg-type]
    plan = FIRST.plan()
    unit = units.enter(spec_of(plan, plan.units[0].id))
    unit.running = Running(object.__new__(Failing))
    with pytest.raises(SparkStumbled):
        units.settle(unit.unit.id)
