"""The PostgreSQL sink writer: every batch is one transaction, which also records the batch's number.

The table ``headwater_batches`` beside the sink's table has a row for each sink writer: its newest epoch and batch. The
transaction locks this row first. So a batch that Spark repeats after a crash is found there and left out, a writer of
an older epoch is refused, and of two processes with one id the second waits for the first.

With keys, a row replaces the row of the same keys. ``order_by`` decides between two rows of a key, in one batch or in
several: the one that is greater in these columns stays, NULL being the least; of equal ones, and without ``order_by``,
the one that came last. With columns that no two rows of a key share the content of the table depends neither on
batches nor on the units that write. Rows are written in the order of their keys: two units do not wait for each other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.channels.segments import Segment
from headwater.connectors.staged import StagedSinkWriter
from headwater.connectors.tablefiles import TRIES, forestalled, out_of_date, wait_for_turn
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable
from headwater.dataflow.tablesinks import PostgresSink, postgres_type
from headwater.disk.credentials import read_secret

if TYPE_CHECKING:
    from headwater.dataflow.types import StreamType

BATCHES = "headwater_batches"
_SECONDS = 30
_MINE = "WHERE writer = %s AND target = %s"
_NO_FILE = f"{os.devnull}/none"
"""A file that does not exist: passwords in files of the agent's are not for dataflows."""
_STAGED, _NUMBER = "headwater_rows", "headwater_row"


@dataclass(frozen=True, kw_only=True)
class PostgresTable:
    """A table and its columns, with PostgreSQL's types, and how the database is reached; secrets are named."""

    url: str
    table: str
    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    user_env: str | None = None
    password_env: str | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> PostgresTable:
        """Read the JSON form; other entries are left alone."""
        return cls(
            url=str(data["url"]),
            table=str(data["table"]),
            columns=tuple((str(name), str(type_)) for name, type_ in data["columns"]),
            keys=tuple(data.get("keys") or ()),
            order_by=tuple(data.get("order_by") or ()),
            user_env=data.get("user_env"),
            password_env=data.get("password_env"),
        )

    @property
    def name(self) -> str:
        """The table's name for SQL."""
        return ".".join(map(quoted, self.table.split(".")))

    @property
    def batches(self) -> str:
        """The name for SQL of the table with the numbers of batches, in the schema of this one."""
        return ".".join(map(quoted, [*self.table.split(".")[:-1], BATCHES]))

    @property
    def where(self) -> str:
        return f"table {self.table} of {self.url}"

    def statements(self) -> Iterator[str]:
        """Yield the statements that write the staged rows."""
        names = [quoted(name) for name, _ in self.columns]
        every = ", ".join(names)
        if not self.keys:
            yield f"INSERT INTO {self.name} ({every}) SELECT {every} FROM {_STAGED} ORDER BY {_NUMBER}"
            return
        keys = ", ".join(map(quoted, self.keys))
        newest = [f"{quoted(name)} DESC NULLS LAST" for name in self.order_by]
        order = ", ".join([keys, *newest, f"{_NUMBER} DESC"])
        changed = [name for name in names if name not in map(quoted, self.keys)]
        then = "NOTHING"
        if changed:
            sets = ", ".join(f"{name} = excluded.{name}" for name in changed)
            then = f"UPDATE SET {sets}" + (f" WHERE {_not_older(self.order_by)}" if self.order_by else "")
        yield (
            f"INSERT INTO {self.name} AS old ({every}) SELECT DISTINCT ON ({keys}) {every} FROM {_STAGED} "
            f"ORDER BY {order} ON CONFLICT ({keys}) DO {then}"
        )


def _not_older(columns: Sequence[str]) -> str:
    """Return the condition that the new row is not less than the old one in these columns; NULL is the least."""
    name = quoted(columns[0])
    more = _not_older(columns[1:]) if len(columns) > 1 else "true"
    new, old = f"excluded.{name}", f"old.{name}"
    greater = f"({old} IS NULL AND {new} IS NOT NULL) OR coalesce({new} > {old}, false)"
    return f"({greater} OR ({new} IS NOT DISTINCT FROM {old} AND {more}))"


def quoted(name: str) -> str:
    """Quote a name for PostgreSQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


class PostgresSinkWriter(StagedSinkWriter):
    """Write to a table: ``url``, ``table``, ``columns``, ``keys``, ``order_by``, ``id`` (of this sink writer alone)."""

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        super().__init__(spec)
        self._epoch = epoch
        self._id = str(spec["id"])
        self._table = PostgresTable.from_data(spec)
        self._where = f"operator {spec.get('operator', 'postgres')!r}, {self._table.where}"

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Write a batch unless the database has it."""
        import psycopg

        files = [p for p in segments if p.file]
        if not files:
            return
        again = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
        for turn in range(TRIES):
            try:
                with connected(self._table, self._where) as connection, connection.transaction():
                    _make(connection, self._table)
                    if not self._has(connection, batch):
                        self._write(connection, files)
                        connection.execute(
                            f"UPDATE {self._table.batches} SET epoch = %s, batch = %s {_MINE}",
                            (self._epoch, batch, self._id, self._table.table),
                        )
                self.abort(files)
                return
            except _Race:
                wait_for_turn(turn)
            except again as error:
                if turn + 1 == TRIES:
                    raise _failed(error, self._where) from error
                wait_for_turn(turn)
            except psycopg.Error as error:
                raise _failed(error, self._where) from error
        raise forestalled(where=self._where)

    def newest(self) -> int | None:
        """Return the newest batch in the database."""
        import psycopg

        try:
            with connected(self._table, self._where) as connection:
                if not _there(connection, self._table.batches):
                    return None
                text = f"SELECT batch FROM {self._table.batches} {_MINE}"
                row = connection.execute(text, (self._id, self._table.table)).fetchone()
        except psycopg.Error as error:
            raise _failed(error, self._where) from error
        return int(row[0]) if row is not None and row[0] >= 0 else None

    def _has(self, connection: Any, batch: int) -> bool:
        """Lock the row of this writer; return whether the batch is written. Raise ChannelError for a newer writer."""
        numbers, mine = self._table.batches, (self._id, self._table.table)
        connection.execute(
            f"INSERT INTO {numbers} (writer, target, epoch, batch) VALUES (%s, %s, %s, -1) ON CONFLICT DO NOTHING",
            (*mine, self._epoch),
        )
        text = f"SELECT epoch, batch FROM {numbers} {_MINE} FOR UPDATE"
        epoch, last = connection.execute(text, mine).fetchone()
        if epoch > self._epoch:
            raise out_of_date(self._epoch, int(epoch), where=self._where)
        if last >= batch and epoch < self._epoch:  # a process of the older epoch that is left may not go on
            connection.execute(f"UPDATE {numbers} SET epoch = %s {_MINE}", (self._epoch, *mine))
        return bool(last >= batch)

    def _write(self, connection: Any, files: Sequence[Segment]) -> None:
        names = [name for name, _ in self._table.columns]
        every = ", ".join(map(quoted, names))
        connection.execute(
            f"CREATE TEMPORARY TABLE {_STAGED} ON COMMIT DROP AS "
            f"SELECT {every}, 0::bigint AS {_NUMBER} FROM {self._table.name} LIMIT 0"
        )
        number = 0
        with connection.cursor().copy(f"COPY {_STAGED} ({every}, {_NUMBER}) FROM STDIN") as copy:
            for rows in self.batches(files):
                at = {name.lower(): n for n, name in enumerate(rows.schema.names)}
                columns = [rows.column(at[name.lower()]).to_pylist() for name in names]
                for row in zip(*columns, strict=True):
                    copy.write_row((*row, number))
                    number += 1
        for statement in self._table.statements():
            connection.execute(statement)


class _Race(Exception):
    """Another session has made a table at the same moment."""


def _make(connection: Any, table: PostgresTable) -> None:
    """Make the tables that are missing."""
    import psycopg

    key = f", PRIMARY KEY ({', '.join(map(quoted, table.keys))})" if table.keys else ""
    columns = ", ".join(f"{quoted(name)} {type_}" for name, type_ in table.columns)
    made = {
        table.name: f"({columns}{key})",
        table.batches: "(writer text, target text, epoch bigint NOT NULL, batch bigint NOT NULL, "
        "PRIMARY KEY (writer, target))",
    }
    try:
        for name, body in made.items():
            if not _there(connection, name):
                connection.execute(f"CREATE TABLE {name} {body}")
    except (psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation) as error:
        raise _Race from error


def _there(connection: Any, name: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()
    return found is not None and found[0] is not None


@contextlib.contextmanager
def connected(table: PostgresTable, where: str) -> Iterator[Any]:
    """Have a connection; raise Unavailable where the database does not answer, without its password."""
    try:
        import psycopg
    except ImportError as error:
        raise Unavailable(
            f"the package psycopg is missing: {error}",
            where=where,
            hint="pip install 'headwater[postgres]' where the unit runs",
        ) from None
    user, password = (read_secret(name, where=where) for name in (table.user_env, table.password_env))
    try:
        connection = psycopg.connect(
            table.url.removeprefix("jdbc:"),
            user=user,
            password=password,
            passfile=_NO_FILE,
            connect_timeout=_SECONDS,
        )
    except psycopg.Error as error:
        raise Unavailable(
            f"the database does not answer: {_line(error)}",
            where=where,
            hint="check its address, user and password; the batch is written again when the unit starts again",
        ) from error
    with contextlib.closing(connection):
        connection.autocommit = True
        yield connection


def _failed(error: Exception, where: str) -> HeadwaterError:
    return RuntimeFailure(
        f"the table was not written: {_line(error)}",
        where=where,
        hint="the batch is written again when the unit starts again; check that the table has the columns of the rows "
        "and, for keys, a unique index on them, and that the user may write and make tables",
    )


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def has_output(table: PostgresTable) -> bool:
    """Return whether the database has records of any sink writer of a table."""
    import psycopg

    where = table.where
    try:
        with connected(table, where) as connection:
            if not _there(connection, table.batches):
                return False
            text = f"SELECT 1 FROM {table.batches} WHERE target = %s AND batch >= 0 LIMIT 1"
            return connection.execute(text, (table.table,)).fetchone() is not None
    except psycopg.Error as error:
        raise _failed(error, where) from error


def table_of(sink: PostgresSink, type_: StreamType) -> PostgresTable:
    """Return the table of a sink for rows of a type."""
    return PostgresTable(
        url=sink.url,
        table=sink.table,
        columns=tuple((c.name, postgres_type(c.type) or "text") for c in type_.schema.columns),
        keys=sink.columns(sink.keys, "keys", type_.schema),
        order_by=sink.newest_by(type_),
        user_env=sink.user_env,
        password_env=sink.password_env,
    )
