"""A Spark for the tests of a project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.spark.endpoint import LocalEndpoint


@contextmanager
def local_spark(directory: Path, *, cores: int = 2, memory_mb: int = 1024) -> Iterator[LocalEndpoint]:
    """Start a Spark for tests in a directory, and end it afterwards; raise Unavailable where there is no Java."""
    from headwater.spark.endpoint import LocalEndpoint

    conf = {"spark.sql.shuffle.partitions": "1"}
    started = LocalEndpoint.start(directory, cores=cores, memory_mb=memory_mb, extra_conf=conf, quick=True)
    try:
        yield started
    finally:
        started.stop()
