"""Delay packets where the kernel has no netem: carry them between two TUN devices, each later by a delay.

    python forwarder.py NAMESPACE DEVICE NAMESPACE DEVICE SECONDS

It says `ready`, takes new delays as lines on its input, and ends with its input; the devices are gone
with it. It imports nothing but the standard library, to start fast.

The devices pass on packets as the kernel has them in memory, up to 64 KiB with one header (GSO), so
that one read and one write carry forty packets of the wire, and no checksums are computed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
CLONE_NEWNET = 0x40000000
LARGEST = 65536 + 64  # of a packet with its header
AT_ONCE = 64  # packets read before those that are due are sent
MOST_BYTES = 256 * 2**20  # on their way in one direction: 2 Gbit/s at one second


def open_tun(namespace: str, device: str) -> int:
    """Make a TUN device in a namespace and return its file; it is gone when the file is closed."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as place:
        if libc.setns(place.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
    fcntl.ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return tun


class Direction:
    """Packets on their way from one device to the other, in order."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.bytes = 0

    def take(self, delay: float) -> None:
        """Read the waiting packets; one stamp serves the batch, which was read within microseconds."""
        due = time.monotonic() + delay
        if self.waiting:
            due = max(due, self.waiting[-1][0])  # a link keeps the order when its delay shrinks
        for _ in range(AT_ONCE):
            try:
                packet = os.read(self.source, LARGEST)
            except BlockingIOError:
                return
            if self.bytes + len(packet) > MOST_BYTES:
                continue  # a queue that is full drops
            self.waiting.append((due, packet))
            self.bytes += len(packet)

    def give(self) -> None:
        """Write the packets that are due."""
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            packet = self.waiting.popleft()[1]
            self.bytes -= len(packet)
            # A device that is down or full loses the packet, as any link would.
            with contextlib.suppress(OSError):
                os.write(self.target, packet)


def forward(one: int, other: int, delay: float, control: int) -> None:
    """Carry packets both ways until the control's end."""
    ways = (Direction(one, other), Direction(other, one))
    by_source = {way.source: way for way in ways}
    while True:
        first = min((way.waiting[0][0] for way in ways if way.waiting), default=None)
        rest = None if first is None else max(0.0, first - time.monotonic())
        # select, since epoll and poll count in whole milliseconds.
        for file in select.select([one, other, control], [], [], rest)[0]:
            if file == control:
                text = os.read(control, 4096)
                if not text:
                    return
                delay = float(text.split()[-1])
            else:
                by_source[file].take(delay)
        for way in ways:
            way.give()


def main(arguments: list[str]) -> int:
    """Open both devices, say so, and forward."""
    one, first, other, second, delay = arguments
    files = open_tun(one, first), open_tun(other, second)
    print("ready", flush=True)
    forward(*files, float(delay), sys.stdin.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
