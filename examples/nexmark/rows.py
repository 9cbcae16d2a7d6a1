"""Queries 0, 1, 2, 13, 14, 21 and 22: row by row, where the rows are."""

from __future__ import annotations

from examples.nexmark.streams import SIDE_ROWS, Streams
from headwater.dataflow.stream import Stream


def q0(s: Streams) -> Stream:
    """Pass through."""
    return s.bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(s: Streams) -> Stream:
    """Convert dollars to euros."""
    euros = "CAST(0.908 * price AS decimal(23, 3)) AS price"
    return s.bid.select("auction", "bidder", euros, "dateTime", "extra")


def q2(s: Streams) -> Stream:
    """Select the bids of some auctions."""
    return s.bid.where("auction % 123 = 0").select("auction", "price")


def q13(s: Streams) -> Stream:
    """Join with a bounded side input."""
    keyed = s.bid.with_columns(key=f"auction % {SIDE_ROWS}")
    return keyed.join(s.side_input, "key").select("auction", "bidder", "price", "dateTime", "value")


def q14(s: Streams) -> Stream:
    """Compute by several expressions; count the letter c."""
    time_type = """
        CASE WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
             WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
             ELSE 'otherTime' END AS bidTimeType"""
    return s.bid.where("0.908 * price > 1000000 AND 0.908 * price < 50000000").select(
        "auction",
        "bidder",
        "CAST(0.908 * price AS decimal(23, 3)) AS price",
        time_type,
        "dateTime",
        "extra",
        "length(extra) - length(replace(extra, 'c', '')) AS c_counts",
    )


def q21(s: Streams) -> Stream:
    """Add a channel's id, by its name or from the address."""
    pattern = "(&|^)channel_id=([^&]*)"
    known = s.bid.where(f"url RLIKE '{pattern}' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')")
    channel_id = f"""
        CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
             ELSE regexp_extract(url, '{pattern}', 2) END AS channel_id"""
    return known.select("auction", "bidder", "price", "channel", channel_id)


def q22(s: Streams) -> Stream:
    """Take the directories out of the address."""
    parts = [f"split_part(url, '/', {n + 3}) AS dir{n}" for n in (1, 2, 3)]
    return s.bid.select("auction", "bidder", "price", "channel", *parts)
