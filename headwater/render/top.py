"""Terminal view of everything: deployments, zones and links, the busiest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from headwater.app.view import DeploymentSeen, HostSeen, LinkSeen, View, ZoneSeen
from headwater.core.quantity import format_duration
from headwater.render import figures
from headwater.render.deployment import PHASE_STYLE, span

Order = Literal["name", "rate", "lag", "latency", "cores"]
KEYS: Mapping[str, Order] = {"n": "name", "r": "rate", "l": "lag", "p": "latency", "c": "cores"}
"""Keys that change the order."""

_FULL = 0.8
"""Share from which a host or link is shown as nearly full."""
_SILENT = 15.0
"""Seconds of silence after which a zone's age is shown."""


@dataclass(frozen=True, kw_only=True)
class Top:
    """A sorted view with as many rows as fit: ``rows`` per table at most, or a screen's ``height``."""

    view: View
    order: Order = "name"
    rows: int | None = None
    height: int | None = None
    typed: bool = False
    """Whether keys are read, so that they are shown."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = list(_head(self.view, self.order, typed=self.typed))
        tables = [part for part in self._tables() if part.rows]
        most = [len(t.rows) if self.rows is None else min(self.rows, len(t.rows)) for t in tables]
        if self.height is not None:
            lines = sum(len(console.render_lines(line, options, pad=False)) for line in head)
            # Each table has an empty line, a header, and a line that counts the omitted rows.
            most = shares(self.height - lines - 3 * len(tables), most)
        yield from head
        for part, count in zip(tables, most, strict=True):
            if count:
                yield Text("")
                yield part.shown(count)
                if count < len(part.rows):
                    yield Text(f"and {len(part.rows) - count} more {part.what}", style="dim")

    def _tables(self) -> tuple[_Part, ...]:
        view = self.view
        cores = _cores(view)
        return (
            _Part(
                what="deployments",
                columns=("Deployment", "Phase"),
                figures=("Version", "Units", "Rows/s", "Lag", "p95", "SLO p95", "Cores", "Dead"),
                rows=[_deployment(d, cores.get(d.name)) for d in sorted_deployments(view, self.order)],
            ),
            _Part(
                what="zones",
                columns=("Zone", "Layer"),
                figures=("Units", "Rows/s", "Lag", "Cores", "Of", "Load", "Report"),
                rows=[_zone(z, view.at) for z in _zones(view, self.order)],
            ),
            _Part(
                what="links",
                columns=("Link",),
                figures=("Bytes/s", "Of", "Used", "Delay", "Link is"),
                rows=[_link(x) for x in _links(view, self.order)],
            ),
        )


def shares(room: int, wanted: Sequence[int]) -> list[int]:
    """Divide lines among tables: none gets more than it needs, and spare lines go to the others.

    >>> shares(10, [2, 20, 20]), shares(100, [2, 20]), shares(0, [2, 20])
    ([2, 4, 4], [2, 20], [0, 0])
    """
    found = [0] * len(wanted)
    left = max(0, room)
    while left and (hungry := [n for n, want in enumerate(wanted) if found[n] < want]):
        each = max(1, left // len(hungry))
        for n in hungry:
            more = min(wanted[n] - found[n], each, left)
            found[n] += more
            left -= more
    return found


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A table: columns of words, then of figures."""

    what: str
    columns: Sequence[str]
    figures: Sequence[str]
    rows: Sequence[Sequence[RenderableType]]

    def shown(self, count: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in self.columns:
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        for column in self.figures:
            table.add_column(column, justify="right", no_wrap=True, overflow="ellipsis")
        for row in self.rows[:count]:
            table.add_row(*row)
        return table


def _head(view: View, order: Order, *, typed: bool) -> Iterator[Text]:
    clock = time.strftime("%H:%M:%S", time.localtime(view.at))
    running = sum(u.status == "running" for u in view.units)
    failed = sum(u.status == "failed" for u in view.units)
    said = f"  deployments {len(view.deployments)}, zones {len(view.zones)}, units running {running}"
    head = Text.assemble(("headwater top", "bold"), f"  {clock}{said}")
    if failed:
        head.append(f", failed {failed}", style="bold red")
    yield head
    keys = ", ".join(f"{key} {name}" for key, name in KEYS.items())
    yield Text(f"{view.store}  by {order}" + (f"  ({keys}; q ends)" if typed else ""), style="dim")
    if view.error is not None:
        yield Text(view.error, style="red")
        if view.deployments:
            yield Text(f"last read at {clock}", style="yellow")
        return
    if not view.deployments:
        yield Text("no deployments: create one with `headwater apply`", style="yellow")
    if view.controller is None:
        yield Text("no controller acts on the store: start one with `headwater up`", style="yellow")
    for deployment in view.deployments:
        for text in deployment.broken:
            yield Text(f"{deployment.name}: SLO broken: {text}", style="red")
    for decision in view.decisions:
        if decision.state == "proposed":
            text = f"{decision.deployment}: {decision.why}: headwater approve {decision.id}"
            yield Text(text, style="yellow", no_wrap=True, overflow="ellipsis")


# ---------------------------------------------------------------- order


def sorted_deployments(view: View, order: Order) -> list[DeploymentSeen]:
    """Sort deployments by name, or by a figure: the highest first, unknown ones last."""
    cores = _cores(view)
    figure: Mapping[Order, Callable[[DeploymentSeen], float | None]] = {
        "rate": lambda d: d.rows_per_s,
        "lag": lambda d: d.lag,
        "latency": lambda d: d.latency_p95_s,
        "cores": lambda d: cores.get(d.name),
    }
    if order == "name":
        return sorted(view.deployments, key=lambda d: d.name)
    return sorted(view.deployments, key=lambda d: (*_falling(figure[order](d)), d.name))


def _zones(view: View, order: Order) -> list[ZoneSeen]:
    if order == "name":
        return list(view.zones)  # in the order of the tree
    return sorted(view.zones, key=lambda z: (*_falling(_load(z.hosts)), z.name))


def _links(view: View, order: Order) -> list[LinkSeen]:
    if order == "name":
        return sorted(view.links, key=lambda x: x.link)
    return sorted(view.links, key=lambda x: (x.up is not False, *_falling(x.used), x.link))


def _falling(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


# ---------------------------------------------------------------- rows


def _deployment(one: DeploymentSeen, cores: float | None) -> list[RenderableType]:
    phase = f"{one.phase} {one.done}/{one.steps}" if one.steps else one.phase
    late = one.slo_latency_s is not None and (one.latency_p95_s or 0.0) > one.slo_latency_s
    units = Text(f"{one.running}/{one.units}", style="red" if one.failed else "")
    has_slo = format_duration(one.slo_latency_s) if one.slo_latency_s is not None else "-"
    return [
        Text(one.name, style="bold"),
        Text(phase, style=PHASE_STYLE[one.phase]),
        str(one.version),
        units,
        figures.rate(one.rows_per_s),
        "-" if one.lag is None else f"{one.lag:,}",
        Text(figures.duration(one.latency_p95_s), style="red" if late else ""),
        Text(has_slo, style="red" if one.broken else "green" if one.has_slo else ""),
        "-" if cores is None else f"{cores:.2f}",
        f"{one.dead_letters:,}",
    ]


def _zone(one: ZoneSeen, now: float) -> list[RenderableType]:
    load = _load(one.hosts)
    used = [h.spark for h in one.hosts if h.spark is not None]
    cores = [h.cores for h in one.hosts if h.cores is not None]
    lags = [u.lag for u in one.units if u.lag is not None]
    rates = [u.rows_in_per_s for u in one.units if u.rows_in_per_s is not None]
    heartbeat = Text("-")
    if one.error is not None:
        ago = "" if one.heartbeat is None else f" for {span(max(0.0, now - one.heartbeat))}"
        heartbeat = Text(f"silent{ago}", style="bold red")
    elif one.heartbeat is not None:
        late = now - one.heartbeat > _SILENT
        heartbeat = Text(f"{span(now - one.heartbeat)} ago", style="yellow") if late else Text("now", style="green")
    return [
        Text(one.name, style="bold"),
        one.layer,
        str(len(one.units)),
        figures.rate(sum(rates) if rates else None),
        f"{sum(lags):,}" if lags else "-",
        f"{sum(used):.2f}" if used else "-",
        f"{sum(cores):g}" if cores else "-",
        _share(load),
        heartbeat,
    ]


def _link(one: LinkSeen) -> list[RenderableType]:
    up = {True: Text("up", style="green"), False: Text("down", style="bold red"), None: Text("-")}
    return [
        Text(one.link, style="bold"),
        figures.size(one.bytes_per_s),
        figures.size(one.capacity_bytes_per_s),
        _share(one.used),
        figures.duration(one.delay_s),
        up[one.up],
    ]


def _cores(view: View) -> dict[str, float]:
    """Return the cores used by each deployment's units, where known."""
    found: dict[str, float] = {}
    for unit in view.units:
        if unit.cpu is not None:
            found[unit.deployment] = found.get(unit.deployment, 0.0) + unit.cpu
    return found


def _load(hosts: Sequence[HostSeen]) -> float | None:
    """Return the load of a zone's busiest host."""
    return max((h.load for h in hosts if h.load is not None), default=None)


def _share(value: float | None) -> Text:
    return Text("-") if value is None else Text(f"{value:.0%}", style="red" if value >= _FULL else "")
