"""A controller whose process has ended on this machine is replaced at once; one that hangs, or is elsewhere, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.control.holder import has_ended, new_holder
from headwater.control.store import Store
from tests.patience import PATIENCE

HOLD = """
import sys, time
from headwater.control.holder import new_holder
from headwater.control.store import Store
assert Store(sys.argv[1]).hold(new_holder(), 3600.0, label="first") == 1
print("holds", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def first(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that holds the lease for an hour."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "store.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "holds\n"
            yield process
        finally:
            process.kill()


def test_the_lease_of_an_ended_process_is_free_at_once(first: subprocess.Popen[str], tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    assert store.hold(new_holder(), 5.0) is None
    os.kill(first.pid, signal.SIGSTOP)
    assert store.hold(new_holder(), 5.0) is None, "it may go on"
    os.kill(first.pid, signal.SIGKILL)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie: nobody has waited for it
    assert store.hold(second := new_holder(), 5.0, label="second") == 2
    first.wait(PATIENCE)
    assert store.hold(new_holder(), 5.0) is None
    assert store.hold(second, 5.0) == 2


def test_only_what_is_certain_counts_as_an_end() -> None:
    holder = new_holder()
    assert not has_ended(holder) and new_holder() != holder
    name, boot, namespace, pid, start = holder.split(" ")
    assert has_ended(" ".join((name, boot, namespace, pid, str(int(start) - 1)))), "the pid was used again"
    nobody = str(2**22 + 1)  # no Linux has such a pid
    assert has_ended(" ".join((name, boot, namespace, nobody, start)))
    for elsewhere in (("another boot", namespace), (boot, "pid:[1]")):
        assert not has_ended(" ".join((name, *elsewhere, nobody, start)))
    for other in ("", "A", "host:12", f"{name} {boot} {namespace} pid {start}"):
        assert not has_ended(other)


def test_a_process_that_proc_hides_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``hidepid``, /proc has no file of another user's process."""
    holder = new_holder()

    def hidden(pid: int) -> list[str]:
        raise FileNotFoundError(pid)

    monkeypatch.setattr("headwater.control.holder._stat", hidden)
    assert not has_ended(holder)
    *known, _, start = holder.split(" ")
    assert has_ended(" ".join((*known, str(2**22 + 1), start))), "no Linux has such a pid"
