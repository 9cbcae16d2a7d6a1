"""Run the pages on real Sparks and compare their output.

The short tests run their blocks without Spark (`tests/unit/test_docs.py`), and the README's dataflow with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headwater.app import deployments
from tests import pages
from tests.patience import PATIENCE


@pytest.mark.long
def test_nexmark_guide_runs(tmp_path: Path) -> None:
    """Run Nexmark query 5 on three zones and compare it with plain Python."""
    pages.run([pages.DOCS / "guides" / "nexmark.md"], tmp_path, having=("spark",))


@pytest.mark.long
def test_sql_guide_runs(tmp_path: Path) -> None:
    """Run the dataflow of the SQL guide in three zones."""
    pages.run([pages.DOCS / "guides" / "sql.md"], tmp_path, having=("spark",))


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_tutorial_is_deployed(tmp_path: Path) -> None:
    """Run the complete tutorial: a controller and three agents, changes, a profile."""
    try:
        pages.run(pages.TUTORIAL, tmp_path, having=("spark",), seconds=2 * PATIENCE)
    finally:
        deployments.down(tmp_path / ".headwater")


@pytest.mark.long
def test_patterns_guide_runs(tmp_path: Path) -> None:
    """Run the dataflow of the guide on row patterns in two zones."""
    pages.run([pages.DOCS / "guides" / "patterns.md"], tmp_path, having=("spark",))


@pytest.mark.long
def test_models_guide_runs(tmp_path: Path) -> None:
    """Train a model, predict in two zones, and go on with another model."""
    pytest.importorskip("skl2onnx")
    pages.run([pages.DOCS / "guides" / "models.md"], tmp_path, having=("spark",))


@pytest.mark.long
def test_guide_of_ways_down_runs(tmp_path: Path) -> None:
    """Judge readings at two edges by a model that the cloud fits."""
    pages.run([pages.DOCS / "guides" / "send-down.md"], tmp_path, having=("spark",))


@pytest.mark.long
def test_tables_guide_runs(tmp_path: Path) -> None:
    """Write a Delta table and files by column, and read the table in another dataflow."""
    pytest.importorskip("deltalake")
    pages.run([pages.DOCS / "guides" / "tables.md"], tmp_path, having=("spark",))


@pytest.mark.long
def test_guide_of_plants_runs(tmp_path: Path) -> None:
    """Take rows by HTTP while a run goes on."""
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    pages.run([pages.DOCS / "guides" / "plants.md"], tmp_path, having=("spark",))
