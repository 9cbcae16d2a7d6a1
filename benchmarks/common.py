"""Code that all benchmarks share: arguments, facts about the machine, medians, the result file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.app.client import Proposal
    from headwater.plan.model import DeploymentPlan
    from headwater.plan.steps import FormerOutputChoice

ROOT = Path(__file__).resolve().parent.parent


def arguments(description: str, *, repeats: int) -> argparse.ArgumentParser:
    """Return the parser of ``--quick``, ``--json FILE`` and ``--repeats N``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small form, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.add_argument("--repeats", type=int, metavar="N", help=f"runs of each variant (default {repeats}; quick: 1)")
    parser.set_defaults(usual_repeats=repeats)
    return parser


def repeats_of(options: argparse.Namespace) -> int:
    """Return the number of runs of each variant."""
    return max(1, options.repeats or (1 if options.quick else options.usual_repeats))


def machine() -> dict[str, Any]:
    """Describe the machine, without its name."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def spark_version() -> str:
    """Return the version of PySpark."""
    import pyspark

    return str(pyspark.__version__)


def commit() -> str:
    """Return the commit, with a plus where the checkout has been changed; 'unknown' outside of a checkout."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def proposal(plan: DeploymentPlan, store: str, *, former_output: FormerOutputChoice = "refuse") -> Proposal:
    """Compare a plan with the store's deployment; the client of that store can apply the returned proposal."""
    from headwater.app.client import Client, PlanRequest

    request = PlanRequest(
        dataflow=plan.dataflow, continuum=plan.continuum, decided=plan.deployment, former_output=former_output
    )
    return Client(store).propose(request)


def want(plan: DeploymentPlan, store: str, *, former_output: FormerOutputChoice = "refuse") -> int:
    """Store a plan as the desired state; return its version."""
    from headwater.app.client import Client

    return Client(store).apply(proposal(plan, store, former_output=former_output))


def middle(values: Sequence[float], digits: int = 3) -> float:
    """Return the median, rounded."""
    return round(median(values), digits)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-round(len(ordered) * share * 1000) // 1000) - 1))]


def write_result(file: Path | None, result: Mapping[str, Any], *, facts: Mapping[str, Any]) -> None:
    """Write the result with its origin, in one step."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.part")
        draft.write_text(json.dumps({**facts, **result}, indent=2) + "\n")
        draft.replace(file)


def facts(*, quick: bool) -> dict[str, Any]:
    """Return the facts that every result carries; call it before the work, since it contains the load."""
    return {"machine": machine(), "spark": spark_version(), "commit": commit(), "quick": quick}


def leave_when_terminated() -> None:
    """Let SIGTERM end this process as an error does, so that `with` and `finally` end what it has started."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git(*words: str) -> str:
    shown = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    return shown.stdout.strip()
