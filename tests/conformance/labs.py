"""Labs of network namespaces for tests; the test is skipped where no lab can be made."""

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
    """Yield a lab of a continuum (YAML); remove it afterwards."""
    made = Lab(Continuum.from_text(continuum), name=f"{os.getpid()}-{name}")
    try:
        made.start()
    except (Unavailable, HeadwaterError) as reason:
        pytest.skip(str(reason))
    try:
        yield made
    finally:
        made.stop()
