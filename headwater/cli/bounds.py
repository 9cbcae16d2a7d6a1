"""Readers of options with bounds: a value outside of them ends the command with the option's name, and the bounds.

They are for ``typer.Option(parser=...)``. Typer's own ``min`` and ``max`` accept NaN and infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from headwater.core.quantity import parse_duration
from headwater.core.rules import MILLISECOND, Number, Refused, Rule, Size, Span, Whole

_DAY = 86_400.0


def whole(least: int, most: int) -> Callable[[Any], Any]:
    """Return the reader of whole numbers."""
    return _number(Whole(least, most), int, "integer")


def number(least: float, most: float) -> Callable[[Any], Any]:
    """Return the reader of numbers."""
    return _number(Number(least, most), float, "float")


def _number(rule: Rule, of: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            found = of(value) if isinstance(value, str) else value
        except ValueError:
            found = value
        try:
            return rule.check(found, "it")
        except Refused as error:
            raise typer.BadParameter(f"{error.what}: {error.hint}") from None

    read.__name__ = name  # the help shows it
    return read


def text(option: str, rule: Rule) -> Callable[[Any], Any]:
    """Return the reader of a duration or size, which the command parses."""

    def read(value: Any) -> Any:
        try:
            return rule.check(value, option.removeprefix("--"))
        except Refused as error:
            raise Refused(error.what, where=option, hint=error.hint) from error

    read.__name__ = "text"
    return read


CORES = whole(1, 4_096)
"""Threads of one Java process."""
ROWS = whole(1, 100_000)
REPEATS = whole(1, 1_000)
PORT = whole(1, 65_535)
SEED = whole(-(2**63), 2**63 - 1)
DECISION = whole(1, 2**63 - 1)
COUNT = whole(0, 1_000_000)
LOAD = number(0, 1_000_000)
"""Loads in cores, and factors."""
RATE = Number(0, 1e9)
"""Rows per second of a source, as in a dataflow."""
WEIGHT = Number(0, 1e6)
REFRESH = number(0.1, _DAY)
GENERATED = number(0, 7 * _DAY)
"""Seconds in which the demo generates input."""
CONFIDENCE = number(0, 1)
DAYS = number(1, 3_660)
"""Days of a series, which is held in memory."""

_TRIGGER = text("--trigger", Span(least=0, most=_DAY, unit=MILLISECOND))


def trigger(value: Any) -> str:
    """Read the time between two batches, and write it as Spark does: it knows no 1s. 0 is at once."""
    return f"{round(parse_duration(_TRIGGER(value)) * 1000)} milliseconds"


trigger.__name__ = "text"
CANARY = text("--canary", Span(least=MILLISECOND, most=30 * _DAY))
MAX_LATENCY = text("--max-latency", Span())
IDLE = text("--idle", Span(least=0))
SINCE = text("--since", Span(least=0))
MAX_BUFFER = text("--max-buffer", Size(4_096))
"""A channel writes whole segments."""
