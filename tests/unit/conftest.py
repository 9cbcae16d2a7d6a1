"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.control import tables
from headwater.control.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Yield an empty store that does not sync to disk."""
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    found = Store(tmp_path / "store.db")
    yield found
    found.close()
