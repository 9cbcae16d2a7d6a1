"""States of scans as JSON text, which also holds the values of rows that JSON lacks."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

_UTC = ZoneInfo("UTC")


def _time(text: str) -> datetime:
    """Read a time; those of rows are in UTC, with Arrow's time zone."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is None else time.astimezone(_UTC)


_FORMS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "__timestamp": (datetime, datetime.isoformat, _time),  # before date, which it extends
    "__date": (date, date.isoformat, date.fromisoformat),
    "__decimal": (Decimal, str, Decimal),
    "__binary": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
}


def state_text(state: Any) -> str:
    """Write a state as text; raise TypeError or ValueError for values that it cannot hold."""
    return json.dumps(state, default=_marked)


def state_value(text: str) -> Any:
    """Read a state from its text."""
    return json.loads(text, object_hook=_plain)


def _marked(value: Any) -> dict[str, str]:
    for mark, (type_, write, _) in _FORMS.items():
        if isinstance(value, type_):
            return {mark: write(value)}
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _plain(value: dict[str, Any]) -> Any:
    if len(value) == 1:
        ((mark, text),) = value.items()
        if mark in _FORMS and isinstance(text, str):
            return _FORMS[mark][2](text)
    return value
