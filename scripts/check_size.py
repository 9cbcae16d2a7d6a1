"""Fail when a tracked Python file is longer than 500 lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT = 500
ROOT = Path(__file__).resolve().parent.parent


def tracked_python_files() -> list[Path]:
    """Return the Python files git knows, or all outside hidden folders when this is no git checkout."""
    try:
        # A checkout owned by another user (a container's mount) is still ours to read.
        listing = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", "--", "*.py"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
        return sorted(path for path in found if not any(part.startswith(".") for part in path.parts))
    return [Path(name) for name in listing.split("\0") if name]


def main() -> int:
    """Print each file that is too long; return the exit status."""
    counted = [
        (len((ROOT / path).read_text(encoding="utf-8").splitlines()), path)
        for path in tracked_python_files()
        if (ROOT / path).exists()
    ]
    too_long = [(lines, path) for lines, path in counted if lines > LIMIT]
    for lines, path in too_long:
        print(f"{path}: {lines} lines, {LIMIT} allowed\n  -> split it by what it is about")
    print(f"{len(counted)} Python files, {len(too_long)} over {LIMIT} lines")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
