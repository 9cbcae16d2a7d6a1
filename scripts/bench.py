"""Run each benchmark with a quick form: ``python -m benchmarks.NAME --quick --json artifacts/NAME.json``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def quick_ones() -> list[str]:
    """Return the modules and packages that take the arguments of a benchmark."""
    place = ROOT / "benchmarks"
    found = {p.stem: p for p in place.glob("*.py") if p.stem != "common"}
    found |= {p.parent.name: p for p in place.glob("*/__main__.py")}
    return sorted(n for n, p in found.items() if " common.arguments(" in p.read_text(encoding="utf-8"))


def main() -> int:
    """Run the benchmarks one after the other; return 1 when any of them failed."""
    artifacts = ROOT / "artifacts"
    artifacts.mkdir(exist_ok=True)
    failed = []
    for name in quick_ones():
        result = artifacts / f"{name}.json"
        began = time.monotonic()
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", str(result)]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        ok = status == 0 and result.exists()
        if not ok:
            failed.append(name)
        outcome = f"-> {result.relative_to(ROOT)}" if ok else f"FAILED (exit {status}, result file: {result.exists()})"
        print(f"== {name}: {time.monotonic() - began:.0f} s {outcome}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
