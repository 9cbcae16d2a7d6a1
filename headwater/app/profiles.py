"""Profiles of operators: measured over samples on a Spark, and read from files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.errors import PlacementError
from headwater.dataflow.graph import Dataflow

if TYPE_CHECKING:
    from headwater.plan.profile import Profile
    from headwater.spark.profiling import ProfiledOperator


def read_profile(path: str | Path) -> Profile:
    """Read a profile; raise PlacementError where it cannot be read or is invalid."""
    from headwater.plan.profile import Profile

    return Profile.from_json(read_text(path, "profile"), where=str(path))


def read_text(path: str | Path, what: str) -> str:
    """Return a file's text; raise PlacementError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlacementError(f"the {what} cannot be read: {error}", where=str(path)) from error


def profile(
    dataflow: Dataflow,
    samples: Mapping[str, Mapping[str, str]],
    *,
    cores: int | None = None,
    memory_mb: int = 1024,
    repeats: int = 3,
    python_path: tuple[str, ...] = (),
    observe: Callable[[ProfiledOperator], None] = lambda seen: None,
) -> Profile:
    """Measure the cost and output of each operator, on a Spark of its own, over samples of the sources.

    ``samples``: for each source the sample's path, by location. Raises RuntimeFailure where one is missing.
    """
    from headwater.spark import profiling
    from headwater.spark.endpoint import LocalEndpoint

    with tempfile.TemporaryDirectory(prefix="headwater-profile-") as directory:
        place = Path(directory)
        endpoint = LocalEndpoint.start(place / "spark", cores=cores, memory_mb=memory_mb, python_path=python_path)
        try:
            return profiling.profile(
                endpoint.session(), dataflow, samples, place / "work", repeats=repeats, observe=observe
            )
        finally:
            endpoint.stop()
