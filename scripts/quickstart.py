"""Type the README's quickstart, as a newcomer would, and tell how long each command takes.

Everything is new: the directory, the environment of Python, the cache of Headwater. Packages come from pip's cache if
it has them. The commands are those of the README, in its order; the results are compared with the text below them.
Then ``headwater init`` writes a project, and the commands of that project's README run.

    python scripts/quickstart.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE = 1800.0


def section(page: str, title: str) -> str:
    """Return the text below a heading, as far as the next one."""
    begin = page.index(f"\n## {title}\n")
    end = page.find("\n## ", begin + 1)
    return page[begin : end if end > 0 else len(page)]


def commands(text: str) -> list[str]:
    """Return the commands of a text's shell blocks, without comments."""
    lines = (line for language, code in FENCE.findall(text) if language == "sh" for line in code.splitlines())
    return [line.split(" #")[0].strip() for line in lines if line.strip()]


class Newcomer:
    """A shell in a new environment; ``took``: seconds of each command."""

    def __init__(self, place: Path) -> None:
        self.took: list[tuple[str, float]] = []
        self._environment = {
            **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "HEADWATER_STORE")},
            "PATH": f"{place / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(place / "cache"),
            "PIP_CACHE_DIR": subprocess.run(
                [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
            ).stdout.strip(),
        }

    def type(self, command: str, where: Path) -> str:
        """Run a command; return its output. Ends the script if the command fails."""
        begun = time.monotonic()
        done = subprocess.run(
            ["sh", "-c", command], cwd=where, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, timeout=PATIENCE,
        )  # fmt: skip
        self.took.append((command, time.monotonic() - begun))
        print(f"{self.took[-1][1]:8.1f} s  {command}", flush=True)
        if done.returncode:
            sys.exit(f"'{command}' ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout

    @property
    def total(self) -> float:
        """Seconds of all commands so far."""
        return sum(seconds for _, seconds in self.took)


def first_dataflow(newcomer: Newcomer, place: Path) -> None:
    """Install as the README says, and run its first dataflow."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (install,) = [c for c in commands(section(page, "Two commands")) if c.startswith("pip install")]
    newcomer.type(install, ROOT)
    text, here = section(page, "A first dataflow"), place / "plant"
    here.mkdir()
    blocks = FENCE.findall(text)
    (here / "flow.py").write_text(next(code for language, code in blocks if language == "python"))
    (here / "plant.yaml").write_text(next(code for language, code in blocks if language == "yaml"))
    shown = {command: newcomer.type(command, here) for command in commands(text)}
    (row,) = [json.loads(line) for line in shown["cat out/*.json"].splitlines()]
    assert (row["machine"], row["mean"]) == ("press", 63.0), row
    assert "hot" in shown["headwater deadletters"]


def first_project(newcomer: Newcomer, place: Path) -> None:
    """Write a project, and run the commands of its README; Headwater is installed already."""
    newcomer.type("headwater init cold-rooms", place)
    here = place / "cold-rooms"
    todo = commands((here / "README.md").read_text(encoding="utf-8"))
    for command in todo:
        newcomer.type(command, here)
    assert any(command.startswith("headwater run") for command in todo)


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the seconds of each command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quickstart-") as name:
        place = Path(name)
        newcomer = Newcomer(place)
        newcomer.type(f"{sys.executable} -m venv env", place)
        first_dataflow(newcomer, place)
        first = newcomer.total
        first_project(newcomer, place)
        print(f"{first:8.1f} s  from an empty directory to the first result", flush=True)
        print(f"{newcomer.total - first:8.1f} s  from 'headwater init' to a tested project", flush=True)
        found = {"first_result_s": first, "project_s": newcomer.total - first, "commands": newcomer.took}
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
