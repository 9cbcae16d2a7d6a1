"""The store's tables, and how to open a database: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    column,
    create_engine,
    event,
    false,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DatabaseError, InternalError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.schema import CreateColumn

from headwater.control.reserve import keep_journal
from headwater.core.errors import DeploymentError, Missing, Unavailable
from headwater.core.rules import OneLine, Refused
from headwater.core.text import printable

STORE = "HEADWATER_STORE"
"""The environment variable with the store's URL."""
STANDSTILL_SECONDS = 15
"""Seconds after which PostgreSQL ends an idle transaction; SQLite has no such limit."""
HOME = Path(".headwater")
"""Directory of this machine's agents, and of the store where no other is named."""

SCHEMA = 9
UPGRADED = frozenset({2, 3, 4, 5, 6, 7, 8})
"""Versions that can be migrated: see ``headwater.control.migrate``."""
SYNCHRONOUS = "FULL"
"""SQLite's durability of a commit: this level survives a power cut."""
WRITES = "headwater_writes"
"""Option of connections that write: in SQLite they wait for each other from the start."""

LOCK = 4856170231
"""The advisory lock that serializes writers in PostgreSQL, as in SQLite."""

metadata = MetaData()

meta = Table(
    "headwater_meta",
    metadata,
    Column("schema", Integer, primary_key=True),
    Column("id", String(36), nullable=False, server_default=""),
)
continua = Table("headwater_continua", metadata, Column("id", String(64), primary_key=True), Column("document", Text))
plans = Table("headwater_plans", metadata, Column("id", String(64), primary_key=True), Column("document", Text))
deployments = Table(
    "headwater_deployments",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("observed_version", Integer, nullable=False),
    Column("phase", String(20), nullable=False),
    Column("active_plan", String(64)),
    Column("message", Text, nullable=False),
    Column("updated", Float, nullable=False),
)
desired_states = Table(
    "headwater_desired_states",
    metadata,
    Column("deployment", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("goal", String(20), nullable=False),
    Column("plan", String(64)),
    Column("options", Text, nullable=False),
    Column("at", Float, nullable=False),
)
changes = Table(
    "headwater_changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("deployment", String(100), nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("goal", String(20), nullable=False),
    Column("plan", String(64)),
    Column("before", String(64)),
    Column("phase", String(20), nullable=False),
    Column("outcome", String(20)),
    Column("message", Text, nullable=False),
    Column("baseline", Text),
    Column("begun", Float, nullable=False),
    Column("ended", Float),
)
journal = Table(
    "headwater_journal",
    metadata,
    Column("change", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("step", Text, nullable=False),
    Column("state", String(10), nullable=False),
    Column("note", Text, nullable=False),
    Column("begun", Float),
    Column("ended", Float),
)
units = Table(
    "headwater_units",
    metadata,
    Column("deployment", String(100), primary_key=True),
    Column("unit", String(210), primary_key=True),
    Column("tag", String(64), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("plan", String(64), nullable=False),
    Column("runs", Boolean, nullable=False),
    Column("sure", Boolean, nullable=False),
    Column("ahead", Boolean, nullable=False, server_default=false()),
)
reports = Table(
    "headwater_reports",
    metadata,
    Column("deployment", String(100), primary_key=True),
    Column("zone", String(100), primary_key=True),
    Column("at", Float, nullable=False),
    Column("progress", Text),
    Column("error", Text),
)
events = Table(
    "headwater_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("deployment", String(100), nullable=False, index=True),
    Column("at", Float, nullable=False),
    Column("text", Text, nullable=False),
)
samples = Table(
    "headwater_samples",
    metadata,
    Column("deployment", String(100), primary_key=True),
    Column("at", Float, primary_key=True),
    Column("progress", Text, nullable=False),
)
memory = Table(
    "headwater_memory",
    metadata,
    Column("deployment", String(100), primary_key=True),
    Column("what", String(20), primary_key=True),
    Column("document", Text, nullable=False),
    Column("updated", Float, nullable=False),
)
decisions = Table(
    "headwater_decisions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("deployment", String(100), nullable=False, index=True),
    Column("at", Float, nullable=False),
    Column("mode", String(10), nullable=False),
    Column("trigger", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("plan", String(64)),
    Column("before", String(64)),
    Column("version", Integer),
    Column("data", Text, nullable=False),
    Column("after", Text),
    Column("updated", Float, nullable=False),
)
submissions = Table(
    "headwater_submissions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("pool", String(100), nullable=False, index=True),
    Column("name", String(100), nullable=False),
    Column("owner", String(100), nullable=False),
    Column("written", Text, nullable=False),
    Column("runs", Text, nullable=False),
    Column("ids", Text, nullable=False),
    Column("added", Integer, nullable=False),
    Column("removed", Integer),
    Column("at", Float, nullable=False),
)
owners = Table(
    "headwater_owners",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("secret", String(64)),
    Column("limits", Text, nullable=False),
    Column("role", String(20), nullable=False, server_default="owner"),
)
sessions = Table(
    "headwater_sessions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", String(100), nullable=False),
    Column("secret", String(64), nullable=False),
    Column("until", Float, nullable=False),
)
rights = Table(
    "headwater_rights",
    metadata,
    Column("owner", String(100), primary_key=True),
    Column("other", String(100), primary_key=True),
    Column("what", String(20), primary_key=True),
)
leases = Table(
    "headwater_leases",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("holder", String(200), nullable=False),
    Column("label", String(200), nullable=False),
    Column("term", Integer, nullable=False),
    Column("beat", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("at", Float, nullable=False),
)
nodes = Table(
    "headwater_nodes",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("at", Float, nullable=False),
    Column("error", Text),
)


class NoStore(Missing):
    """The store does not exist."""


def resolved_url(given: str | None) -> str:
    """Return the store URL or path: the given one, the environment's, or the default."""
    return given or os.environ.get(STORE) or str(HOME / "headwater.db")


def url_of(store_url: str | Path) -> URL:
    """Parse a path or a database URL."""
    given = str(store_url)
    if "://" not in given:
        _check_file(given)
        return URL.create("sqlite", database=given)
    try:
        url = make_url(given)
    except (ArgumentError, ValueError) as error:  # a ValueError: the port is no number
        raise DeploymentError(
            "not a database URL", where="--store", hint="give a path, or postgresql://user@host/database"
        ) from error
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise DeploymentError(
            f"no store in a database of kind {url.get_backend_name()}",
            where="--store",
            hint="give a path (SQLite), or postgresql://user@host/database",
        )
    if url.get_backend_name() == "sqlite" and url.database:
        _check_file(url.database)
    return url


def _check_file(path: str) -> None:
    """Refuse a path that cannot be a store's file."""
    try:
        OneLine().check(path, "the path")
        if Path(path).is_dir():
            raise Refused("a directory, not a store", hint="give the path of a file in it, such as store.db")
    except (Refused, OSError) as error:
        what, hint = (error.what, error.hint) if isinstance(error, Refused) else (error.strerror, None)
        raise DeploymentError(
            str(what), where=f"--store {printable(path, 200)}", hint=hint or "give a shorter path"
        ) from error


def shown(url: URL) -> str:
    """Return a database's path or URL for messages, without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "memory"
    return url.set(query={}).render_as_string(hide_password=True)


def open_engine(url: URL) -> Engine:
    """Create the engine; nothing is connected yet."""
    try:
        # A controller advances dozens of deployments at once; each needs a connection.
        # SQLite's connections are in this process, and cannot be lost.
        ping = url.get_backend_name() != "sqlite"
        engine = create_engine(url, pool_pre_ping=ping, hide_parameters=True, max_overflow=45)
    except (ImportError, NoSuchModuleError) as error:
        raise DeploymentError(
            "this needs psycopg, which is not installed",
            where=shown(url),
            hint="pip install 'headwater[postgres]'",
        ) from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
    else:
        event.listen(engine, "connect", _limit_transactions)
    return engine


def _limit_transactions(connection: Any, record: object) -> None:
    """Make the database end idle transactions: they would block every other writer."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{STANDSTILL_SECONDS}s'")
    connection.commit()


def _on_connect(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where `_on_begin` says so
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 30000")
    cursor.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    keep_journal(cursor)
    cursor.close()


def _on_begin(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITES, False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("BEGIN")  # takes no lock, so it cannot fail: SQLAlchemy's account of it takes longer than itself


@contextlib.contextmanager
def writing(engine: Engine, *, where: str) -> Iterator[Connection]:
    """Open a transaction that waits for other writers before it begins."""
    with reachable(where), engine.execution_options(**{WRITES: True}).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        yield connection


def create_tables(connection: Connection, *, where: str) -> None:
    """Create missing tables, and migrate an older version; refuse other versions."""
    if not inspect(connection).has_table(meta.name):
        metadata.create_all(connection)
        connection.execute(insert(meta).values(schema=SCHEMA, id=str(uuid.uuid4())))
    elif is_older(connection, where=where):
        if inspect(connection).has_table(leases.name):
            _refuse_while_held(connection, where=where)
            if not _has(connection, leases, "term"):
                leases.drop(connection)  # its next holder starts a new term
        _rename(connection)
        metadata.create_all(connection)
        for column in (owners.c.role, meta.c.id, units.c.ahead):
            if not _has(connection, column.table, column.name):
                added = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {added}")
        connection.execute(update(meta).values(schema=SCHEMA, id=str(uuid.uuid4())))


def _refuse_while_held(connection: Connection, *, where: str) -> None:
    """Refuse to change a store on which a controller of an older version acts."""
    if _has(connection, leases, "term"):
        held_now = leases.c.at + leases.c.seconds > time.time()
    else:
        held_now = column("until", Float) > time.time()
    holder = column("holder", String)
    query = select(holder).select_from(leases).where(held_now, holder != "")
    held = connection.execute(query).scalar()
    if held is not None:
        raise Unavailable(
            f"a controller of an older version acts on it: {held}",
            where=where,
            hint="end that controller first; its zones run on",
        )


def _rename(connection: Connection) -> None:
    """Rename tables and columns of older versions."""
    if inspect(connection).has_table("headwater_wishes"):
        connection.exec_driver_sql(f"ALTER TABLE headwater_wishes RENAME TO {desired_states.name}")
    for former, now in (("dealt", "observed_version"), ("base", "active_plan")):
        if _has(connection, deployments, former):
            connection.exec_driver_sql(f"ALTER TABLE {deployments.name} RENAME COLUMN {former} TO {now}")


def _has(connection: Connection, table: Table, column: str) -> bool:
    return column in {found["name"] for found in inspect(connection).get_columns(table.name)}


def is_older(connection: Connection, *, where: str) -> bool:
    """Return whether a store needs a migration; refuse a database that is not a store, or has another version."""
    if not inspect(connection).has_table(meta.name):
        raise NoStore("no store here", where=where, hint="`headwater apply` creates one")
    found = connection.execute(select(meta.c.schema)).scalar()
    if found != SCHEMA and found not in UPGRADED:
        raise DeploymentError(
            f"a store of version {found}",
            where=where,
            hint=f"this version of Headwater reads version {SCHEMA}: use the version that created the store",
        )
    return found in UPGRADED


@contextlib.contextmanager
def reachable(where: str) -> Iterator[None]:
    """Turn database errors into HeadwaterErrors, without the details of the connection."""
    try:
        yield
    except PoolTimeout:
        raise Unavailable("the store is busy", where=where, hint="try again") from None
    except (OperationalError, InternalError) as error:  # PostgreSQL ends idle transactions
        raise Unavailable(
            f"the store cannot be used: {_short(error)}",
            where=where,
            hint="free space on that disk"
            if "full" in str(error.orig)
            else "start the database, or give another --store",
        ) from None
    except DatabaseError as error:
        raise DeploymentError(
            f"the store rejects the query: {_short(error)}", where=where, hint="give the --store of Headwater"
        ) from None


def _short(error: DatabaseError) -> str:
    return str(error.orig).strip().splitlines()[0] if error.orig else type(error).__name__
