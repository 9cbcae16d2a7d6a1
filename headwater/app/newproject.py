"""Write a first project: a dataflow, its continuum, data, a test and a file for continuous integration."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from headwater.core.errors import HeadwaterError

FILES: Mapping[str, str] = {
    "flow.py": "flow.py.txt",
    "continuum.yaml": "continuum.yaml.txt",
    "in/harbour/a.json": "harbour.json.txt",
    "in/market/a.json": "market.json.txt",
    "test_flow.py": "test_flow.py.txt",
    "conftest.py": "conftest.py.txt",
    "requirements.txt": "requirements.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    ".github/workflows/test.yml": "ci.yml.txt",
}
"""Files of a project, and the package's files with their text."""


def write_project(directory: Path, *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write the files of a first project and return them.

    Raises HeadwaterError before anything is written if one of them exists, unless ``overwrite`` is set.
    """
    there = [name for name in FILES if (directory / name).exists()]
    if there and not overwrite:
        raise HeadwaterError(
            f"there is already {', '.join(there)}",
            where=str(directory),
            hint="name another directory, or give --overwrite to replace these files",
        )
    templates = files("headwater.app") / "project"
    for name, template in FILES.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((templates / template).read_text(encoding="utf-8"), encoding="utf-8")
    return tuple(directory / name for name in FILES)
