"""Errors of Spark as users see them: one message, and the stack trace in the log."""

from __future__ import annotations

import base64
import resource
import sys
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.loading import load_dataflow
from headwater.channels.kafkaclient import no_broker
from headwater.cli import main
from headwater.connectors.filewriter import FileSinkWriter
from headwater.continuum.model import Continuum
from headwater.core.errors import RuntimeFailure, UserCodeError, WaitsForBroker
from headwater.dataflow.function import raised
from headwater.plan.build import build
from headwater.plan.spec import UnitSpec, spec_of
from headwater.query.failure import cause, failure_of

CONTINUUM = "name: one\nlayers: [cloud]\nzones:\n  C: {layer: cloud, locations: [here], hosts: {c: {n_cpu: 1}}}\n"
FULL = """[PYTHON_RUNTIME_ERROR] Failed to commit: Traceback (most recent call last):
  File "journal.py", line 114, in publish
OSError: [Errno 28] No space left on device: 'out/log'
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.SparkException
\tat org.apache.spark.Query.run(Query.scala:1)"""
UNKNOWN = """[UNRESOLVED_COLUMN] A column with name `nope` cannot be resolved. SQLSTATE: 42703;
'Project ['nope]

JVM stacktrace:
\tat org.apache.spark.Query.run(Query.scala:1)"""
PATTERN = """(STREAM_FAILED) [INVALID_DATETIME_PATTERN] Unrecognized datetime pattern: 'bbb'. SQLSTATE: 22007
== SQL (line 1, position 1) ==
date_format(ts, 'bbb')
^^^^^^^^^^^^^^^^^^^^^^"""
NO_FILES = """[FAILED_READ_FILE.FILE_NOT_EXIST] Error while reading file file:///in/a.csv. File does not exist.

JVM stacktrace:
\tat org.apache.spark.Query.run(Query.scala:1)
Caused by: java.io.FileNotFoundException: /in/a.csv (Too many open files)"""
PLAN = """
=== Streaming Query ===
Identifier: f/result@C [id = 1, runId = 2]
Current Committed Offsets: {FileStreamSource[file:/home/in/here]: {"logOffset":0}}

Logical Plan:
Filter (nope#1 > 5)

JVM stacktrace:
\tat org.apache.spark.Query.run(Query.scala:1)"""
RAISED = "[USER_RAISED_EXCEPTION] 'id > 1' is not true!" + PLAN
CONTEXT = "[DIVIDE_BY_ZERO] Division by zero.\n== SQL (line 1, position 1) ==\ndate_format(`ts`, 'bbb')\n^^^^^^^" + PLAN
GUARDED = (
    "[CAST_INVALID_INPUT] The value cannot be cast.\n== SQL (line 1, position 25) ==\n"
    "if(`__corrupt` IS NULL, `nope` > 5, TRUE)\n                        ^^^^^^^^^^" + PLAN
)
FUNCTION = """Traceback (most recent call last):
headwater.core.errors.UserCodeError: operator 'mine' (map_batches): the function raised KeyError: 'x' at f.py:3 in f
  -> correct the function

\tat org.apache.spark.Query.run(Query.scala:1)"""


@pytest.fixture
def spec() -> UnitSpec:
    flow = hw.flow("f", locations=["here"])
    rows = flow.read.csv("in/{location}", "nope int, ts timestamp").where("nope > 5").named("few")
    rows.select("ts", "date_format(ts, 'bbb') AS x").named("shown").write.json("out").named("result")
    plan = build(flow.build(), Continuum.from_text(CONTINUUM))
    return spec_of(plan, plan.units[0].id)


@pytest.mark.parametrize(
    ("text", "what", "operator", "hint"),
    [
        (
            FULL,
            "the disk is full: No space left on device: 'out/log'",
            "'result' (write_files)",
            "free space on that disk",
        ),
        (UNKNOWN, "[UNRESOLVED_COLUMN] A column with name `nope` cannot be resolved.", "'few' (where)", "correct the"),
        (
            PATTERN,
            "[INVALID_DATETIME_PATTERN] Unrecognized datetime pattern: 'bbb'.",
            "'shown' (select)",
            "correct the",
        ),
        (NO_FILES, "no file descriptor is left: Too many open files", "'files' (files)", "ulimit -n"),
        (FUNCTION, "the function raised KeyError: 'x' at f.py:3 in f", "'mine' (map_batches)", "correct the function"),
        (RAISED, "[USER_RAISED_EXCEPTION] 'id > 1' is not true!", "one of the operators 'few', 'shown'", "continues"),
        (CONTEXT, "[DIVIDE_BY_ZERO] Division by zero.", "'shown' (select)", "continues"),
        (GUARDED, "[CAST_INVALID_INPUT] The value cannot be cast.", "'few' (where)", "continues"),
        (
            "java.lang.Boom: no\n\tat a.b(c)\n",
            "java.lang.Boom: no",
            "one of the operators 'few', 'shown'",
            "continues",
        ),
        (
            "java.io.IOException: gone\n\tat a.b(c)\n",
            "java.io.IOException: gone",
            "one of the operators 'files', 'few', 'shown', 'result'",
            "continues",
        ),
    ],
)
def test_an_error_names_operator_zone_cause_and_log(
    spec: UnitSpec, text: str, what: str, operator: str, hint: str, tmp_path: Path
) -> None:
    log = tmp_path / "spark.log"
    log.write_text("before\n")
    error = failure_of(spec, log, text, spec.id)
    assert error.what == what
    named = operator if operator.startswith("one of") else f"operator {operator}"
    assert error.where == f"{named}, unit {spec.id} in zone C"
    assert error.hint is not None and hint in error.hint and error.hint.endswith(str(log))
    assert len(str(error).splitlines()) == 2, "no stack trace"
    assert text in log.read_text() and log.read_text().startswith("before\n")
    assert isinstance(error, UserCodeError if text == FUNCTION else RuntimeFailure)


def test_a_broker_that_is_away_is_no_operators_fault(spec: UnitSpec, tmp_path: Path) -> None:
    text = f"Traceback (most recent call last):\nheadwater.core.errors.BrokerAway: {no_broker('no broker', where='t')}"
    error = failure_of(spec, tmp_path / "spark.log", f"{text}\n\n\tat org.apache.spark.Query.run", spec.id)
    assert isinstance(error, WaitsForBroker) and error.retryable
    assert (error.what, error.where) == ("t: no broker", f"unit {spec.id} in zone C")


def test_an_error_counts_more_than_its_log(spec: UnitSpec, tmp_path: Path) -> None:
    assert failure_of(spec, tmp_path, FULL, spec.id).what.startswith("the disk is full")


def test_an_exception_names_the_line_of_the_users_file_after_its_transport(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(
        "import headwater as hw\n"
        "def inner(x):\n    return 1 / x\n"
        "def mine(batches):\n    yield inner(0)\n"
        "f = hw.flow('f', locations=['here'])\n"
        "f.read.csv('in', 'id int').map_batches(mine, 'id int').named('m').write.json('out')\n"
    )
    function = load_dataflow(str(file)).dataflow["m"].function  # type: ignore[attr-defined]
    mine = cloudpickle.loads(base64.b64decode(function.pickled))
    with pytest.raises(ZeroDivisionError) as caught:
        list(mine([]))
    assert raised(caught.value) == "ZeroDivisionError: division by zero at flow.py:3 in inner"
    assert raised(caught.value, {"id": 1}).endswith("; row {'id': 1}")
    assert raised(ValueError("long\nJVM stacktrace")) == "ValueError: long"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "run/x"), "No space left on device\n  at run/x\n  -> free space"),
        (KeyError("x"), "KeyError: 'x'\n  -> report this as a defect, with "),
    ],
)
def test_the_command_line_shows_no_stack_trace(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr(sys.modules["headwater.cli.app"], "app", broken)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr().err
    assert ended.value.code == 1 and f"error: {said}" in shown and "Traceback" not in shown
    if isinstance(error, KeyError):
        log = Path(shown.split()[-1])
        assert "in broken" in log.read_text()
        log.unlink()


def test_an_error_of_a_full_disk_names_the_file_of_the_sink(tmp_path: Path) -> None:
    writer = FileSinkWriter({"path": tmp_path / "out", "name": "w", "format": "json", "lineage": "1"}, 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    task = writer.open()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as full:
            task.write(pa.record_batch({"id": list(range(2000))}))
            task.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        task.abandon()
    assert str(tmp_path / "out") in str(full.value)
    said = f"Traceback (most recent call last):\n  File\nOSError: {full.value}\n"
    assert cause(said) == f"the disk is full: {full.value.strerror}: '{full.value.filename}'"
