"""A zone's Spark: a Spark Connect server that Headwater starts on this machine.

The server runs in its own session of processes, so that Ctrl-C in a terminal reaches only
Headwater, which then stops queries at a batch boundary. It listens on loopback only and accepts
only clients with its token.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Protocol

from headwater.connectors.sparkclient import DIRECTORY_VARIABLE, SERVER_RECORD, connect
from headwater.continuum.sparksettings import MASTER, SparkSettings, slots_of
from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.core.permissions import OPEN
from headwater.disk.credentials import code_environment
from headwater.disk.ports import address_towards, keep_port
from headwater.spark.cores import cores_here
from headwater.spark.home import SparkHome, pyspark_directory, spark_home
from headwater.spark.pids import runs
from headwater.spark.serverconf import (
    CLASS_MEMORY,
    FILES_CONF,
    KEEP_COMPILED,
    LOCAL_AUTH,
    MOST_PARTITIONS,
    OPTIMIZE_LATER,
    PARALLELISM,
    QUICK_CONF,
    SERVER_CONF,
    SESSION_CONF,
    STREAMING_CONF,
)
from headwater.spark.smallhost import SMALL_CONF, SMALL_ENVIRONMENT, SMALL_JAVA, reserved_memory
from headwater.spark.sockets import SOCKETS_CONF, make_sockets, remove_sockets
from headwater.spark.zygote import supported, write_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 120.0
STOP_SECONDS = 20.0
JAVA = 17
LOG = "spark.log"
"""File with the output of Spark, in its directory."""
PROPERTIES = "spark.properties"
"""File with the settings of Spark, in its directory, while it starts."""
_CRASHES = {-int(one) for one in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)}
"""Exit codes of a Java that crashed."""
_RETRIES = 4  # retries of a request, within about 5 seconds

_FOR_MEMORY = (
    "perhaps by the system for lack of memory: look for 'oom' in the system's log, "
    "and lower --memory or give the host more"
)


class Endpoint(Protocol):
    """A Spark that units run on."""

    directory: Path
    cores: int
    slots: int | None
    """Number of tasks that run at once; None where it is not known."""
    attached: bool
    """Whether queries of an earlier agent may still run there."""

    @property
    def processes(self) -> tuple[int, ...]:
        """Return the root processes of this Spark on this machine; empty if it runs elsewhere."""

    @property
    def generation(self) -> str:
        """Identify a start of the server; it changes with every start."""

    def session(self) -> SparkSession:
        """Return the client session, with Headwater's sink registered."""

    @property
    def alive(self) -> bool:
        """Return whether the server runs."""

    @property
    def ending(self) -> str:
        """Describe how a server that does not run has ended, and the next step."""

    def restart(self) -> None:
        """Start the server again, or connect to it again, after it has ended."""

    def stop(self) -> None:
        """Stop the server, or disconnect from it."""

    def share(self, busy_s: float) -> float:
        """Return this endpoint's share of the Spark's core time, given the seconds that its batches took so far."""

    @property
    def part(self) -> float:
        """Its part of the Spark's memory."""


@dataclass
class LocalEndpoint:
    """A Spark Connect server process on this machine, and its connection."""

    directory: Path
    port: int
    token: str
    pid: int
    cores: int
    session_id: str
    attached: bool = False
    """Whether the server was found running, perhaps with queries."""
    processes: tuple[int, ...] = ()
    """The server and the zygote of its Python workers; none where a cluster does the work."""
    slots: int | None = None
    part: float = 1.0

    @classmethod
    def attach(
        cls, directory: Path, settings: SparkSettings | None = None, secrets: Sequence[str] = OPEN.secrets
    ) -> LocalEndpoint | None:
        """Find the server that runs in a directory; None when there is none, or one with other settings or secrets."""
        record = _read_record(directory)
        if record is None or not _is_ours(int(record["pid"]), directory):
            return None
        began = record["start"]
        if settings is not None:
            now = (list(settings.packages), dict(settings.conf), list(secrets), settings.small)
            then = (began["packages"], began["extra_conf"], began.get("secrets"), began.get("small", False))
            if then != now:
                return None
        found = cls(
            directory,
            int(record["port"]),
            str(record["token"]),
            int(record["pid"]),
            int(record["cores"]),
            str(record["session"]),
            attached=True,
            processes=tuple(int(pid) for pid in record.get("processes", ())),
            slots=record.get("slots"),
        )
        start = dict(began)
        found._again = lambda: cls.start(directory, **start)
        return found

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        cores: int | None = None,
        memory_mb: int = 1024,
        extra_conf: Mapping[str, str] | None = None,
        python_path: tuple[str, ...] = (),
        quick: bool = False,
        small: bool = False,
        packages: Sequence[str] = (),
        master: str | None = None,
        secrets: Sequence[str] = OPEN.secrets,
        recorded: Path | None = None,
        limit: float = START_SECONDS,
    ) -> LocalEndpoint:
        """Start a server with its log, scratch files and record in ``directory``.

        ``master`` is that of a standalone cluster in the zone, ``spark://host:port``; its hosts must have
        Headwater installed and see ``directory``'s disk. Without one, the server itself does the work, as many tasks
        at once as ``cores``, or as ``spark.master: local[n]`` of ``extra_conf`` says.

        ``packages`` are Maven coordinates that Spark fetches before it starts. ``secrets`` are the names of the
        secrets that its Python workers may read, perhaps with ``*``; no other secret is in its environment.

        ``quick`` compiles the JVM's code only lightly and the queries not at all: about half the
        processor time for starting, at the price of throughput later; use it for short runs.
        ``small`` is for small hosts: see `headwater.spark.smallhost`.
        ``recorded`` is the file to which Java writes the server's classes when it ends; ``limit``: seconds to start.
        Raises Unavailable where Java is missing or the server does not come up.
        """
        java = find_java()
        directory.mkdir(parents=True, exist_ok=True)
        end_stale(directory)
        cores = cores or cores_here()
        port, kept = keep_port()
        address = "127.0.0.1" if master is None else address_towards(master)
        token, session = token_urlsafe(24), str(uuid.uuid4())
        home = spark_home(directory, java, pyspark_directory(), lean=small)
        local = (extra_conf or {}).get(MASTER)
        slots = None if master is not None else cores if local is None else slots_of(local)
        conf = {
            **SERVER_CONF,
            **STREAMING_CONF,
            "spark.driver.host": address,
            "spark.driver.bindAddress": address,
            "spark.sql.shuffle.partitions": str(min(cores, MOST_PARTITIONS)),
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.authenticate.token": token,
            "spark.local.dir": str(directory / "scratch"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **(QUICK_CONF if quick or small else {}),
            **(SMALL_CONF if small else {}),
            **reserved_memory(memory_mb),
            **({"spark.jars.packages": ",".join(packages)} if packages else {}),
            **({} if local is None else dict.fromkeys(PARALLELISM, str(cores))),
            **{key: value for key, value in (extra_conf or {}).items() if key != MASTER},
            **({**LOCAL_AUTH, **FILES_CONF, SOCKETS_CONF: str(make_sockets(directory))} if master is None else {}),
        }
        arguments = [str(home.path / "bin" / "spark-submit"), "--master", master or local or f"local[{cores}]"]
        arguments += ["--driver-memory", f"{memory_mb}m"]
        arguments += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        # It is on the command line to recognize the process; further settings may be secrets, which `ps` would show.
        options = _java_options(directory, home, recorded, quick=quick, small=small)
        arguments += ["--conf", f"spark.driver.extraJavaOptions={options}"]
        arguments += ["--load-spark-defaults", "--properties-file", str(directory / PROPERTIES)]
        paths = [*python_path, str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **code_environment(secrets),
            **(SMALL_ENVIRONMENT if small else {}),
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(home.path),
            "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_LOCAL_IP": address,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": str(write_launcher(directory)) if supported() else sys.executable,
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
            "TZ": "UTC",
            DIRECTORY_VARIABLE: str(directory),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        with kept, _properties(directory / PROPERTIES, conf):
            # Linux shares the processors between sessions: in one of its own, a server loses the training's priority.
            process = _spawn(arguments, environment, directory, own_session=recorded is None)
            zygote = None
            if supported():
                serve = [sys.executable, "-m", "headwater.spark.zygote", str(directory), str(process.pid)]
                zygote = _spawn(serve, environment, directory, own_session=recorded is None)
            own = tuple(p.pid for p in (process, zygote) if p is not None and master is None)
            endpoint = cls(directory, port, token, process.pid, cores, session, processes=own, slots=slots)
            endpoint._process, endpoint._zygote = process, zygote
            start: dict[str, Any] = {
                "cores": cores,
                "memory_mb": memory_mb,
                "extra_conf": dict(extra_conf or {}),
                "python_path": tuple(python_path),
                "quick": quick,
                "small": small,
                "secrets": list(secrets),
                "packages": list(packages),
                "master": master,
            }
            endpoint._again = lambda: cls.start(directory, **start)
            known = {"pid": process.pid, "port": port, "token": token, "session": session, "cores": cores}
            known |= {"slots": slots}
            _write_record(directory, {**known, "processes": own, "start": start})
            try:
                endpoint._wait(limit)
            except Unavailable:
                # Java reads a damaged archive without a check, and dies of it.
                if process.poll() not in _CRASHES or not home.drop():
                    raise
                endpoint.stop()
            else:
                if master is None and recorded is None:
                    home.train_later()
                return endpoint
        return cls.start(directory, **start)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._zygote: subprocess.Popen[bytes] | None = None
        self._again: Callable[[], LocalEndpoint] | None = None
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the client session, with Headwater's sink registered."""
        with self._lock:
            if self._session is None:
                from pyspark.sql.connect.client.retries import DefaultPolicy

                session = connect(f"sc://localhost:{self.port}/", self.session_id, self.token)
                # A local server that does not answer is gone; by default the client retries for ten minutes.
                session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
                for key, value in SESSION_CONF.items():
                    session.conf.set(key, value)
                register_sink(session)
                self._session = session
            return self._session

    @property
    def generation(self) -> str:
        return str(self.pid)

    @property
    def alive(self) -> bool:
        """Return whether the server process runs."""
        if self._process is not None:
            return self._process.poll() is None
        return _is_ours(self.pid, self.directory)

    @property
    def ending(self) -> str:
        code = self._process.poll() if self._process is not None else None
        if code == -signal.SIGKILL:
            return f"it was killed (SIGKILL), {_FOR_MEMORY}"
        if "OutOfMemoryError" in (said := self.last_words()):
            return f"its heap was full ({said}): raise --memory"
        how = "" if code is None else f" with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        return f"it ended{how}; its log ends with: {said}; if that is no error, it was killed, {_FOR_MEMORY}"

    def stop(self) -> None:
        """Stop the server; running queries are interrupted in the middle of a batch."""
        self.leave(gracefully=self.alive)
        _end(self.pid, self.directory, self._process)
        self._end_zygote()
        (self.directory / SERVER_RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.directory / "scratch", ignore_errors=True)
        remove_sockets(self.directory)

    def leave(self, *, gracefully: bool = True) -> None:
        """Disconnect from the server, which continues; the client of a dead server would retry for minutes at exit."""
        session, self._session = self._session, None
        if session is None:
            return
        with contextlib.suppress(Exception):  # the server has ended or is ending: nothing to release
            if gracefully:
                session.stop()
        with contextlib.suppress(Exception):
            session.client.close()

    def kill(self) -> None:
        """End the server as a power cut would (for tests of recovery)."""
        self.leave(gracefully=False)
        os.killpg(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_SECONDS)
        self._end_zygote()

    def _end_zygote(self) -> None:
        """Wait for the end of the zygote, which ends after its server; it must not serve the next one."""
        if self._zygote is not None:
            try:
                self._zygote.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._zygote.kill()
                self._zygote.wait(STOP_SECONDS)

    def restart(self) -> None:
        """Start the server again with the same arguments; its directory stays, its port and token change."""
        if self._again is None:
            raise RuntimeFailure(
                "this process did not start the server", where=str(self.directory), hint="start another server"
            )
        self.stop()
        again = self._again()
        self.port, self.token, self.pid = again.port, again.token, again.pid
        self.session_id, self.attached, self.processes = again.session_id, False, again.processes
        self._process, self._zygote = again._process, again._zygote

    def share(self, busy_s: float) -> float:
        """Return 1: nobody else uses it."""
        return 1.0

    def log_tail(self, lines: int = 20) -> str:
        """Return the end of the server's log."""
        try:
            return "\n".join((self.directory / LOG).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def last_words(self) -> str:
        """Return the newest error in the server's log, or its last line."""
        said = [line for line in self.log_tail(200).splitlines() if line.strip() and not line.startswith("\t")]
        failed = [line for line in said if "Error" in line or "Exception" in line]
        return (failed or said or ["without a message"])[-1].strip()[:400]

    def _wait(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if not self.alive:
                raise Unavailable(
                    f"Spark ended while it started: {self.last_words()}",
                    where=str(self.directory / LOG),
                    hint="read the log; usual causes are too little memory (--memory) or a port that is taken",
                )
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        self.stop()
        raise Unavailable(
            f"Spark did not come up within {limit:.0f} s",
            where=str(self.directory / LOG),
            hint="try again; a slow disk or too little memory are the usual causes",
        )


def _write_record(directory: Path, record: Mapping[str, Any]) -> None:
    """Record the server's address and token; because of the token, only its owner may read the file."""
    file = directory / SERVER_RECORD
    draft = directory / f".server.{os.getpid()}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        json.dump(record, out)
    draft.rename(file)


@contextlib.contextmanager
def _properties(file: Path, conf: Mapping[str, str]) -> Iterator[None]:
    """Have a properties file of Spark while it starts; only its owner may read it, since settings may be secrets."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
        out.writelines(f"{_property(key)}={_property(value)}\n" for key, value in conf.items())
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _property(text: str) -> str:
    """Write a key or a value as `java.util.Properties` reads it back.

    >>> print(_property("a key: 1\\n"))
    a\\u0020key\\u003a\\u00201\\u000a
    """
    units = text.encode("utf-16-be")
    found = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(u) if u < 128 and (chr(u).isalnum() or chr(u) in "-._/") else f"\\u{u:04x}" for u in found)


def _read_record(directory: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((directory / SERVER_RECORD).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None  # another error must not make a running server count as ended: a second one would be started
    wanted = {"pid", "port", "token", "session", "cores", "start"}
    return record if isinstance(record, dict) and wanted <= set(record) else None


def _spawn(
    arguments: list[str], environment: Mapping[str, str], directory: Path, *, own_session: bool = True
) -> subprocess.Popen[bytes]:
    """Start a process that writes to the server's log, in a session of its own or only in a group of its own."""
    with (directory / LOG).open("ab") as log:
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=own_session,
            process_group=None if own_session else 0,
        )


def _java_options(directory: Path, home: SparkHome, recorded: Path | None, *, quick: bool, small: bool) -> str:
    classes = home.java_options if recorded is None else f"-XX:ArchiveClassesAtExit={recorded}"
    options = f"-Dheadwater.endpoint={directory} -XX:+UseSerialGC -Duser.timezone=UTC {classes}".rstrip()
    options += f" -XX:ErrorFile={directory / 'java-crash-%p.log'}"
    if small:
        return " ".join((options, *SMALL_JAVA))
    options += f" {CLASS_MEMORY}"
    if quick:
        # By default lightly compiled code has a small cache, which some dozens of queries fill.
        return f"{options} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    return f"{options} {KEEP_COMPILED} {OPTIMIZE_LATER}"


def register_sink(session: Any) -> None:
    """Register Headwater's sink with a session. Its sources are registered by each read, see ``sparkformats``."""
    from headwater.query.writer import HeadwaterSink

    session.dataSource.register(HeadwaterSink)


def find_java() -> Path:
    """Find a Java of at least version 17, or raise Unavailable with instructions to install one."""
    candidates = [os.environ.get("JAVA_HOME"), _home_of(shutil.which("java"))]
    candidates += [str(p) for p in sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)]
    seen: list[str] = []
    for home in dict.fromkeys(c for c in candidates if c):
        version = java_version(Path(home))
        if version is not None and version >= JAVA:
            return Path(home)
        if version is not None:
            seen.append(f"{home} is version {version}")
    raise Unavailable(
        f"no Java {JAVA} or newer" + (f" ({'; '.join(seen)})" if seen else ""),
        where="Spark",
        hint="install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) "
        "or set JAVA_HOME",
    )


def _home_of(java: str | None) -> str | None:
    return str(Path(java).resolve().parents[1]) if java else None


def java_version(home: Path) -> int | None:
    """Return the version of the Java in a home; None where there is none."""
    java = home / "bin" / "java"
    if not java.exists():
        return None
    try:
        release = (home / "release").read_text()
        text = next(line for line in release.splitlines() if line.startswith("JAVA_VERSION=")).split('"')[1]
    except (OSError, StopIteration, IndexError):
        try:
            shown = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=True)
            text = shown.stderr.split('"')[1]
        except (OSError, IndexError, subprocess.SubprocessError):
            return None
    parts = text.split(".")
    number = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(number) if number.isdigit() else None


def _is_ours(pid: int, directory: Path) -> bool:
    return runs(pid, f"headwater.endpoint={directory}")


def _end(pid: int, directory: Path, process: subprocess.Popen[bytes] | None) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        gone = process.poll() is not None if process is not None else not _is_ours(pid, directory)
        if gone:
            return
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            if process is not None and process.poll() is not None:
                return
            if process is None and not _is_ours(pid, directory):
                return
            time.sleep(0.05)
    raise RuntimeFailure(f"Spark (process {pid}) does not end", where=str(directory), hint=f"kill -9 {pid}")


def end_stale(directory: Path) -> None:
    """Stop the server that a killed run has left in this directory."""
    record = _read_record(directory)
    if record is not None and _is_ours(int(record["pid"]), directory):
        _end(int(record["pid"]), directory, None)
    (directory / SERVER_RECORD).unlink(missing_ok=True)
    remove_sockets(directory)
