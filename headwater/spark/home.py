"""The Spark home of all Sparks of a user on this machine, and the archive of classes they share.

A Spark server spends half of its start on loading some 20,000 classes. Java maps them from a class-data archive
instead, if one was written by a server with the same Java, jars and class path. Therefore all servers have one home in
the user's cache directory, one per Java and PySpark; `headwater.spark.training` writes its archive once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

OFF = "HEADWATER_CLASS_ARCHIVE"
"""Environment variable; with the value "off" no archive is written or used."""
_ARCHIVE = "classes.jsa"
_FAILED = "failed"
_PAUSE = 24 * 3600.0
"""Seconds after which a training that failed is tried again."""
_KEPT = 4
"""Archives in the cache: one per Java and PySpark."""


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
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
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
        kept = [h for h in newest if (h / "jars").exists()][: _KEPT - 1]
        for home in set(others).difference(kept):
            (home / _ARCHIVE).unlink(missing_ok=True)


def spark_home(directory: Path, java: Path, pyspark: Path) -> SparkHome:
    """Make the home of a PySpark: in the user's cache directory, else in ``directory``."""
    if os.environ.get(OFF) != "off":
        try:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater" / "spark"
            cache.mkdir(0o700, parents=True, exist_ok=True)
            # A class in an archive of another user would be that user's code.
            if cache.stat().st_uid == os.getuid() and not cache.stat().st_mode & 0o022:
                return SparkHome(_make(cache / _key(java, pyspark), pyspark), shared=True)
        except (OSError, RuntimeError):  # a read-only disk, or a user without a home
            pass
    return SparkHome(_make(directory / "home", pyspark), shared=False)


def _key(java: Path, pyspark: Path) -> str:
    """Name everything that an archive depends on."""
    release = java / "release"
    known = [str(java.resolve()), release.read_text() if release.exists() else ""]
    jars = sorted((pyspark / "jars").iterdir())
    known += [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def _make(home: Path, full: Path) -> Path:
    """Link all of a Spark home but the zipped copy of PySpark.

    Spark puts that copy first on its Python workers' path. Modules in a zip are compiled again at
    every import; those in site-packages are not, and workers start in less than half the time.
    """
    home.mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        link = home / name
        if not link.is_symlink() or os.readlink(link) != str(full / name):
            draft = home / f".{name}.{os.getpid()}"
            draft.symlink_to(full / name)
            draft.replace(link)
    return home
