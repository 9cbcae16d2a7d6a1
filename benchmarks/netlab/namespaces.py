"""The kernel's side: run `ip` and `tc`, list namespaces, remove the remains of a lab."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.netlab.topology import PREFIX, owner
from headwater.core.errors import HeadwaterError, Unavailable

SECONDS = 20.0  # no command of iproute2 takes longer, unless something is very wrong
_INSTALL = "install iproute2 (Debian, Ubuntu: apt-get install iproute2; Fedora: dnf install iproute iproute-tc)"


class LabError(HeadwaterError):
    """The lab cannot fulfil a request."""


def require() -> None:
    """Raise Unavailable, with a hint, where a lab cannot be made."""
    if not Path("/proc/self/ns/net").exists():
        raise Unavailable(
            "this system has no network namespaces", where="network lab", hint="run it on Linux, or in a VM"
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise Unavailable(f"the command `{tool}` is missing", where="network lab", hint=_INSTALL)
    if os.geteuid() != 0:
        raise Unavailable(
            "making network namespaces needs root",
            where="network lab",
            hint="run it with sudo, or in a container started with --privileged",
        )


def run(command: Sequence[str]) -> str:
    """Run one command of iproute2 and return its output; raise LabError with its error message."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` does not end", hint="the kernel may be stuck; look at dmesg") from None
    if done.returncode != 0:
        raise LabError(
            f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip() or 'no message'}",
            hint="run `python -m benchmarks.netlab clean`, then try again; in a container add --privileged",
        )
    return done.stdout


def run_all(commands: Iterable[Sequence[str]]) -> None:
    """Run commands one after the other."""
    for command in commands:
        run(command)


def existing() -> list[str]:
    """Return the namespaces that labs have made."""
    lines = run(["ip", "netns", "list"]).splitlines()
    return [line.split()[0] for line in lines if line.startswith(PREFIX)]


def has_netem(namespace: str) -> bool:
    """Return whether this kernel can delay packets by itself; the namespace must exist."""
    try:
        run(["tc", "-n", namespace, "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"])
    except LabError:
        return False
    run(["tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root"])
    return True


def sent_bytes(namespace: str) -> dict[str, int]:
    """Return the bytes each device of a namespace has sent."""
    devices = json.loads(run(["ip", "-n", namespace, "-s", "-j", "link", "show"]))
    return {d["ifname"]: int(d["stats64"]["tx"]["bytes"]) for d in devices}


def members(namespace: str) -> list[int]:
    """Return the ids of the processes in a namespace."""
    try:
        return [int(line) for line in run(["ip", "netns", "pids", namespace]).split()]
    except LabError:
        return []


def remove(namespaces: Sequence[str], *, patience: float = 5.0) -> None:
    """End the processes in these namespaces, by their ids, and remove the namespaces and their devices."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = [pid for name in namespaces for pid in members(name)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience
        while pids and time.monotonic() < deadline:
            time.sleep(0.05)
            pids = [pid for pid in pids if alive(pid)]
        if not pids:
            break
    for name in namespaces:
        if not name.startswith(PREFIX):
            raise LabError(f"{name} is no namespace of a lab", hint="remove it by hand")
        with contextlib.suppress(LabError):  # another clean was faster
            run(["ip", "netns", "del", name])


def clean(*, all_labs: bool = False) -> list[str]:
    """Remove the remains of labs whose process is gone, or of all labs; return the namespaces removed."""
    found = existing()
    gone = [name for name in found if all_labs or not alive(owner(name))]
    remove(gone)
    return gone


def alive(pid: int | None) -> bool:
    """Return whether such a process runs; a process that has ended and was not waited for does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
