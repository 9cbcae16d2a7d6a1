"""Measure the savings of collaborative reuse: tasks, merging times, and cores on Spark.

python -m benchmarks.reuse --json FILE [--only logical|live] [--traces SEQ,RW1,RW2] [--plot FILE.png]
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

from benchmarks import common
from benchmarks.reuse import alive, logical
from benchmarks.reuse.workloads import TRACES, Trace


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=1)
    parser.add_argument("--only", choices=["logical", "live"], help="one part")
    parser.add_argument("--traces", default=",".join(TRACES), help=f"for the live part: some of {','.join(TRACES)}")
    parser.add_argument("--workloads", default="riot21", help="for the live part: riot21, opmw35, opmw35_synth")
    parser.add_argument("--steps", type=int, help="of a live trace, before all that is there goes")
    settle = "seconds, at most, until queries have warmed up and nothing waits"
    parser.add_argument("--settle", type=float, default=120.0, help=settle)
    parser.add_argument("--measure", type=float, default=10.0, help="seconds that are measured")
    parser.add_argument("--every", type=int, default=1, help="steps from one measure to the next")
    parser.add_argument("--trigger", default="2 seconds", help="between two batches")
    parser.add_argument("--rate", type=float, default=10.0, help="packs or events a second of each stream")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the tasks that run, step by step")
    options = parser.parse_args()
    if options.quick:
        options.settle, options.measure = min(options.settle, 4.0), min(options.measure, 2.0)
        options.steps, options.every = options.steps or 2, max(options.every, 4)
    facts = common.facts(quick=options.quick)
    found: dict[str, Any] = {}
    if options.only != "live":
        found |= logical.result(quick=options.quick)
        if options.plot:
            logical.plot(found["logical"], options.plot)
    if options.only != "logical":
        kinds = tuple(cast(Trace, k) for k in options.traces.split(","))
        place = Path(tempfile.mkdtemp(prefix="headwater-reuse-"))
        try:
            found["live"] = [
                row
                for name in options.workloads.split(",")
                for row in alive.result(
                    place, name, kinds, fresh=not options.quick, trigger=options.trigger, rate=options.rate,
                    settle=options.settle, measure=options.measure, steps=options.steps, every=options.every,
                )
            ]  # fmt: skip
        finally:
            shutil.rmtree(place, ignore_errors=True)
        for one in found["live"]:
            print({k: v for k, v in one.items() if k != "steps"}, flush=True)
    common.write_result(options.json, found, facts=facts)


if __name__ == "__main__":
    main()
