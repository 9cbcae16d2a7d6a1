"""Run the README's first dataflow and compare its output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def test_first_dataflow_of_the_readme(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## A first dataflow")[1]
    text = text.split("\n## ")[0]
    blocks = dict(re.findall(r"```(python|yaml|sh)\n(.*?)```", text, re.DOTALL))
    (tmp_path / "flow.py").write_text(blocks["python"])
    (tmp_path / "plant.yaml").write_text(blocks["yaml"])
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    # Put this checkout's code under the command's name, independent of the installed version.
    command = f'#!/bin/sh\nexec "{sys.executable}" -c "from headwater.cli import main; main()" "$@"\n'
    (bin_ / "headwater").write_text(command)
    (bin_ / "headwater").chmod(0o755)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": path}
    shown = subprocess.run(
        ["sh", "-e", "-c", blocks["sh"]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    files = (tmp_path / "out").glob("*.json")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [(r["location"], r["machine"], r["mean"]) for r in rows] == [("L1", "press", 63.0)]
    assert rows[0]["hour"].startswith("2026-01-01T08:00")
    assert "hot" in shown.stdout.split("deadletters")[-1]
    assert "1 dead letters" in shown.stderr
