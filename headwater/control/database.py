"""A store's database: open it to read or to write, and hold its lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, and_, insert, select, update

from headwater.control import rows
from headwater.control import tables as t
from headwater.control.holder import has_ended
from headwater.control.migrate import bring_up_to_date
from headwater.control.records import Lease
from headwater.control.reserve import reserve
from headwater.core.errors import DeploymentError

CONTROLLER = "controller"
_LEASE = select(t.leases).where(t.leases.c.name == CONTROLLER)
_HOLDER = select(t.leases.c.holder).where(t.leases.c.name == CONTROLLER)
_UPDATE_LEASE = update(t.leases).where(t.leases.c.name == CONTROLLER)


class LeaseLost(DeploymentError):
    """Another controller holds the lease of the store."""


class DatabaseReader:
    """A store opened to read. ``open`` refuses a URL without a store."""

    def __init__(self, store_url: str | Path) -> None:
        self._url = t.url_of(store_url)
        self._engine = t.open_engine(self._url)

    @classmethod
    def open(cls, store_url: str | Path) -> Self:
        """Open an existing store; migrate one of an older version."""
        url = t.url_of(store_url)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
            raise t.NoStore("no store here", where=t.shown(url), hint="`headwater apply` creates one")
        store = cls(store_url)
        with store._reading() as connection:
            older = t.is_older(connection, where=store.where)
        if older:
            with t.writing(store._engine, where=store.where) as connection:
                bring_up_to_date(connection, where=store.where)
        return store

    @property
    def where(self) -> str:
        """The store's URL for messages, without the password."""
        return t.shown(self._url)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with t.reachable(self.where), self._engine.connect() as connection:
            yield connection

    def _all(self, query: Any, **values: Any) -> list[Any]:
        with self._reading() as connection:
            return list(connection.execute(query, values))

    def _one(self, query: Any, **values: Any) -> Any:
        return next(iter(self._all(query, **values)), None)

    @cached_property
    def id(self) -> str:
        """Return the store's unique id, fixed at its creation."""
        return str(self._one(select(t.meta.c.id)).id)

    def lease(self) -> Lease | None:
        """Return the current lease by this process's clock; None where it has expired or was released."""
        row = self._one(_LEASE)
        if row is None or not row.holder or time.time() - row.at > row.seconds:
            return None
        return Lease(holder=row.holder, label=row.label, term=row.term, seconds=row.seconds)


class DatabaseWriter(DatabaseReader):
    """A store opened to write; created where there is none."""

    def __init__(self, store_url: str | Path) -> None:
        super().__init__(store_url)
        self._heartbeat: tuple[tuple[int, int], float] | None = None
        """Term and beat of another holder's lease, and when they were first seen (monotonic seconds)."""
        if self._url.get_backend_name() == "sqlite" and self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        with self._writing() as connection:
            bring_up_to_date(connection, where=self.where)

    def _writing(self) -> AbstractContextManager[Connection]:
        return t.writing(self._engine, where=self.where)

    def hold(self, holder: str, seconds: float, *, label: str | None = None) -> int | None:
        """Take or renew the lease and return its term; None while another holder has it.

        Another holder loses the lease when its process on this machine has ended, or when this object has seen no
        heartbeat for that lease's seconds, by a monotonic clock: clocks of two machines are never compared.
        """
        mine = {"seconds": seconds, "at": time.time()}
        with self._writing() as connection:
            row = connection.execute(_LEASE).first()
            if row is None:
                taken = {"holder": holder, "label": label or holder, "term": 1, "beat": 0, **mine}
                connection.execute(insert(t.leases).values(name=CONTROLLER, **taken))
                return 1
            if row.holder == holder:
                connection.execute(_UPDATE_LEASE, {"beat": row.beat + 1, **mine})
                return int(row.term)
            ended = has_ended(row.holder)
            if row.holder and not ended and not self._is_silent(row):
                return None
            taken = {"holder": holder, "label": label or holder, "term": row.term + 1, "beat": 0, **mine}
            connection.execute(_UPDATE_LEASE, taken)
            if row.holder:
                why = "has ended" if ended else "has ended, or hangs: its lease expired"
                text = f"controller {row.label} {why}; {taken['label']} acts now"
                for name in connection.execute(select(t.units.c.deployment).where(t.units.c.runs).distinct()).scalars():
                    rows.tell_again(connection, name, "controller ", text)
            return int(row.term) + 1

    def _is_silent(self, row: Any) -> bool:
        """Return whether a lease had no heartbeat for its seconds since this object first saw its current beat."""
        beat, now = (row.term, row.beat), time.monotonic()
        if self._heartbeat is None or self._heartbeat[0] != beat:
            self._heartbeat = (beat, now)
        return bool(now - self._heartbeat[1] >= row.seconds)

    def reserve(self) -> None:
        """Reserve space for leases, reports and events on a full disk, where the store is a file."""
        if self._engine.dialect.name == "sqlite" and self._url.database:
            with t.reachable(self.where):
                reserve(self._engine, writes=t.WRITES)

    def release(self, holder: str) -> None:
        """Release the lease, so that the next controller need not wait; its term is not reused."""
        with self._writing() as connection:
            mine = and_(t.leases.c.name == CONTROLLER, t.leases.c.holder == holder)
            connection.execute(update(t.leases).where(mine).values(holder=""))

    @contextmanager
    def _acting(self, holder: str) -> Iterator[Connection]:
        """Open a transaction; raise LeaseLost where ``holder`` does not hold the lease."""
        with self._writing() as connection:
            found = connection.execute(_HOLDER).scalar()
            if found != holder:
                raise LeaseLost(
                    f"{found or 'another controller'} acts on this store now",
                    where=self.where,
                    hint="run one controller per store",
                )
            yield connection
