"""Formats of figures in the dashboard: short, so that small changes are not redrawn."""

from __future__ import annotations

import time

NONE = "–"


def count(value: float | None) -> str:
    """Format a number briefly.

    >>> count(None), count(0.04), count(12), count(1234), count(5_600_000)
    ('–', '0.04', '12', '1.2k', '5.6M')
    """
    if value is None:
        return NONE
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.1f}{unit}" if abs(value) < 100 * scale else f"{value / scale:.0f}{unit}"
    if abs(value) < 1:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:.1f}".removesuffix(".0") if abs(value) < 10 else f"{value:.0f}"


def rate(value: float | None) -> str:
    """Write rows per second.

    >>> rate(1234.0), rate(None)
    ('1.2k/s', '–')
    """
    return NONE if value is None else f"{count(value)}/s"


def size(value: float | None) -> str:
    """Write bytes.

    >>> size(950), size(1_025_000), size(None)
    ('950 B', '1.0 MB', '–')
    """
    if value is None:
        return NONE
    found = count(value)
    return f"{found[:-1]} {found[-1]}B" if found[-1] in "kMG" else f"{found} B"


def speed(value: float | None) -> str:
    """Write bytes per second."""
    return NONE if value is None else f"{size(value)}/s"


def span(seconds: float | None) -> str:
    """Write a time.

    >>> span(0.0123), span(0.5), span(12.34), span(200), span(7300), span(None)
    ('12 ms', '500 ms', '12.3 s', '3 min', '2 h', '–')
    """
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def percent(share: float | None) -> str:
    """Write a share."""
    return NONE if share is None else f"{share * 100:.0f} %"


def ago(at: float | None, now: float | None = None) -> str:
    """Format the age of a moment."""
    if at is None:
        return "never"
    passed = (time.time() if now is None else now) - at
    return "now" if passed < 2 else f"{span(max(0.0, passed))} ago"


def clock(at: float) -> str:
    """Write a moment of the day, with its date where it is not today."""
    there, today = time.localtime(at), time.localtime()
    form = "%H:%M:%S" if there[:3] == today[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(form, there)
