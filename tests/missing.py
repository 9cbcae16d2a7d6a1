"""What a test does where its machine lacks something."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip(why: str) -> NoReturn:
    """Skip the test, or fail where nothing may be skipped: HEADWATER_NO_SKIP is set."""
    if os.environ.get("HEADWATER_NO_SKIP"):
        raise AssertionError(why)
    pytest.skip(why)
