"""Where the store and this machine's agents are, for all use cases over a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from headwater.control.store import StoreReader
from headwater.control.tables import HOME as HOME
from headwater.control.tables import STORE as STORE
from headwater.control.tables import store_place as store_place


@contextmanager
def existing(place: str | None) -> Iterator[StoreReader]:
    """Give a store that is there, to look at."""
    with closing(StoreReader.open(store_place(place))) as store:
        yield store
