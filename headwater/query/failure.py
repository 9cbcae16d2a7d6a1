"""Errors of Spark in the user's terms: operator, zone, the cause in one line, the next step.

Spark's full text, with its stack traces, goes to the log that the error names.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from headwater.core.errors import HeadwaterError, RuntimeFailure, SparkStumbled, UserCodeError, WaitsForBroker
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.plan.spec import UnitSpec
from headwater.query.kafkafailure import kafka_failure
from headwater.sql.parser import parse_generated
from headwater.sql.printer import printed

_LONGEST = 400  # characters of a cause
_SHOWN = 5  # names of operators
# Errors that a retry cures: a busy machine starts a Python worker too slowly; a race in Spark's own
# serialization of a task.
_STUMBLES = (
    "Python worker failed to connect back",
    "java.io.OptionalDataException",
)
_OURS = re.compile(r"headwater\.core\.errors\.(\w+): (?P<text>.*?)(?:\n\n|\nThe above|\nSQLSTATE|\Z)", re.DOTALL)
_OPERATOR = re.compile(r"(operator '[^']*'[^:]*): (.*)", re.DOTALL)
_NO_SPACE = re.compile(r"(?:No space left on device|Disk quota exceeded|File too large)(?:: '[^']+')?")
_NO_FILES = "Too many open files"
_SYSTEM = re.compile(r"\[Errno \d+\]")
_PYTHON = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)
_CAUSED_BY = re.compile(r"^Caused by: ([\w.$]+)(?:: (.+))?$", re.MULTILINE)
_WRAPPING = re.compile(r"^\(STREAM_FAILED\) |^\[STREAM_FAILED\].*?terminated with exception: | ?SQLSTATE: \w+;?$")
_EXPRESSION = re.compile(r"== SQL[^\n]*==\n([^\n]+)")
_GUARDED = re.compile(r"^if\(`[^`]+` IS NULL, (.+), (?:TRUE|NULL)\)$")
"""An expression that is computed for well-formed records only; see ``corrupt``."""
# Spark appends the query's sources and plan to each error: they name every operator, at fault or not.
_PLAN = re.compile(r"\n=== Streaming Query ===\n.*?(?=\nJVM stacktrace|\n\tat |\Z)", re.DOTALL)
_IN_FILES = re.compile(r"\[(FAILED_READ_FILE|CANNOT_READ|PATH_)|FileNotFound|IOException|parquet", re.IGNORECASE)
_NAMES = re.compile(r"`([^`\n]+)`")
_OF_ERRORS: Mapping[str, type[RuntimeFailure]] = {"UserCodeError": UserCodeError, "BrokerAway": WaitsForBroker}
"""Classes of a unit's error by that of the error in its query."""
_GOES_ON = "the unit continues from its last batch"
_HINTS = (
    (_NO_SPACE, f"free space on that disk; {_GOES_ON}"),
    (re.compile(_NO_FILES), f"raise the limit of the agent and its Spark (ulimit -n, LimitNOFILE); {_GOES_ON}"),
    (re.compile(r"Permission|Not a directory|Read-only|Is a directory", re.I), f"make the path writable; {_GOES_ON}"),
    (re.compile(r"No such file|FileNotFound|PATH_NOT_FOUND|does not exist", re.I), f"restore the path; {_GOES_ON}"),
    (re.compile(r"OutOfMemoryError"), f"give Spark more memory with --memory; {_GOES_ON}"),
    (re.compile(r"\[(UNRESOLVED|DATATYPE_MISMATCH|PARSE|INVALID)[A-Z_.]*\]"), "correct the expression"),
)


def cause(text: str) -> str:
    """Return the cause of an error in one line, of a text that may hold stack traces.

    >>> cause("[X] no column `a`. SQLSTATE: 42703;\\n'Project ['a]\\n\\nJVM stacktrace:\\nat org.apache")
    '[X] no column `a`.'
    >>> cause("(STREAM_FAILED) [Y] failed: Traceback (most recent call last):\\n  File 'a'\\nOSError: [Errno 5] I/O")
    'OSError: [Errno 5] I/O'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = lines[0] if lines else "it ended without a message"
    while (bare := _WRAPPING.sub("", found)) != found:
        found = bare
    full = _NO_SPACE.search(text)
    raised = list(_PYTHON.finditer(text.partition("\nJVM stacktrace")[0])) if "Traceback (most recent" in text else []
    below = list(_CAUSED_BY.finditer(text))
    if full is not None:
        found = f"the disk is full: {full[0]}"
    elif _NO_FILES in text:  # Spark says that the file does not exist
        found = f"no file descriptor is left: {_NO_FILES}"
    elif raised:
        found = raised[-1][0]
    elif below and below[-1][2] and not found.startswith("["):
        found = f"{below[-1][1].rpartition('.')[2]}: {below[-1][2]}"
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]} …"


def translated(text: str, unit: str) -> RuntimeFailure:
    """Extract Headwater's own error from Spark's stack trace, or the cause in one line."""
    ours = list(_OURS.finditer(text))
    if ours:
        story = ours[-1]["text"].strip()
        what, _, hint = story.partition("\n  -> ")
        cls = _OF_ERRORS.get(ours[-1][1], RuntimeFailure)
        named = _OPERATOR.fullmatch(what.strip())
        where = f"{named[1]}, unit {unit}" if named else f"unit {unit}"
        what = named[2] if named else what.strip()
        return cls(what, where=where, hint=hint.strip().splitlines()[0] if hint.strip() else None)
    if (of_kafka := kafka_failure(text, where=f"unit {unit}")) is not None:
        return of_kafka
    kind = SparkStumbled if any(s in text for s in _STUMBLES) else RuntimeFailure
    found = cause(text)
    hint = next((hint for pattern, hint in _HINTS if pattern.search(found)), f"correct the cause; {_GOES_ON}")
    return kind(found, where=f"unit {unit}", hint=hint)


def failure_of(spec: UnitSpec, log: Path, text: str, unit: str) -> RuntimeFailure:
    """Explain an error of a unit's query, and append its full text to a log."""
    _append(log, f"unit {unit} failed", text)
    error = translated(text, unit)
    if not str(error.where).startswith("operator") and not isinstance(error, WaitsForBroker):
        error.where = f"{_blamed(spec, text, error.what)}, {error.where}"
    return in_zone(spec, log, error)


def in_zone(spec: UnitSpec, log: Path, error: RuntimeFailure) -> RuntimeFailure:
    """Name the zone of a unit's error, and the log."""
    hint = f"{error.hint}; all messages of Spark: {log}" if error.hint else f"read {log}"
    return type(error)(error.what, where=f"{error.where} in zone {spec.unit.zone}", hint=hint)


def _append(log: Path, what: str, text: str) -> None:
    """Append to the log; on a full disk the error counts more than its log."""
    at = time.strftime("%y/%m/%d %H:%M:%S", time.gmtime())
    with contextlib.suppress(OSError), log.open("a") as file:
        file.write(f"{at} ERROR headwater: {what}\n{text.rstrip()}\n")


def _blamed(spec: UnitSpec, text: str, what: str) -> str:
    """Name the operator whose expression or path an error quotes; else those that may have failed."""
    operators = [spec.flow[id_] for id_ in spec.unit.operators]
    computing = [o for o in operators if not isinstance(o, Source)]
    text = _PLAN.sub("", text)
    expressions, names = [_GUARDED.sub(r"\1", e) for e in _EXPRESSION.findall(text)], _NAMES.findall(what)
    quoting = [
        [o for o in computing if any(q.strip() in t for q in found for t in _texts(o))]
        for found in (expressions, names)
    ]
    paths = [[o for o in operators if (path := _path(o)) and path in said] for said in (what, text)]
    inner = [o for o in operators if not isinstance(o, Source | Sink)]
    if _SYSTEM.search(text) or _IN_FILES.search(text):
        inner = []
    found = next((one for one in (*quoting, *paths, inner) if len(one) == 1), None)
    if found is None:
        # An expression that several operators compute; an error of computation; any error.
        found = next(one for one in (quoting[0], inner, operators) if one)
    if len(found) == 1:
        return found[0].where
    shown = [f"'{o.id}'" for o in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"one of the operators {', '.join(shown)}{more}"


def _path(operator: Operator) -> str:
    """Return the fixed part of an operator's path."""
    return str(getattr(operator, "path", "")).partition("{location}")[0]


def _texts(operator: Operator) -> list[str]:
    """Return all texts in an operator's settings, such as its SQL expressions, and these as Spark is given them."""
    found: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, tuple):
            for item in value:
                collect(item)

    for field in fields(operator):
        if field.name not in ("id", "inputs"):
            collect(getattr(operator, field.name))
    return [*found, *filter(None, map(_as_spark_has_it, found))]


def _as_spark_has_it(text: str) -> str | None:
    """Return the text that Spark is given for an expression; None for other texts."""
    try:
        return printed(parse_generated(text))
    except (HeadwaterError, RecursionError):
        return None
