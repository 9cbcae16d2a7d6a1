"""Queries 15 to 19: statistics of a day, and the last and the highest bids.

The published queries 15 to 17 update a row of the day with each bid; here it is written once, when the day is over.
Queries 18 and 19 rank the bids of an auction for ever; here those of a session, which ends when the auction can get no
further bid: ``bounds.auction`` after the last one.
"""

from __future__ import annotations

import headwater as hw
from examples.nexmark.streams import Streams
from headwater.dataflow.stateful import SessionWindow
from headwater.dataflow.stream import Stream

_RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
_DAY = "date_format(window.start, 'yyyy-MM-dd') AS day"
_BID = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")


def q15(s: Streams) -> Stream:
    """Count bids, bidders and auctions of a day, by the level of the price."""
    bid = s.bid.select("auction", "bidder", "price", "dateTime").to_layer("cloud")
    found = bid.group_by(hw.window("dateTime", "1 day")).agg(**_counts())
    return found.select(_DAY, *_counts())


def q16(s: Streams) -> Stream:
    """Count bids, bidders and auctions of a channel and day, by the level of the price."""
    bid = s.bid.select("channel", "auction", "bidder", "price", "dateTime").to_layer("cloud")
    found = bid.group_by(hw.window("dateTime", "1 day"), "channel").agg(
        minute="max(date_format(dateTime, 'HH:mm'))", **_counts()
    )
    return found.select("channel", _DAY, "minute", *_counts())


def q17(s: Streams) -> Stream:
    """Sum up the bids of an auction and day; edges sum up their own, the cloud adds these."""
    day = hw.window("dateTime", "1 day")
    ranks = [f"{rank}_bids" for rank in _RANKS]
    own = s.bid.group_by(day, "location", "auction").agg(
        total_bids="count(*)",
        **{f"{rank}_bids": f"count(*) FILTER (WHERE {level})" for rank, level in _RANKS.items()},
        min_price="min(price)",
        max_price="max(price)",
        sum_price="sum(price)",
    )
    found = (
        own.to_layer("cloud")
        .group_by("window", "auction")
        .agg(
            **{name: f"sum({name})" for name in ("total_bids", *ranks)},
            min_price="min(min_price)",
            max_price="max(max_price)",
            sum_price="sum(sum_price)",
        )
    )
    mean = "sum_price / total_bids AS avg_price"
    return found.select("auction", _DAY, "total_bids", *ranks, "min_price", "max_price", mean, "sum_price")


def q18(s: Streams) -> Stream:
    """Find the last bid of each bidder for an auction, in the bidder's site."""
    bid = s.bid.to_layer("site")
    return bid.top_k(1, "dateTime", per=[_bids_of_an_auction(s), "location", "bidder", "auction"]).select(*_BID)


def q19(s: Streams) -> Stream:
    """Find the ten highest bids of each auction."""
    bid = s.bid.select(*_BID).to_layer("cloud")
    return bid.top_k(10, "price", per=[_bids_of_an_auction(s), "auction"], rank="rank_number").select(
        *_BID, "rank_number"
    )


def _counts() -> dict[str, str]:
    """Return the twelve counts of queries 15 and 16."""
    counts = {"bids": "*", "bidders": "DISTINCT bidder", "auctions": "DISTINCT auction"}
    return {
        name: text
        for of, what in counts.items()
        for name, text in (
            (f"total_{of}", f"count({what})"),
            *((f"{rank}_{of}", f"count({what}) FILTER (WHERE {level})") for rank, level in _RANKS.items()),
        )
    }


def _bids_of_an_auction(s: Streams) -> SessionWindow:
    return hw.session_window("dateTime", f"{s.bounds.auction + s.bounds.lead + 1} seconds")
