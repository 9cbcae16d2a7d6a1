"""Shell completion: names from the store, and fixed ones. Fast, and silent on errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from headwater.control.names import Kind

STRATEGIES: Sequence[str] = (
    "annotated",
    "optimal",
    "local_search",
    "aels_rp_la",
    "aels_rp",
    "aels",
    "cloud_only",
    "tcep",
)
SCHEDULERS: Sequence[str] = ("tsoo_exact", "tsoo_robust", "atsoo_h", "tsoo_h", "trcs", "fog_only", "fc_interplay")
FORECASTS: Sequence[str] = ("last", "ewma", "trend", "holt_winters")


def _known(kind: Kind, ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names from the store in the command line; with ``--of``, those in one deployment's plan."""
    try:
        from headwater.control.names import names
        from headwater.control.tables import resolved_url

        place = resolved_url(ctx.params.get("store"))
        return _beginning(names(kind, place, of=ctx.params.get("of")), incomplete)
    except Exception:  # any error: the user is typing
        return []


def _beginning(names: Sequence[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _completing(kind: Kind) -> Callable[[typer.Context, str], list[str]]:
    """Return the completion function for a kind of names."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return _known(kind, ctx, incomplete)

    return complete


deployments = _completing("deployments")
zones = _completing("zones")
layers = _completing("layers")
locations = _completing("locations")
operators = _completing("operators")
units = _completing("units")
decisions = _completing("decisions")
"""Numbers of proposed decisions."""
pools = _completing("pools")
submissions = _completing("submissions")
"""Submitted dataflows."""
owners = _completing("owners")


def deployments_and_files(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a deployment's name, or a dataflow's file."""
    files = [str(path) for path in Path().glob("*.py")] if not incomplete.startswith("-") else []
    return [*_known("deployments", ctx, incomplete), *_beginning(files, incomplete)]


def units_and_operators(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a unit or an operator."""
    return sorted({*_known("units", ctx, incomplete), *_known("operators", ctx, incomplete)})


def strategies(incomplete: str) -> list[str]:
    """Complete the name of a strategy."""
    return _beginning((*STRATEGIES, *SCHEDULERS), incomplete)


def schedulers(incomplete: str) -> list[str]:
    """Complete the last of several schedulers, with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    rest = [name for name in (*SCHEDULERS, "annotated") if name not in before.split(",")]
    return [f"{before}{comma}{name}" for name in _beginning(rest, last)]


def forecasts(incomplete: str) -> list[str]:
    """Complete the name of a forecast."""
    return _beginning(FORECASTS, incomplete)
