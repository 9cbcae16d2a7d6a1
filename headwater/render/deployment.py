"""Terminal output of plans, progress and errors; computes nothing and does not import Spark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from headwater.app.view import Footprint, Status
from headwater.continuum.model import Link, Zone
from headwater.control.lifecycle import BUSY, Phase
from headwater.core.errors import ErrorList, HeadwaterError
from headwater.core.metrics import LinkProgress, Progress, UnitProgress, node_of
from headwater.core.quantity import format_bandwidth, format_duration, format_size
from headwater.plan.diff import PlanDiff
from headwater.plan.model import Channel, DeploymentPlan, Unit

_STATUS_STYLE: Mapping[str, str] = {
    "starting": "yellow",
    "running": "green",
    "failed": "bold red",
    "finished": "cyan",
    "stopped": "dim",
    "unreachable": "bold red",
}

_FULL_SOON = 7 * 86400.0  # seconds until a channel is full, below which it is described


# ---------------------------------------------------------------- plans


def plan_view(plan: DeploymentPlan) -> RenderableType:
    """Show a plan: the tree of zones with their units, the channels over each link, and warnings."""
    parts: list[RenderableType] = [_zone_tree(plan), Text(""), *_crossings(plan)]
    inside = [c for c in plan.channels if any(not links for links in c.routes.values())]
    if inside:
        parts += [Text(""), Text("Channels inside a zone", style="bold")]
        for channel in inside:
            readers = ", ".join(u for u, links in channel.routes.items() if not links)
            kept = f" (Kafka of {channel.broker})" if channel.broker else ""
            parts.append(Text(f"  {channel.id}: {channel.producer} -> {readers}{kept}"))
    for warning in plan.warnings:
        parts += [Text(""), Text(f"warning: {warning}", style="yellow")]
    return Group(*parts)


def _zone_tree(plan: DeploymentPlan) -> Tree:
    queries = len(plan.units)
    name = plan.dataflow.name
    title = f"[bold]{escape(name)}[/]: {queries} units, {len(plan.channels)} channels, on {plan.continuum.name}"
    tree = Tree(title)
    listed: dict[tuple[str, ...], str] = {}  # the unit under which operators are listed

    def add(zone: Zone, to: Tree) -> None:
        branch = to.add(_zone_title(plan, zone))
        for unit in plan.units:
            if unit.zone == zone.name:
                _unit_branch(plan, unit, branch, listed.setdefault(unit.operators, unit.id))
        for child in plan.continuum.children(zone.name):
            add(child, branch)

    for top in plan.continuum.tops:
        add(top, tree)
    return tree


def _zone_title(plan: DeploymentPlan, zone: Zone) -> str:
    covered = ", ".join(plan.continuum.covered(zone.name)) or "no location"
    link = f", {_link_text(zone.link)}" if zone.link else ""
    hosts = ", ".join(host.name for host in zone.hosts)
    broker = f"; Kafka at {zone.broker.servers}" if zone.broker else ""
    about = f"({zone.layer}; {covered}{link}; hosts {hosts}{broker})"
    return f"[bold cyan]{escape(zone.name)}[/] {escape(about)}"


def _unit_branch(plan: DeploymentPlan, unit: Unit, to: Tree, listed: str) -> None:
    hosts = escape(" or ".join(unit.hosts))
    known = plan.dataflow.locations or plan.continuum.locations
    some = [x for x in plan.continuum.covered(unit.zone) if x in known and x not in unit.locations]
    only = f" for {escape(', '.join(unit.locations))}" if some else ""
    same = f": operators as in {escape(listed)}" if listed != unit.id else ""
    branch = to.add(f"[green]{escape(unit.id)}[/] on {hosts}{only}{same}")
    if not same:
        branch.add(Text(" > ".join(plan.dataflow[id_].label for id_ in unit.operators)))


def _crossings(plan: DeploymentPlan) -> Iterator[RenderableType]:
    if cross := plan.continuum.cross_links:
        yield Text(f"Links beside the tree: {'; '.join(map(_link_text, cross))}")
        yield Text("")
    links: dict[str, Link] = {}
    crossing: dict[str, list[Channel]] = {}
    for channel in plan.channels:
        for link in map(plan.continuum.link, channel.links):
            links[link.name] = link
            crossing.setdefault(link.name, []).append(channel)
    if not links:
        yield Text("Nothing crosses a link: all data stays in its zone.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Link", "Stream", "From", "To", "Kept in"):
        table.add_column(column, overflow="fold")
    for name, channels in crossing.items():
        for number, channel in enumerate(channels):
            table.add_row(
                name if number == 0 else "",
                channel.operator,
                channel.producer,
                ", ".join(u for u, way in channel.routes.items() if name in way),
                f"Kafka of {channel.broker}" if channel.broker else f"filelog of {channel.node}",
            )
    yield table
    yield Text("")
    for stream in dict.fromkeys(c.operator for cs in crossing.values() for c in cs):
        yield Text(f"{stream}: {plan.dataflow.types[stream].schema.text}")


def _link_text(link: Link) -> str:
    parts = [f"{link.name}"]
    if link.bandwidth is not None:
        parts.append(format_bandwidth(link.bandwidth))
    if link.latency:
        parts.append(format_duration(link.latency))
    return " ".join(parts)


# ---------------------------------------------------------------- changes


_ACTION_STYLE: Mapping[str, str] = {
    "start": "green",
    "stop": "red",
    "replace": "yellow",
    "update_inputs": "cyan",
}


def change_view(name: str, diff: PlanDiff, words: Iterable[str]) -> RenderableType:
    """Show the changes of applying a plan: a table of units, then the steps in words."""
    changed = diff.changed
    same = len(diff.units) - len(changed)
    parts: list[RenderableType] = [Text(f"{name}: {len(changed)} units change, {same} stay as they are", style="bold")]
    if changed:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("Unit", "Change", "State", "Because"):
            table.add_column(column, overflow="fold")
        for unit in changed:
            style = _ACTION_STYLE[unit.action]
            table.add_row(Text(unit.unit), Text(unit.action, style=style), unit.state, Text(unit.reason))
        parts.append(table)
    parts += [Text(f"  {n}. {line}") for n, line in enumerate(words, start=1)]
    return Group(*parts)


def status_view(status: Status) -> RenderableType:
    """Show a stored deployment: its phase, a change under way, its units, and silent zones."""
    change = status.change
    parts: list[RenderableType] = [
        Text.assemble((status.name, "bold"), f"  version {status.version}  ", (status.phase, PHASE_STYLE[status.phase]))
    ]
    if change is not None and change.ended is None:
        parts.append(Text(f"  {change.done} of {change.steps} steps done"))
    if status.message:
        parts.append(Text(f"  {status.message}", style="yellow"))
    if status.controller is None:
        parts.append(Text("  no controller acts on the store: start one with `headwater up`", style="yellow"))
    if status.clear_text:
        parts.append(Text(f"  in clear text, without TLS: {', '.join(status.clear_text)}", style="yellow"))
    parts += _slo_lines(status)
    if status.units:
        parts.append(_unit_table(status.units))
    if status.links:
        parts.append(_link_table(status.links))
    if status.footprints:
        parts.append(_footprint_table(status.footprints))
    parts += _idle(status.units)
    parts += _buffers(status.progress)
    parts += [
        Text(f"{z.zone}: {z.error}; its figures are {span(z.age_s)} old", style="red") for z in status.zones if z.error
    ]
    parts += _troubles(status.units)
    return Group(*parts)


def _slo_lines(status: Status) -> Iterator[Text]:
    """Show whether the SLO is kept, its mode, and the open decisions."""
    if status.slo is None:
        return
    measured, most = status.measured, status.slo.max_latency
    said = ""
    if measured is not None and not math.isinf(most):
        said = f", latency {format_duration(measured.latency)} of at most {format_duration(most)}"
    mode = f"; mode {status.slo.mode}"
    if status.kept is None:
        yield Text(f"  SLO: not measured yet{mode}", style="dim")
    elif status.kept:
        yield Text(f"  SLO kept{said}{mode}", style="green")
    else:
        yield Text(f"  SLO broken: {'; '.join(status.broken)}{mode}", style="red")
    for decision in status.decisions:
        ask = f": headwater approve {decision.id}" if decision.state == "proposed" else ""
        yield Text(f"  decision {decision.id} {decision.state}: {decision.why}{ask}", style="yellow")


PHASE_STYLE: Mapping[Phase, str] = {
    **dict.fromkeys(BUSY, "cyan"),
    "rolling_back": "yellow",
    "running": "green",
    "failed": "bold red",
    "stopped": "dim",
}


# ---------------------------------------------------------------- progress


def progress_view(progress: Progress, *, title: str) -> RenderableType:
    """Show a running deployment: a table of units, one of links, errors below."""
    parts: list[RenderableType] = [
        Text(f"{title}  {_clock(progress.seconds)}", style="bold"),
        _unit_table(progress.units),
    ]
    if progress.links:
        parts.append(_link_table(progress.links))
    parts += _idle(progress.units)
    parts += _buffers(progress)
    lost = [c for c in progress.channels if c.dropped or c.lost]
    for channel in lost:
        text = f"channel {channel.channel}: {channel.dropped} rows dropped, {channel.lost} lost"
        parts.append(Text(text, style="yellow"))
    parts += _troubles(progress.units)
    return Group(*parts)


def _unit_table(units: Iterable[UnitProgress]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Unit", overflow="fold")
    every = list(units)
    zoned = any(node_of(u.unit) != u.zone for u in every)
    if zoned:
        table.add_column("Zone", no_wrap=True)
    table.add_column("Status", no_wrap=True)
    for column in ("Rows in", "Rows out", "Rows/s", "Lag", "Batch", "p95", "Dead", "Late"):
        table.add_column(column, justify="right", no_wrap=True)
    for unit in every:
        table.add_row(
            unit.unit,
            *([unit.zone] if zoned else []),
            Text(unit.status, style=_STATUS_STYLE.get(unit.status, "")),
            f"{unit.rows_in:,}",
            f"{unit.rows_out:,}",
            _number(unit.rows_per_s),
            "-" if unit.unread is None or unit.status == "unreachable" else f"{unit.unread:,}",
            "-" if unit.batch_ms is None else format_duration(unit.batch_ms / 1e3),
            format_duration(unit.latency.p95) if unit.latency else "-",
            f"{unit.dead_letters:,}",
            f"{unit.late_rows:,}",
        )
    return table


def _troubles(units: Sequence[UnitProgress]) -> Iterator[Text]:
    """Show why units have failed, and the services that others wait for."""
    yield from (Text(f"{unit.unit} waits: {unit.waits}", style="yellow") for unit in units if unit.waits)
    yield from (Text(f"{unit.unit}: {unit.error}", style="red") for unit in units if unit.error)


def _idle(units: Iterable[UnitProgress]) -> Iterator[Text]:
    """Name the locations and zones that are left out of a unit's event time."""
    for unit in units:
        if unit.idle:
            names = ", ".join(unit.idle)
            yield Text(f"{unit.unit}: {names} idle, left out of its event time", style="yellow")


def _buffers(progress: Progress) -> Iterator[Text]:
    """Describe channels that fill up or cannot be read now, and how long there is room."""
    down = {link.link.rpartition("-")[0] for link in progress.links if link.up is False}
    for channel in progress.channels:
        zone = node_of(channel.channel)
        lasts = channel.lasts_s if channel.lasts_s is not None else channel.would_last()
        if lasts is None or (zone not in down and (channel.lasts_s is None or lasts > _FULL_SOON)):
            continue
        room = f"{format_size(channel.unread_bytes)} of {format_size(channel.limit_bytes or 0)} unread"
        cut = ", its link is down" if zone in down else ""
        yield Text(f"{channel.channel}: {room}{cut}; full in {span(lasts)} at this rate", style="yellow")


def span(seconds: float) -> str:
    """Format a duration for people.

    >>> span(11520.0), span(45.0), span(4e9)
    ('3.2 h', '45 s', 'over a year')
    """
    if seconds > 366 * 86400:
        return "over a year"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _link_table(links: Iterable[LinkProgress]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Link", no_wrap=True)
    table.add_column("Rows", justify="right")
    table.add_column("Bytes", justify="right")
    table.add_column("Link is", no_wrap=True)
    for link in links:
        state = Text("-")
        if link.up is not None:
            since = f" for {span(link.since_s)}" if link.since_s is not None else ""
            state = Text("up" if link.up else f"down{since}", style="green" if link.up else "bold red")
        table.add_row(link.link, f"{link.rows:,}", format_size(link.bytes), state)
    return table


def _footprint_table(footprints: Iterable[Footprint]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Host", no_wrap=True)
    for column in ("RSS", "PSS", "Cores", "Version"):
        table.add_column(column, justify="right")
    for one in footprints:
        pss = "-" if one.pss is None else format_size(one.pss)
        cores = "-" if one.cores is None else f"{one.cores:.2f}"
        table.add_row(one.host, format_size(one.rss), pss, cores, one.version or "-")
    return table


def progress_line(progress: Progress) -> str:
    """Return a deployment's totals in one plain line, for logs."""
    states: dict[str, int] = {}
    for unit in progress.units:
        states[unit.status] = states.get(unit.status, 0) + 1
    units = ", ".join(f"{n} {status}" for status, n in states.items())
    sources = sum(u.rows_in for u in progress.units if u.lag is None)
    parts = [f"{_clock(progress.seconds)} units: {units or 'none'}", f"rows read {sources:,}"]
    lag = sum(u.unread or 0 for u in progress.units)
    parts += [f"lag {lag:,}", f"dead letters {sum(u.dead_letters for u in progress.units):,}"]
    if late := sum(u.late_rows for u in progress.units):
        parts.append(f"late {late:,}")
    parts.append(f"links {format_size(sum(link.bytes for link in progress.links))}")
    return "; ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


# ---------------------------------------------------------------- errors


def print_error(error: HeadwaterError, console: Console) -> None:
    """Print what is wrong, where, and what to do; each member of an error list separately."""
    if isinstance(error, ErrorList):
        for member in error.errors:
            print_error(member, console)
        return
    lines = Text()
    lines.append("error: ", style="bold red")
    lines.append(error.what)
    if error.where:
        lines.append(f"\n  at {error.where}")
    if error.hint:
        lines.append(f"\n  -> {error.hint}")
    console.print(lines, soft_wrap=True)
