"""A store's database: opened to look at or to write to, and the lease of the one who acts on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, and_, insert, select, update

from headwater.control import tables as t
from headwater.control.migrate import bring_up_to_date
from headwater.control.records import Lease
from headwater.core.errors import DeploymentError

CONTROLLER = "controller"


class LeaseLost(DeploymentError):
    """Another controller acts on the store."""


class DatabaseReader:
    """A store to look at. Made by ``open``, which refuses a place where there is none."""

    def __init__(self, store_url: str | Path) -> None:
        self._url = t.url_of(store_url)
        self._engine = t.open_engine(self._url)

    @classmethod
    def open(cls, store_url: str | Path) -> Self:
        """Open a store that is there; one of an older version gets the tables it lacks."""
        url = t.url_of(store_url)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
            raise t.NoStore("no store here", where=t.shown(url), hint="`headwater apply` makes one")
        store = cls(store_url)
        with store._reading() as connection:
            older = t.is_older(connection, where=store.where)
        if older:
            with t.writing(store._engine, where=store.where) as connection:
                bring_up_to_date(connection, where=store.where)
        return store

    @property
    def where(self) -> str:
        """The store as messages name it, without a password."""
        return t.shown(self._url)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with t.reachable(self.where), self._engine.connect() as connection:
            yield connection

    def _all(self, query: Any) -> list[Any]:
        with self._reading() as connection:
            return list(connection.execute(query))

    def _one(self, query: Any) -> Any:
        return next(iter(self._all(query)), None)

    @cached_property
    def id(self) -> str:
        """Name the store; each has a name of its own from the moment it is made."""
        return str(self._one(select(t.meta.c.id)).id)

    def lease(self) -> Lease | None:
        """Give who acts on the store now, as far as the clock of who asks can tell."""
        row = self._one(select(t.leases).where(t.leases.c.name == CONTROLLER))
        if row is None or not row.holder or time.time() - row.at > row.seconds:
            return None
        return Lease(holder=row.holder, label=row.label, term=row.term, seconds=row.seconds)


class DatabaseWriter(DatabaseReader):
    """A store to write to; made where there is none."""

    def __init__(self, store_url: str | Path) -> None:
        super().__init__(store_url)
        self._heartbeat: tuple[tuple[int, int], float] | None = None
        """The heartbeat of another's lease that was seen last, and when it was seen first."""
        if self._url.get_backend_name() == "sqlite" and self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        with self._writing() as connection:
            bring_up_to_date(connection, where=self.where)

    def _writing(self) -> AbstractContextManager[Connection]:
        return t.writing(self._engine, where=self.where)

    def hold(self, holder: str, seconds: float, *, label: str | None = None) -> int | None:
        """Take or renew the lease and give its term; None while another holds it.

        Another one loses it when this store object has seen no heartbeat for that one's seconds, by a clock
        that only goes forward: no clock is compared with that of another machine.
        """
        mine = {"seconds": seconds, "at": time.time()}
        with self._writing() as connection:
            row = connection.execute(select(t.leases).where(t.leases.c.name == CONTROLLER)).first()
            own = t.leases.c.name == CONTROLLER
            if row is None:
                taken = {"holder": holder, "label": label or holder, "term": 1, "beat": 0, **mine}
                connection.execute(insert(t.leases).values(name=CONTROLLER, **taken))
                return 1
            if row.holder == holder:
                connection.execute(update(t.leases).where(own).values(beat=row.beat + 1, **mine))
                return int(row.term)
            if row.holder and not self._is_silent(row):
                return None
            taken = {"holder": holder, "label": label or holder, "term": row.term + 1, "beat": 0, **mine}
            connection.execute(update(t.leases).where(own).values(**taken))
            return int(row.term) + 1

    def _is_silent(self, row: Any) -> bool:
        """Tell whether a lease has had no heartbeat for its seconds, since it was first seen as it is."""
        beat, now = (row.term, row.beat), time.monotonic()
        if self._heartbeat is None or self._heartbeat[0] != beat:
            self._heartbeat = (beat, now)
        return bool(now - self._heartbeat[1] >= row.seconds)

    def release(self, holder: str) -> None:
        """Give the lease back, so that the next controller need not wait; its term stays used."""
        with self._writing() as connection:
            mine = and_(t.leases.c.name == CONTROLLER, t.leases.c.holder == holder)
            connection.execute(update(t.leases).where(mine).values(holder=""))

    @contextmanager
    def _acting(self, holder: str) -> Iterator[Connection]:
        """A transaction of the controller that holds the lease."""
        with self._writing() as connection:
            query = select(t.leases.c.holder).where(t.leases.c.name == CONTROLLER)
            found = connection.execute(query).scalar()
            if found != holder:
                raise LeaseLost(
                    f"{found or 'another controller'} acts on this store now",
                    where=self.where,
                    hint="run one controller per store",
                )
            yield connection
