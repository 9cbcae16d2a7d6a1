"""Failures lose no rows: malformed records, exceptions, stops and kills in mid-stream."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.errors import DeploymentError, RuntimeFailure, Unavailable, UserCodeError
from headwater.disk.layout import Layout
from headwater.disk.pace import Pace, read_pace
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build, one_unit
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, STOP, BoundedSource, batch_result, check_equivalent, compare
from tests.conftest import start_endpoint
from tests.deployments.flows import CONTINUUM, FLOWS, LOCATIONS, TWO_EDGES, rows
from tests.patience import PATIENCE

GOOD = 30


@pytest.fixture(scope="module")
def own_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    """Yield a Spark that tests may kill."""
    started = start_endpoint(tmp_path_factory.mktemp("spark"))
    yield started
    started.stop()


@pytest.fixture
def own_endpoint(own_spark: LocalEndpoint) -> LocalEndpoint:
    """Return the module's own Spark; start it again where the test before has killed it."""
    if not own_spark.alive:
        own_spark.restart()
    return own_spark


def malformed_input(directory: Path, sep: str) -> list[str]:
    """Write CSV in which some lines do not fit ``id bigint, ts timestamp, v double``; return these lines."""
    bad = [
        "x,2026-01-01T00:00:00Z,1.0",
        "7,not a time,1.0",
        "8,2026-01-01T00:00:08Z,hot",
        "9,2026-01-01T00:00:09Z",
    ]
    for location in LOCATIONS:
        lines = [f"{i},2026-01-01T00:00:{i:02d}Z,{i}.5" for i in range(GOOD)]
        (directory / location).mkdir(parents=True)
        text = "\n".join([*lines[:10], *bad, *lines[10:]]) + "\n"
        (directory / location / "a.csv").write_text(text.replace(",", sep))
    return [line.replace(",", sep) for line in bad]


def doubled(batches):  # type: ignore[no-untyped-def]
    """Double v; leave it null in a malformed record."""
    for batch in batches:
        assert batch.num_rows and not batch["v"].null_count
        yield batch.set_column(2, "v", pc.multiply(batch["v"], 2.0))


def none_above_twenty(batches):  # type: ignore[no-untyped-def]
    """Yield no batch at all where no row is left."""
    for batch in batches:
        left = batch.filter(pc.less(batch["v"], 20.0))
        if left.num_rows:
            yield left


@pytest.mark.parametrize(
    "behind",
    [
        "functions",
        "state",
        *(pytest.param(b, marks=pytest.mark.long) for b in ("one scan", "a function that gives nothing")),
    ],
)
def test_malformed_records_become_dead_letters(behind: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    sep = ";" if behind == "state" else ","
    bad = malformed_input(tmp_path / "in", sep)
    builder = hw.flow("bad", locations=LOCATIONS)
    stream = builder.read.csv(
        str(tmp_path / "in/{location}"), "id bigint, ts timestamp, v double", location_as="at", sep=sep
    )
    stream = stream.with_watermark("ts", "5 seconds").where("v >= 0")
    if behind == "state":
        stream = stream.drop_duplicates("at", "id")
    elif behind != "one scan":
        schema = "id bigint, at string, v double"
        stream = stream.select("id", "at", "v").map_batches(doubled, schema).named("doubled")
        stream = stream.where("v < 0" if "nothing" in behind else "v < 40").named("kept")
        stream = stream.map_batches(none_above_twenty, schema).named("low")
    # v is not read: a record is malformed whether or not the query uses the field that is.
    stream.select("id", "at").to_layer("cloud").write.memory("out")
    flow = builder.build()
    continuum = Continuum.from_text(TWO_EDGES)
    deployment = LocalRun(build(flow, continuum), tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    deployment.start()
    try:
        deployment.drain()
        table = deployment.sink_rows("out")
        letters = list(deployment.dead_letters())
        progress = deployment.progress()
    finally:
        deployment.stop()
    of_each = {"functions": 10, "a function that gives nothing": 0}.get(behind, GOOD)
    assert table.num_rows == of_each * len(LOCATIONS)
    assert not compare(batch_result(endpoint.session(), flow, continuum)["out"], table)
    assert sorted(x["record"] for x in letters) == sorted(bad * len(LOCATIONS))
    assert all(x["reason"] and x["operator"] == "files" and x["source"].endswith("a.csv") for x in letters)
    assert {x["line"] for x in letters} == {11, 12, 13, 14}
    reasons = {x["record"].split(sep)[0]: x["reason"] for x in letters}
    assert all(column in reasons[first] for first, column in (("x", "id"), ("7", "ts"), ("8", "v"))), reasons
    assert sum(u.dead_letters for u in progress.units) == len(letters)
    if behind == "functions":
        given = Counter[str]()
        for seen in (o for u in progress.units for o in u.operators):
            assert seen.rows_out is not None
            given[seen.operator] += seen.rows_out
        assert [given[x] for x in ("doubled", "kept", "low")] == [n * len(LOCATIONS) for n in (GOOD, 20, 10)]


def status_of(deployment: LocalRun) -> dict[str, str]:
    return {u.unit: u.status for u in deployment.progress().units}


def test_an_exception_stops_its_unit_only(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(30, seed=3))
    source.release_all()
    others_finished = str(tmp_path / "others finished")

    def fussy(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            for row in batch.to_pylist():
                if row["id"] == 12:
                    for _ in range(2400):
                        if os.path.exists(others_finished):
                            break
                        time.sleep(0.05)
                    raise ValueError("twelve is too many")
            yield batch

    builder = hw.flow("fussy", locations=LOCATIONS)
    stream = builder.read.json(source.path, "id bigint, v double").named("in")
    stream.to_layer("site").map_batches(fussy, "id bigint, v double").named("fuss").write.memory("out")
    plan = build(builder.build(), Continuum.from_text(CONTINUUM))
    deployment = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    deployment.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            draining = pool.submit(deployment.drain)
            edge = [f"in@{zone}" for zone in ("E1", "E2", "E4")]
            deadline = time.monotonic() + PATIENCE
            while {status_of(deployment)[unit] for unit in edge} != {"finished"} and not draining.done():
                assert time.monotonic() < deadline, "the units at the edge do not finish"
                time.sleep(0.1)
            Path(others_finished).touch()
            with pytest.raises(UserCodeError, match=r"(?s)fuss.*twelve is too many.*'id': 12"):
                draining.result()
        status = status_of(deployment)
    finally:
        deployment.stop()
    failed = {unit for unit, state in status.items() if state == "failed"}
    assert failed == {"out@S1"}, "L1's row 12 is in S1; nothing else may stop"
    assert all(status[unit] == "finished" for unit in edge)


def test_an_error_of_spark_is_one_message(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": 1}\n')
    (tmp_path / "file").write_text("")
    continuum = Continuum.from_text("name: one\nlayers: [cloud]\nzones:\n  C1: {layer: cloud, locations: [L1]}\n")

    def run(name: str, sink: str, column: str = "id") -> LocalRun:
        builder = hw.flow(name, locations=["L1"])
        rows = builder.read.json(str(tmp_path / "in"), "id bigint")
        if column != "id":
            rows = rows.transform(lambda df: df.selectExpr(column), "id bigint").named("looked_for")
        rows.write.json(str(tmp_path / sink)).named("out")
        return LocalRun(build(builder.build(), continuum), tmp_path / name, endpoint)

    log = endpoint.directory / "spark.log"
    with pytest.raises(DeploymentError, match="UNRESOLVED_COLUMN") as early:
        run("a", "out", "nope").start()
    with pytest.raises(DeploymentError, match="NotADirectoryError") as refused:
        run("b", "file/out").start()
    late = run("c", "out", "if(assert_true(id > 1) IS NULL, id, 0) AS id")
    late.start()
    try:
        with pytest.raises(RuntimeFailure, match="USER_RAISED") as failed:
            late.drain()
    finally:
        late.stop()
    for error, operator in (
        (early, "'looked_for' (transform)"),
        (refused, "'out'"),
        (failed, "'looked_for' (transform)"),
    ):
        message = str(error.value)
        assert operator in message and "in zone C1" in message and str(log) in message
        assert len(message.splitlines()) == 2, "no stack trace"
    assert "at org.apache.spark" in log.read_text() and "unit out@C1 failed\n" in log.read_text()


def test_a_finished_deployment_is_not_resumed(
    endpoint: LocalEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths start at the user's directory, not at that of Spark's processes
    source = BoundedSource(Path("in"), rows(10, seed=3))
    source.release_all()
    builder = hw.flow("short", locations=LOCATIONS)
    builder.read.json(source.path, "id bigint").write.parquet("out")
    flow, continuum = builder.build(), Continuum.from_text(CONTINUUM)
    plan = build(flow, continuum)
    first = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    first.start()
    first.drain()
    first.stop()
    assert sum(pq.read_table(f).num_rows for f in Path("out").glob("[!.]*.parquet")) == 30
    with pytest.raises(DeploymentError, match="finished"):
        LocalRun(plan, tmp_path / "run", endpoint).start()
    with pytest.raises(DeploymentError, match="finished"):
        LocalRun(build(flow, continuum, one_unit(flow, continuum)), tmp_path / "run", endpoint).start()


def test_a_unit_whose_input_has_ended_waits_for_no_interval(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(10, seed=3))
    source.release_all()
    builder = hw.flow("hasty", locations=LOCATIONS)
    builder.read.json(source.path, "id bigint").select("id").to_layer("cloud").write.memory("out")
    plan = build(builder.build(), Continuum.from_text(CONTINUUM))
    deployment = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    deployment.start()
    try:
        (reader,) = (unit for unit in plan.units if plan.inputs(unit))
        file = Layout(tmp_path / "run").pace(reader)
        before = read_pace(file)
        deployment.drain()
        assert before == Pace(seconds=0.2, on_arrival=True)
        assert read_pace(file) == replace(before, finishing=True)
        assert deployment.sink_rows("out").num_rows == 30
    finally:
        deployment.stop()


@pytest.mark.long
def test_a_unit_over_which_spark_stumbles_is_started_again(
    own_endpoint: LocalEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launcher, stumble = own_endpoint.directory / "python", tmp_path / "stumble"
    lines = launcher.read_text().splitlines()
    once = f'case "$*" in *python_streaming_source_runner*) rm "{stumble}" 2>/dev/null && exit 1;; esac'
    launcher.write_text("\n".join([lines[0], once, *lines[1:], ""]))
    source = BoundedSource(tmp_path / "in", rows(10, seed=3))
    source.release_all()
    builder = hw.flow("stumbles", locations=LOCATIONS)
    builder.read.json(source.path, "id bigint, v double").to_layer("cloud").write.memory("out")
    flow, continuum = builder.build(), Continuum.from_text(TWO_EDGES)
    deployment = LocalRun(build(flow, continuum), tmp_path / "run", own_endpoint)
    stumble.touch()
    try:
        deployment.start()
        deployment.drain()
        table = deployment.sink_rows("out")
    finally:
        deployment.stop()
        launcher.write_text("\n".join([*lines, ""]))
    assert not stumble.exists()
    assert "worker to connect back; started again" in caplog.text
    assert not compare(batch_result(own_endpoint.session(), flow, continuum)["out"], table)


def disturbed(count: int, *events: object) -> dict[str, list[object]]:
    """Insert the events evenly between the rows of the first location."""
    found: dict[str, list[object]] = {k: list(v) for k, v in rows(count, seed=11).items()}
    first = found[LOCATIONS[0]]
    for n, event in enumerate(events):
        first.insert((n + 1) * len(first) // (len(events) + 1), event)
    return found


@pytest.mark.long
def test_stopped_and_resumed_in_mid_stream(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", disturbed(60, PAUSE, STOP), rows_per_file=10)  # type: ignore[arg-type]
    flow = FLOWS["acme"](source.path).build()
    outcome = check_equivalent(flow, Continuum.from_text(TWO_EDGES), endpoint, tmp_path / "run", source=source)
    assert all(outcome.rows.values())


@pytest.mark.long
def test_killed_in_mid_stream(own_endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", disturbed(60, PAUSE, KILL), rows_per_file=10)  # type: ignore[arg-type]
    flow = FLOWS["acme"](source.path).build()
    outcome = check_equivalent(flow, Continuum.from_text(TWO_EDGES), own_endpoint, tmp_path / "run", source=source)
    assert all(outcome.rows.values())


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_spark_that_ends_is_missed(own_endpoint: LocalEndpoint, tmp_path: Path, resumed: bool) -> None:
    source = BoundedSource(tmp_path / "in", rows(20, seed=3))
    source.release_all()
    builder = hw.flow("bereft", locations=LOCATIONS)
    builder.read.json(source.path, "id bigint").to_layer("cloud").write.memory("out")
    plan = build(builder.build(), Continuum.from_text(TWO_EDGES))
    deployment = LocalRun(plan, tmp_path / "run", own_endpoint, UnitSettings(trigger="200 milliseconds"))
    deployment.start()
    os.killpg(own_endpoint.pid, signal.SIGKILL)
    for ask in (deployment.drain, deployment.settle, deployment.progress):
        with pytest.raises(Unavailable, match="Spark has ended"):
            ask()
    deployment.stop()
    if not resumed:
        return
    own_endpoint.restart()
    for log in (tmp_path / "run" / "checkpoints").glob("*/offsets"):
        (log / ".0.1234.tmp").touch()  # the state after a kill in the middle of its writing
    again = LocalRun(plan, tmp_path / "run", own_endpoint, UnitSettings(trigger="200 milliseconds"))
    again.start()
    again.drain()
    assert again.sink_rows("out").num_rows == 60
    again.stop()


@pytest.mark.long
@pytest.mark.parametrize("name", ["stateless", "keyed", "joined", "flowunits", "patterns"])
def test_killed_again_and_again(name: str, own_endpoint: LocalEndpoint, tmp_path: Path) -> None:
    events = (KILL, PAUSE, KILL, STOP, KILL)
    source = BoundedSource(tmp_path / "in", disturbed(120, *events), rows_per_file=10)  # type: ignore[arg-type]
    flow = FLOWS[name](source.path).build()
    check_equivalent(flow, Continuum.from_text(CONTINUUM), own_endpoint, tmp_path / "run", source=source)


@pytest.mark.long
def test_a_unit_goes_on_after_a_long_silence(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """By then Spark has ended the unit's Python workers, and the zygote their daemons."""

    def same(batches):  # type: ignore[no-untyped-def]
        yield from batches

    source = BoundedSource(tmp_path / "in", disturbed(40, PAUSE), rows_per_file=10)  # type: ignore[arg-type]
    builder = hw.flow("silent", locations=LOCATIONS)
    stream = builder.read.json(source.path, "id bigint").map_batches(same, "id bigint")
    stream.to_layer("cloud").write.memory("out")
    plan = build(builder.build(), Continuum.from_text(CONTINUUM))
    deployment = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    deployment.start()
    try:
        for event in source.release():
            if event is PAUSE:
                deployment.settle()
                before = _daemons(endpoint)
                time.sleep(200)
                assert _daemons(endpoint) < before
        deployment.drain()
        assert deployment.sink_rows("out").num_rows == 120
    finally:
        deployment.stop()


def _daemons(endpoint: LocalEndpoint) -> int:
    """Count the daemon stand-ins that the zygote serves."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            command = file.read_bytes().split(b"\0")
            found += str(endpoint.directory).encode() in command and b"pyspark.daemon" in command
    return found
