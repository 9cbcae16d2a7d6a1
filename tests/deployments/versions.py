"""Headwater of other versions, beside the present one: an older commit of the repository, and wheels of both."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDER = "208a05595fa6435d09e52394bae5700c61e814eb"
"""The last commit whose agents do not state their version."""
PARTS = ("headwater", "pyproject.toml", "README.md", "LICENSE")
"""What a wheel is made of."""
NEWER_VERSION = "99.0"
"""The version of the wheel of the present tree; its protocol is that of the tree."""


def older_tree(place: Path) -> Path:
    """Write the source of the older version to a directory; without history, the present one with an older number."""
    place.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", OLDER, *PARTS], cwd=ROOT, capture_output=True)
    if archive.returncode == 0:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as file:
            file.extractall(place, filter="data")
        return place
    return numbered_tree(place, "0.0.1")


def numbered_tree(place: Path, version: str) -> Path:
    """Copy the present source to a directory, under another version number."""
    place.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, place / part)
    for name, pattern in (
        ("pyproject.toml", r'(?m)^version = ".*"$'),
        ("headwater/__init__.py", r'(?m)^__version__ = ".*"$'),
    ):
        file = place / name
        text, count = re.subn(pattern, lambda found: re.sub('".*"', f'"{version}"', found[0]), file.read_text())
        assert count == 1, name
        file.write_text(text)
    return place


def installed_wheel(tree: Path, place: Path) -> Path:
    """Build a wheel of a source tree, and unpack it into a directory for ``PYTHONPATH``."""
    wheels = place.with_name(f"{place.name}-wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*command, "--wheel-dir", str(wheels), str(tree)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("headwater-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place)
    return place


def run(tree: Path, *command: str, cwd: Path) -> str:
    """Run a Python command with the Headwater of a tree; return its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
