"""Queries 9, 4 and 6: the winning bid of each auction, and means of the winning prices.

A winner is known when its auction can get no further bid. Queries 4 and 6 write a row for each winner, in the order in
which auctions began: the mean at this time. The published query 4 has one row per category, which is the last of these.
"""

from __future__ import annotations

from typing import Any

from examples.nexmark.streams import Streams
from headwater.dataflow.stream import Stream

LAST = 11  # ROWS BETWEEN 10 PRECEDING AND CURRENT ROW

_AUCTION = ("itemName", "description", "initialBid", "reserve", "expires", "seller", "category", "extra")
_BID = ("bidder", "price", "extra AS bid_extra")


def offers(s: Streams, auction: tuple[str, ...], bid: tuple[str, ...]) -> Stream:
    """Return the bids that came while their auctions were open, with these columns of both."""
    opened = s.auction.select("id AS auction", "dateTime", "expires", *(c for c in auction if c != "expires"))
    bids = s.bid.select("auction", "dateTime AS bid_dateTime", *bid)
    pairs = opened.to_layer("cloud").join(
        bids.to_layer("cloud"), "auction", between=("0 seconds", f"{s.bounds.auction} seconds")
    )
    return pairs.where("bid_dateTime <= expires")


def q9(s: Streams) -> Stream:
    """Find the winning bid of each auction: the highest, and of these the earliest."""
    made = offers(s, _AUCTION, _BID).with_columns(earlier="-unix_micros(bid_dateTime)")
    won = made.top_k(1, ["price", "earlier"], per=["dateTime", "auction"])
    return won.select(
        *("auction AS id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller"),
        *("category", "extra", "auction", "bidder", "price", "bid_dateTime", "bid_extra"),
    )


def q4(s: Streams) -> Stream:
    """Average the winning prices of each category."""
    found = offers(s, ("category",), ("price",)).group_by("dateTime", "auction", "category").agg(final="max(price)")
    return found.scan(
        averaged,
        "category bigint, auctions bigint, average double",
        keys="category",
        order_by=["dateTime", "auction"],
        initial=[0, 0],
    )


def averaged(state: list[int], row: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Add a winning price to the mean of its category."""
    count, total = state[0] + 1, state[1] + row["final"]
    return [count, total], {"category": row["category"], "auctions": count, "average": total / count}


def q6(s: Streams) -> Stream:
    """Average the winning prices of each seller's last auctions."""
    found = offers(s, ("seller",), ("price",)).group_by("dateTime", "auction", "seller").agg(final="max(price)")
    return found.scan(
        averaged_last,
        "seller bigint, auction bigint, avg_price double",
        keys="seller",
        order_by=["dateTime", "auction"],
        initial=[],
    )


def averaged_last(state: list[int], row: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Add a winning price to the last ones of its seller."""
    last = [*state, row["final"]][-LAST:]
    return last, {"seller": row["seller"], "auction": row["auction"], "avg_price": sum(last) / len(last)}
