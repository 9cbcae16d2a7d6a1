"""Terminal output of the rewrite rules of a plan."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.core.quantity import format_size
from headwater.plan.optimise import Rewriting


def rewriting_view(rewriting: Rewriting) -> RenderableType:
    """Show the traffic of each link before and after, the rules that were applied, and why others were not."""
    title, load, *_ = rewriting.words
    parts: list[RenderableType] = [Text(f"Rewriting: {title}", style="bold"), Text(load)]
    if rewriting.placed:
        parts.append(Text("the dataflow has no marks: its layers are those with the least traffic"))
    names = dict.fromkeys((*rewriting.before, *rewriting.after))
    if names:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("Link", "Before", "After"):
            table.add_column(column, overflow="fold")
        for name in names:
            sizes = (format_size(links.get(name, 0.0)) for links in (rewriting.before, rewriting.after))
            table.add_row(name, *(f"{size}/s" for size in sizes))
        parts.append(table)
    parts += [Text(f"  {use}", style="" if use.applied else "dim") for use in rewriting.rules]
    return Group(*parts)
