"""When to decide: duration of an alarm, time since the last change, recovery by itself. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import linear_regression

from headwater.adapt.decide import GAIN, Alarm
from headwater.adapt.slo import SLO

_HOLD: Mapping[str, float] = {"expected": 2.0, "headroom": 15.0, GAIN: 15.0}
"""Seconds that an alarm has to last; 1 for a broken limit."""
_BROKEN = 1.0
GROWN = 1.5
"""Factor by which rates must grow after a change to count as a new situation."""
_MORE = 1.2
"""Factor by which rates must grow, after a search without result, to search again."""
_RISING = 1.1
"""Factor by which rates must rise since the last sample to wait for the end of the rise."""
_PATIENCE = 4.0
"""Maximum seconds of that wait."""
_MENDING = 0.93
"""Ratio of latency to that of some samples before, below which it counts as recovering."""
_LOOKS = 3
_TREND = 12.0
"""Seconds in which latency has to rise to count as a trend."""
_AGAIN = 15.0
"""Seconds until the next search after a search without result."""
_TOLD = 120.0
"""Seconds until the same lack of a better option is reported again."""


@dataclass
class Timing:
    """Memory of one deployment between samples. Times are seconds since 1970."""

    _since: dict[str, float] = field(default_factory=dict)
    _nothing: dict[str, tuple[float, float]] = field(default_factory=dict)
    """For each limit the time of the last search without result, and the rate then."""
    _told: dict[str, float] = field(default_factory=dict)
    _rate: float | None = None
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LOOKS + 1))
    _trend: deque[tuple[float, float]] = field(default_factory=deque)
    _rising: float | None = None
    _ended: float = 0.0
    _rate_then: float = 0.0

    def ripe(
        self,
        slo: SLO,
        found: Sequence[Alarm],
        *,
        now: float,
        ended: float,
        rate: float,
        latency: float,
    ) -> Alarm | None:
        """Return the alarm to act on now, the most severe kind first; if there is none, ``GAIN``.

        ``ended``: when the last change ended. ``rate``: all rows/s. ``latency``: the measured one.
        """
        rising = self._seen(now, ended, rate, latency)
        gain = Alarm(GAIN, f"another placement costs at least {slo.gain:.0%} less")
        there = [*found, *([] if found else [gain])]
        names = {a.trigger for a in there}
        self._since = {name: at for name, at in self._since.items() if name in names}
        fresh = now - ended < slo.settle and rate <= GROWN * self._rate_then
        ripe = None
        for alarm in there:
            since = self._since.setdefault(alarm.trigger, now)
            kind = "expected" if alarm.expected else alarm.trigger
            lasts = now - since >= _HOLD.get(kind, _BROKEN) and not fresh and not rising
            if ripe is None and lasts and self._is_due(alarm, slo, now, ended):
                ripe = alarm
        return ripe

    def _is_due(self, alarm: Alarm, slo: SLO, now: float, ended: float) -> bool:
        if alarm.trigger == "max_latency" and self._mends():
            return False
        if alarm.trigger == GAIN and now - ended < slo.cool_down:
            return False
        last, rate = self._nothing.get(alarm.limit, (-math.inf, 0.0))
        grown = alarm.trigger != GAIN and (self._rate or 0.0) > rate * _MORE
        return grown or now - last >= (slo.cool_down if alarm.trigger == GAIN else _AGAIN)

    def _seen(self, now: float, ended: float, rate: float, latency: float) -> bool:
        """Record a sample; return whether rates are rising, so that a decision would be premature."""
        if ended != self._ended:
            self._ended, self._rate_then = ended, rate
        before, self._rate = rate if self._rate is None else self._rate, rate
        self._latencies.append(latency)
        if rate <= before * _RISING:
            self._rising = None
            return False
        self._rising = self._rising or now
        return now - self._rising < _PATIENCE

    def _mends(self) -> bool:
        """Return whether latency falls by itself, because the backlog shrinks."""
        return len(self._latencies) > _LOOKS and self._latencies[-1] < _MENDING * self._latencies[0]

    def rising(self, now: float, p95: float | None) -> float:
        """Record a latency; return its growth per second if it has grown steadily and recently, else 0."""
        if p95 is not None:
            self._trend.append((now, p95))
        while self._trend and self._trend[0][0] < now - _TREND:
            self._trend.popleft()
        parts = (list(self._trend), [one for one in self._trend if one[0] >= now - _TREND / 2])
        if any(len(part) < 3 for part in parts) or now - self._trend[0][0] < _TREND * 0.7:
            return 0.0
        return max(0.0, min(linear_regression(*zip(*part, strict=True)).slope for part in parts))

    def nothing(self, alarm: Alarm, now: float) -> bool:
        """Record that no option is better; return whether to report it."""
        self._nothing[alarm.limit] = now, self._rate or 0.0
        if alarm.trigger == GAIN or now - self._told.get(alarm.limit, -_TOLD) < _TOLD:
            return False
        self._told[alarm.limit] = now
        return True

    def disturbed(self) -> None:
        """Reset the durations of alarms after a decision or during a change."""
        self._since.clear()
        self._latencies.clear()
        self._trend.clear()
