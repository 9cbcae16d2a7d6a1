"""The Spark home of all Sparks of a user on this machine, and the archive of classes they share.

A Spark server spends half of its start on loading some 20,000 classes. Java maps them from a class-data archive
instead, if one was written by a server with the same Java, jars and class path. Therefore all servers have one home in
the user's cache directory, one per Java and PySpark; `headwater.spark.training` writes its archive once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headwater.spark.memory import memory_free
from headwater.spark.smallhost import is_used

OFF = "HEADWATER_CLASS_ARCHIVE"
"""Environment variable; with the value "off" no archive is written or used."""
_TRAINING = 3 << 29
"""Free bytes of memory from which a server is trained in the background: a small host has less, and is given no second
Spark."""
_LEAST = 19
"""The least priority of a process or session."""
_ARCHIVE = "classes.jsa"
_FAILED = "failed"
_PAUSE = 24 * 3600.0
"""Seconds after which a training that failed is tried again."""
OWN_JAR = Path(__file__).with_name("headwater-spark.jar")
"""Headwater's own Java classes for Spark; ``scripts/jar.py`` writes it from ``java/``."""
_KEPT = 4
"""Archives in the cache: one per Java, PySpark and choice of jars."""


@dataclass(frozen=True)
class SparkHome:
    """The home of a PySpark, for servers of one Java."""

    path: Path
    shared: bool
    """Whether it lies in the user's cache directory: only such a home has an archive."""

    @property
    def archive(self) -> Path:
        return self.path / _ARCHIVE

    @property
    def lean(self) -> bool:
        """Return whether it has only the jars that units use."""
        return all(is_used(jar.name) for jar in (self.path / "jars").iterdir())

    @property
    def failed(self) -> Path:
        """Return the file whose age is that of a failed training."""
        return self.path / _FAILED

    @property
    def java_options(self) -> str:
        """Return options with which a server uses the archive, if there is one.

        Debian's Java moves an archive to a random address, and then no page of it is shared between servers.
        Java ignores an archive that does not fit.
        """
        if not self.shared or not self.archive.exists():
            return ""
        return (
            f"-XX:SharedArchiveFile={self.archive} -XX:+IgnoreUnrecognizedVMOptions "
            "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
        )

    def train_later(self) -> None:
        """Start the training in the background, with the least priority, where it has not been done."""
        if not self.shared or self.archive.exists():
            return
        if self.failed.exists() and time.time() - self.failed.stat().st_mtime < _PAUSE:
            return
        if memory_free() < _TRAINING:
            return
        try:
            with self.training():
                pass
        except BlockingIOError:
            return
        with (self.path / "training.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headwater.spark.training", str(self.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST)
        with suppress(OSError):  # that counts within a session: Linux shares the processors between sessions first
            Path(f"/proc/{process.pid}/autogroup").write_text(str(_LEAST))
        threading.Thread(target=process.wait, name="class archive", daemon=True).start()

    def drop(self) -> bool:
        """Remove the archive, for a new one later; return False where there is none."""
        if not self.shared or not self.archive.exists():
            return False
        self.failed.touch()
        self.archive.unlink(missing_ok=True)
        return True

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold the lock of the training; raises BlockingIOError where another process trains."""
        with (self.path / "training.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def forget_others(self) -> None:
        """Remove archives of PySparks that are gone, and the oldest ones: each has 200 MB.

        Their homes stay: servers that run may have opened only a part of their jars.
        """
        others = [h for h in self.path.parent.iterdir() if h != self.path and (h / _ARCHIVE).exists()]
        newest = sorted(others, key=lambda h: (h / _ARCHIVE).stat().st_mtime, reverse=True)
        kept = [h for h in newest if (h / "bin").exists()][: _KEPT - 1]
        for home in set(others).difference(kept):
            (home / _ARCHIVE).unlink(missing_ok=True)


def pyspark_directory() -> Path:
    """Return the directory of the installed PySpark, without loading it."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def spark_home(directory: Path, java: Path, pyspark: Path, *, lean: bool = False) -> SparkHome:
    """Make the home of a PySpark: in the user's cache directory, else in ``directory``.

    ``lean``: with the jars alone that units use.
    """
    jars = _jars(pyspark, lean=lean)
    if (cache := _cache()) is not None:
        try:
            return SparkHome(_make(cache / _key(java, jars), pyspark, jars), shared=True)
        except OSError:  # a full disk
            pass
    return SparkHome(_make(directory / "home", pyspark, jars), shared=False)


def own_archive(java: Path, pyspark: Path) -> Path | None:
    """Return the archive of usual servers, which may not be made yet; None where homes are not shared."""
    cache = _cache()
    return None if cache is None else SparkHome(cache / _key(java, _jars(pyspark, lean=False)), shared=True).archive


def _jars(pyspark: Path, *, lean: bool) -> list[Path]:
    return [jar for jar in sorted((pyspark / "jars").iterdir()) if not lean or is_used(jar.name)]


def _cache() -> Path | None:
    """Return the user's directory of homes; None where it is off, cannot be made, or others may write into it."""
    if os.environ.get(OFF) == "off":
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater" / "spark"
        cache.mkdir(0o700, parents=True, exist_ok=True)
        # A class in an archive of another user would be that user's code.
        own = cache.stat().st_uid == os.getuid() and not cache.stat().st_mode & 0o022
    except (OSError, RuntimeError):  # a read-only disk, or a user without a home
        return None
    return cache if own else None


def _key(java: Path, jars: Iterable[Path]) -> str:
    """Name everything that an archive depends on.

    Collector and width of pointers are not in it: all servers have the serial one, and none a heap of 32 GB.
    """
    release = java / "release"
    known = [str(java.resolve()), release.read_text() if release.exists() else ""]
    known += [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    known.append(hashlib.sha256(OWN_JAR.read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def _make(home: Path, full: Path, jars: Sequence[Path]) -> Path:
    """Link the programs and jars of a Spark home, with Headwater's own jar, but not the zipped copy of PySpark.

    Spark puts that copy first on its Python workers' path. Modules in a zip are compiled again at
    every import; those in site-packages are not, and workers start in less than half the time.
    """
    home.mkdir(exist_ok=True)
    _link_jars(home / "jars", jars)
    for name in ("bin", "sbin"):
        link = home / name
        if not link.is_symlink() or os.readlink(link) != str(full / name):
            draft = home / f".{name}.{os.getpid()}"
            draft.symlink_to(full / name)
            draft.replace(link)
    return home


def _link_jars(directory: Path, jars: Sequence[Path]) -> None:
    """Make a directory with links to jars, unless it is there; a server never sees a part of it."""
    own = directory / OWN_JAR.name
    if own.exists() and own.read_bytes() == OWN_JAR.read_bytes():
        links = {link.name: os.readlink(link) for link in directory.iterdir() if link != own}
        if links == {jar.name: str(jar) for jar in jars}:
            return
    if directory.is_symlink():
        directory.unlink()
    elif directory.exists():
        shutil.rmtree(directory)
    draft = Path(tempfile.mkdtemp(prefix=".jars.", dir=directory.parent))
    # A copy: another installation of Headwater with the same jar shares this home, and may outlive this one.
    shutil.copyfile(OWN_JAR, draft / OWN_JAR.name)
    for jar in jars:
        (draft / jar.name).symlink_to(jar)
    draft.chmod(0o755)
    try:
        draft.rename(directory)
    except OSError:  # another process was first
        shutil.rmtree(draft)
        if not directory.is_dir():
            raise
