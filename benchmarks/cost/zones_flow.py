"""The pipeline of ``benchmarks.overhead`` as a file for ``headwater apply``; paths come from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.overhead import flow as pipeline

flow = pipeline(Path(os.environ["COST_INPUT"]), Path(os.environ["COST_OUTPUT"]))
