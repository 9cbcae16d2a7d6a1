"""The Nexmark queries as hand-written Structured Streaming: statements over streaming views of the same files.

They have the watermarks and bounds that Spark demands. Spark does not know that the files end, so a stateful query
also reads a row of each stream two days later, which belongs to no result and closes all windows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from examples.nexmark.published import STATEMENTS
from examples.nexmark.streams import LOCATIONS, SCHEMAS, SIDE, WATERMARK, Bounds

if TYPE_CHECKING:
    from headwater.spark.endpoint import LocalEndpoint

MISSING = dict.fromkeys(
    ("q4", "q6"),
    "a mean in the order of event time needs a stateful processor of one's own, which keeps and sorts rows",
)
BY_ROWS = ("q0", "q1", "q2", "q13", "q14", "q21", "q22")
"""Queries without state."""
END = {
    "person": "-1,nobody,,,,,{time},",
    "auction": "-2,nothing,,0,0,{time},{time},-3,0,",
    "bid": "-4,-5,0,none,,{time},",
}
"""Rows that pair with no others, at the end of the streams."""
_RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
_BID = "auction, bidder, price, channel, url, dateTime, extra"
_DAY = "date_format(window.start, 'yyyy-MM-dd') AS day"
_BIDS = "count(*) AS total_bids, " + ", ".join(
    f"count(*) FILTER (WHERE {level}) AS {rank}_bids" for rank, level in _RANKS.items()
)
# Spark's streams have no count(DISTINCT).
_DISTINCT = ", ".join(
    f"size(collect_set({what}) {level}) AS {rank}_{what}s"
    for what in ("bidder", "auction")
    for rank, level in {"total": "", **{r: f"FILTER (WHERE {text})" for r, text in _RANKS.items()}}.items()
)


def statements(bounds: Bounds) -> Mapping[str, str]:
    """Return each query's statement over the streaming views bid, auction and person."""
    session = f"session_window(dateTime, '{bounds.auction + bounds.lead + 1} seconds')"

    def near(time: str, other: str, seconds: int) -> str:
        """Bound the time of what is named by that of the event that names it."""
        return f"{other} BETWEEN {time} - INTERVAL {seconds} SECONDS AND {time} + INTERVAL {bounds.lead} SECONDS"

    offers = f"""
        FROM auction A JOIN bid B ON A.id = B.auction
            AND B.dateTime BETWEEN A.dateTime AND A.dateTime + INTERVAL {bounds.auction} SECONDS
        WHERE B.dateTime <= A.expires"""
    return {
        **{name: STATEMENTS[name] for name in BY_ROWS},
        "q3": f"""{STATEMENTS["q3"]} AND {near("A.dateTime", "P.dateTime", bounds.person)}""",
        "q5": """
            SELECT window.start AS starttime, best.auction, best.num FROM (
                SELECT window, explode(filter(counts, c -> c.num = most)) AS best FROM (
                    SELECT window, collect_list(struct(auction, num)) AS counts, max(num) AS most FROM (
                        SELECT window(dateTime, '10 seconds', '2 seconds') AS window, auction, count(*) AS num
                        FROM bid GROUP BY window(dateTime, '10 seconds', '2 seconds'), auction
                    ) GROUP BY window
                )
            )""",
        "q7": """
            SELECT best.* FROM (
                SELECT explode(filter(bids, b -> b.price = most)) AS best FROM (
                    SELECT collect_list(struct(auction, bidder, price, dateTime, extra)) AS bids, max(price) AS most
                    FROM bid GROUP BY window(dateTime, '10 seconds')
                )
            )""",
        "q8": """
            SELECT P.id, P.name, P.window.start AS starttime
            FROM (SELECT window, id, name FROM person GROUP BY window(dateTime, '10 seconds'), id, name) P
            JOIN (SELECT window, seller FROM auction GROUP BY window(dateTime, '10 seconds'), seller) A
            ON P.id = A.seller AND P.window = A.window""",
        "q9": f"""
            SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
                id AS auction, won.* FROM (
                SELECT A.id, itemName, description, initialBid, reserve, A.dateTime, expires, seller, category,
                    A.extra, max_by(
                        struct(bidder, price, B.dateTime AS bid_dateTime, B.extra AS bid_extra),
                        struct(price, -unix_micros(B.dateTime), bidder, B.extra)
                    ) AS won {offers}
                GROUP BY A.id, itemName, description, initialBid, reserve, A.dateTime, expires, seller, category,
                    A.extra
            )""",
        "q11": """
            SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
            FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')""",
        "q15": f"SELECT {_DAY}, {_BIDS}, {_DISTINCT} FROM bid GROUP BY window(dateTime, '1 day')",
        "q16": f"""
            SELECT channel, {_DAY}, max(date_format(dateTime, 'HH:mm')) AS minute, {_BIDS}, {_DISTINCT}
            FROM bid GROUP BY window(dateTime, '1 day'), channel""",
        "q17": f"""
            SELECT auction, {_DAY}, {_BIDS}, min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price,
                sum(price) AS sum_price
            FROM bid GROUP BY window(dateTime, '1 day'), auction""",
        "q18": f"""
            SELECT last.* FROM (
                SELECT max_by(struct({_BID}), struct(dateTime, price, channel, url, extra)) AS last
                FROM bid GROUP BY {session}, bidder, auction
            )""",
        "q19": f"""
            SELECT auction, best.bidder, best.price, best.channel, best.url, best.dateTime, best.extra,
                place + 1 AS rank_number
            FROM (
                SELECT auction, slice(sort_array(
                    collect_list(struct(price, bidder, channel, url, dateTime, extra)), false), 1, 10) AS bids
                FROM bid GROUP BY {session}, auction
            ) LATERAL VIEW posexplode(bids) ranked AS place, best""",
        "q20": f"""{STATEMENTS["q20"]} AND {near("B.dateTime", "A.dateTime", bounds.auction)}""",
        "q23": f"""{STATEMENTS["q23"]} WHERE {near("B.dateTime", "P.dateTime", bounds.person)}
            AND A.dateTime BETWEEN B.dateTime - INTERVAL {bounds.person + bounds.lead} SECONDS
                AND B.dateTime + INTERVAL {bounds.person + bounds.lead} SECONDS""",
    }


def run(query: str, place: Path, out: Path, endpoint: LocalEndpoint, bounds: Bounds, *, files_per_batch: int) -> float:
    """Run a query to the end of the files in ``place``/data, with JSON lines in ``out``/out; return the seconds."""
    spark = endpoint.session()
    files = "data/*" if query in BY_ROWS else "{data/*,end}"
    begun = time.monotonic()
    for kind, schema in SCHEMAS.items():
        read = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch * len(LOCATIONS))
        rows = read.name(kind).option("maxFileAge", "36500d").csv(f"{place}/{files}/{kind}")
        rows.withWatermark("dateTime", WATERMARK).createOrReplaceTempView(kind)
    spark.read.schema(SIDE).csv(f"{place}/data/side_input.csv").createOrReplaceTempView("side_input")
    writer = spark.sql(statements(bounds)[query]).writeStream.format("json").outputMode("append").queryName(query)
    writer = writer.option("path", str(out / "out")).option("checkpointLocation", str(out / "checkpoint"))
    started = writer.trigger(availableNow=True).start()
    try:
        started.awaitTermination()
    finally:
        started.stop()
    return time.monotonic() - begun
