"""The directory of a Spark's sockets: closed to other users, short, and removed with its Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.spark.sockets import make_sockets, remove_sockets


def test_only_its_user_enters_and_the_last_one_is_removed(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        first = make_sockets(tmp_path)
    finally:
        os.umask(old)
    assert first.stat().st_mode & 0o777 == 0o700
    (first / ".a.sock").touch()
    second = make_sockets(tmp_path)
    assert second.is_dir() and not first.exists()
    remove_sockets(tmp_path)
    remove_sockets(tmp_path)
    assert not second.exists() and not list(tmp_path.iterdir())


def test_a_long_temporary_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    made = make_sockets(tmp_path)
    assert len(os.fsencode(made)) + len("/.01234567-0123-0123-0123-0123456789ab.sock") <= 103
    remove_sockets(tmp_path)


def test_a_link_to_elsewhere_is_only_unlinked(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "sockets").symlink_to(other)
    remove_sockets(tmp_path)
    assert other.is_dir() and not (tmp_path / "sockets").exists()
