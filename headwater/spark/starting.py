"""Start a Spark in the background: Python's modules are loaded meanwhile, which takes as long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.spark.endpoint import LocalEndpoint


@contextlib.contextmanager
def starting(start: Callable[[], LocalEndpoint]) -> Iterator[Callable[[], LocalEndpoint]]:
    """Call ``start`` in a thread; yield a function that waits for its result, or raises its error.

    The Spark is stopped at the end.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="start Spark") as pool:
        started = pool.submit(start)
        try:
            yield started.result
        finally:
            if started.exception() is None:
                started.result().stop()
