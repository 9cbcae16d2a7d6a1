"""A client of a Spark Connect server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
