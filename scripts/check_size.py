"""Warn of tracked Python files longer than 600 lines: does such a file hold one concept?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT = 600
ROOT = Path(__file__).resolve().parent.parent


def tracked_python_files() -> list[Path]:
    """Return the Python files git knows, or all outside hidden folders if this is no git checkout."""
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
    """Print each file that is too long. A warning only: a file is one concept, of any length."""
    counted = [
        (len((ROOT / path).read_text(encoding="utf-8").splitlines()), path)
        for path in tracked_python_files()
        if (ROOT / path).exists()
    ]
    too_long = [(lines, path) for lines, path in counted if lines > LIMIT]
    for lines, path in too_long:
        print(f"{path}: warning: {lines} lines, over {LIMIT}\n  -> check that the file holds one concept")
    print(f"{len(counted)} Python files, {len(too_long)} over {LIMIT} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
