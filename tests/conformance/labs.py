"""Labs of network namespaces for tests; where none can be made, the test is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.netlab import Lab
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError, Unavailable


@contextmanager
def running(continuum: str, name: str) -> Iterator[Lab]:
    """Give a lab of a continuum (YAML); it is removed in the end."""
    made = Lab(Continuum.from_text(continuum), name=f"{os.getpid()}-{name}")
    try:
        made.start()
    except (Unavailable, HeadwaterError) as reason:
        pytest.skip(str(reason))
    try:
        yield made
    finally:
        made.stop()
