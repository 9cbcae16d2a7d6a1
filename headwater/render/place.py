"""Terminal output of predictions for placements; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.core.errors import HeadwaterError
from headwater.core.quantity import format_duration, format_size
from headwater.plan.prediction import LimitCheck, Prediction


def prediction_view(found: Prediction) -> RenderableType:
    """Show the places of operators, and the predicted latency, load and links."""
    layers: dict[str, list[str]] = {}
    for operator, layer in found.layers.items():
        layers.setdefault(layer, []).append(operator)
    parts: list[RenderableType] = [Text(f"Placed by {found.strategy}", style="bold")]
    parts += [Text(f"  {layer}: {', '.join(operators)}") for layer, operators in layers.items()]
    for location, own in found.at.items():
        elsewhere = ", ".join(f"{operator} in {layer}" for operator, layer in own.items())
        parts.append(Text(f"  at {location}: {elsewhere}"))
    parts += [Text("")]
    parts += [Text(_summary(found))] if found.limit_check is None else limit_lines(found.limit_check)
    paths = _table("Path", "Predicted latency")
    for path in found.paths:
        at = f" at {path.location}" if path.location else ""
        paths.add_row(f"{path.source}{at} -> {path.sink}", _time(path.seconds))
    loads = _table("Host", "Load")
    for host, used in found.load.items():
        loads.add_row(host, Text(f"{used:.1%}", style="red" if used > 0.8 else ""))
    links = _table("Link", "Bytes/s", "Of its bandwidth")
    for link, load in found.links.items():
        share = "-" if load.share is None else f"{load.share:.1%}"
        links.add_row(link, format_size(load.bytes_per_s), share)
    for table in (paths, loads, links):
        if table.row_count:
            parts += [Text(""), table]
    parts += [Text(f"note: {note}", style="yellow") for note in found.notes]
    return Group(*parts)


def limit_lines(check: LimitCheck) -> list[RenderableType]:
    """Show a scheduler's choice beside its limits."""
    limits = check.limits
    rows = (
        ("response time", _time(check.response), limits.max_latency, format_duration(limits.max_latency)),
        (
            "into the top layer",
            f"{format_size(check.bandwidth)}/s",
            limits.max_bandwidth,
            f"{format_size(limits.max_bandwidth / 8)}/s",
        ),
    )
    said = [
        f"{name} {value}" + ("" if math.isinf(limit) else f" of at most {most}") for name, value, limit, most in rows
    ]
    said += [f"resource usage {check.cost:.4g}"]
    said += [] if check.chance is None else [f"limits kept with a probability of {check.chance:.0%}"]
    said += [f"{check.moved} operators moved"] if check.moved else []
    return [Text("; ".join(said), style="" if check.kept else "red")]


def _summary(found: Prediction) -> str:
    said = f"Latency summed over paths: {_time(found.latency)}"
    if found.bound is None:
        return said
    over = found.latency / found.bound - 1 if found.bound else 0.0
    least = "no placement has less" if over < 1e-6 else f"{over:.1%} above the least any could have"
    return f"{said}; {least}"


def comparison_view(found: Mapping[str, Prediction | HeadwaterError], chosen: Mapping[str, str]) -> RenderableType:
    """Show each strategy's predictions by one model, and the operators it places differently."""
    table = _table("Strategy", "RU", "Response", "Limits", "Most loaded host", "Bytes/s over links", "Elsewhere")
    model = ""
    for strategy, outcome in found.items():
        if isinstance(outcome, HeadwaterError):
            table.add_row(strategy, Text("none", style="red"), "", "", "", "", outcome.what)
            continue
        most = max(outcome.load.items(), key=lambda item: item[1], default=("-", 0.0))
        total = sum(load.bytes_per_s for load in outcome.links.values())
        moved = [f"{o} ({layer})" for o, layer in outcome.layers.items() if chosen.get(o) != layer]
        check = outcome.limit_check
        judged: tuple[str | Text, ...] = ("-", "-", "-")
        if check is not None:
            model = check.model
            kept = Text("kept") if check.kept else Text("broken", style="red")
            judged = f"{check.cost:.4g}", _time(check.response), kept
        table.add_row(strategy, *judged, f"{most[0]} {most[1]:.1%}", format_size(total), _some(moved) or "-")
    if not model:
        return table
    return Group(table, Text(f"Response times above by one model: {model}", style="dim"))


def _time(seconds: float) -> str:
    return format_duration(seconds) if math.isfinite(seconds) else "grows without bound"


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for other in others:
        table.add_column(other, justify="left" if other == "Elsewhere" else "right")
    return table
