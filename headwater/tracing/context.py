"""Trace contexts: their text by W3C Trace Context, ids derived from names, and the choice of samples.

Derived ids are the same in each process that derives them from the same names: a repeated batch, and a controller that
takes over a change, add to the trace that exists.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_TEXT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_SAMPLED = 56  # bits of the trace id that choose samples: the last ones, as W3C Trace Context level 2 has random


@dataclass(frozen=True)
class TraceContext:
    """A span of a sampled trace: ``trace`` has 32 hexadecimal digits, ``span`` 16."""

    trace: str
    span: str

    @classmethod
    def parse(cls, text: object) -> TraceContext | None:
        """Read a ``traceparent``; None where it is none.

        >>> TraceContext.parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").span
        'b7ad6b7169203331'
        """
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        return cls(found[1], found[2]) if found and int(found[1], 16) and int(found[2], 16) else None

    @classmethod
    def derived(cls, *names: object) -> TraceContext:
        """Return the first span of a trace; both ids are derived from names.

        >>> TraceContext.derived("store", 7) == TraceContext.derived("store", 7) != TraceContext.derived("store", 8)
        True
        """
        digits = _digits("trace", *names, size=24)
        return cls(digits[:32], digits[32:])

    def child(self, *names: object) -> TraceContext:
        """Return another span of this trace; its id is derived from this span and from names."""
        return TraceContext(self.trace, _digits("span", self.trace, self.span, *names, size=8))

    @property
    def text(self) -> str:
        """The value of the header ``traceparent``."""
        return f"00-{self.trace}-{self.span}-01"

    def is_sampled(self, share: float) -> bool:
        """Return whether the trace is one of this share of all traces (0 to 1); each process chooses the same."""
        return int(self.trace, 16) % (1 << _SAMPLED) < share * (1 << _SAMPLED)


def _digits(*names: object, size: int) -> str:
    return hashlib.blake2b("\0".join(map(str, names)).encode(), digest_size=size).hexdigest()
