"""Files that a unit's sinks hold back until they are large: made visible when they are old, and when the unit ends.

A batch publishes what is due, and an idle unit has none. So an agent looks, too, beside the unit's query: both publish
by the same journal, of which one writer at a time gets the next number.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import Any

from headwater.connectors.filewriter import FileSinkWriter
from headwater.core.errors import ChannelError
from headwater.dataflow.sinks import FileSink
from headwater.disk.layout import Layout
from headwater.plan.spec import UnitSpec
from headwater.query.sinkwriters import described

_LOG = logging.getLogger(__name__)
_LOOKS = 10  # looks within the time for which a file waits
_LEAST, _MOST = 0.1, 10.0  # seconds between two looks


@dataclass
class HeldOutput:
    """When the files of a unit's sinks are looked at again (monotonic seconds)."""

    due: float = field(default_factory=time.monotonic)

    def look(self, spec: UnitSpec, layout: Layout) -> None:
        """Publish the files whose time has come, if it is time to look."""
        if (now := time.monotonic()) < self.due:
            return
        found = _held_back(spec, layout)
        pauses = [min(_MOST, max(_LEAST, float(sink_writer["max_age"]) / _LOOKS)) for sink_writer in found]
        self.due = now + min(pauses, default=math.inf)
        if found:
            try_to_publish(spec, layout, everything=False)


def publish_held(spec: UnitSpec, layout: Layout, *, everything: bool = True) -> None:
    """Publish the files whose time has come, or all."""
    for sink_writer in _held_back(spec, layout):
        FileSinkWriter(sink_writer, spec.unit.epoch).publish_held(everything=everything)


def try_to_publish(spec: UnitSpec, layout: Layout, *, everything: bool = True) -> None:
    """Do the same, and log an error, such as that of a full disk: the files wait for another time."""
    try:
        publish_held(spec, layout, everything=everything)
    except (OSError, ChannelError) as error:
        text = "unit %s: files that wait in its sinks are not published: %s"
        _LOG.warning(text, spec.id, error, extra=spec.named)


def _held_back(spec: UnitSpec, layout: Layout) -> list[dict[str, Any]]:
    """Describe the sink writers of a unit whose files may wait."""
    sinks = (output for output in spec.unit.outputs if isinstance(o := spec.flow[output], FileSink) and o.holds_back)
    return [described(spec, output, layout, {}) for output in sinks]
