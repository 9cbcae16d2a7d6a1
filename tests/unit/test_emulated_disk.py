"""The emulated disk loses what a power cut may take, and nothing that was synced; the log of calls is complete."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.powercuts.disk import SURVIVALS, Disk, Kind, Survival, content_of
from tests.powercuts.writelog import (
    Call,
    Link,
    MakeDirectory,
    Open,
    Remove,
    Rename,
    Resize,
    Sync,
    Write,
    available,
    calls_in,
    record,
)

_NUMBERS = count()


def after(
    kind: Kind, calls: Sequence[Call], survival: Survival, tmp: Path, *, seed: int = 0
) -> dict[str, bytes | None]:
    """Return the files after a cut behind some calls."""
    target = tmp / str(next(_NUMBERS))
    target.mkdir()
    Disk(kind, calls).cut_power(survival, random.Random(seed), target)
    return content_of(target)


def written(path: str, data: bytes, *, descriptor: int = 3) -> list[Call]:
    return [Open(path, descriptor, made=True, emptied=True), Write(path, descriptor, data)]


def all_of(kind: Kind, calls: Sequence[Call], tmp: Path) -> list[dict[str, bytes | None]]:
    """Return all outcomes of a cut that many draws show."""
    found: list[dict[str, bytes | None]] = []
    for seed in range(60):
        one = after(kind, calls, SURVIVALS["some"], tmp, seed=seed)
        if one not in found:
            found.append(one)
    return found


def test_calls_change_files_as_on_a_disk() -> None:
    calls: list[Call] = [
        MakeDirectory("d"),
        *written("d/a", b"one"),
        Write("d/a", 3, b"two"),
        Write("d/a", 3, b"O", at=0),
        Write("d/a", 3, b"!"),
        Link("d/a", "b"),
        Rename("d/a", "d/c"),
        Open("d/c", 4, appends=True),
        Write("d/c", 4, b"end"),
        *written("e", b"gone"),
        Remove("e"),
        *written("f", b"12345"),
        Resize("f", 3),
        Resize("f", 2, grows=True),
        Resize("f", 5, grows=True),
    ]
    expected = {"d": None, "d/c": b"Onetwo!end", "b": b"Onetwo!end", "f": b"123\0\0"}
    for kind in ("ordered", "weakest"):
        assert Disk(kind, calls).content() == expected


def test_a_write_behind_the_end_leaves_zeros() -> None:
    assert Disk("ordered", [Open("a", 3, made=True), Write("a", 3, b"x", at=2)]).content() == {"a": b"\0\0x"}


def test_all_survives_or_nothing(tmp_path: Path) -> None:
    calls = [MakeDirectory("d"), *written("d/a", b"one"), Link("d/a", "b")]
    for kind in ("ordered", "weakest"):
        assert after(kind, calls, Survival(0, 0), tmp_path) == {}
        assert after(kind, calls, Survival(1, 1), tmp_path) == {"d": None, "d/a": b"one", "b": b"one"}
        assert after(kind, calls, SURVIVALS["names"], tmp_path) == {"d": None, "d/a": b"", "b": b""}


def test_two_names_of_a_file_stay_names_of_one_file(tmp_path: Path) -> None:
    Disk("weakest", [*written("a", b"one"), Link("a", "b")]).cut_power(Survival(1, 1), random.Random(0), tmp_path)
    assert (tmp_path / "a").samefile(tmp_path / "b")


def test_a_synced_file_has_its_name_on_ext4_and_not_by_posix(tmp_path: Path) -> None:
    calls = [*written("a", b"one"), Sync("a", 2)]
    assert after("ordered", calls, Survival(0, 0), tmp_path) == {"a": b"one"}
    assert after("weakest", calls, Survival(0, 0), tmp_path) == {}
    assert after("weakest", [*calls, Sync(".", 3)], Survival(0, 0), tmp_path) == {"a": b"one"}


def test_the_sync_of_a_directory_is_none_of_its_files(tmp_path: Path) -> None:
    calls = [*written("a", b"one"), Sync(".", 2)]
    for kind in ("ordered", "weakest"):
        assert after(kind, calls, Survival(0, 0), tmp_path) == {"a": b""}


def test_a_directory_that_is_not_synced_hides_its_synced_files(tmp_path: Path) -> None:
    calls = [MakeDirectory("d"), *written("d/a", b"one"), Sync("d/a", 3), Sync("d", 4)]
    assert after("weakest", calls, Survival(0, 0), tmp_path) == {}
    assert after("weakest", [*calls, Sync(".", 5)], Survival(0, 0), tmp_path) == {"d": None, "d/a": b"one"}
    assert after("ordered", calls, Survival(0, 0), tmp_path) == {"d": None, "d/a": b"one"}


def test_a_sync_takes_only_calls_before_its_begin(tmp_path: Path) -> None:
    calls = [*written("a", b"one"), Write("a", 3, b"two"), *written("b", b""), Sync("a", 2), Sync(".", 2)]
    for kind in ("ordered", "weakest"):
        assert after(kind, calls, Survival(0, 0), tmp_path) == {"a": b"one"}


def test_a_file_system_that_is_synced_loses_nothing(tmp_path: Path) -> None:
    calls = [MakeDirectory("d"), *written("d/a", b"one"), Sync(None, 3)]
    for kind in ("ordered", "weakest"):
        assert after(kind, calls, Survival(0, 0), tmp_path) == {"d": None, "d/a": b"one"}


def test_a_file_opened_for_synced_writes_needs_no_sync(tmp_path: Path) -> None:
    calls = [Open("a", 3, made=True, syncs=True), Sync(".", 1), Write("a", 3, b"one")]
    assert after("weakest", calls, Survival(0, 0), tmp_path) == {"a": b"one"}


def test_a_renamed_file_may_be_empty_or_cut_short(tmp_path: Path) -> None:
    calls = [*written("t", b"one"), Write("t", 3, b"two"), Rename("t", "a")]
    found = all_of("ordered", calls, tmp_path)
    assert {"a": b""} in found
    assert {"a": b"one"} in found
    assert {"a": b"onetwo"} in found
    assert any(0 < len(f.get("a") or b"") < 3 for f in found)


def test_names_reach_ext4_in_their_order(tmp_path: Path) -> None:
    calls: list[Call] = [Open("a", 3, made=True), Open("b", 4, made=True), Open("c", 5, made=True)]
    found = {"".join(sorted(f)) for f in all_of("ordered", calls, tmp_path)}
    assert found == {"", "a", "ab", "abc"}
    found = {"".join(sorted(f)) for f in all_of("weakest", calls, tmp_path)}
    assert found == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_renamed_file_keeps_one_of_its_names(tmp_path: Path) -> None:
    made: list[Call] = [MakeDirectory("d"), *written("a", b"x"), Sync("a", 3), Sync(".", 4)]
    one = [*made, Rename("a", "b")]
    assert {"".join(sorted(f)) for f in all_of("weakest", one, tmp_path)} == {"ad", "bd"}
    two = [*made, Rename("a", "d/a")]
    found = {"".join(sorted(f)) for f in all_of("weakest", two, tmp_path)}
    assert found == {"ad", "dd/a", "add/a"}
    assert {"".join(sorted(f)) for f in all_of("weakest", [*two, Sync("d", 6)], tmp_path)} == {"dd/a", "add/a"}
    assert {"".join(sorted(f)) for f in all_of("weakest", [*two, Sync(".", 6)], tmp_path)} == {"dd/a"}


def test_a_file_that_replaces_another_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    calls = [*written("a", b"old"), Sync("a", 2), Sync(".", 3), *written("t", b"new"), Sync("t", 6), Rename("t", "a")]
    for kind in ("ordered", "weakest"):
        assert {f["a"] for f in all_of(kind, calls, tmp_path)} == {b"old", b"new"}
        calls.append(Sync(".", 8))
        assert all_of(kind, calls, tmp_path) == [{"a": b"new"}]
        calls.pop()


def test_writes_in_place_are_lost_one_by_one(tmp_path: Path) -> None:
    calls = [*written("a", b"...."), Sync("a", 2), Sync(".", 3), Write("a", 3, b"1", at=0), Write("a", 3, b"2", at=2)]
    assert {f["a"] for f in all_of("ordered", calls, tmp_path)} == {b"....", b"1...", b"1.2."}
    assert {f["a"] for f in all_of("weakest", calls, tmp_path)} == {b"....", b"1...", b"..2.", b"1.2."}


def test_a_log_of_several_threads_is_read_in_the_order_of_returns() -> None:
    root = "/r"

    def x(text: str) -> str:
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    a, b = x("/r/a"), x("/r/b")
    lines = [
        f'7 openat(AT_FDCWD<{x("/")}>, "{a}", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3<{a}>',
        f"7 fsync(3<{a}> <unfinished ...>",
        f'8 write(3<{a}>, "{x("late")}", 4 <unfinished ...>',
        "8 <... write resumed>) = 2",
        "7 <... fsync resumed>)              = 0",
        f'8 openat(AT_FDCWD<{x("/r")}>, "{x("b")}", O_RDWR|O_CREAT|O_APPEND|O_DSYNC, 0666) = 4<{b}>',
        f'8 pwrite64(4<{b}>, "{x("12")}", 2, 4096) = 2',
        f'8 writev(4<{b}>, [{{iov_base="{x("3")}", iov_len=1}}, {{iov_base="{x("4")}", iov_len=1}}], 2) = 2',
        f'8 rename("{a}", "{x("/r/c")}") = -1 ENOENT (No such file or directory)',
        f"8 sendfile(4<{b}>, 3<{a}>, NULL, 5) = -1 EINVAL (Invalid argument) (INJECTED)",
        f'8 unlinkat(AT_FDCWD<{x("/")}>, "{a}", 0) = 0',
        f'8 write(3<{a}>(deleted), "{x("x")}", 1) = 1',
        f"8 fsync(3<{a}>(deleted)) = 0",
        f'8 write(5<{x("/rest")}>, "{x("x")}", 1) = 1',
        "9 +++ exited with 0 +++",
    ]
    assert list(calls_in(lines, root)) == [
        Open("a", 3, made=True, emptied=True),
        Write("a", 3, b"la"),
        Sync("a", 1),
        Open("b", 4, made=True, appends=True, syncs=True),
        Write("b", 4, b"12", at=4096),
        Write("b", 4, b"34"),
        Remove("a"),
        Sync("", 7),
    ]


_PROGRAM = """
import os, shutil, sqlite3, sys, threading
from pathlib import Path
root = Path(sys.argv[1])
def work(name):
    place = root / name
    place.mkdir()
    for n in range(20):
        with open(place / "draft", "wb") as out:
            out.write(bytes([n]) * 9000)
            os.fsync(out.fileno())
        os.replace(place / "draft", place / str(n))
        os.link(place / str(n), place / f"link{n}")
    os.unlink(place / "3")
    with open(place / "0", "r+b") as out:
        os.pwrite(out.fileno(), b"middle", 100)
        out.truncate(200)
    with open(place / "1", "ab") as out:
        out.write(b"end")
    shutil.copy(place / "4", place / "copy")
    shutil.rmtree(shutil.copytree(place, root / f"{name}-gone"))
threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
[t.start() for t in threads]
if os.fork() == 0:
    work("c")
    os._exit(0)
os.wait()
[t.join() for t in threads]
with sqlite3.connect(root / "db") as db:
    db.execute("create table t (x)")
    db.executemany("insert into t values (?)", [(n,) for n in range(1000)])
    db.execute("delete from t where x > 10")
os.chdir(root)
Path("here").write_text("x")
"""


@pytest.mark.skipif(not available(), reason="no strace that may trace")
def test_the_recorded_calls_give_the_same_files(tmp_path: Path) -> None:
    (root := tmp_path / "disk").mkdir()
    command = [sys.executable, "-c", _PROGRAM, str(root)]
    calls = record(command, root, tmp_path / "log", timeout=120, env=os.environ)
    found = content_of(root)
    assert "copy" in "".join(found)
    for kind in ("ordered", "weakest"):
        assert Disk(kind, calls).content() == found
