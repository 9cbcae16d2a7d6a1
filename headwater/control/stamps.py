"""The stamps of a controller's orders: numbered within the term of its lease."""

from __future__ import annotations

import itertools

from headwater.plan.port import Stamp


class Stamps:
    """Numbers the orders of one term."""

    def __init__(self, store: str, term: int) -> None:
        self.store, self.term = store, term
        self._numbers = itertools.count(1)

    def __call__(self) -> Stamp:
        return Stamp(store=self.store, term=self.term, number=next(self._numbers))
