"""Terminal output of metrics and decisions; computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.adapt.calibrate import Compared
from headwater.adapt.slo import SLO
from headwater.app.deployments import clock
from headwater.app.metrics import HostMetrics, LinkMetrics, Metrics, Moment, OperatorMetrics, UnitMetrics
from headwater.control.memory import in_words
from headwater.control.records import Decision
from headwater.core.errors import HeadwaterError
from headwater.core.jsonform import load
from headwater.core.quantity import format_duration, format_size
from headwater.render import figures
from headwater.render.bars import course

# ---------------------------------------------------------------- metrics


def metrics_view(name: str, found: Metrics) -> RenderableType:
    """Show units and their operators, hosts, links, and the course of rate and latency."""
    if found.since is None or found.until is None:
        return Text(f"{name}: nothing was measured yet; start `headwater up`")
    over = format_duration(round(found.until - found.since, 1))
    title = Text(f"{name}, over the last {over}", style="bold")
    parts: list[RenderableType] = [title, _rows(found.units), Text(""), _times(found.units)]
    if found.hosts:
        parts += [Text(""), _hosts(found.hosts)]
    if found.links:
        parts += [Text(""), _links(found.links)]
    return Group(*parts, Text(""), *_courses(found.course))


def _rows(units: Sequence[UnitMetrics]) -> Table:
    table = _table("Unit", "Status")
    for column in ("In/s", "Out/s", "Out/in", "CPU/row", "Lag"):
        table.add_column(column, justify="right", no_wrap=True)
    for unit in units:
        table.add_row(
            Text(unit.unit),
            Text(unit.status),
            *_flow(unit),
            figures.duration(unit.cpu_s_per_row),
            "-" if unit.lag is None else f"{unit.lag:,}",
        )
        for operator in unit.operators:
            at = f" at {operator.location}" if operator.location else ""
            table.add_row(Text(f"  {operator.operator}{at}", style="dim"), "", *_flow(operator))
    return table


def _flow(one: UnitMetrics | OperatorMetrics) -> tuple[str, str, str]:
    return figures.rate(one.rows_in_per_s), figures.rate(one.rows_out_per_s), _plain(one.selectivity)


def _times(units: Sequence[UnitMetrics]) -> Table:
    table = _table("Unit")
    for column in ("Batch", "Busy", "p50", "p95", "Oldest", "State"):
        table.add_column(column, justify="right", no_wrap=True)
    for unit in units:
        table.add_row(
            Text(unit.unit),
            figures.duration(unit.batch_s),
            _percent(unit.busy),
            *map(figures.duration, (unit.latency_p50_s, unit.latency_p95_s, unit.oldest_s)),
            f"{unit.state_rows:,} rows, {format_size(unit.state_bytes)}" if unit.state_rows else "-",
        )
    return table


def _hosts(hosts: Sequence[HostMetrics]) -> Table:
    table = _table("Host", "Zone")
    for column in ("Cores", "Spark", "Agent", "Others", "Load"):
        table.add_column(column, justify="right", no_wrap=True)
    for host in hosts:
        used = (f"{cores:.2f}" for cores in (host.spark, host.agent, host.others))
        table.add_row(Text(host.host), Text(host.zone), f"{host.cores:g}", *used, _percent(host.load))
    return table


def _links(links: Sequence[LinkMetrics]) -> Table:
    table = _table("Link")
    for column in ("Written/s", "Came/s", "Capacity/s", "Delay"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("Link is", no_wrap=True)
    for link in links:
        up = {True: Text("up", style="green"), False: Text("down", style="bold red"), None: Text("-")}
        table.add_row(
            Text(link.link),
            *map(figures.size, (link.bytes_per_s, link.came_bytes_per_s, link.capacity_bytes_per_s)),
            figures.duration(link.delay_s),
            up[link.up],
        )
    return table


def _courses(moments: Sequence[Moment]) -> Iterator[Text]:
    """Draw the course of rate and latency, with the lowest, highest and newest value of each."""
    for label, key, write in (
        ("Rows/s read", "rows_per_s", figures.rate),
        ("Latency p95", "latency_s", figures.duration),
    ):
        values = [getattr(m, key) for m in moments]
        known = [v for v in values if v is not None]
        if known:
            said = f"{write(min(known))} to {write(max(known))}, now {write(known[-1])}"
            yield Text(f"{label:12} {course(values)}  {said}")


# ---------------------------------------------------------------- decisions


def model_view(name: str, kinds: Mapping[str, Sequence[Compared]]) -> RenderableType:
    """Show predictions beside measurements of a deployment."""
    shown: Mapping[str, Callable[[float | None], str]] = {
        "latency": figures.duration,
        "load": _percent,
        "bytes": figures.size,
    }
    table = _table("", "Predicted", "Measured", "Error")
    for kind, pairs in kinds.items():
        for pair in pairs:
            tell = shown[kind]
            what = f"{kind} of {pair.what}"
            table.add_row(what, tell(pair.predicted), tell(pair.measured), _percent(pair.error))
    if not table.row_count:
        return Text(f"{name}: too little was measured in the last seconds")
    title = Text(f"{name}: latency is that of half of the rows; bytes are per second")
    return Group(title, table)


def decision_line(decision: Decision) -> str:
    """Describe a decision and its outcome in a line."""
    version = f", version {decision.version}" if decision.version is not None else ""
    return f"decision {decision.id}: {decision.why}: {decision.state}{version}"


def decision_view(decision: Decision) -> RenderableType:
    """Show a decision: the SLO, the measurements, the alternatives, and the outcome."""
    data = decision.data
    parts: list[RenderableType] = [
        Text(f"decision {decision.id} on {decision.deployment}: {decision.state}", style="bold"),
        Text(f"{clock(decision.at)}, mode {decision.mode}, because of {decision.trigger}"),
        Text(decision.why),
        Text(""),
    ]
    if words := _slo(data.get("slo") or data.get("promise")):  # the form of older versions
        parts.append(Text(f"SLO: {words}"))
    parts += [Text(f"{label}: {text}") for label, text in _measured(_mapping(data.get("measured")))]
    if rates := _rates(_mapping(_mapping(data.get("forecast")).get("rates"))):
        parts.append(Text(f"expected: {rates}"))
    parts += options_view(data, unchosen="" if decision.trigger == "undo" else "none was chosen")
    if decision.version is not None:
        parts += [Text(""), Text(f"version {decision.version} was wanted for it")]
    if decision.after is not None:
        parts += [Text(""), *_after(decision)]
    return Group(*parts)


def _slo(data: Any) -> str:
    try:
        return in_words(load(SLO, data, what="an SLO")) if isinstance(data, Mapping) else ""
    except HeadwaterError:
        return ""


def _measured(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    said = []
    if (p95 := _number(found.get("latency_s"))) is not None:
        p50 = _number(found.get("latency_p50_s"))
        half = "" if p50 is None else f", p50 {figures.duration(p50)}"
        said.append(f"latency p95 {figures.duration(p95)}{half}")
    if oldest := _number(found.get("oldest_s")):
        said.append(f"the oldest row waits for {figures.duration(oldest)}")
    if (bandwidth := _number(found.get("bandwidth_bytes_per_s"))) is not None:
        said.append(f"{figures.size(bandwidth)}/s into the top layer")
    if cost := _number(found.get("cost")):
        said.append(f"cost {_plain(cost)}")
    if said:
        yield "measured", "; ".join(said)
    if loads := _shares(found.get("load")):
        yield "loads", loads
    if rates := _rates(_mapping(found.get("rates"))):
        yield "rates", rates
    links = {name: _number(v) for name, v in _mapping(found.get("capacity")).items()}
    if known := [f"{name} {figures.size(v)}/s" for name, v in links.items() if v is not None]:
        yield "links bear", ", ".join(known)


def options_view(data: Mapping[str, Any], *, unchosen: str) -> list[RenderableType]:
    """Tabulate the active plan and its alternatives; the chosen one is marked."""
    others = data.get("alternatives")
    current, chosen = _mapping(data.get("current")), data.get("chosen")
    rows = [("as it is", current)] if current else []
    rows += [("", _mapping(o)) for o in others] if isinstance(others, Sequence) else []
    if not rows:
        return []
    table = _table("", "Alternative")
    for column in ("Latency", "Load", "Into the top", "Cost", "Moved"):
        table.add_column(column, justify="right", no_wrap=True)
    reasons: list[Text] = []
    for number, (mark, option) in enumerate(rows, start=-1 if current else 0):
        taken, name = number >= 0 and number == chosen, mark or str(option.get("name", "?"))
        bandwidth, moved = _number(option.get("bandwidth_bytes_per_s")), _number(option.get("moved"))
        loads = map(_number, _mapping(option.get("load")).values())
        table.add_row(
            "->" if taken else "",
            Text(name, style="bold" if taken else ""),
            figures.duration(_number(option.get("latency_s")), "without end" if "latency_s" in option else "-"),
            _percent(max((v for v in loads if v is not None), default=None)),
            "-" if bandwidth is None else f"{figures.size(bandwidth)}/s",
            _plain(_number(option.get("cost"))),
            "-" if moved is None else f"{moved:.0f}",
        )
        broken = option.get("breaks")
        why = option.get("why_not") or ("; ".join(map(str, broken)) if isinstance(broken, Sequence) else "")
        if taken:
            reasons.append(Text(f"{name}: chosen", style="bold"))
        elif why:
            reasons.append(Text(f"{name}: {why}"))
        reasons += [Text(f"  {line}") for line in _rewriting(option, current)] if number >= 0 else []
    unwanted = [] if isinstance(chosen, int) or not unchosen else [Text(unchosen)]
    return [Text(""), table, Text(""), *reasons, *unwanted]


def _rewriting(option: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """List the rules of another rewriting, and its bytes over links and load of rows beside the present ones."""
    rules = option.get("rules")
    if not isinstance(rules, Sequence) or not rules:
        return []
    sizes = [figures.size(_number(one.get("links_bytes_per_s"))) for one in (current, option)]
    cores = [_plain(_number(one.get("row_cores"))) for one in (current, option)]
    return [
        *map(str, rules),
        f"over links {sizes[0]}/s now and {sizes[1]}/s then; rows take {cores[0]} cores now and {cores[1]} then",
    ]


def _after(decision: Decision) -> Iterator[Text]:
    after = decision.after or {}
    verdict, text = after.get("verdict"), after.get("text")
    style = {"better": "green", "worse": "red"}.get(str(verdict), "")
    said = ": ".join(str(x) for x in (verdict, text) if x)
    yield Text(f"{clock(decision.updated)}, {decision.state}" + (f": {said}" if said else ""), style=style)
    yield from (Text(f"{label} after it: {found}") for label, found in _measured(after))
    if (out := _number(after.get("seconds_out"))) is not None:
        yield Text(f"limits were broken for {figures.duration(out)}")


# ---------------------------------------------------------------- figures


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _shares(loads: Any) -> str:
    known = {host: _number(share) for host, share in _mapping(loads).items()}
    return ", ".join(f"{host} {share:.0%}" for host, share in known.items() if share is not None)


def _rates(rates: Mapping[str, Any]) -> str:
    """Format rows/s by source and location."""
    found = [
        f"{source}{'' if place == '*' else f' at {place}'} {figures.rate(rate)} rows/s"
        for source, own in rates.items()
        for place, rate in ((x, _number(y)) for x, y in _mapping(own).items())
        if rate is not None
    ]
    return ", ".join(found)
