"""Seeded, random-access machine temperatures, shaped like those of a real machine.

Reading ``i`` of a location is a pure function of (model, location, i), without state between readings, so any
range equals the concatenation of its parts, and a restarted source continues exactly at its position. Randomness
is a 64-bit hash of (seed, location, machine, purpose, index). Values are computed only by additions, products,
divisions and clips, all of them exactly rounded, so the bits depend neither on the length of the range nor on
the vector unit of the machine.

The figures are those of NAB's ``machine_temperature_system_failure`` (22,695 readings at 5 minutes, four
labelled windows of 567 readings); the tests hold and compare them.

* load: value noise on five time scales (1 h to 4 days), a small daily and a smaller weekly swing;
* a skewed response to it: +-7 K around 90 degrees, deeper dips at low load, flatter crests;
* measurement noise of 0.7 K;
* one anomaly window in every ``anomaly_every`` readings of a machine, a tenth of the time by default:
  ``shutdown`` (sag, sudden drop to a few degrees, restart), ``overheating`` (above the normal maximum, then
  the failure) and ``degradation`` (a slow decline that ends with the repair).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, get_args

from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

AnomalyKind = Literal["shutdown", "overheating", "degradation"]
ANOMALY_KINDS: tuple[AnomalyKind, ...] = get_args(AnomalyKind)

_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Knot distance (microseconds) and weight of each scale of the load noise, fitted to NAB's variogram.
_SCALES = ((_HOUR, 0.22), (4 * _HOUR, 0.47), (10 * _HOUR, 0.72), (_DAY, 0.48), (4 * _DAY, 0.42))
_LEVEL = 90.3
_GAIN = 6.9
_DIP_GAIN = 12.5
_DIP_FROM = -0.8
_CREST_GAIN = -3.8
_CREST_FROM = 1.2
_DAILY = 0.2
_WEEKLY = 0.15
_NOISE = 0.7
_MACHINE_SPREAD = 0.8
_CHUNK = 32_768
_BELL_SCALE = math.sqrt(3.0) / 65_536.0
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True)
class SensorModel:
    """Parameters of the machines of every location; equal models give equal readings.

    Two readings of one machine are ``interval_s`` seconds apart, to the microsecond. Each location has
    ``machines`` of them. ``start`` is ISO 8601, UTC when it names no offset. ``anomaly_every`` readings of a
    machine hold one anomaly window of ``anomaly_length`` readings; 0 switches anomalies off.
    """

    seed: int = 0
    interval_s: float = 300
    machines: int = 1
    start: str = "2026-01-01T00:00:00Z"
    anomaly_every: int = 5_674
    anomaly_length: int = 567

    def __post_init__(self) -> None:
        where = "SensorModel"
        if self.interval_us < 1:
            raise HeadwaterError(f"interval_s is {self.interval_s}", where=where, hint="give seconds above 0")
        if self.machines < 1:
            raise HeadwaterError(f"machines is {self.machines}", where=where, hint="give at least 1")
        if self.anomaly_every < 0 or (self.anomaly_every and not 1 <= self.anomaly_length <= self.anomaly_every):
            raise HeadwaterError(
                f"anomaly_every is {self.anomaly_every}, anomaly_length {self.anomaly_length}",
                where=where,
                hint="anomaly_every 0 means none; otherwise 1 <= anomaly_length <= anomaly_every",
            )
        try:
            _ = self.start_us
        except ValueError as error:
            raise HeadwaterError(
                f"start is {self.start!r}", where=where, hint="give ISO 8601, e.g. 2026-01-01T00:00:00Z"
            ) from error

    @cached_property
    def start_us(self) -> int:
        """Return the instant of the first reading in microseconds since 1970 UTC."""
        start = datetime.fromisoformat(self.start)
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        return (start - _EPOCH) // timedelta(microseconds=1)

    @property
    def interval_us(self) -> int:
        """Return the time between two readings of one machine in microseconds."""
        return round(self.interval_s * 1_000_000)

    def readings_in(self, days: float) -> int:
        """Return the number of readings of one location in so many days."""
        return int(days * _DAY // self.interval_us) * self.machines


@dataclass(frozen=True, eq=False)
class Readings:
    """Columns of readings [first, last) of one location; all arrays have the same length.

    ``machine_index`` points into ``machines`` (names such as ``L1-m0``), ``ts`` is in microseconds since 1970
    UTC, ``temperature`` in degrees as in NAB's file, ``label`` says whether the reading lies in an anomaly
    window, ``seq`` is the reading's index at its location. Readings of one instant are ordered by machine.
    """

    machines: tuple[str, ...]
    machine_index: Ints
    ts: Ints
    temperature: Floats
    label: NDArray[np.bool_]
    seq: Ints

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True)
class AnomalyWindow:
    """One labelled window of one machine: kind, instants (microseconds UTC) of first and last reading."""

    machine: str
    kind: AnomalyKind
    start: int
    end: int


def readings(model: SensorModel, location: str, *, first: int, last: int) -> Readings:
    """Return readings [first, last) of a location."""
    import numpy as np

    _check_range(first, last)
    machines = model.machines
    seq = np.arange(first, last, dtype=np.int64)
    step = seq // machines
    temperature = np.empty(last - first)
    label = np.empty(last - first, dtype=bool)
    keys = _machine_keys(model, location)
    chunk = max(1, _CHUNK // machines)
    for low in range(first // machines, -(-last // machines), chunk):
        high = min(low + chunk, -(-last // machines))
        values, labels = _grid(model, keys, np.arange(low, high, dtype=np.int64))
        begin, end = max(first, low * machines), min(last, high * machines)
        part = slice(begin - low * machines, end - low * machines)
        temperature[begin - first : end - first] = values.ravel()[part]
        label[begin - first : end - first] = labels.ravel()[part]
    return Readings(
        machines=tuple(f"{location}-m{m}" for m in range(machines)),
        machine_index=seq - step * machines,
        ts=model.start_us + step * model.interval_us,
        temperature=temperature,
        label=label,
        seq=seq,
    )


def anomaly_windows(model: SensorModel, location: str, *, first: int, last: int) -> tuple[AnomalyWindow, ...]:
    """Return the anomaly windows with a reading in [first, last), whole, by start and machine."""
    import numpy as np

    _check_range(first, last)
    if not model.anomaly_every or first == last:
        return ()
    machines = model.machines
    slots = np.arange(first // machines // model.anomaly_every, (last - 1) // machines // model.anomaly_every + 1)
    opens, kinds, _ = _slots(model, _machine_keys(model, location), slots)
    found = []
    for row, machine in np.ndindex(opens.shape):
        start = int(opens[row, machine])
        end = start + model.anomaly_length - 1
        # The window's readings of this machine within the range: index = step * machines + machine.
        low = max(start, -((machine - first) // machines))
        high = min(end, (last - 1 - machine) // machines)
        if low <= high:
            kind = ANOMALY_KINDS[int(kinds[row, machine])]
            at = [model.start_us + step * model.interval_us for step in (start, end)]
            found.append((machine, AnomalyWindow(f"{location}-m{machine}", kind, at[0], at[1])))
    return tuple(window for _, window in sorted(found, key=lambda pair: (pair[1].start, pair[0])))


def stream_key(*parts: object) -> int:
    """Return the 64-bit key of an independent random stream, the same on every machine."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniform(key: int, index: Ints) -> Floats:
    """Return one number in [0, 1) for each index of a random stream."""
    import numpy as np

    return _unit(_hashed(np.array([key], dtype=np.uint64), index)[:, 0])


def _check_range(first: int, last: int) -> None:
    if not 0 <= first <= last:
        raise HeadwaterError(f"readings [{first}, {last}) are not a valid range", hint="give 0 <= first <= last")


def _machine_keys(model: SensorModel, location: str) -> Words:
    import numpy as np

    keys = [stream_key("machine", model.seed, location, m) for m in range(model.machines)]
    return np.array(keys, dtype=np.uint64)


def _hashed(keys: Words, index: Ints, *, purpose: int = 0) -> Words:
    """Hash every (index, key) pair: splitmix64, evaluated at any position. Shape (len(index), len(keys))."""
    import numpy as np

    salt = np.uint64(purpose * 0xD1342543DE82EF95 & _MASK)
    words: Words = index.astype(np.uint64)[:, None] * np.uint64(_GOLDEN) + (keys + salt)[None, :]
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _unit(words: Words) -> Floats:
    """Return numbers in [0, 1): the top 53 bits."""
    import numpy as np

    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _bell(words: Words) -> Floats:
    """Return numbers of mean 0 and variance 1, nearly Gaussian within +-3.5: four 16-bit fields added."""
    import numpy as np

    field = np.uint64(0xFFFF)
    total = words & field
    for shift in (16, 32, 48):
        total += (words >> np.uint64(shift)) & field
    # Mean 2 * 65535; the variance of the sum of four uniform fields of width w is w**2 / 3.
    return (total.astype(np.float64) - 131_070.0) * _BELL_SCALE


def _value_noise(keys: Words, t: Ints, *, spacing: int, purpose: int) -> Floats:
    """Return smooth noise: bell-shaped values at knots, a cubic ease between them."""
    import numpy as np

    knot = t // spacing
    first, last = int(knot[0]), int(knot[-1]) + 1
    if last - first < 2 * len(t):
        table = _bell(_hashed(keys, np.arange(first, last + 1, dtype=np.int64), purpose=purpose))
        left, right = table[knot - first], table[knot - first + 1]
    else:  # readings further apart than the knots
        left = _bell(_hashed(keys, knot, purpose=purpose))
        right = _bell(_hashed(keys, knot + 1, purpose=purpose))
    f = (t - knot * spacing) / spacing
    ease = (f * f * (3.0 - 2.0 * f))[:, None]
    right -= left
    right *= ease
    right += left
    return right


def _wave(t: Ints, *, period: int, crest: int) -> Floats:
    """Return a wave in [-1, 1] made of parabolas (a sine to 6%), with its crest at that instant."""
    import numpy as np

    phase = ((t - crest) % period) / period
    far = np.abs(phase - 0.5) * 2.0  # 1 at the crest, 0 opposite to it
    return np.where(far > 0.5, 1.0 - 4.0 * (1.0 - far) * (1.0 - far), 4.0 * far * far - 1.0)


def _slots(model: SensorModel, keys: Words, slots: Ints) -> tuple[Ints, Ints, Floats]:
    """Return first step, kind and strength in [0, 1) of each slot's window. Shape (slots, machines)."""
    import numpy as np

    room = model.anomaly_every - model.anomaly_length + 1
    place = (_hashed(keys, slots, purpose=101) >> np.uint64(16)) % np.uint64(room)
    # Kinds alternate from a hashed first one, so that every machine shows each of them.
    turn = _hashed(keys, slots[:1] * 0, purpose=102) >> np.uint64(16)
    kinds = (slots[:, None].astype(np.uint64) + turn % np.uint64(3)) % np.uint64(len(ANOMALY_KINDS))
    strength = _unit(_hashed(keys, slots, purpose=103))
    return slots[:, None] * model.anomaly_every + place.astype(np.int64), kinds.astype(np.int64), strength


def _ramp(u: Floats, low: float, high: float) -> Floats:
    import numpy as np

    part: Floats = np.clip((u - low) / (high - low), 0.0, 1.0)
    return part


def _anomaly(kind: AnomalyKind, *, u: Floats, strength: Floats) -> tuple[Floats, Floats]:
    """Return (weight, target): the temperature is drawn towards target by weight; u in (0, 1)."""
    import numpy as np

    match kind:
        case "shutdown":
            weight = 0.5 * _ramp(u, 0.0, 0.45) + 0.5 * _ramp(u, 0.48, 0.5) - _ramp(u, 0.56, 0.62)
            return weight, 2.0 + 14.0 * strength
        case "overheating":
            hot, cold = 103.5 + 5.0 * strength, 46.0 + 10.0 * strength
            weight = _ramp(u, 0.0, 0.2) - _ramp(u, 0.9, 1.0)
            return weight, hot + (cold - hot) * _ramp(u, 0.45, 0.5)
        case "degradation":
            return _ramp(u, 0.0, 0.6) - _ramp(u, 0.97, 0.99), np.asarray(24.0 + 20.0 * strength)


def _grid(model: SensorModel, keys: Words, step: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """Return temperature and label of every machine at consecutive steps. Shape (steps, machines)."""
    import numpy as np

    t = model.start_us + step * model.interval_us
    load = np.empty((len(step), len(keys)))
    load[:] = (_DAILY * _wave(t, period=_DAY, crest=0) + _WEEKLY * _wave(t, period=_WEEK, crest=3 * _DAY + _DAY // 2))[
        :, None
    ]
    for purpose, (spacing, weight) in enumerate(_SCALES, start=1):
        part = _value_noise(keys, t, spacing=spacing, purpose=purpose)
        part *= weight
        load += part
    dip = np.minimum(load - _DIP_FROM, 0.0)
    crest = np.maximum(load - _CREST_FROM, 0.0)
    value = _LEVEL + _GAIN * load + _DIP_GAIN * dip + _CREST_GAIN * crest
    value += _MACHINE_SPREAD * _bell(_hashed(keys, step[:1] * 0, purpose=100))
    label = _disturb(model, keys, step=step, value=value) if model.anomaly_every else np.zeros(value.shape, dtype=bool)
    value += _NOISE * _bell(_hashed(keys, step, purpose=104))
    return value, label


def _disturb(model: SensorModel, keys: Words, *, step: Ints, value: Floats) -> NDArray[np.bool_]:
    """Write the anomalies into value; return the labels."""
    import numpy as np

    slot = step // model.anomaly_every
    opens, kinds, strength = _slots(model, keys, np.arange(slot[0], slot[-1] + 1))
    row = slot - slot[0]
    since = step[:, None] - opens[row]
    label: NDArray[np.bool_] = (since >= 0) & (since < model.anomaly_length)
    where_step, where_machine = np.nonzero(label)
    where_slot = row[where_step]
    for number, kind in enumerate(ANOMALY_KINDS):
        chosen = kinds[where_slot, where_machine] == number
        at = (where_step[chosen], where_machine[chosen])
        if len(at[0]):
            u = (since[at] + 0.5) / model.anomaly_length
            weight, target = _anomaly(kind, u=u, strength=strength[where_slot[chosen], at[1]])
            value[at] += weight * (target - value[at])
    return label
