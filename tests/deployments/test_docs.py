"""The tutorial on real Sparks: every block of it, and what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.app import deployments
from tests import pages


def test_tutorial_runs(tmp_path: Path) -> None:
    """Its first half: `headwater run`, in one zone and in three."""
    pages.run(pages.TUTORIAL[:2], tmp_path, having=("spark",), seconds=540)


def test_nexmark_guide_runs(tmp_path: Path) -> None:
    """Nexmark query 5 on three zones, compared with plain Python."""
    pages.run([pages.DOCS / "guides" / "nexmark.md"], tmp_path, having=("spark",), seconds=540)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_tutorial_is_deployed(tmp_path: Path) -> None:
    """All of it: a controller and three agents, changes, a profile."""
    try:
        pages.run(pages.TUTORIAL, tmp_path, having=("spark",), seconds=1400)
    finally:
        deployments.down(tmp_path / ".headwater")
