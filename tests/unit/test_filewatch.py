"""Waits that end when a file appears in a directory."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.disk import filewatch
from headwater.disk.filewatch import FileWatch, is_remote

LONG = 60.0  # seconds: no wait of these tests may last so long
linux = pytest.mark.skipif(sys.platform != "linux" or is_remote(Path.cwd()), reason="the system reports no new files")


class Waiter:
    """A thread that waits for files in directories again and again; ``ends`` counts the waits that have ended."""

    def __init__(self, *directories: Path, look: float = LONG) -> None:
        self.watch, self.ends = FileWatch(), 0
        self._directories, self._look, self._over = directories, look, False
        self._ended = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.until(1)  # the first wait returns at once

    def _run(self) -> None:
        while not self._over:
            self.watch.wait(self._directories, LONG, look=self._look)
            with self._ended:
                self.ends += 1
                self._ended.notify_all()

    def until(self, ends: int) -> None:
        with self._ended:
            assert self._ended.wait_for(lambda: self.ends >= ends, LONG / 2), f"{self.ends} waits have ended"

    def after(self, act: Callable[[], object]) -> None:
        """Do something, and wait until a wait has ended."""
        before = self.ends
        act()
        self.until(before + 1)

    def settle(self) -> None:
        """Wait until the waits are long: all directories are watched."""
        ends = -1
        while self.ends != ends:
            ends = self.ends
            time.sleep(0.2)

    def end(self) -> None:
        self._over = True
        self.watch.wake()
        self._thread.join(LONG)
        assert not self._thread.is_alive()
        self.watch.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "log"
    made.mkdir()
    return made


@pytest.fixture
def waiter(place: Path) -> Iterator[Waiter]:
    made = Waiter(place)
    yield made
    made.end()


@linux
def test_a_wait_ends_when_a_file_is_created_linked_or_moved_there(place: Path, waiter: Waiter) -> None:
    draft = place.parent / "draft"
    draft.write_text("1")
    waiter.after(lambda: os.link(draft, place / "1"))
    waiter.after(lambda: draft.rename(place / "2"))
    waiter.after(lambda: (place / "3").touch())


@linux
def test_a_file_that_appears_between_two_waits_ends_the_next_one(place: Path) -> None:
    watch = FileWatch()
    watch.wait([place], LONG, look=LONG)
    (place / "1").touch()
    begun = time.monotonic()
    watch.wait([place], LONG, look=LONG)
    assert time.monotonic() - begun < LONG / 2
    watch.close()


def test_a_copy_in_another_process_watches_for_itself(place: Path) -> None:
    watch = FileWatch()
    watch.wait([place], LONG, look=0.01)
    assert pickle.loads(pickle.dumps(watch))._watched == {}
    watch.close()


@linux
def test_a_directory_that_is_made_again_is_watched_again(place: Path) -> None:
    waiter = Waiter(place, look=0.01)
    waiter.after(lambda: shutil.rmtree(place))
    place.mkdir()
    waiter.settle()
    waiter.after(lambda: (place / "1").touch())
    waiter.end()


@linux
def test_two_waits_for_one_directory_both_end(place: Path, waiter: Waiter) -> None:
    other = Waiter(place)
    before = waiter.ends
    other.after(lambda: (place / "1").touch())
    waiter.until(before + 1)
    other.end()
    waiter.after(lambda: (place / "2").touch())  # still watched when another has left


def test_waits_last_the_time_between_two_looks_where_files_are_not_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filewatch, "_inotify", lambda: None)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    watch = FileWatch()
    watch.wait([place], LONG, look=0.5)
    watch.wait([place], 0.2, look=0.5)
    watch.wait([place], -1.0, look=0.5)
    assert slept == [0.5, 0.2]


@linux
def test_a_missing_directory_is_looked_for_and_then_watched(place: Path) -> None:
    missing, slept = place / "missing", time.monotonic()
    watch = FileWatch()
    watch.wait([place, missing], LONG, look=0.01)
    assert time.monotonic() - slept < LONG / 2
    waiter = Waiter(place, missing, look=0.01)
    missing.mkdir()
    waiter.settle()
    waiter.after(lambda: (missing / "1").touch())
    waiter.end()


@pytest.mark.parametrize(
    ("line", "remote"),
    [("/dev/vda {} ext4", False), ("server:/x {} nfs4", True), ("sshfs#x {} fuse.sshfs", True)],
)
def test_network_file_systems_are_remote(tmp_path: Path, line: str, remote: bool) -> None:
    mounts, place = tmp_path / "mounts", tmp_path / "a b"
    place.mkdir()
    at = os.path.realpath(place).replace(" ", "\\040")
    above = "nfs" if not remote else "ext4"
    mounts.write_text(f"x / {above} rw 0 0\n{line.format(at)} rw 0 0\n")
    assert is_remote(place / "log", mounts) is remote


def test_a_file_system_that_is_not_known_counts_as_remote(tmp_path: Path) -> None:
    assert is_remote(tmp_path, tmp_path / "missing")
