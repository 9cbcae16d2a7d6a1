"""Let a unit catch up with the unit that it replaces while that one runs, so that it has no first batch to run.

The new unit begins with the state that the other one had after some batch. It repeats the other's batches, one by
one and up to the same positions, and its output is discarded. So after each batch both have the same state and
watermark, if equal input gives equal results. When the other unit has stopped, the new one repeats the last batches,
and all later ones are its own. If it cannot, it is begun again from the saved state, as without this.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from headwater.agent.catchupquery import CatchUpQuery
from headwater.agent.units import Units
from headwater.disk.catchup import CatchUpRecord, read_catch_up, write_catch_up
from headwater.disk.checkpoint import clear, newest_batch
from headwater.disk.syncing import sync_checkpoint
from headwater.plan.spec import UnitSpec
from headwater.state.savedstate import Saved, batch_ends, stood_at

_LOG = logging.getLogger(__name__)
_PATIENCE = 5.0  # seconds without a finished batch after which the saved state is loaded instead
_ROUND = 0.05  # seconds for which the batches of one call are awaited: the next call brings further ones
_MOST_LEFT = 3  # batches: repeating more of them takes longer than to load the state
_LOOK = 0.01


def catch_up(units: Units, spec: UnitSpec, source: str, early: Saved, begin: Callable[[], None]) -> int | None:
    """Let a unit repeat the batches of another one, which ``early`` names; return how many are left, or are to come.

    ``begin`` makes its checkpoint from the state of ``early``. Return None where it does not catch up.
    """
    file, checkpoint = units.layout.catch_up(spec.unit), units.layout.checkpoint(spec.unit)
    found = read_catch_up(file)
    if found is None or not _is_under_way(found, source) or not _joins(units, spec, found, early):
        give_up(units, spec)
        found = CatchUpRecord(source=source, begun=early.batch)
        write_catch_up(file, found)  # before the checkpoint, which would else seem loaded if this process ended now
        begin()
    done = newest_batch(checkpoint / "commits")
    _extend(units, spec, replace(found, until=None), early, done)
    query = units.catching_up.get(spec.id)
    if query is None:
        query = CatchUpQuery(spec.id, partial(units.catch_up, spec), done, rare_batches=units.settings.rare_batches)
        units.catching_up[spec.id] = query
    if (error := query.error) is not None:
        _LOG.warning("unit %s does not catch up: %s", spec.id, error, extra=spec.named)
        give_up(units, spec)
        return None
    deadline = time.monotonic() + _ROUND
    while (done := newest_batch(checkpoint / "commits")) < early.newest and time.monotonic() < deadline:
        time.sleep(_LOOK)
    in_progress = max(early.recent, default=-1) > early.newest
    return max(early.newest - done, query.left(done, in_progress=in_progress))


def take_over(units: Units, spec: UnitSpec, source: str, saved: Saved) -> bool:
    """Let a unit repeat the last batches of another one, which has stopped; return whether it stands where that did.

    Where it does not, nothing is left of it.
    """
    found = read_catch_up(units.layout.catch_up(spec.unit))
    if found is None:
        return False
    if found.source == source and not found.released and _repeats(units, spec, found, saved):
        if units.settings.channel.fsync:  # the batches up to here must not be repeated as the unit's own
            sync_checkpoint(units.layout.checkpoint(spec.unit))
        write_catch_up(units.layout.catch_up(spec.unit), replace(found, batches={}, until=saved.batch))
        return True
    give_up(units, spec)
    return False


def release(units: Units, spec: UnitSpec) -> bool:
    """Let a unit that stands where the other one stopped go on; return whether it runs."""
    file = units.layout.catch_up(spec.unit)
    found = read_catch_up(file)
    if found is None or found.released:
        file.unlink(missing_ok=True)
        return False
    if found.until is None:
        give_up(units, spec)
        return False
    query = units.catching_up.pop(spec.id, None)
    running = query.started() if query is not None else None
    if running is None:
        return False  # it is started from its checkpoint
    write_catch_up(file, replace(found, released=True))
    units.take_over(spec, running, found.until)
    return True


def give_up(units: Units, spec: UnitSpec) -> None:
    """End a unit that repeats the batches of another one, and delete its state."""
    file = units.layout.catch_up(spec.unit)
    found = read_catch_up(file)
    units.end_catch_up(spec)
    if found is None or found.released:
        return
    clear(units.layout.checkpoint(spec.unit))
    file.unlink(missing_ok=True)


def _is_under_way(found: CatchUpRecord, source: str) -> bool:
    """Return whether a unit still repeats the batches of a source."""
    return found.source == source and not (found.released or found.ending)


def _joins(units: Units, spec: UnitSpec, found: CatchUpRecord, saved: Saved) -> bool:
    """Return whether the batches that are known of another unit follow the last one that a unit has done.

    A batch that was repeated while the other unit did it may have been cut off there, and planned otherwise.
    """
    checkpoint = units.layout.checkpoint(spec.unit)
    done = newest_batch(checkpoint / "commits")
    known = {*saved.recent, *found.batches}
    if not 0 <= done <= max(saved.recent, default=saved.newest):
        return False
    if not known.issuperset(range(done + 1, saved.newest + 1)):
        return False
    repeated = batch_ends(checkpoint, newest_batch(checkpoint / "offsets"))
    return all(_same(repeated[n], ends) for n, ends in saved.recent.items() if n > found.begun and n in repeated)


def _same(ends: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Return whether two batches end at the same positions in each source."""
    return {n: json.loads(at) for n, at in ends.items()} == {n: json.loads(at) for n, at in others.items()}


def _extend(units: Units, spec: UnitSpec, found: CatchUpRecord, saved: Saved, done: int) -> None:
    """Add the batches that another unit has done meanwhile: it keeps the newest ones only."""
    batches: Mapping[int, Mapping[str, str]] = {
        n: ends for n, ends in {**found.batches, **saved.recent}.items() if n > done
    }
    wanted = replace(found, batches=batches)
    file = units.layout.catch_up(spec.unit)
    if read_catch_up(file) != wanted:
        write_catch_up(file, wanted)


def _repeats(units: Units, spec: UnitSpec, found: CatchUpRecord, saved: Saved) -> bool:
    """Wait until a unit has repeated the last batch of another one; return whether both stand at the same point."""
    checkpoint = units.layout.checkpoint(spec.unit)
    done = newest_batch(checkpoint / "commits")
    query = units.catching_up.get(spec.id)
    if found.until != saved.batch or done != saved.batch:
        if query is None or saved.batch - done > _MOST_LEFT or not _joins(units, spec, found, saved):
            return False
        _extend(units, spec, replace(found, until=None), saved, done)
    deadline = time.monotonic() + _PATIENCE
    while (newest := newest_batch(checkpoint / "commits")) < saved.batch:
        if newest > done:
            done, deadline = newest, time.monotonic() + _PATIENCE
        if time.monotonic() > deadline or query is None or query.error is not None:
            return False
        time.sleep(_LOOK)
    stands = stood_at(checkpoint, saved.batch)
    # A further batch that was planned would be discarded, too.
    same = newest_batch(checkpoint / "offsets") == saved.batch
    same = same and (stands.watermark, stands.next_watermark) == (saved.watermark, saved.next_watermark)
    same = same and _same(stands.sources, saved.sources)
    if not same:
        text = "unit %s does not stand where the unit that it replaces stopped: its state is loaded"
        _LOG.warning(text, spec.id, extra=spec.named)
    return same
