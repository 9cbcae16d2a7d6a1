"""The batch run of the oracle computes shared state once."""

from __future__ import annotations

import headwater as hw
from headwater.testing.oracle import _computed_once


def test_output_of_state_that_is_read_more_than_once_is_computed_once() -> None:
    builder = hw.flow("f", locations=["L1"])
    read = builder.read.json("/in", "k string, v double, ts timestamp").named("read")
    timed = read.with_watermark("ts", "1 minute")
    sums = timed.group_by(hw.window("ts", "1 minute"), "k").agg(total="sum(v)").named("sums")
    large = sums.filter("total > 1").named("large")
    large.write.memory("high")
    large.select("k").named("keys").write.memory("keys_alone")
    sums.union(sums).write.memory("twice")
    read.filter("v > 0").named("plain").write.memory("rows")
    assert _computed_once(builder.build()) == ["sums", "large"], "a source and a filter cost little"
