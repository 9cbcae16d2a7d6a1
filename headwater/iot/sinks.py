"""Sinks without setup: files in a directory, a table in SQLite, MQTT.

A batch that is repeated after a failure replaces its earlier output.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from headwater.core.errors import DataflowError
from headwater.core.jsonform import time_text
from headwater.dataflow.stream import Stream
from headwater.dataflow.writer import WrittenStream

if TYPE_CHECKING:
    import pyarrow as pa

BLOBS, TABLES = "blobs", "tables.db"


def insert_table(
    rows: Stream, table: str, *, database: str = TABLES, writer: str | None = None
) -> WrittenStream[Stream]:
    """Insert rows into a table of an SQLite database, which is created if it does not exist.

    ``writer`` distinguishes the rows of this dataflow from those of others in the same table; default: the
    dataflow's name.
    """
    who = writer or rows.builder.name
    names = list(rows.columns)
    if not table.isidentifier():
        raise DataflowError(
            f"'{table}' is not a valid table name", where="insert_table", hint="use letters, digits and '_'"
        )

    def insert(batch: pa.Table, number: int) -> None:
        columns = ", ".join(f'"{name}"' for name in names)
        with closing(sqlite3.connect(database, timeout=30.0)) as found, found:
            found.execute(f'CREATE TABLE IF NOT EXISTS "{table}" (writer TEXT, batch INTEGER, {columns})')
            found.execute(f'DELETE FROM "{table}" WHERE writer = ? AND batch = ?', (who, number))
            marks = ", ".join("?" * (len(names) + 2))
            values = ((who, number, *(_plain(row[n]) for n in names)) for row in batch.to_pylist())
            found.executemany(f'INSERT INTO "{table}" (writer, batch, {columns}) VALUES ({marks})', values)

    return rows.write.for_each_batch(insert)


def upload_blobs(
    rows: Stream, *, content: str = "content", name: str = "name", container: str = BLOBS
) -> WrittenStream[Stream]:
    """Write the text or bytes of each row's column ``content`` to a file of its ``name``.

    ``container``: a directory, or any URI that fsspec opens.
    """

    def upload(batch: pa.Table, number: int) -> None:
        import fsspec

        store, root = fsspec.core.url_to_fs(container)
        store.makedirs(root, exist_ok=True)
        for row in batch.to_pylist():
            data, called = row[content], os.path.basename(str(row[name]))
            store.pipe_file(f"{root}/{called}", data.encode() if isinstance(data, str) else data)

    return rows.write.for_each_batch(upload)


def publish_mqtt(
    rows: Stream,
    topic: str,
    *,
    broker: str = "localhost:1883",
    qos: int = 1,
    username_env: str | None = None,
    password_env: str | None = None,
) -> WrittenStream[Stream]:
    """Publish each row as a JSON object; with ``qos=1`` at least once.

    The named environment variables, read where it runs, hold user name and password.
    """
    host, _, port = broker.partition(":")
    if not host or not (port or "1883").isdigit():
        raise DataflowError(f"'{broker}' is not a valid broker", where="publish_mqtt", hint="write host or host:port")

    def publish(batch: pa.Table, number: int) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        client = Client(CallbackAPIVersion.VERSION2)
        if username_env is not None:
            client.username_pw_set(os.environ[username_env], os.environ.get(password_env or ""))
        client.connect(host, int(port or 1883))
        client.loop_start()
        try:
            for row in batch.to_pylist():
                sent = client.publish(topic, json.dumps(row, default=_plain), qos=qos)
                sent.wait_for_publish(30.0)
        finally:
            client.disconnect()
            client.loop_stop()

    return rows.write.for_each_batch(publish)


def _plain(value: Any) -> Any:
    """Return a value in a form that SQLite and JSON can hold."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | dict):
        return json.dumps(value, default=_plain)
    return value
