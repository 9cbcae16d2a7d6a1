"""Formats of figures in tables; ``-`` stands for an unknown value."""

from __future__ import annotations

from headwater.core.quantity import format_duration, format_size

UNKNOWN = "-"


def rate(value: float | None) -> str:
    """Format a rate, or another number of any size.

    >>> rate(1234.5), rate(0.123), rate(None)
    ('1,234', '0.12', '-')
    """
    return UNKNOWN if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def duration(seconds: float | None, unknown: str = UNKNOWN) -> str:
    """Format a time in seconds."""
    return unknown if seconds is None else format_duration(seconds)


def size(value: float | None) -> str:
    """Format a number of bytes."""
    return UNKNOWN if value is None else format_size(round(value))
