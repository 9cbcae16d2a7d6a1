"""Run each benchmark with a quick form: ``python -m benchmarks.NAME --quick --json artifacts/NAME.json``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the benchmarks one after the other; return 1 when any of them failed."""
    artifacts = ROOT / "artifacts"
    artifacts.mkdir(exist_ok=True)
    quick = [
        p for p in sorted((ROOT / "benchmarks").glob("*.py")) if "--quick" in p.read_text(encoding="utf-8")
    ]
    if not quick:
        print("No module in benchmarks/ has a --quick form yet.")
    failed = []
    for path in quick:
        result = artifacts / f"{path.stem}.json"
        began = time.monotonic()
        print(f"== {path.stem}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{path.stem}", "--quick", "--json", str(result)]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        ok = status == 0 and result.exists()
        if not ok:
            failed.append(path.stem)
        outcome = (
            f"-> {result.relative_to(ROOT)}"
            if ok
            else f"FAILED (exit {status}, result file: {result.exists()})"
        )
        print(f"== {path.stem}: {time.monotonic() - began:.0f} s {outcome}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
