"""What a shell completes: names from the store, and known ones. Quick, and silent where it fails."""

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
SCHEDULERS: Sequence[str] = ("tsoo_exact", "atsoo_h", "tsoo_h", "trcs", "fog_only", "fc_interplay")
FORECASTS: Sequence[str] = ("last", "ewma", "trend", "holt_winters")


def _known(kind: Kind, ctx: typer.Context, incomplete: str) -> list[str]:
    """Ask the store that the line names; with ``--of``, for one deployment's plan alone."""
    try:
        from headwater.control.names import names
        from headwater.control.tables import resolved_url

        place = resolved_url(ctx.params.get("store"))
        return _beginning(names(kind, place, of=ctx.params.get("of")), incomplete)
    except Exception:  # whatever it is: somebody is typing
        return []


def _beginning(names: Sequence[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _completing(kind: Kind) -> Callable[[typer.Context, str], list[str]]:
    """Give what completes names of a kind."""

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
"""Numbers of those that are proposed."""
pools = _completing("pools")
submissions = _completing("submissions")
"""Dataflows that were submitted."""
owners = _completing("owners")


def deployments_and_files(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a deployment's name, or a dataflow's file."""
    files = [str(path) for path in Path().glob("*.py")] if not incomplete.startswith("-") else []
    return [*_known("deployments", ctx, incomplete), *_beginning(files, incomplete)]


def strategies(incomplete: str) -> list[str]:
    """Complete what chooses a placement."""
    return _beginning((*STRATEGIES, *SCHEDULERS), incomplete)


def schedulers(incomplete: str) -> list[str]:
    """Complete the last of several schedulers, with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    rest = [name for name in (*SCHEDULERS, "annotated") if name not in before.split(",")]
    return [f"{before}{comma}{name}" for name in _beginning(rest, last)]


def forecasts(incomplete: str) -> list[str]:
    """Complete what expects rates."""
    return _beginning(FORECASTS, incomplete)
