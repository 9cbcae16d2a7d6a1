"""The contract of every kind of channel, independent of its storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headwater.channels.base import END
from headwater.channels.flight import FlightLog
from headwater.channels.log import Log
from headwater.channels.open import open_log
from headwater.core.errors import ChannelError

from .conftest import ids, table

Channel = Log | FlightLog
Reopen = Callable[[], Channel]


def test_batches_are_read_in_order(channel: Channel) -> None:
    for batch in range(20):
        assert channel.append(table([batch * 2, batch * 2 + 1]), epoch=1, batch=batch)
    assert ids(channel) == list(range(40))
    assert ids(channel, 3, 5) == [6, 7, 8, 9]
    assert ids(channel, 5, 5) == []


def test_an_empty_channel_has_nothing_and_no_frontier(channel: Channel) -> None:
    assert (channel.earliest(), channel.latest()) == (0, 0)
    assert ids(channel) == []
    assert channel.frontier(0) is None
    assert channel.stats().rows == 0


def test_a_replayed_batch_is_not_stored_again(channel: Channel, reopen: Reopen) -> None:
    channel.append(table([1]), epoch=1, batch=0)
    channel.append(table([2]), epoch=1, batch=1)
    for other in (channel, reopen()):
        assert not other.append(table([2]), epoch=1, batch=1)
        assert not other.append(table([1]), epoch=1, batch=0)
    assert ids(reopen()) == [1, 2]
    assert reopen().stats().rows == 2


def test_a_batch_without_rows_is_no_entry(channel: Channel) -> None:
    channel.append(table([1]), epoch=1, batch=0)
    assert not channel.append(table([]), epoch=1, batch=1)
    assert channel.append(table([2]), epoch=1, batch=2)
    assert ids(channel) == [1, 2]


def test_a_new_epoch_may_begin_at_any_batch_id(channel: Channel) -> None:
    channel.append(table([1]), epoch=1, batch=41)
    assert channel.append(table([2]), epoch=2, batch=7)
    assert channel.append(table([3]), epoch=2, batch=8)
    assert ids(channel) == [1, 2, 3]


def test_a_writer_of_an_older_epoch_is_refused(channel: Channel, reopen: Reopen) -> None:
    zombie = reopen()
    zombie.append(table([1]), epoch=1, batch=0)
    channel.append(table([2]), epoch=2, batch=0)
    with pytest.raises(ChannelError, match="epoch 1 is out of date: epoch 2"):
        zombie.append(table([3]), epoch=1, batch=1)
    with pytest.raises(ChannelError, match="out of date"):
        zombie.end(1)
    assert ids(channel) == [1, 2]


def test_a_fence_shuts_the_old_writer_out_and_says_where_it_stood(channel: Channel, reopen: Reopen) -> None:
    assert channel.fence(1) is None
    channel.append(table([1]), epoch=1, batch=5)
    zombie = reopen()
    assert channel.fence(2) == (1, 5)
    assert reopen().fence(2) == (1, 5)
    with pytest.raises(ChannelError, match="out of date"):
        zombie.append(table([2]), epoch=1, batch=6)
    channel.append(table([3]), epoch=2, batch=6)
    assert reopen().fence(2) == (2, 6)
    assert ids(channel) == [1, 3]


def test_the_frontier_is_the_greatest_event_time_so_far(channel: Channel) -> None:
    for batch, rows in enumerate(([5, 3], [4], [9])):
        channel.append(table(rows), epoch=1, batch=batch)
    assert [channel.frontier(p) for p in range(4)] == [None, 5_000_000, 5_000_000, 9_000_000]


def test_the_end_is_marked_once(channel: Channel, reopen: Reopen) -> None:
    channel.append(table([1]), epoch=1, batch=0)
    channel.end(1)
    reopen().end(1)
    assert channel.latest() == 2
    assert (channel.frontier(1), channel.frontier(2)) == (1_000_000, END)
    assert channel.stats().ended
    assert ids(channel) == [1]


def test_only_a_higher_epoch_resumes_an_ended_stream(channel: Channel) -> None:
    channel.append(table([1]), epoch=1, batch=0)
    channel.end(1)
    with pytest.raises(ChannelError, match="ended the stream"):
        channel.append(table([2]), epoch=1, batch=1)
    assert not channel.append(table([1]), epoch=1, batch=0)  # a replay is not a new batch
    channel.fence(2)
    assert channel.stats().ended
    channel.append(table([2]), epoch=2, batch=0)
    assert not channel.stats().ended
    assert channel.frontier(channel.latest()) == 2_000_000
    channel.end(2)
    assert channel.frontier(channel.latest()) == END


def test_entries_go_when_all_readers_are_past_them(channel: Channel, reopen: Reopen) -> None:
    channel.register("fast")
    channel.register("slow")
    for batch in range(6):
        channel.append(table([batch]), epoch=1, batch=batch)
    channel.advance("fast", 5)
    assert channel.earliest() == 0
    channel.advance("slow", 3)
    assert channel.earliest() == 3
    channel.advance("slow", 2)  # a restarted reader may report a lower position: nothing comes back
    assert (channel.earliest(), ids(channel)) == (3, [3, 4, 5])
    channel.unregister("slow")
    assert reopen().earliest() == 5
    channel.advance("fast", 6)
    assert ids(channel) == []
    assert not channel.append(table([5]), epoch=1, batch=5)
    assert channel.append(table([6]), epoch=1, batch=6)
    stats = reopen().stats()
    assert (stats.rows, stats.entries, stats.unread["fast"].rows) == (7, 7, 1)


def test_without_a_reader_everything_is_kept(channel: Channel) -> None:
    for batch in range(3):
        channel.append(table([batch]), epoch=1, batch=batch)
    channel.register("late")
    channel.unregister("late")
    assert ids(channel) == [0, 1, 2]


def test_the_frontier_is_known_wherever_a_reader_can_start(channel: Channel, reopen: Reopen) -> None:
    channel.register("r")
    for batch in range(5):
        channel.append(table([batch]), epoch=1, batch=batch)
    for position in range(1, 6):
        channel.advance("r", position)
        assert reopen().frontier(position) == (position - 1) * 1_000_000
    assert channel.frontier(2) is None  # no reader can start there: unknown rather than wrong


def test_backlog_counts_what_each_reader_has_not_read(channel: Channel) -> None:
    channel.register("a")
    channel.register("b")
    for batch in range(4):
        channel.append(table([batch] * 10), epoch=1, batch=batch)
    channel.advance("a", 3)
    unread = channel.stats().unread
    assert (unread["a"].rows, unread["a"].entries) == (10, 1)
    assert (unread["b"].rows, unread["b"].entries) == (40, 4)
    assert unread["b"].bytes == channel.stats().bytes
    assert unread["b"].age >= unread["a"].age >= 0


def test_registering_again_keeps_the_position(channel: Channel, reopen: Reopen) -> None:
    assert channel.register("r") == 0
    channel.append(table([1]), epoch=1, batch=0)
    channel.advance("r", 1)
    assert reopen().register("r") == 1


def test_an_unknown_reader_cannot_advance(channel: Channel) -> None:
    channel.append(table([1]), epoch=1, batch=0)
    with pytest.raises(ChannelError, match="'nobody' is not registered"):
        channel.advance("nobody", 1)


def test_a_reader_cannot_be_past_the_end(channel: Channel) -> None:
    channel.register("r")
    with pytest.raises(ChannelError, match="reports position 1"):
        channel.advance("r", 1)


def test_another_schema_is_refused(channel: Channel) -> None:
    channel.append(table([1]), epoch=1, batch=0)
    with pytest.raises(ChannelError, match="extra is new"):
        channel.append(table([2]).append_column("extra", [[1.0]]), epoch=1, batch=1)
    with pytest.raises(ChannelError, match="ts is missing"):
        channel.append(table([2]).select(["id"]), epoch=1, batch=1)
    with pytest.raises(ChannelError, match="id was int64, now string"):
        channel.append(table([2]).set_column(0, "id", [["x"]]), epoch=1, batch=1)
    assert ids(channel) == [1]


def test_a_replaced_writer_that_goes_on_with_the_numbering_repeats_nothing(spec: dict[str, Any]) -> None:
    """Its predecessor published a batch that Spark had not recorded: it comes again, in a higher epoch."""
    one, other = ({**spec, "lineage": lineage} for lineage in ("c1", "c2"))
    open_log(one).append(table([1]), epoch=1, batch=0)
    open_log(one).append(table([2]), epoch=1, batch=1)
    assert not open_log(one).append(table([2]), epoch=2, batch=1)
    assert open_log(one).fence(3) == (1, 1)
    assert not open_log(one).append(table([2]), epoch=3, batch=1)
    assert open_log(one).append(table([3]), epoch=3, batch=2)
    # a new checkpoint counts anew
    assert open_log(other).fence(4) == (3, 2)
    assert open_log(other).append(table([4]), epoch=4, batch=0)
    assert not open_log(other).append(table([4]), epoch=5, batch=0)
    assert open_log(one).append(table([5]), epoch=6, batch=0)  # not that of c2
    assert ids(open_log(spec)) == [1, 2, 3, 4, 5]


def test_another_numbering_in_the_same_epoch_is_refused(spec: dict[str, Any]) -> None:
    open_log({**spec, "lineage": "c1"}).append(table([1]), epoch=1, batch=0)
    for lineage in ("c2", None):  # None: a checkpoint that has lost its number
        with pytest.raises(ChannelError, match="another checkpoint has numbered"):
            open_log({**spec, "lineage": lineage}).append(table([2]), epoch=1, batch=0)


def test_at_least_once_repeats_and_refuses_nobody(spec: dict[str, Any]) -> None:
    log = open_log({**spec, "delivery": "at_least_once", "event_time": "ts"})
    zombie = open_log({**spec, "delivery": "at_least_once", "event_time": "ts"})
    assert log.append(table([1]), epoch=2, batch=0)
    assert log.append(table([1]), epoch=2, batch=0)
    assert zombie.append(table([2]), epoch=1, batch=0)
    log.end(2)
    assert ids(log) == [1, 1, 2]
    assert (log.latest(), log.stats().rows, log.stats().ended) == (4, 3, True)
    with pytest.raises(ChannelError, match="unknown delivery"):
        open_log({**spec, "delivery": "twice"})
