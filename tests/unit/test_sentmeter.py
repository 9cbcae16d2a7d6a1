"""The bytes that streams to other zones take are known from the writer's agent to the figures of links."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headwater.adapt.window import window
from headwater.channels.filelog import FileLog
from headwater.channels.followed import RelayMessage
from headwater.channels.logserver import LogService
from headwater.channels.segments import FOR_LINK
from headwater.channels.sentmeter import SentMeter
from headwater.control.records import Sample
from headwater.core.metrics import ChannelProgress, LinkProgress, Progress


def test_a_share_is_that_of_the_streams_of_a_log(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", fsync=False)
    log.compression = FOR_LINK
    for batch in range(10):
        log.append(pa.table({"id": range(20), "text": ["the same text"] * 20}), epoch=1, batch=batch)
    meter = SentMeter()
    service = LogService(lambda name: log, sent_meter=meter)
    assert meter.share("d/log") is None
    parts = 0
    for _, data in service.follow({"log": "d/log", "follow": 0, "expands": True}):
        if len(data) == len(RelayMessage(sent=0.0).to_bytes()):  # a keep-alive: that was all
            break
        parts += len(data)
    share = meter.share("d/log")
    assert share is not None and 0 < share < 0.8
    assert share * log.totals(10)[1] < parts, "an entry is part of its message, and not of its rows"
    assert meter.share("d/other") is None


def test_a_share_follows_the_data() -> None:
    meter = SentMeter()
    for sent in (1.0, 0.25):
        for _ in range(40):
            meter.note("log", stored=2**20, sent=int(sent * 2**20))
    assert meter.share("log") == pytest.approx(0.25, abs=0.01)


def test_links_of_several_writers_weigh_their_shares_by_bytes() -> None:
    one = LinkProgress(link="E1-C1", rows=1, bytes=300, sent_share=0.5)
    other = LinkProgress(link="E1-C1", rows=2, bytes=100)
    above = LinkProgress(link="E1-C1", up=True, delay_s=0.1)
    for link in (one.joined(other).joined(above), above.joined(other).joined(one)):
        assert (link.rows, link.bytes, link.sent_share, link.up, link.delay_s) == (3, 400, 0.625, True, 0.1)
    assert other.joined(above).sent_share is None


def test_rates_over_links_are_those_of_the_streams() -> None:
    def seen(at: float, bytes_: int) -> Sample:
        progress = Progress(
            seconds=at,
            links=(LinkProgress(link="E1-C1", rows=10, bytes=bytes_, sent_share=0.4),),
            channels=(
                ChannelProgress(channel="crosses", rows=10, bytes=bytes_, sent_share=0.4),
                ChannelProgress(channel="stays", rows=10, bytes=bytes_),
            ),
        )
        return Sample(at=at, progress=progress)

    found = window([seen(0.0, 1000), seen(10.0, 2000)])
    assert found is not None
    assert found.links["E1-C1"].bytes == pytest.approx(40)
    crosses, stays = found.channels["crosses"], found.channels["stays"]
    assert [crosses.bytes, crosses.row_bytes] == pytest.approx([40, 80])
    assert [stays.bytes, stays.row_bytes] == pytest.approx([100, 200])
