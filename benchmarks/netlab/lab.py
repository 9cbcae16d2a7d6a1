"""A running lab: zones in namespaces, links between them, processes in the zones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from benchmarks.netlab import links, namespaces
from benchmarks.netlab.namespaces import LabError
from benchmarks.netlab.topology import LinkNet, Topology, plan
from headwater.continuum.model import Continuum

_READY_SECONDS = 20.0
_STOP_SECONDS = 5.0
_FORWARDER = Path(__file__).with_name("forwarder.py")
# Of every zone. Cached metrics of TCP would carry a link's former properties over.
_SYSCTL = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.tcp_no_metrics_save=1")
# Long enough for a window of 64 KiB packets of a connection over a long path.
_TUN_QUEUE = "4096"
KEEP = "keep"  # the present setting


@dataclass(frozen=True)
class Crossed:
    """Bytes that crossed a link since the lab began, from the child to the parent and back."""

    up: int
    down: int


class Lab:
    """Zones of a continuum as network namespaces. Use it in a `with` statement, or call start and stop.

    Links are named by their lower zone. What is still running in the zones at the end is ended.
    """

    def __init__(self, continuum: Continuum, *, name: str | None = None) -> None:
        self.continuum = continuum
        # The name begins with our process id: so `clean` finds the labs whose owner has ended.
        self.topology: Topology = plan(continuum, name or f"{os.getpid()}")
        self.netem = False
        self._links: dict[str, LinkNet] = dict(self.topology.links)
        self._cut: set[str] = set()
        self._forwarders: dict[str, subprocess.Popen[str]] = {}
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make namespaces, links and routes; raise Unavailable or LabError, leaving nothing behind."""
        namespaces.require()
        try:
            self._make()
        except BaseException:
            self.stop()
            raise

    def stop(self, *, patience: float = _STOP_SECONDS) -> None:
        """End the processes in the zones, by force after `patience` seconds; remove the lab. May be repeated."""
        for process in self._processes:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + patience
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            _signal_group(process, signal.SIGKILL)
            process.wait()
            _close(process)
        self._processes.clear()
        for forwarder in self._forwarders.values():
            _end_forwarder(forwarder)
        self._forwarders.clear()
        there = set(namespaces.existing())
        mine = [zone.namespace for zone in self.topology.zones.values() if zone.namespace in there]
        namespaces.remove(mine, patience=patience)

    def address(self, zone: str) -> str:
        """Return the address at which any zone reaches this one."""
        return self.topology.zones[self.continuum.zone(zone).name].address

    def link(self, lower: str) -> LinkNet:
        """Return a link as it is set now (a cut does not count)."""
        try:
            return self._links[lower]
        except KeyError:
            names = ", ".join(self._links)
            raise LabError(f"no link of {lower!r}", hint=f"links are named by their child: {names}") from None

    def set_link(self, lower: str, *, bandwidth: float | str | None = KEEP, delay: float | str = KEEP) -> None:
        """Give a link another bandwidth (bit/s, None: unlimited) or delay (seconds, one way)."""
        link = self.link(lower)
        if not isinstance(bandwidth, str):
            link = replace(link, bandwidth=bandwidth)
        if not isinstance(delay, str):
            link = replace(link, delay=delay)
        before, self._links[lower] = self._links[lower], link
        if not self.netem and link.delay:
            self._tunnel(link)
        if lower not in self._cut:
            self._shape(link)
        if not self.netem and bool(link.delay) != bool(before.delay):
            self._route(lower)

    def set_links(self, *, bandwidth: float | str | None = KEEP, delay: float | str = KEEP) -> None:
        """Set all links alike."""
        for lower in self._links:
            self.set_link(lower, bandwidth=bandwidth, delay=delay)

    def cut(self, lower: str) -> None:
        """Drop all packets over a link, in both directions and without a notice."""
        link = self.link(lower)
        self._cut.add(lower)
        for namespace, device in self._ends(link):
            namespaces.run_all(links.cut(namespace, device))

    def mend(self, lower: str) -> None:
        """Undo a cut."""
        self._cut.discard(lower)
        self._shape(self.link(lower))

    def crossed(self, lower: str) -> Crossed:
        """Return the bytes that crossed a link in each direction, headers of IP and TCP included."""
        link = self.link(lower)
        zones = self.topology.zones
        below = namespaces.sent_bytes(zones[lower].namespace)
        above = namespaces.sent_bytes(zones[link.upper].namespace)
        return Crossed(
            up=sum(below.get(name, 0) for name in (link.lower_device, _tun(link.lower_device))),
            down=sum(above.get(name, 0) for name in (link.upper_device, _tun(link.upper_device))),
        )

    def popen(
        self,
        zone: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        hide: Sequence[str | Path] = (),
        join: Sequence[Path] = (),
        text: bool = False,
    ) -> subprocess.Popen[Any]:
        """Start a process in a zone, in a process group of its own; it ends with the lab at the latest.

        `hide` are directories that the process and its children see as empty, such as those of
        other zones: hidden directories cannot be used to pass data. `join` are the entrances of control
        groups that it joins.
        """
        command = ["ip", "netns", "exec", self._namespace(zone)]
        if join:
            # Before the namespace: `ip netns exec` mounts another /sys.
            joins = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done'
            command = ["sh", "-c", f'{joins}; shift; exec "$@"', "sh", *map(str, join), "--", *command]
        if hide:
            # `ip netns exec` gives the process a mount namespace of its own, which ends with it.
            mounts = 'while [ "$1" != -- ]; do mount -t tmpfs -o ro,size=4k none "$1" || exit 125; shift; done'
            command += ["sh", "-c", f'{mounts}; shift; exec "$@"', "sh", *map(str, hide), "--"]
        process: subprocess.Popen[Any] = subprocess.Popen(
            [*command, *argv],
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[Any]) -> None:
        """End a process of this lab and its group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal_group(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
                break
        _close(process)
        if process in self._processes:
            self._processes.remove(process)

    # ------------------------------------------------------------ making it

    def _make(self) -> None:
        zones = self.topology.zones.values()
        for zone in zones:
            namespaces.run(["ip", "netns", "add", zone.namespace])
            self._ip(zone.name, "link", "set", "lo", "up")
            self._ip(zone.name, "address", "add", f"{zone.address}/32", "dev", "lo")
            namespaces.run(["ip", "netns", "exec", zone.namespace, "sysctl", "-q", "-w", *_SYSCTL])
        self.netem = namespaces.has_netem(next(iter(zones)).namespace)
        for link in self._links.values():
            self._join(link)
        for link in self._links.values():
            if link.delay and not self.netem:
                self._tunnel(link)
            self._shape(link)
            self._route(link.lower)

    def _join(self, link: LinkNet) -> None:
        """Lay the pair of devices between two namespaces; it never shows up outside of them."""
        upper = self._namespace(link.upper)
        peer = ("peer", "name", link.upper_device, "netns", upper)
        self._ip(link.lower, "link", "add", link.lower_device, "mtu", str(links.MTU), "type", "veth", *peer)
        for zone, device, address in (
            (link.lower, link.lower_device, link.lower_address),
            (link.upper, link.upper_device, link.upper_address),
        ):
            self._ip(zone, "link", "set", device, "mtu", str(links.MTU), "up")
            self._ip(zone, "address", "add", f"{address}/30", "dev", device)

    def _tunnel(self, link: LinkNet) -> None:
        """Start the link's forwarder, or tell it the new delay."""
        forwarder = self._forwarders.get(link.lower)
        if forwarder is not None:
            if forwarder.poll() is not None or forwarder.stdin is None:
                raise LabError(f"the forwarder of link {link.lower}-{link.upper} has ended", hint="start the lab again")
            forwarder.stdin.write(f"{link.delay}\n")
            forwarder.stdin.flush()
            return
        ends = [(self._namespace(z), _tun(d)) for z, d in self._sides(link)]
        command = [sys.executable, "-I", str(_FORWARDER), *ends[0], *ends[1], str(link.delay)]
        forwarder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._forwarders[link.lower] = forwarder
        assert forwarder.stdout is not None and forwarder.stderr is not None
        if forwarder.stdout.readline().strip() != "ready":
            forwarder.wait(_READY_SECONDS)
            raise LabError(
                f"the forwarder does not start: {forwarder.stderr.read().strip().splitlines()[-1:]}",
                hint="it needs /dev/net/tun; in a container add --device /dev/net/tun",
            )
        for namespace, device in ends:
            size = ("mtu", str(links.MTU), "txqueuelen", _TUN_QUEUE)
            namespaces.run(["ip", "-n", namespace, "link", "set", device, *size, "up"])

    def _shape(self, link: LinkNet) -> None:
        for namespace, device in self._ends(link):
            netem = link.delay if self.netem else 0.0
            namespaces.run_all(links.shape(namespace, device, link.bandwidth, netem=netem))

    def _route(self, lower: str) -> None:
        """Route all traffic over a link through its present device."""
        link = self._links[lower]
        (_, below), (_, above) = self._ends(link)
        for route in self.topology.routes:
            if route.link == lower:
                gateway = link.upper_address if route.up else link.lower_address
                way: tuple[str, ...] = ("dev", below if route.up else above)
                if not self._tunnelled(link):
                    way = ("via", gateway, *way)
                self._ip(route.zone, "route", "replace", route.target, *way, "src", self.address(route.zone))

    def _tunnelled(self, link: LinkNet) -> bool:
        return bool(link.delay) and not self.netem

    def _ends(self, link: LinkNet) -> list[tuple[str, str]]:
        """Return namespace and device, as in use, of the lower and the upper end."""
        tunnelled = self._tunnelled(link)
        return [(self._namespace(z), _tun(d) if tunnelled else d) for z, d in self._sides(link)]

    def _sides(self, link: LinkNet) -> tuple[tuple[str, str], tuple[str, str]]:
        return (link.lower, link.lower_device), (link.upper, link.upper_device)

    def _namespace(self, zone: str) -> str:
        return self.topology.zones[self.continuum.zone(zone).name].namespace

    def _ip(self, zone: str, *words: str) -> None:
        namespaces.run(["ip", "-n", self._namespace(zone), *words])


def _tun(device: str) -> str:
    return f"{device}t"


def _signal_group(process: subprocess.Popen[Any], number: int) -> None:
    """Signal the group that the process leads; it may outlive its leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _close(process: subprocess.Popen[Any]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _end_forwarder(forwarder: subprocess.Popen[str]) -> None:
    """End a forwarder by ending its input."""
    _close(forwarder)
    try:
        forwarder.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        forwarder.kill()
        forwarder.wait()
