"""A store's database: opened to look at or to write to, and the lease of the one who acts on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, and_, delete, insert, select, update

from headwater.control import tables as t
from headwater.control.records import Lease
from headwater.errors import DeploymentError

CONTROLLER = "controller"


class LeaseLost(DeploymentError):
    """Another controller acts on the store."""


class Reader:
    """A store to look at. Made by ``open``, which refuses a place where there is none."""

    def __init__(self, place: str | Path) -> None:
        self._url = t.url_of(place)
        self._engine = t.open_engine(self._url)

    @classmethod
    def open(cls, place: str | Path) -> Self:
        """Open a store that is there; one of an older version gets the tables it lacks."""
        url = t.url_of(place)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
            raise t.NoStore("no store here", where=t.shown(url), hint="`headwater apply` makes one")
        store = cls(place)
        with store._reading() as connection:
            older = t.is_older(connection, where=store.where)
        if older:
            with t.writing(store._engine, where=store.where) as connection:
                t.create_tables(connection, where=store.where)
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

    def lease(self) -> Lease | None:
        """Give who acts on the store now."""
        row = self._one(select(t.leases).where(t.leases.c.name == CONTROLLER))
        return None if row is None or row.until < time.time() else Lease(holder=row.holder, until=row.until)


class Writer(Reader):
    """A store to write to; made where there is none."""

    def __init__(self, place: str | Path) -> None:
        super().__init__(place)
        if self._url.get_backend_name() == "sqlite" and self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        with self._writing() as connection:
            t.create_tables(connection, where=self.where)

    def _writing(self) -> AbstractContextManager[Connection]:
        return t.writing(self._engine, where=self.where)

    def hold(self, holder: str, seconds: float) -> bool:
        """Take or renew the lease; False while another holds it."""
        now = time.time()
        with self._writing() as connection:
            query = select(t.leases).where(t.leases.c.name == CONTROLLER)
            row = connection.execute(query).first()
            if row is None:
                connection.execute(
                    insert(t.leases).values(name=CONTROLLER, holder=holder, until=now + seconds)
                )
                return True
            if row.holder != holder and row.until > now:
                return False
            connection.execute(
                update(t.leases)
                .where(t.leases.c.name == CONTROLLER)
                .values(holder=holder, until=now + seconds)
            )
        return True

    def release(self, holder: str) -> None:
        """Give the lease back, so that the next controller need not wait."""
        with self._writing() as connection:
            mine = and_(t.leases.c.name == CONTROLLER, t.leases.c.holder == holder)
            connection.execute(delete(t.leases).where(mine))

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
