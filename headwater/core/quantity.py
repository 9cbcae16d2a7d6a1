"""Read and write sizes, bandwidths and durations.

Sizes are bytes (int, 64 bits), bandwidths bits per second (float, at most
1000000Tbit/s), durations seconds (float, at most 1000 years). Units are never
guessed: ``2g`` and ``10Mbps`` mean different things to different tools, so they
are refused with the spelling to use instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal

from headwater.core.errors import HeadwaterError
from headwater.core.text import shown

# A longer number, binary or decimal, is a mistake or an attack.
_LONGEST = 400
MOST_BYTES = 2**63 - 1
MOST_BITS_PER_S = 1e18
MOST_SECONDS = 1000 * 365.25 * 86_400
"""Bounds of all quantities. Spark's times are microseconds in 64 bits, and its timestamps end in the year 9999."""
_MOST_HEAP = 16 * 2**20  # MiB
_BOUND_OF = {
    "size": (MOST_BYTES, "8191PiB"),
    "bandwidth": (MOST_BITS_PER_S, "1000000Tbit/s"),
    "duration": (MOST_SECONDS, "365250 days, a thousand years"),
    "interval": (MOST_SECONDS, "1000 years"),
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([^\s0-9.].*?)?\s*", re.DOTALL)

_SIZES: Mapping[str, Decimal] = {"B": Decimal(1)} | {
    prefix + suffix: Decimal(base) ** power
    for suffix, base in (("iB", 1024), ("B", 1000))
    for power, prefix in enumerate(("K" if suffix == "iB" else "k", "M", "G", "T", "P"), start=1)
}
_SIZE_SPELLINGS = {unit.lower(): scale for unit, scale in _SIZES.items()}
# A small b, alone or after a large prefix, usually means bits.
_LOOKS_LIKE_BITS = re.compile(r"[KMGTP]?b")

_PREFIXES: Mapping[str, int] = {
    "": 1,
    **{p: 1000**i for i, p in enumerate("kmgt", start=1)},
    **{p + "i": 1024**i for i, p in enumerate("kmgt", start=1)},
}
_BIT_RATE = re.compile(r"([kmgt]i?|)bit(?:/s)?", re.IGNORECASE)
_BYTE_RATE = re.compile(r"([kKMGT]i?|)B/s")

_DURATIONS: Mapping[str, Decimal] = {
    spelling: Decimal(scale)
    for spellings, scale in (
        ("ns nanosecond nanoseconds", "1e-9"),
        ("us µs μs microsecond microseconds", "1e-6"),
        ("ms millisecond milliseconds", "1e-3"),
        ("s sec second seconds", "1"),
        ("min minute minutes", "60"),
        ("h hour hours", "3600"),
        ("d day days", "86400"),
        ("week weeks", "604800"),
    )
    for spelling in spellings.split()
}

_MONTHS: Mapping[str, int] = {"month": 1, "months": 1, "mon": 1, "mons": 1, "year": 12, "years": 12}
_INTERVAL_PART = re.compile(r"\s*([+-]?)\s*([0-9.]+\s*([^\s0-9.+-]+))\s*")


class QuantityError(HeadwaterError, ValueError):
    """A text that is not a size, bandwidth or duration."""

    exit_code = 3


def parse_size(text: str) -> int:
    """Return the bytes that `text` stands for, rounded to a whole byte.

    >>> parse_size("16GiB"), parse_size("512 MB")
    (17179869184, 512000000)
    """
    hint = "sizes are written 16GiB (1024-based) or 16GB (1000-based)"
    number, unit = _split(text, kind="size", hint=hint)
    scale = None if _LOOKS_LIKE_BITS.fullmatch(unit) else _SIZE_SPELLINGS.get(unit.lower())
    if scale is None:
        raise _unit_error(text, unit, kind="size", hint=hint)
    # Integer arithmetic: a Decimal product would round beyond 28 digits.
    numerator, denominator = number.as_integer_ratio()
    return int(_bounded(_round_half_up(numerator * int(scale), denominator), text, kind="size"))


def parse_heap(text: str) -> int:
    """Return the MiB of a heap, written as Spark does (1g, 512m) or as any size.

    >>> parse_heap("2g"), parse_heap("512m"), parse_heap("1GiB")
    (2048, 512, 1024)
    """
    short = re.fullmatch(r"([0-9]{1,19})([gGmM])", text)
    found = parse_size(f"{short[1]}{short[2].upper()}iB" if short else text) // 2**20
    if not 1 <= found <= _MOST_HEAP:
        size = "less than 1MiB" if found < 1 else "more than 16TiB, the largest of Java's"
        raise QuantityError(f"a heap of {shown(text)} is {size}", hint="write 1g, or 512m")
    return found


def parse_bandwidth(text: str) -> float:
    """Return the bits per second that `text` stands for.

    >>> parse_bandwidth("10Mbit/s"), parse_bandwidth("125MB/s"), parse_bandwidth("10mbit")
    (10000000.0, 1000000000.0, 10000000.0)
    """
    hint = "bandwidths are written 10Mbit/s (bits) or 10MB/s (bytes)"
    number, unit = _split(text, kind="bandwidth", hint=hint)
    if found := _BIT_RATE.fullmatch(unit):
        bits = 1
    elif found := _BYTE_RATE.fullmatch(unit):
        bits = 8
    else:
        raise _unit_error(text, unit, kind="bandwidth", hint=hint)
    return float(_bounded(number * bits * _PREFIXES[found[1].lower()], text, kind="bandwidth"))


def parse_duration(text: str) -> float:
    """Return the seconds that `text` stands for.

    >>> parse_duration("10ms"), parse_duration("1.5 s"), parse_duration("2 min")
    (0.01, 1.5, 120.0)
    """
    hint = "durations are written 10ms, 1.5s, 2min or 1h"
    number, unit = _split(text, kind="duration", hint=hint)
    scale = _DURATIONS.get(unit.lower())
    if scale is None:
        raise _unit_error(text, unit, kind="duration", hint=hint)
    return float(_bounded(number * scale, text, kind="duration"))


def parse_interval(text: str) -> tuple[int, float]:
    """Return the months and the seconds of an interval as in Spark SQL: each number has its own sign.

    >>> parse_interval("-1 year"), parse_interval("INTERVAL 1 hour 30 minutes"), parse_interval("1 week -1 day")
    ((-12, 0.0), (0, 5400.0), (0, 518400.0))
    """
    rest = text.strip()
    rest = rest[len("interval") :] if rest.lower().startswith("interval ") else rest
    months, seconds, at = 0, 0.0, 0
    while at == 0 or at < len(rest):
        part = _INTERVAL_PART.match(rest, at)
        if part is None or len(text) > _LONGEST:
            raise QuantityError(f"{shown(text)} is not an interval", hint="write 30 seconds, 1 hour 30 minutes, 1 year")
        sign, at = -1 if part[1] == "-" else 1, part.end()
        unit = part[3].lower()
        if unit in _MONTHS:
            count = _split(part[2], kind="interval", hint="write 1 year, or 18 months")[0] * _MONTHS[unit]
            if count != int(count):
                raise QuantityError(f"{shown(text)} has a part of a month", hint="write whole months, or days")
            months += sign * int(count)
        else:
            seconds += sign * parse_duration(part[2])
    _bounded(abs(months) * MOST_SECONDS / 12_000 + abs(seconds), text, kind="interval")
    return months, seconds


def format_size(size: float, *, exact: bool = False) -> str:
    """Return bytes as text, with three digits unless `exact`.

    >>> format_size(17179869184), format_size(16_000_000_000), format_size(123456789)
    ('16GiB', '16GB', '118MiB')
    """
    if size < 0:
        return "-" + format_size(-size, exact=exact)
    if not math.isfinite(size):
        return "unlimited"
    if size == int(size):
        whole = int(size)
        fitting = [f"{whole // int(s)}{u}" for u, s in _SIZES.items() if whole % int(s) == 0]
        shortest = min(fitting, key=lambda t: (sum(c.isdigit() for c in t), len(t)))
        if exact or sum(c.isdigit() for c in shortest) <= 4:
            return shortest if whole else "0B"
    return _three_digits(size, [(float(s), u) for u, s in _SIZES.items() if u == "B" or "i" in u])


def format_bandwidth(bandwidth: float | None, *, exact: bool = False) -> str:
    """Return bits per second as text, with three digits unless `exact`; None is unlimited.

    >>> format_bandwidth(1e7), format_bandwidth(1234567.0), format_bandwidth(None)
    ('10Mbit/s', '1.23Mbit/s', 'unlimited')
    """
    if bandwidth is None or math.isinf(bandwidth):
        return "unlimited"
    shown = _three_digits(bandwidth, [(1000.0**i, f"{p}bit/s") for i, p in enumerate(["", *"kMGT"])])
    return _exactly(bandwidth, shown, parse_bandwidth, unit="bit/s") if exact else shown


def format_duration(duration: float, *, exact: bool = False) -> str:
    """Return seconds as text, with three digits unless `exact`.

    >>> format_duration(0.02), format_duration(90), format_duration(5400)
    ('20ms', '90s', '90min')
    """
    if math.isinf(duration):
        return "unlimited" if duration > 0 else "-unlimited"
    if duration == 0:
        return "0s"
    # Two units before the next larger one: 90s reads better than 1.5min.
    steps = [(1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s")]
    longer = [(60.0, "min"), (3600.0, "h"), (86400.0, "d")]
    reached = [step for step in longer if abs(duration) >= 2 * step[0]]
    shown = _three_digits(duration, reached[-1:] or steps)
    return _exactly(duration, shown, parse_duration, unit="s") if exact else shown


def _round_half_up(numerator: int, denominator: int) -> int:
    """Divide two positive whole numbers, rounding halves up."""
    return (2 * numerator + denominator) // (2 * denominator)


def _split(text: str, *, kind: str, hint: str) -> tuple[Decimal, str]:
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise QuantityError(f"{shown(text)} is not a {kind}", hint=hint)
    if found[2] is None:
        raise QuantityError(f"{kind} {shown(text)} has no unit", hint=hint)
    return Decimal(found[1]), found[2]


def _unit_error(text: str, unit: str, *, kind: str, hint: str) -> QuantityError:
    return QuantityError(f"{shown(text)} is not a {kind}: unknown unit {shown(unit)}", hint=hint)


def _bounded(number: Decimal | float, text: str, *, kind: str) -> Decimal | float:
    most, words = _BOUND_OF[kind]
    if number > most:
        raise QuantityError(f"{kind} {shown(text)} is too large", hint=f"write at most {words}")
    return number


def _three_digits(value: float, steps: list[tuple[float, str]]) -> str:
    chosen, digits = 0, ""
    for chosen, (scale, _) in enumerate(steps):
        number = value / scale
        digits = f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"
        # Rounding may reach the next unit: 999.9996ms becomes 1s.
        if chosen + 1 == len(steps) or abs(float(digits)) < steps[chosen + 1][0] / scale * (1 - 1e-9):
            break
    return f"{Decimal(digits):f}{steps[chosen][1]}"


def _exactly(value: float, shown: str, parse: Callable[[str], float], *, unit: str) -> str:
    try:
        if parse(shown) == value:
            return shown
    except QuantityError:
        pass  # The largest float, rounded to three digits, overflows.
    return f"{Decimal(repr(float(value))):f}{unit}"
