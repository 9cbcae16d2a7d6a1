"""Headwater of other versions, beside the present one: an older commit of the repository, and wheels of both."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDER = "0c72f00f5874dc10f27d944dcf11a56b1e0edb85"
"""The first commit of protocol 5."""
PARTS = ("headwater", "pyproject.toml", "README.md", "LICENSE")
"""What a wheel is made of."""
OLDER_VERSION, NEWER_VERSION = "0.0.1", "99.0"
"""The versions of the older tree and of the wheel of the present one; their protocols are those of the trees."""


def older_tree(place: Path) -> Path:
    """Write the source of the older commit to a directory, as an older version; without history, the present one."""
    place.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", OLDER, *PARTS], cwd=ROOT, capture_output=True)
    if archive.returncode == 0:
        subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
        return _numbered(place, OLDER_VERSION)
    return numbered_tree(place, OLDER_VERSION)


def numbered_tree(place: Path, version: str) -> Path:
    """Copy the present source to a directory, under another version number."""
    place.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, place / part)
    return _numbered(place, version)


def _numbered(place: Path, version: str) -> Path:
    """Write a version number into the source in a directory."""
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
