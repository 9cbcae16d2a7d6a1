"""Let a unit do its batches before its trigger is due, while a change waits for them.

A query that waits for the begin of each batch itself is told by its pace file. Where Spark begins the batches, the
query is started again without an interval, which takes about as long as a batch.
"""

from __future__ import annotations

import time

from headwater.agent.querystart import Batches
from headwater.agent.units import Units
from headwater.agent.work import Work
from headwater.core.quantity import parse_duration
from headwater.disk.checkpoint import reads_agree
from headwater.disk.pace import change_pace

_LEVEL = 10.0  # seconds in which all reads of an input reach the same position, as a rule
_RESTART = 2.0  # seconds until a query that is started again has done a batch
_LOOK = 0.02


def begin_early(units: Units, unit: str) -> None:
    """Let a unit begin its batches one after another, unless Spark begins the next one soon anyway."""
    work = units[unit]
    change_pace(units.layout.pace(work.unit), draining=True)
    running, interval = work.running, parse_duration(units.settings.trigger)
    if running is None or running.paced or running.back_to_back or running.real_time or work.finished:
        return
    if interval > _RESTART and interval - time.time() % interval > _RESTART:
        _start_again(units, work, "back_to_back")


def keep_interval(units: Units, unit: str) -> None:
    """Let a unit keep its interval again."""
    work = units[unit]
    change_pace(units.layout.pace(work.unit), draining=False, finishing=False)
    if work.running is not None and work.running.back_to_back and not work.finished:
        _start_again(units, work, "on_trigger")


def level_reads(units: Units, unit: str) -> None:
    """Let all reads of an input reach the same position, within some seconds."""
    work = units[unit]
    checkpoint, running = units.layout.checkpoint(work.unit), work.running
    if running is None or running.real_time or work.finished or not units.endpoint.alive or reads_agree(checkpoint):
        return
    begin_early(units, unit)
    running, deadline = units[unit].running, time.monotonic() + _LEVEL
    while running is not None and running.failure(unit) is None and time.monotonic() < deadline:
        if reads_agree(checkpoint):
            return
        time.sleep(_LOOK)


def _start_again(units: Units, work: Work, batches: Batches) -> None:
    units.stop(work.unit.id)
    units.forget(work.unit)
    units.start(work.spec, batches=batches)
