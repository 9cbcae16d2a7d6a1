"""Which readings may pass: value ranges, and devices in a Bloom filter. All of it is Spark SQL."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.iot.text import double_text
from headwater.sql.lexer import quote_string

OnFail = Literal["null", "drop"]
_WORD = 63  # bits of a bigint that are used
_MOST_BITS = 1 << 18


def range_filter(
    readings: Stream,
    ranges: Mapping[str, tuple[float, float]],
    *,
    on_fail: OnFail = "null",
    name: str = "obs",
    value: str = "value",
) -> Stream:
    """Let readings pass that lie in the range of what they observe, its ends included.

    Others become NULL (as in RIoTBench, to be interpolated), or are dropped. What has no range passes.
    """
    if not ranges:
        raise DataflowError("no ranges are given", where="range_filter", hint="{'temperature': (-12.5, 43.1)}")
    cases = " ".join(
        f"WHEN {quote_string(observed)} THEN `{value}` BETWEEN {double_text(low)} AND {double_text(high)}"
        for observed, (low, high) in sorted(ranges.items())
    )
    return _filtered(readings, f"coalesce(CASE `{name}` {cases} ELSE true END, true)", on_fail, value)


@dataclass(frozen=True)
class Bloom:
    """A set that may take a stranger for a member, never a member for a stranger."""

    bits: int
    hashes: int
    words: tuple[int, ...]

    @classmethod
    def of(cls, members: Iterable[str], *, false_positives: float = 0.01, expected: int = 0) -> Bloom:
        """Make a filter for so many members (``expected``, or those given), with so many false positives."""
        found = sorted(set(members))
        if not 0 < false_positives < 1:
            raise DataflowError(f"false_positives={false_positives}", where="Bloom.of", hint="between 0 and 1")
        count = max(1, expected, len(found))
        bits = max(_WORD, math.ceil(-count * math.log(false_positives) / math.log(2) ** 2))
        if bits > _MOST_BITS:
            raise DataflowError(
                f"a filter for {count} members takes {bits} bits, {_MOST_BITS} at most",
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
        """Give the test as a Spark SQL expression over a column of text."""
        first, second = (f"CAST(conv(substring(md5(encode(`{column}`, 'UTF-8')), {at}, 8), 16, 10) AS bigint)"
                         for at in (1, 9))  # fmt: skip
        words = f"array({', '.join(f'{word}L' for word in self.words)})"
        place = f"({first} + n * ({second} | 1L)) % {self.bits}L"
        bit = f"bit_get(element_at({words}, CAST(p DIV {_WORD} AS int) + 1), CAST(p % {_WORD} AS int)) = 1"
        places = f"transform(sequence(0L, {self.hashes - 1}L), n -> {place})"
        return f"forall({places}, p -> {bit})"


def bloom_filter(
    readings: Stream, members: Bloom, *, key: str = "id", on_fail: OnFail = "null", value: str = "value"
) -> Stream:
    """Let readings pass whose key may be a member; others become NULL, or are dropped."""
    return _filtered(readings, f"coalesce({members.condition(key)}, false)", on_fail, value)


def _filtered(readings: Stream, passes: str, on_fail: OnFail, value: str) -> Stream:
    if on_fail == "drop":
        return readings.where(passes)
    return readings.with_columns(**{value: f"IF({passes}, `{value}`, NULL)"})


def _places(member: str, bits: int, hashes: int) -> list[int]:
    """Give the bits of a member: two hashes make all (Kirsch, Mitzenmacher 2006)."""
    digest = hashlib.md5(member.encode()).hexdigest()
    first, second = int(digest[:8], 16), int(digest[8:16], 16) | 1
    return [(first + n * second) % bits for n in range(hashes)]
