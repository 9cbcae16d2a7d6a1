"""Headwater: one dataflow over edge, site and cloud. Spark inside a zone, Headwater between zones.

Names are loaded when they are used: Spark's Python workers import this package at every start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.continuum.model import Continuum
    from headwater.core.errors import HeadwaterError
    from headwater.dataflow.builder import flow
    from headwater.dataflow.graph import Dataflow
    from headwater.dataflow.stateful import session_window, window
    from headwater.dataflow.stream import Stream
    from headwater.dataflow.windowmakers import WindowMaker, chop_time, complete, sliding_time
    from headwater.frames.job import from_pyspark, layer

__version__ = "0.1.0"

__all__ = [
    "Continuum",
    "Dataflow",
    "HeadwaterError",
    "Stream",
    "WindowMaker",
    "chop_time",
    "complete",
    "flow",
    "from_pyspark",
    "layer",
    "session_window",
    "sliding_time",
    "window",
]

_HOMES = {
    "Continuum": "headwater.continuum.model",
    "Dataflow": "headwater.dataflow.graph",
    "HeadwaterError": "headwater.core.errors",
    "Stream": "headwater.dataflow.stream",
    "WindowMaker": "headwater.dataflow.windowmakers",
    "chop_time": "headwater.dataflow.windowmakers",
    "complete": "headwater.dataflow.windowmakers",
    "flow": "headwater.dataflow.builder",
    "from_pyspark": "headwater.frames.job",
    "layer": "headwater.frames.job",
    "session_window": "headwater.dataflow.stateful",
    "sliding_time": "headwater.dataflow.windowmakers",
    "window": "headwater.dataflow.stateful",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headwater' has no attribute {name!r}")
