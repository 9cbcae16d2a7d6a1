"""Queries 5, 7 and 11: windows of time and sessions."""

from __future__ import annotations

import headwater as hw
from examples.nexmark.streams import Streams
from headwater.dataflow.stream import Stream


def q5(s: Streams) -> Stream:
    """Find the auctions with the most bids of ten seconds, every two seconds; edges count, the cloud adds up."""
    ten = hw.window("dateTime", "10 seconds", "2 seconds")
    own = s.bid.group_by(ten, "location", "auction").agg(num="count(*)")
    counts = own.to_layer("cloud").group_by("window", "auction").agg(num="sum(num)")
    return counts.top_k(1, "num", ties="rank").select("window.start AS starttime", "auction", "num")


def q7(s: Streams) -> Stream:
    """Find the highest bids of each ten seconds; of each location first, then of all."""
    columns = ("auction", "bidder", "price", "dateTime", "extra")
    ten = hw.window("dateTime", "10 seconds")
    own = s.bid.select("location", *columns).top_k(1, "price", per=[ten, "location"], ties="rank")
    highest = own.drop("rank").to_layer("cloud").top_k(1, "price", ties="rank")
    return highest.select(*columns)


def q11(s: Streams) -> Stream:
    """Count the bids of each session of a bidder, who bids in one location."""
    bid = s.bid.select("location", "bidder", "dateTime").to_layer("site")
    sessions = bid.group_by(hw.session_window("dateTime", "10 seconds"), "location", "bidder")
    return sessions.agg(bid_count="count(*)").select(
        *("bidder", "bid_count", "session_window.start AS starttime", "session_window.end AS endtime")
    )
