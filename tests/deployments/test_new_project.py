"""`headwater init` writes a project that plans, runs and passes its own test."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.app.newproject import FILES
from headwater.cli.app import app
from headwater.spark.endpoint import LocalEndpoint
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    code, out, _ = invoke("init", str(directory))
    assert code == 0
    assert out.split() == [str(directory / name) for name in FILES]
    return directory


def test_it_is_planned(project: Path) -> None:
    code, out, _ = invoke("plan", str(project / "flow.py"), "-c", str(project / "continuum.yaml"), "--json")
    assert code == 0
    assert [u["node"] for u in json.loads(out)["units"]] == ["E1", "E2", "C1"]


def test_its_files_are_clean(project: Path) -> None:
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--line-length", "120"]
    done = subprocess.run([*ruff, "--select", "E,F,I,W", "."], cwd=project, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout.decode()


def test_its_test_passes(
    project: Path, endpoint: LocalEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.delitem(sys.modules, "flow", raising=False)
    spec = importlib.util.spec_from_file_location("test_of_new_project", project / "test_flow.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_equals_one_batch(endpoint, tmp_path)
    sys.modules.pop("flow")


def test_files_are_not_replaced_unasked(project: Path) -> None:
    (project / "flow.py").write_text("mine")
    (project / "conftest.py").unlink()
    code, _, said = invoke("init", str(project))
    assert code == 1
    assert "there is already flow.py" in said and "--overwrite" in said
    assert (project / "flow.py").read_text() == "mine"
    assert not (project / "conftest.py").exists()
    assert invoke("init", str(project), "--overwrite", "--json")[0] == 0
    assert "hw.flow" in (project / "flow.py").read_text()


@pytest.mark.long
def test_its_readme_is_true(project: Path) -> None:
    """Run and test it with its own Sparks, as a user does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def ran(*arguments: str) -> str:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    out = ran("headwater", "run", "flow.py", "-c", "continuum.yaml", "--until-drained")
    assert "report: hour=2026-01-01 08:00:00+00:00, location=harbour, room=cream, mean=6.4, n=2" in out
    assert "warm" in ran("headwater", "deadletters", "--json")
    assert "1 passed" in ran("pytest", "-q")
