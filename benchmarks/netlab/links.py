"""Command lines of `tc` that make a device behave like a link. Pure."""

from __future__ import annotations

MTU = 1500
_HEADER = 14  # of Ethernet, which tbf counts
# A burst shorter than a timer's tick caps the rate; one much longer lets small transfers go unshaped.
BURST_SECONDS = 0.005
# The queue of a full link: enough for TCP to fill it, as in common routers.
QUEUE_SECONDS = 0.05
_NETEM_PACKETS = 200_000  # on their way; the default of 1000 would drop at 1 Gbit/s and 100 ms

Command = tuple[str, ...]


def burst(bandwidth: float) -> int:
    """Return the bytes that may leave at once.

    >>> burst(10e6), burst(1e9)
    (6250, 625000)
    """
    return max(round(bandwidth / 8 * BURST_SECONDS), 2 * (MTU + _HEADER))


def queue(bandwidth: float) -> int:
    """Return the bytes that may wait, the burst included."""
    return burst(bandwidth) + max(round(bandwidth / 8 * QUEUE_SECONDS), 20 * (MTU + _HEADER))


def shape(namespace: str, device: str, bandwidth: float | None, *, netem: float = 0.0) -> list[Command]:
    """Return the commands for a bandwidth (None: unlimited) and, by netem, a delay in seconds.

    They replace all former settings of the device, a cut included.
    """
    root = ("tc", "-n", namespace, "qdisc", "replace", "dev", device)
    commands: list[Command] = []
    at: tuple[str, ...] = ("root", "handle", "1:")
    if netem:
        delay = f"{round(netem * 1e6)}us"
        commands.append((*root, *at, "netem", "limit", str(_NETEM_PACKETS), "delay", delay))
        at = ("parent", "1:1", "handle", "10:")
    if bandwidth is not None:
        sizes = ("burst", str(burst(bandwidth)), "limit", str(queue(bandwidth)))
        commands.append((*root, *at, "tbf", "rate", f"{round(bandwidth)}bit", *sizes))
    return commands or [(*root, "root", "noqueue")]


def cut(namespace: str, device: str) -> list[Command]:
    """Return the command that drops all packets of a device without a notice."""
    return [("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "blackhole")]
