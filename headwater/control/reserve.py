"""Space reserved in a SQLite store: leases, reports and events are still written when its disk is full.

A transaction needs room in the database file for new pages, and in the rollback journal for the former content of
changed ones. Pages of a deleted value stay in the file and serve the next new pages; the journal is kept between two
transactions, and written from its start again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

RESERVED = 1 << 20
"""Bytes in the database file, and as many in the journal."""
_SHARE = 8  # of the free space, the part that may be reserved
_TABLE = "headwater_reserve"


def keep_journal(cursor: Any) -> None:
    """Let a connection keep the journal's file after each transaction."""
    cursor.execute("PRAGMA journal_mode = PERSIST")


def reserve(engine: Engine, *, writes: str) -> bool:
    """Reserve space in a store, unless it has half of it left; False on a disk with little space.

    ``writes`` is the execution option of connections that write.
    """
    with engine.connect() as connection:
        if is_reserved(connection):
            return True
    database = Path(engine.url.database or "")
    if shutil.disk_usage(database.parent).free < _SHARE * 2 * RESERVED:
        return False
    with engine.execution_options(**{writes: True}).begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {_TABLE} (value BLOB)")
        connection.exec_driver_sql(f"INSERT INTO {_TABLE} VALUES (zeroblob({RESERVED}))")
    with engine.execution_options(**{writes: True}).begin() as connection:
        connection.exec_driver_sql(f"UPDATE {_TABLE} SET value = randomblob({RESERVED})")
        connection.exec_driver_sql(f"DROP TABLE {_TABLE}")
    return True


def is_reserved(connection: Connection) -> bool:
    """Return whether a store has at least half of the space that is reserved."""
    pages, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0) for name in ("freelist_count", "page_size")
    )
    try:
        journal = os.stat(f"{connection.engine.url.database}-journal").st_size
    except OSError:
        return False
    return min(pages * size, journal) >= RESERVED // 2
