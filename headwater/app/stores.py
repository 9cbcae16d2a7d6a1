"""Locations of the store and of this machine's agents, for all use cases over a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from headwater.control.store import StoreReader
from headwater.control.tables import resolved_url


@contextmanager
def existing(store_url: str | None) -> Iterator[StoreReader]:
    """Open an existing store to read."""
    with closing(StoreReader.open(resolved_url(store_url))) as store:
        yield store
