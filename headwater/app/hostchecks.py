"""Checks of a host, for ``headwater doctor``: what a run needs and what is there, one small function each.

Each returns a finding, with the next step unless all is well. They change nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from headwater.core.errors import HeadwaterError
from headwater.core.quantity import format_size

State = Literal["ok", "optional", "warning", "missing"]
"""``missing``: a run needs it; ``warning``: a run may fail or be slow; ``optional``: some dataflows need it."""

SPARK = (4, 3)
"""Version of PySpark that Headwater is made for."""
_SPARK_NEEDS = ("grpc", "pandas", "pyarrow")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "mqtt": ("paho.mqtt",),
    "sparkplug": ("paho.mqtt", "google.protobuf"),
    "opcua": ("asyncua",),
    "kafka": ("confluent_kafka", "fastavro", "google.protobuf"),
    "plots": ("matplotlib",),
    "placement": ("numba",),
    "forecast": ("statsmodels",),
    "onnx": ("onnxruntime",),
    "sklearn": ("sklearn", "skops"),
    "iot": ("matplotlib", "sklearn"),
    "postgres": ("psycopg",),
    "tables": ("deltalake", "pyiceberg"),
    "web": ("fastapi", "nicegui"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Extras of this package for dataflows and commands, and the modules that each brings."""

_MIB, _GIB = 1 << 20, 1 << 30
LEAST_MEMORY, USUAL_MEMORY = 400 * _MIB, 2 * _GIB
"""Free memory of a Spark with ``profile: small``, and of one of the usual size."""
LEAST_DISK, USUAL_DISK = 256 * _MIB, 4 * _GIB
MOST_AHEAD = 1.0
"""Difference in seconds between two hosts' clocks above which measured latencies mislead."""
LEAST_INODES = 20_000
"""Files that channels, checkpoints and state of one zone take with room to spare."""
LEAST_SHARED = 16 * _MIB
_UNSYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES = 256  # its struct has 208


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found; ``hint``: the next step, None where all is well."""

    check: str
    state: State
    text: str
    hint: str | None = None


def failed(check: str, error: HeadwaterError, state: State = "missing") -> Finding:
    """Return the finding of a check that raised an error."""
    text = f"{error.where}: {error.what}" if error.where else error.what
    return Finding(check=check, state=state, text=text, hint=error.hint or "correct the cause, and try again")


def java() -> Finding:
    """Look for a Java that Spark can use."""
    from headwater.spark.endpoint import find_java, java_version

    try:
        home = find_java()
    except HeadwaterError as error:
        return failed("java", error)
    return Finding(check="java", state="ok", text=f"version {java_version(home)} in {home}")


def pyspark() -> Finding:
    """Compare PySpark's version, and look for what its Connect client needs."""
    hint = "pip install headwater again, into the environment of this Python"
    if find_spec("pyspark") is None:
        return Finding(check="pyspark", state="missing", text="PySpark is not installed", hint=hint)
    from pyspark import __version__

    lacking = [name for name in _SPARK_NEEDS if find_spec(name) is None]
    if lacking:
        text = f"version {__version__}, without {', '.join(lacking)}"
        return Finding(check="pyspark", state="missing", text=text, hint=hint)
    if tuple(map(int, __version__.split(".")[:2])) != SPARK:
        text = f"version {__version__}, and Headwater needs {SPARK[0]}.{SPARK[1]}"
        return Finding(check="pyspark", state="missing", text=text, hint=hint)
    return Finding(check="pyspark", state="ok", text=f"version {__version__}, Python {sys.version.split()[0]}")


def memory(free: int | None = None) -> Finding:
    """Weigh the free memory, within the limits of this process's cgroups."""
    from headwater.spark.memory import memory_free

    there = memory_free() if free is None else free
    text = f"{format_size(there)} free"
    if there < LEAST_MEMORY:
        hint = f"free memory, or raise the limit of the container: the smallest Spark takes {format_size(LEAST_MEMORY)}"
        return Finding(check="memory", state="missing", text=text, hint=hint)
    if there < USUAL_MEMORY:
        hint = "give its zone `profile: small` in the continuum, or Spark a smaller --memory"
        return Finding(check="memory", state="warning", text=text, hint=hint)
    return Finding(check="memory", state="ok", text=text)


def cores(pid: int | None = None, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Count the cores that a process may use, within the quota of its cgroups."""
    from headwater.spark.cores import cpus_of, quota_of, share_of

    own = os.getpid() if pid is None else pid
    there, quota = len(cpus_of(own)), quota_of(own, proc=proc, cgroups=cgroups)
    text = f"{there}" if quota is None else f"{there}, of which a cgroup permits {quota:g}"
    if share_of(own, proc=proc, cgroups=cgroups) < 1:
        return Finding(
            check="cores", state="warning", text=text, hint="raise the quota to one core: Spark takes minutes to start"
        )
    return Finding(check="cores", state="ok", text=text)


def disk(directory: Path, free: int | None = None) -> Finding:
    """Weigh the free disk space for channels and checkpoints in a directory, which need not exist yet."""
    there = _existing(directory)
    left = shutil.disk_usage(there).free if free is None else free
    text = f"{format_size(left)} free in {there}"
    if left < LEAST_DISK:
        hint = "free space there, or give a directory on another disk with --dir or --home"
        return Finding(check="disk", state="missing", text=text, hint=hint)
    if left < USUAL_DISK:
        hint = "free space, or give a smaller --max-buffer: a channel takes up to 1 GiB"
        return Finding(check="disk", state="warning", text=text, hint=hint)
    return Finding(check="disk", state="ok", text=text)


def _existing(directory: Path) -> Path:
    return next(p for p in (directory.absolute(), *directory.absolute().parents) if p.is_dir())


def inodes(directory: Path, free: int | None = None) -> Finding:
    """Count the files that a directory's file system can still hold; some have no limit."""
    there = _existing(directory)
    status = os.statvfs(there)
    if free is None and status.f_files == 0:
        return Finding(check="inodes", state="ok", text=f"no limit in {there}")
    left = status.f_favail if free is None else free
    text = f"{left:,} free in {there}"
    if left < LEAST_INODES:
        hint = "delete small files there, or give a directory on another file system with --dir or --home"
        return Finding(check="inodes", state="missing" if left < 100 else "warning", text=text, hint=hint)
    return Finding(check="inodes", state="ok", text=text)


def writable(check: str, directory: Path, hint: str) -> Finding:
    """Write a file into a directory, and remove it."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"headwater")
            file.flush()
    except OSError as error:
        return Finding(check=check, state="missing", text=f"{directory}: {error.strerror}", hint=hint)
    return Finding(check=check, state="ok", text=f"{directory} can be written")


def temporary_space() -> Finding:
    """Look for a directory for temporary files."""
    hint = "set TMPDIR to a directory that this user can write, on a disk with free space"
    try:
        directory = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return Finding(check="temporary files", state="missing", text=str(error.strerror), hint=hint)
    return writable("temporary files", directory, hint)


def temporary_programs(directory: Path | None = None) -> Finding:
    """Look whether code may be run from the directory for temporary files: Java unpacks libraries there."""
    check = "programs in temporary files"
    hint = "mount it without noexec, or set TMPDIR and spark.driver.extraJavaOptions=-Djava.io.tmpdir= to another one"
    try:
        there = directory or Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * mmap.PAGESIZE)
            file.flush()
            mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError as error:
        text = f"{there} does not allow it: {error.strerror}"
        return Finding(check=check, state="warning", text=text, hint=hint)
    except OSError as error:  # it cannot be written, which another check says
        return Finding(check=check, state="warning", text=str(error.strerror), hint=hint)
    return Finding(check=check, state="ok", text=f"{there} allows them")


def shared_memory(directory: Path = Path("/dev/shm"), free: int | None = None) -> Finding:
    """Weigh the shared memory, in which numeric libraries and Java's measurements keep files."""
    check = "shared memory"
    hint = "mount a tmpfs of 64 MiB at /dev/shm; in a pod it is an emptyDir of medium Memory"
    found = writable(check, directory, hint)
    if found.state != "ok":
        return replace(found, state="warning")
    left = shutil.disk_usage(directory).free if free is None else free
    text = f"{format_size(left)} free in {directory}"
    if left < LEAST_SHARED:
        return Finding(check=check, state="warning", text=text, hint=hint)
    return Finding(check=check, state="ok", text=text)


def home_directory() -> Finding:
    """Write into the user's home, where the archive of classes and the token of the trial mode are kept."""
    hint = "set HOME to a directory that this user can write; a service has its own, such as its StateDirectory"
    try:
        return writable("home", Path.home(), hint)
    except RuntimeError as error:
        return Finding(check="home", state="missing", text=str(error), hint=hint)


def port(what: str, number: int, host: str = "127.0.0.1") -> Finding:
    """Try to listen at a port; 0 is any."""
    check = f"port of {what}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            state: State = "warning" if number else "missing"
            hint = (
                "give another one with --listen, or end the process there" if number else "bring up the loopback link"
            )
            return Finding(check=check, state=state, text=f"{host}:{number}: {error.strerror}", hint=hint)
    return Finding(check=check, state="ok", text=f"{host}:{number or 'any'} is free")


def clock(now: float | None = None, *, synchronized: bool | None = None) -> Finding:
    """Compare the clock with the age of Headwater's files, and ask the kernel whether it is synchronized."""
    there = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(there))
    if there < Path(__file__).stat().st_ctime:
        text, hint = f"{shown} is before Headwater was installed", "set the clock, and run a time service (NTP)"
        return Finding(check="clock", state="missing", text=text, hint=hint)
    known = _synchronized() if synchronized is None else synchronized
    if known is False:
        hint = "run a time service (NTP), or check that of the machine below: latency is measured between clocks"
        return Finding(check="clock", state="warning", text=f"{shown}, not synchronized", hint=hint)
    return Finding(check="clock", state="ok", text=shown)


def clock_difference(node: str, there: float, asked: float, answered: float) -> Finding:
    """Compare the clock of a node with this one; it was read (``there``) between two times of this one."""
    check, ahead, doubt = f"clock of {node}", there - (asked + answered) / 2, (answered - asked) / 2
    text = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this host's, to within {doubt:.3f} s"
    if abs(ahead) > MOST_AHEAD + doubt:
        hint = "run a time service (NTP) on both hosts: latency and idle times are measured between clocks"
        return Finding(check=check, state="warning", text=text, hint=hint)
    return Finding(check=check, state="ok", text=text)


def _synchronized() -> bool | None:
    """Return whether the kernel's clock is synchronized; None where the system does not tell."""
    try:
        told = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if told < 0 else bool(told != _UNSYNCHRONIZED)


def class_archive() -> Finding:
    """Look for the class-data archive of Java."""
    from headwater.spark.endpoint import find_java
    from headwater.spark.home import own_archive

    check, spark = "class archive", find_spec("pyspark")
    try:
        file = own_archive(find_java(), Path(spark.origin).parent) if spark and spark.origin else None
    except HeadwaterError:
        hint = "install Java first"
        return Finding(check=check, state="optional", text="there is none without Java", hint=hint)
    if file is None:
        hint = "make ~/.cache/headwater writable by this user alone, and unset HEADWATER_CLASS_ARCHIVE"
        return Finding(check=check, state="optional", text="it is off, or the cache is not this user's", hint=hint)
    if not file.exists():
        hint = "python -m headwater.spark.training (a minute; the first Spark also does it in the background)"
        return Finding(check=check, state="optional", text="not made yet: a Spark starts more slowly", hint=hint)
    return Finding(check=check, state="ok", text=str(file))


def extra(name: str) -> Finding:
    """Look for the modules of an extra."""
    lacking = [module for module in EXTRAS[name] if not _there(module)]
    check = f"extra {name}"
    if lacking:
        text, hint = f"without {', '.join(lacking)}", f"pip install 'headwater[{name}]', where a dataflow needs it"
        return Finding(check=check, state="optional", text=text, hint=hint)
    return Finding(check=check, state="ok", text="installed")


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def token(environment: Mapping[str, str]) -> Finding:
    """Read the token of an agent or a controller; its text is not shown."""
    from headwater.channels.credential import CREDENTIAL_MARK, TOKEN_ENV, TOKEN_FILE_ENV, SiteSecret, read_token

    if not environment.get(TOKEN_ENV, "").strip() and not environment.get(TOKEN_FILE_ENV):
        hint = "set HEADWATER_TOKEN_FILE for `headwater zone`, or where zones have `at:`; `headwater token` makes one"
        return Finding(check="token", state="optional", text="not set", hint=hint)
    try:
        text, where = read_token(environment)
        if not text.startswith(CREDENTIAL_MARK):
            SiteSecret.parse(text, where=where)
    except HeadwaterError as error:
        return failed("token", error)
    if where != TOKEN_ENV and Path(where).stat().st_mode & 0o077:
        text, hint = f"{where} can be read by other users", f"chmod 600 {where}"
        return Finding(check="token", state="warning", text=text, hint=hint)
    kind = "credential of an agent" if text.startswith(CREDENTIAL_MARK) else "site secret"
    return Finding(check="token", state="ok", text=f"{kind} from {where}")


def authority(environment: Mapping[str, str]) -> Finding:
    """Read the authority for certificates of agents."""
    from headwater.channels.wire import CA_ENV

    if not (file := environment.get(CA_ENV)):
        text, hint = "no authority: agents' own certificates are pinned", f"set {CA_ENV} where agents have others"
        return Finding(check="TLS", state="optional", text=text, hint=hint)
    try:
        ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        hint = f"let {CA_ENV} name a PEM file with the certificates of the authority"
        return Finding(check="TLS", state="missing", text=f"{file}: {error.strerror or error}", hint=hint)
    return Finding(check="TLS", state="ok", text=f"authority in {file}")
