"""The three streams that all queries read, and the bounds that a stream needs where the published tables have none."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.stream import Stream

LOCATIONS = ("L1", "L2", "L3", "L4", "L5")
KINDS = ("person", "auction", "bid")
PERSON = (
    "id bigint, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string"
)
AUCTION = (
    "id bigint, itemName string, description string, initialBid bigint, reserve bigint, dateTime timestamp, "
    "expires timestamp, seller bigint, category bigint, extra string"
)
BID = "auction bigint, bidder bigint, price bigint, channel string, url string, dateTime timestamp, extra string"
SCHEMAS = {"person": PERSON, "auction": AUCTION, "bid": BID}
SIDE, SIDE_ROWS = "key bigint, value string", 10_000
WATERMARK = "4 seconds"  # that of the published tables


@dataclass(frozen=True)
class Bounds:
    """The longest times in seconds between an event and what it names; by default those of the default workload.

    ``auction``: from the begin of an auction to its end and to any bid for it. ``person``: from the entry of a person
    to any auction or bid of this person. ``lead``: by which an event may be before the auction or person that it names.
    """

    auction: int = 5
    person: int = 51
    lead: int = 1


@dataclass(frozen=True, kw_only=True)
class Streams:
    """The streams of a dataflow, by location; ``location`` is that of the person who enters, sells or bids."""

    builder: DataflowBuilder
    data: str
    bounds: Bounds
    person: Stream
    auction: Stream
    bid: Stream

    @property
    def side_input(self) -> ReferenceTable:
        """The table of query 13."""
        return self.builder.table.csv(f"{self.data}/side_input.csv", SIDE)


def streams(builder: DataflowBuilder, data: str, bounds: Bounds, *, files_per_batch: int | None = None) -> Streams:
    """Read the CSV files in ``{data}/{location}/person``, ``auction`` and ``bid``."""
    options = {} if files_per_batch is None else {"maxFilesPerTrigger": str(files_per_batch)}

    def read(kind: str) -> Stream:
        rows = builder.read.csv(f"{data}/{{location}}/{kind}", SCHEMAS[kind], location_as="location", **options)
        return rows.named(kind).with_watermark("dateTime", WATERMARK)

    person, auction, bid = map(read, KINDS)
    return Streams(builder=builder, data=data, bounds=bounds, person=person, auction=auction, bid=bid)
