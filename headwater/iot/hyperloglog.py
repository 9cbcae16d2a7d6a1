"""Registers of HyperLogLog, and the number of distinct values that they tell of.

Registers after Flajolet, Fusy, Gandouet, Meunier, *HyperLogLog: the analysis of a near-optimal cardinality estimation
algorithm* (2007), over 64-bit hashes as in Heule, Nunkesser, Hall, *HyperLogLog in practice* (2013): no correction for
large numbers is needed. The estimate is that of Ertl, *New cardinality estimation algorithms for HyperLogLog sketches*
(2017), algorithm 6. The former two switch from linear counting to the mean of the registers at 2.5 m, where both are
biased (by 2 % for m = 1024; 2013 needs tables of measured biases); Ertl's passes from one to the other without a step
and without tables.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter

_HASH_BITS = 64


def observe(registers: bytearray, value: str) -> None:
    """Record a value in 2^k registers: each holds the highest rank, the position of the first 1 of a hash."""
    hashed = int.from_bytes(hashlib.sha1(value.encode()).digest()[:8])
    bits = len(registers).bit_length() - 1
    place, rest = hashed & (len(registers) - 1), hashed >> bits
    registers[place] = max(registers[place], (_HASH_BITS - bits) - rest.bit_length() + 1)


def estimate(registers: bytes | bytearray) -> float:
    """Return the estimated number of distinct values: relative standard error 1.04 / sqrt(m) at most, for m >= 128."""
    m = len(registers)
    highest = _HASH_BITS - (m.bit_length() - 1)
    counts = Counter(registers)
    total = m * _tau(1 - counts[highest + 1] / m)
    for rank in range(highest, 0, -1):
        total = (total + counts[rank]) / 2
    total += m * _sigma(counts[0] / m)
    return m * m / (2 * math.log(2) * total)


def _sigma(x: float) -> float:
    """Return x + sum of 2^(k-1) x^(2^k): the part of registers that are still 0."""
    if x == 1:
        return math.inf
    found, factor, before = x, 1.0, -1.0
    while found != before:
        x *= x
        before = found
        found += x * factor
        factor *= 2
    return found


def _tau(x: float) -> float:
    """Return (1 - x - sum of (1 - x^(2^-k))^2 2^-k) / 3: the part of registers at the highest rank."""
    if x in (0.0, 1.0):
        return 0.0
    found, factor, before = 1 - x, 1.0, -1.0
    while found != before:
        x = math.sqrt(x)
        before = found
        factor /= 2
        found -= (1 - x) ** 2 * factor
    return found / 3
