"""A client of a Spark Connect server."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from headwater.core.errors import UserCodeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER_RECORD = "server.json"
"""File with the address and token of a Spark that Headwater started, in its directory."""
DIRECTORY_VARIABLE = "HEADWATER_SPARK_DIRECTORY"
"""Variable of the environment of Spark's Python processes: the directory of their Spark."""


def connect(url: str, session_id: str, token: str | None) -> SparkSession:
    """Make a client; ``session_id``: of a new or an existing session.

    The token is passed neither in the address, which errors print, nor in the environment, which all
    threads share: two clients made at the same time would take each other's.
    """
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession as Session

    way = DefaultChannelBuilder(f"{url};session_id={session_id}")
    if token is not None:
        way.set(DefaultChannelBuilder.PARAM_TOKEN, token)
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as `remote(url)` does: selects the clients' functions
    return cast("SparkSession", Session.builder.channelBuilder(way).create())


@contextlib.contextmanager
def own_session() -> Iterator[SparkSession]:
    """Have a new session of the Spark that started this Python process.

    Raises:
        UserCodeError: Headwater did not start that Spark, or it has ended.
    """
    try:
        directory = os.environ[DIRECTORY_VARIABLE]
        record = json.loads(Path(directory, SERVER_RECORD).read_text())
    except (KeyError, OSError) as error:
        raise UserCodeError(
            "no DataFrame can be made: this is not a Spark that Headwater started, or it is ending",
            hint="take the batch as an Arrow table: write.for_each_batch(function)",
        ) from error
    session = connect(f"sc://localhost:{record['port']}/", str(uuid4()), record["token"])
    try:
        yield session
    finally:
        session.stop()
