"""The home that all Sparks of a user share, and the beginning of the training of its class-data archive."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.spark import home as homes
from headwater.spark.endpoint import _spawn
from headwater.spark.home import SparkHome, spark_home


@pytest.fixture
def java(tmp_path: Path) -> Path:
    (tmp_path / "java").mkdir()
    (tmp_path / "java/release").write_text('JAVA_VERSION="17.0.15"\n')
    return tmp_path / "java"


@pytest.fixture
def pyspark(tmp_path: Path) -> Path:
    place = tmp_path / "pyspark"
    for name in ("bin", "jars", "sbin"):
        (place / name).mkdir(parents=True)
    (place / "jars/a.jar").write_text("a")
    return place


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(homes.OFF, raising=False)
    return tmp_path / "cache/headwater/spark"


def jars_of(home: SparkHome) -> list[str]:
    """Return the names of a home's jars of PySpark; it also has Headwater's own."""
    names = {p.name for p in (home.path / "jars").iterdir()}
    return sorted(names - {homes.OWN_JAR.name}) if homes.OWN_JAR.name in names else []


def test_a_home_belongs_to_one_java_and_one_list_of_jars(
    cache: Path, java: Path, pyspark: Path, tmp_path: Path
) -> None:
    first = spark_home(tmp_path / "own", java, pyspark)
    assert first.shared and first.path.parent == cache and cache.stat().st_mode & 0o777 == 0o700
    assert (first.path / "jars/a.jar").read_text() == "a"
    assert spark_home(tmp_path / "other", java, pyspark) == first, "whatever the deployment"
    (pyspark / "jars/b.jar").write_text("b")
    second = spark_home(tmp_path / "own", java, pyspark)
    (java / "release").write_text('JAVA_VERSION="21"\n')
    third = spark_home(tmp_path / "own", java, pyspark)
    assert len({first.path, second.path, third.path}) == 3


def test_a_link_to_a_former_place_is_replaced(cache: Path, java: Path, pyspark: Path, tmp_path: Path) -> None:
    first = spark_home(tmp_path / "own", java, pyspark)
    (first.path / "bin").unlink()
    (first.path / "bin").symlink_to(tmp_path / "gone")
    assert spark_home(tmp_path / "own", java, pyspark) == first
    assert (first.path / "bin").resolve() == (pyspark / "bin").resolve()


def test_a_home_has_headwaters_own_classes_whatever_happened_to_them(
    cache: Path, java: Path, pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = spark_home(tmp_path / "own", java, pyspark)
    own = first.path / "jars" / homes.OWN_JAR.name
    assert own.read_bytes() == homes.OWN_JAR.read_bytes() and not own.is_symlink()
    own.write_bytes(b"torn")
    assert spark_home(tmp_path / "own", java, pyspark) == first
    assert own.read_bytes() == homes.OWN_JAR.read_bytes()
    newer = tmp_path / "newer.jar"
    newer.write_bytes(b"other classes")
    monkeypatch.setattr(homes, "OWN_JAR", newer)
    assert spark_home(tmp_path / "own", java, pyspark).path != first.path, "other classes, another archive"


@pytest.mark.parametrize("why", ["off", "open to others", "no directory"])
def test_a_deployment_has_a_home_of_its_own_where_none_may_be_shared(
    why: str, cache: Path, java: Path, pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "off":
        monkeypatch.setenv(homes.OFF, "off")
    elif why == "open to others":  # whose classes would run as this user's
        cache.mkdir(parents=True)
        cache.chmod(0o777)
    else:
        (tmp_path / "cache").write_text("a file")
    (tmp_path / "own").mkdir()
    found = spark_home(tmp_path / "own", java, pyspark)
    assert not found.shared and found.path == tmp_path / "own/home" and found.java_options == ""
    assert (found.path / "jars/a.jar").read_text() == "a"
    found.archive.write_text("planted")
    assert found.java_options == ""


def test_an_archive_is_used_once_it_is_whole(cache: Path, java: Path, pyspark: Path, tmp_path: Path) -> None:
    found = spark_home(tmp_path / "own", java, pyspark)
    assert found.java_options == ""
    found.archive.write_text("classes")
    assert f"-XX:SharedArchiveFile={found.archive}" in found.java_options


def test_training_begins_once(
    cache: Path, java: Path, pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        begun.append(command)
        return real(["true"], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    found = spark_home(tmp_path / "own", java, pyspark)
    found.train_later()
    assert [command[-1] for command in begun] == [str(found.path)]
    with found.training():
        found.train_later()
    assert len(begun) == 1, "another process trains"
    found.failed.touch()
    found.train_later()
    assert len(begun) == 1, "it has just failed"
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(found.failed, (long_ago, long_ago))
    found.train_later()
    assert len(begun) == 2
    found.archive.touch()
    found.train_later()
    SparkHome(tmp_path / "own", shared=False).train_later()
    assert len(begun) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_training_takes_no_time_from_others(
    cache: Path, java: Path, pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux shares the processors between sessions first: there, a nice value counts only within one."""
    begun: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        begun.append(real(["sleep", "60"], **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    spark_home(tmp_path / "own", java, pyspark).train_later()
    try:
        pid = begun[0].pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19 and os.getsid(pid) == pid
        if (session := Path(f"/proc/{pid}/autogroup")).exists():
            assert session.read_text().endswith("nice 19\n")
    finally:
        begun[0].kill()
        begun[0].wait()


@pytest.mark.parametrize("own_session", [True, False])
def test_a_server_in_training_stays_in_its_session_and_is_ended_with_its_group(
    own_session: bool, tmp_path: Path
) -> None:
    process = _spawn(["sleep", "60"], os.environ, tmp_path, own_session=own_session)
    try:
        assert (os.getsid(process.pid) == process.pid) is own_session
        assert os.getpgid(process.pid) == process.pid
    finally:
        process.kill()
        process.wait()


def test_old_archives_go_and_homes_stay(cache: Path, java: Path, pyspark: Path, tmp_path: Path) -> None:
    made = []
    for number in range(7):
        (pyspark / "jars/a.jar").write_text("a" * (number + 2))
        one = spark_home(tmp_path / "own", java, pyspark)
        one.archive.touch()
        os.utime(one.archive, (1e9 + number, 1e9 + number))
        made.append(one)
    (made[5].path / "bin").unlink()
    (made[5].path / "bin").symlink_to(tmp_path / "gone")  # its PySpark is gone
    made[2].forget_others()
    assert [one.archive.exists() for one in made] == [False, False, True, True, True, False, True]
    assert all(one.path.is_dir() for one in made)


def test_a_lean_home_has_the_jars_that_units_use_and_an_archive_of_its_own(
    cache: Path, java: Path, pyspark: Path, tmp_path: Path
) -> None:
    (pyspark / "jars/hive-exec-2.3.10-core.jar").write_text("hive")
    (pyspark / "jars/hive-storage-api-2.8.1.jar").write_text("orc needs it")
    usual = spark_home(tmp_path / "own", java, pyspark)
    lean = spark_home(tmp_path / "own", java, pyspark, lean=True)
    assert lean.archive != usual.archive and lean.lean and not usual.lean
    assert jars_of(lean) == ["a.jar", "hive-storage-api-2.8.1.jar"]
    assert (lean.path / "jars/a.jar").read_text() == "a"
    before = (lean.path / "jars").stat().st_ino
    assert spark_home(tmp_path / "own", java, pyspark, lean=True) == lean
    assert (lean.path / "jars").stat().st_ino == before, "a running server has opened only some of them"


def test_a_home_of_its_own_changes_with_the_choice_and_the_place_of_jars(
    java: Path, pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(homes.OFF, "off")
    (pyspark / "jars/hive-exec-2.3.10-core.jar").write_text("hive")
    own = tmp_path / "own"
    own.mkdir()
    for lean in (False, True, True, False):
        home = spark_home(own, java, pyspark, lean=lean)
        assert jars_of(home) == ["a.jar", "hive-exec-2.3.10-core.jar"][: 2 - lean]
        assert not home.shared and home.lean == lean
    (pyspark / "jars/b.jar").write_text("b")
    home = spark_home(own, java, pyspark, lean=True)
    assert jars_of(home) == ["a.jar", "b.jar"]
    home = spark_home(own, java, pyspark, lean=True)
    assert [p.name for p in home.path.iterdir() if p.name.startswith(".")] == []


def test_no_server_is_trained_where_memory_is_short(
    cache: Path, java: Path, pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_home(tmp_path / "own", java, pyspark)
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **more: started.append(given))
    monkeypatch.setattr(homes, "memory_free", lambda: 512 << 20)
    home.train_later()
    assert not started and not (home.path / "training.log").exists()
