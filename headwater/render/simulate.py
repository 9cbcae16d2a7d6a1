"""Replays of rates for a terminal, a file or a program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.core.errors import RuntimeFailure
from headwater.core.quantity import format_duration
from headwater.placement.replay import Score, totals
from headwater.placement.situation import Limits
from headwater.render.bars import bar, stretches

_WIDEST = 60


def simulation_view(found: Mapping[str, Sequence[Score]], limits: Limits) -> RenderableType:
    """Show the results of each strategy's decisions, and its response times over time."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Strategy", no_wrap=True)
    for name in ("Success", "RU", "Late", "Wide", "Full", "Moved", "Decision", "At most"):
        table.add_column(name, justify="right")
    for name, scores in found.items():
        of = totals(scores)
        table.add_row(
            name,
            Text(f"{of.success:.1%}", style="" if of.success == 1 else "red"),
            f"{of.ru:.4g}",
            *(f"{share:.1%}" for share in (of.late, of.wide, of.crowded)),
            str(of.changed),
            *(format_duration(ms / 1e3) for ms in (of.decision_ms, of.decision_ms_most)),
        )
    lines: list[RenderableType] = [table, Text("")]
    lines.append(Text(f"Response time, step by step{_most(limits)}:", style="bold"))
    width = max(map(len, found))
    for name, scores in found.items():
        lines.append(Text(f"{name:{width}}  ").append_text(_course(scores, limits)))
    return Group(*lines)


def _most(limits: Limits) -> str:
    most = limits.max_latency
    return "" if math.isinf(most) else f"; red is beyond {format_duration(most)}"


def _course(scores: Sequence[Score], limits: Limits) -> Text:
    """Draw response times; of many steps, the highest of each stretch."""
    worst = stretches([s.latency for s in scores], _WIDEST)
    finite = [w for w in worst if math.isfinite(w)]
    top = limits.max_latency if math.isfinite(limits.max_latency) else max(finite, default=1.0)
    found = Text()
    for value in worst:
        found.append(bar(value / top), style="red" if value > limits.max_latency else "")
    return found


def draw(found: Mapping[str, Sequence[Score]], file: Path, limits: Limits) -> None:
    """Draw response time, B, RU and moves over the steps; raise RuntimeFailure without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise RuntimeFailure("--plot needs matplotlib", hint="install it: pip install 'headwater[plots]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows: Sequence[tuple[str, Any, float]] = (
        ("response time, s", lambda s: s.latency, limits.max_latency),
        ("into the top layer, MB/s", lambda s: s.bandwidth / 8e6, limits.max_bandwidth / 8e6),
        ("resource usage", lambda s: s.cost, math.inf),
        ("operators moved", lambda s: s.changed, math.inf),
    )
    figure, axes = pyplot.subplots(len(rows), 1, figsize=(9, 10), sharex=True)
    for axis, (label, value, limit) in zip(axes, rows, strict=True):
        for name, scores in found.items():
            axis.plot([value(s) if math.isfinite(value(s)) else math.nan for s in scores], label=name)
        if math.isfinite(limit):
            axis.axhline(limit, color="red", linestyle="--", linewidth=1)
        axis.set_ylabel(label)
    axes[0].legend()
    axes[-1].set_xlabel("step")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
