"""Queries 3, 8, 20 and 23: joins of two and three streams.

A person sells and bids at home, so joins by the person run in each site over the people of its locations; a bid for an
auction may come from anywhere, so joins by the auction run in the cloud. The bounds replace the endless tables.
"""

from __future__ import annotations

import headwater as hw
from examples.nexmark.streams import Streams
from headwater.dataflow.stream import Stream


def q3(s: Streams) -> Stream:
    """Find who sells in three states in category 10."""
    auction = s.auction.where("category = 10").select("location", "seller", "id", "dateTime")
    person = s.person.where("state = 'OR' OR state = 'ID' OR state = 'CA'").select(
        "location", "id AS seller", "name", "city", "state", "dateTime AS entered"
    )
    near = (f"-{s.bounds.person} seconds", f"{s.bounds.lead} seconds")
    pairs = auction.to_layer("site").join(person.to_layer("site"), ["location", "seller"], between=near)
    return pairs.select("name", "city", "state", "id")


def q8(s: Streams) -> Stream:
    """Find people who entered and sold in the same ten seconds."""
    ten = hw.window("dateTime", "10 seconds")
    person = s.person.select("location", "id", "name", "dateTime").to_layer("site")
    seller = s.auction.select("location", "seller AS id", "dateTime").to_layer("site")
    entered = person.group_by(ten, "location", "id", "name").agg(entries="count(*)")
    sold = seller.group_by(ten, "location", "id").agg(auctions="count(*)")
    return entered.join(sold, ["window", "location", "id"]).select("id", "name", "window.start AS starttime")


def q20(s: Streams) -> Stream:
    """Add the auction to each bid for category 10."""
    auction = s.auction.where("category = 10").select(
        *("id AS auction", "itemName", "description", "initialBid", "reserve", "dateTime AS auction_dateTime"),
        *("expires", "seller", "category", "extra AS auction_extra"),
    )
    bid = s.bid.select(
        *("auction", "bidder", "price", "channel", "url", "dateTime AS bid_dateTime", "extra AS bid_extra")
    )
    near = (f"-{s.bounds.auction} seconds", f"{s.bounds.lead} seconds")
    return bid.to_layer("cloud").join(auction.to_layer("cloud"), "auction", between=near)


def q23(s: Streams) -> Stream:
    """Add to each bid its bidder, and the auctions that the bidder sells."""
    bid = s.bid.select("location", "bidder", "price", "channel", "url", "extra AS bid_extra", "dateTime")
    person = s.person.select(
        *("location", "id AS bidder", "name", "emailAddress", "creditCard", "city", "state"),
        *("extra AS person_extra", "dateTime AS entered"),
    )
    auction = s.auction.select(
        *("location", "seller AS bidder", "itemName", "description", "initialBid", "reserve"),
        *("dateTime AS auction_dateTime", "expires", "category", "extra AS auction_extra"),
    )
    by, near = ["location", "bidder"], (f"-{s.bounds.person} seconds", f"{s.bounds.lead} seconds")
    bidders = bid.to_layer("site").join(person.to_layer("site"), by, between=near)
    far = f"{s.bounds.person + s.bounds.lead} seconds"
    return bidders.join(auction.to_layer("site"), by, within=far).select(
        *("bidder", "price", "channel", "url", "bid_extra", "bidder AS person_id", "name", "emailAddress"),
        *("creditCard", "city", "state", "person_extra", "itemName", "description", "initialBid", "reserve"),
        *("auction_dateTime", "expires", "bidder AS seller", "category", "auction_extra"),
    )
