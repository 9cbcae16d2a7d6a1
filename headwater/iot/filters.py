"""Filters of readings: value ranges, and devices in a Bloom filter. Spark SQL only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.iot.text import double_text
from headwater.sql.lexer import quote_string, quoted

OnFail = Literal["null", "drop"]
_WORD = 63  # used bits of a bigint
_MOST_BITS = 1 << 18


def range_filter(
    readings: Stream,
    ranges: Mapping[str, tuple[float, float]],
    *,
    on_fail: OnFail = "null",
    name: str = "obs",
    value: str = "value",
) -> Stream:
    """Keep readings within the range of their observation, bounds included.

    Others become NULL (as in RIoTBench, to be interpolated), or are dropped. An observation without range passes.
    """
    if not ranges:
        raise DataflowError(
            "there are no ranges", where="range_filter", hint="give some, for example {'temperature': (-12.5, 43.1)}"
        )
    cases = " ".join(
        f"WHEN {quote_string(observed)} THEN {quoted(value)} BETWEEN {double_text(low)} AND {double_text(high)}"
        for observed, (low, high) in sorted(ranges.items())
    )
    return _filtered(readings, f"coalesce(CASE {quoted(name)} {cases} ELSE true END, true)", on_fail, value)


@dataclass(frozen=True)
class Bloom:
    """A Bloom filter: a set with false positives and without false negatives."""

    bits: int
    hashes: int
    words: tuple[int, ...]

    @classmethod
    def of(cls, members: Iterable[str], *, false_positives: float = 0.01, expected: int = 0) -> Bloom:
        """Return a filter for the members, sized for ``expected`` of them (default: their number)."""
        found = sorted(set(members))
        if not 0 < false_positives < 1:
            raise DataflowError(
                f"false_positives={false_positives}", where="Bloom.of", hint="give a number between 0 and 1"
            )
        count = max(1, expected, len(found))
        bits = max(_WORD, math.ceil(-count * math.log(false_positives) / math.log(2) ** 2))
        if bits > _MOST_BITS:
            raise DataflowError(
                f"a filter for {count} members needs {bits} bits, more than {_MOST_BITS}",
                where="Bloom.of",
                hint="allow more false positives, or join with a stream of the members",
            )
        hashes = max(1, round(bits / count * math.log(2)))
        words = [0] * -(-bits // _WORD)
        for member in found:
            for place in _places(member, bits, hashes):
                words[place // _WORD] |= 1 << (place % _WORD)
        return cls(bits, hashes, tuple(words))

    def __contains__(self, member: str) -> bool:
        return all(
            self.words[place // _WORD] >> (place % _WORD) & 1 for place in _places(member, self.bits, self.hashes)
        )

    def condition(self, column: str) -> str:
        """Return the test as a Spark SQL expression over a text column."""
        first, second = (f"CAST(conv(substring(md5(encode({quoted(column)}, 'UTF-8')), {at}, 8), 16, 10) AS bigint)"
                         for at in (1, 9))  # fmt: skip
        words = f"array({', '.join(f'{word}L' for word in self.words)})"
        place = f"({first} + n * ({second} | 1L)) % {self.bits}L"
        bit = f"bit_get(element_at({words}, CAST(p DIV {_WORD} AS int) + 1), CAST(p % {_WORD} AS int)) = 1"
        places = f"transform(sequence(0L, {self.hashes - 1}L), n -> {place})"
        return f"forall({places}, p -> {bit})"


def bloom_filter(
    readings: Stream, members: Bloom, *, key: str = "id", on_fail: OnFail = "null", value: str = "value"
) -> Stream:
    """Keep readings whose key may be a member; others become NULL, or are dropped."""
    return _filtered(readings, f"coalesce({members.condition(key)}, false)", on_fail, value)


def _filtered(readings: Stream, passes: str, on_fail: OnFail, value: str) -> Stream:
    if on_fail == "drop":
        return readings.where(passes)
    return readings.with_columns(**{value: f"IF({passes}, {quoted(value)}, NULL)"})


def _places(member: str, bits: int, hashes: int) -> list[int]:
    """Return the bits of a member, all from two hashes (Kirsch, Mitzenmacher 2006)."""
    digest = hashlib.md5(member.encode()).hexdigest()
    first, second = int(digest[:8], 16), int(digest[8:16], 16) | 1
    return [(first + n * second) % bits for n in range(hashes)]
