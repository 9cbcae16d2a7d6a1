"""Terminal output of a what-if prediction; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.app.deployments import clock
from headwater.core.quantity import format_duration, format_size
from headwater.render.loop import options_view

_BASIS: Mapping[str, str] = {
    "learned": "predicted from learned costs; nothing was measured lately",
    "profile": "predicted from its profile; nothing was measured while it ran",
    "assumed": "predicted from assumed costs: nothing was measured, and it has no profile",
}
_MOST_ASSUMED = 5


def what_if_view(data: Mapping[str, Any]) -> RenderableType:
    """Show the JSON of a ``WhatIfOutline``: figures now, as supposed and after the change, and the change."""
    supposed = data["supposed"] or ["nothing changes"]
    basis = _BASIS.get(data["basis"]) or f"predicted from measurements until {clock(data['measured_at'])}"
    parts: list[RenderableType] = [
        Text.assemble((data["name"], "bold"), f", if {'; '.join(supposed)}"),
        Text(basis, style="dim"),
    ]
    if assumed := data["assumed"]:
        more = ", ..." if len(assumed) > _MOST_ASSUMED else ""
        parts.append(Text(f"assumed: {', '.join(assumed[:_MOST_ASSUMED])}{more}", style="yellow"))
    parts += [Text(""), _figures(data), Text("")]
    parts += _verdict(data)
    parts += options_view(data, unchosen="")
    if data["change"] is not None:
        parts += [Text(""), Text(f"{data['wanted']['name']} would be:", style="bold")]
        parts += [Text(f"  {n}. {line}") for n, line in enumerate(data["change"]["steps"], start=1)]
    return Group(*parts)


def _figures(data: Mapping[str, Any]) -> Table:
    """Show the active plan, the same as supposed, and the chosen plan beside each other."""
    wanted = data["wanted"]
    cases = [data["now"], data["current"], *([wanted] if wanted else [])]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for name in ("Now", "Then, as it is", *(["Then, changed"] if wanted else [])):
        table.add_column(name, justify="right", no_wrap=True)
    before, then = data["rates"]["before"], data["rates"]["then"]
    for source, own in then.items():
        for place, rate in own.items():
            was = before.get(source, {}).get(place, before.get(source, {}).get("*"))
            label = f"rows/s of {source}" + ("" if place == "*" else f" at {place}")
            table.add_row(label, _rate(was), *[_rate(rate)] * (len(cases) - 1))
    table.add_row("latency, p50", *(_time(c["latency_p50_s"]) for c in cases))
    table.add_row("latency, p95", *(_time(c["latency_s"]) for c in cases))
    for host in dict.fromkeys(h for c in cases for h in c["load"]):
        shares = (c["load"].get(host) for c in cases)
        table.add_row(f"load of {host}", *("-" if s is None else f"{s:.0%}" for s in shares))
    for link in data["now"]["links"]:
        if any(c["links"][link]["bytes_per_s"] for c in cases):
            sizes = (format_size(round(c["links"][link]["bytes_per_s"])) for c in cases)
            table.add_row(f"over {link}", *(f"{size}/s" for size in sizes))
    table.add_row("into the top layer", *(f"{format_size(round(c['bandwidth_bytes_per_s']))}/s" for c in cases))
    table.add_row("cost", *(f"{c['cost']:.3g}" for c in cases))
    return table


def _verdict(data: Mapping[str, Any]) -> Iterator[Text]:
    yield Text(data["why"], style="red" if data["current"]["breaks"] else "green")
    mode = (data["slo"] or {}).get("mode")
    if mode is None:
        yield Text("it has no SLO: only free cores count, and no change would be made")
    elif mode == "off":
        yield Text("its mode is off: no change would be made")


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _time(value: float | None) -> str:
    return "without end" if value is None else format_duration(value)
