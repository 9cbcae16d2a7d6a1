"""The published Nexmark statements on a mini-cluster of Flink; runs in the environment of ``benchmarks.flinkenv``.

    python flinkjob.py '{"data": ..., "in_order": ..., "out": ..., "cores": 2, "queries": ["q0"]}'

Prints a JSON line for each query. A query whose rows never change writes them as JSON lines, and is timed with that.
One that updates its rows is timed with a sink that drops them, as in the published suite, since no other variant writes
a row for each change; then it runs a second time with a sink of changes, and the rows that remain when all have been
applied are written.

Flink's file source has no order between files. So the queries with windows of event time read one file of each stream,
in the order in which its events come; the others read the files of all locations.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys
import time
from typing import Any

PERSON = """id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING,
    dateTime TIMESTAMP(3), extra STRING"""
AUCTION = """id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, dateTime TIMESTAMP(3),
    expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING"""
BID = """auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, dateTime TIMESTAMP(3), extra STRING"""
TABLES = {"person": PERSON, "auction": AUCTION, "bid": BID}
IN_ORDER = {"q5", "q7", "q8", "q11"}
UPDATES = {"q4", "q9", "q15", "q16", "q17", "q18", "q19"}

WINNERS = """
    SELECT MAX(B.price) AS final, A.category FROM auction A, bid B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires GROUP BY A.id, A.category"""
COUNTS = """
    count(*) AS total_bids,
    count(*) filter (where price < 10000) AS rank1_bids,
    count(*) filter (where price >= 10000 and price < 1000000) AS rank2_bids,
    count(*) filter (where price >= 1000000) AS rank3_bids"""
DISTINCT = ",".join(
    f"""
    count(distinct {what}) AS total_{what}s,
    count(distinct {what}) filter (where price < 10000) AS rank1_{what}s,
    count(distinct {what}) filter (where price >= 10000 and price < 1000000) AS rank2_{what}s,
    count(distinct {what}) filter (where price >= 1000000) AS rank3_{what}s"""
    for what in ("bidder", "auction")
)
DAY = "DATE_FORMAT(dateTime, 'yyyy-MM-dd')"
TEN = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))"
HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"

STATEMENTS = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction AS A INNER JOIN person AS P on A.seller = P.id
        WHERE A.category = 10 and (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
    "q4": f"""
        SELECT Q.category, count(*) AS auctions, AVG(CAST(Q.final AS DOUBLE)) AS average
        FROM ({WINNERS}) Q GROUP BY Q.category""",
    "q5": f"""
        SELECT AuctionBids.starttime, AuctionBids.auction, AuctionBids.num
        FROM (
            SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
            FROM {HOP} GROUP BY auction, window_start, window_end
        ) AS AuctionBids JOIN (
            SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
            FROM (
                SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
                FROM {HOP} GROUP BY auction, window_start, window_end
            ) AS CountBids GROUP BY CountBids.starttime, CountBids.endtime
        ) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
            AND AuctionBids.num >= MaxBids.maxn""",
    "q7": f"""
        SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
        FROM bid B JOIN (
            SELECT MAX(price) AS maxprice, window_start AS begin_, window_end AS end_
            FROM {TEN.format("bid")} GROUP BY window_start, window_end
        ) B1 ON B.price = B1.maxprice
        WHERE B.dateTime >= B1.begin_ AND B.dateTime < B1.end_""",
    "q8": f"""
        SELECT P.id, P.name, P.starttime
        FROM (
            SELECT id, name, window_start AS starttime, window_end AS endtime
            FROM {TEN.format("person")} GROUP BY id, name, window_start, window_end
        ) P JOIN (
            SELECT seller, window_start AS starttime, window_end AS endtime
            FROM {TEN.format("auction")} GROUP BY seller, window_start, window_end
        ) A ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "q9": """
        SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
            auction, bidder, price, bid_dateTime, bid_extra
        FROM (
            SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
                ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS rownum
            FROM auction A, bid B
            WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
        ) WHERE rownum <= 1""",
    "q11": """
        SELECT B.bidder, count(*) as bid_count, SESSION_START(B.dateTime, INTERVAL '10' SECOND) as starttime,
            SESSION_END(B.dateTime, INTERVAL '10' SECOND) as endtime
        FROM bid B GROUP BY B.bidder, SESSION(B.dateTime, INTERVAL '10' SECOND)""",
    "q13": """
        SELECT B.auction, B.bidder, B.price, B.dateTime, S.`value`
        FROM bid B JOIN side_input S ON mod(B.auction, 10000) = S.key""",
    "q14": """
        SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
            CASE
                WHEN HOUR(dateTime) >= 8 AND HOUR(dateTime) <= 18 THEN 'dayTime'
                WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime'
            END AS bidTimeType,
            dateTime, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {DAY} AS `day`, {COUNTS}, {DISTINCT} FROM bid GROUP BY {DAY}",
    "q16": f"""
        SELECT channel, {DAY} AS `day`, max(DATE_FORMAT(dateTime, 'HH:mm')) AS `minute`, {COUNTS}, {DISTINCT}
        FROM bid GROUP BY channel, {DAY}""",
    "q17": f"""
        SELECT auction, {DAY} AS `day`, {COUNTS}, min(price) AS min_price, max(price) AS max_price,
            avg(CAST(price AS DOUBLE)) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, {DAY}""",
    "q18": """
        SELECT auction, bidder, price, channel, url, dateTime, extra
        FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS rank_number FROM bid
        ) WHERE rank_number <= 1""",
    "q19": """
        SELECT * FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY auction ORDER BY price DESC, bidder DESC, channel DESC, url DESC, dateTime DESC, extra DESC
            ) AS rank_number
            FROM bid
        ) WHERE rank_number <= 10""",
    "q20": """
        SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra, itemName,
            description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category,
            A.extra AS auction_extra
        FROM bid AS B INNER JOIN auction AS A on B.auction = A.id WHERE A.category = 10""",
    "q21": """
        SELECT auction, bidder, price, channel,
            CASE
                WHEN lower(channel) = 'apple' THEN '0'
                WHEN lower(channel) = 'google' THEN '1'
                WHEN lower(channel) = 'facebook' THEN '2'
                WHEN lower(channel) = 'baidu' THEN '3'
                ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
            END AS channel_id
        FROM bid
        WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) is not null
            or lower(channel) in ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
        SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) as dir1, SPLIT_INDEX(url, '/', 4) as dir2,
            SPLIT_INDEX(url, '/', 5) as dir3
        FROM bid""",
    "q23": """
        SELECT bidder, price, channel, url, B.extra AS bid_extra, P.id AS person_id, name, emailAddress, creditCard,
            city, state, P.extra AS person_extra, itemName, description, initialBid, reserve,
            A.dateTime AS auction_dateTime, expires, seller, category, A.extra AS auction_extra
        FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder""",
}


def tables(order: dict[str, Any], query: str) -> Any:
    """Return an environment with the three streams and the side input."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    found = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "parallelism.default": str(order["cores"]),
        "table.local-time-zone": "UTC",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": f"file://{order['out']}/checkpoints",
    }
    for key, value in settings.items():
        found.get_config().set(key, value)
    source = order["in_order"] if query in IN_ORDER else order["data"]
    for name, columns in TABLES.items():
        found.execute_sql(
            f"""CREATE TABLE {name} ({columns}, WATERMARK FOR dateTime AS dateTime - INTERVAL '4' SECOND)
            WITH ('connector' = 'filesystem', 'path' = 'file://{source}/{name}', 'format' = 'csv')"""
        )
    found.execute_sql(
        f"""CREATE TABLE side_input (key BIGINT, `value` STRING)
        WITH ('connector' = 'filesystem', 'path' = 'file://{order["side"]}', 'format' = 'csv')"""
    )
    return found


def files(directory: pathlib.Path, form: str) -> str:
    """Return the options of a sink into files."""
    return f"'connector' = 'filesystem', 'path' = 'file://{directory}', 'format' = '{form}'"


def timed(found: Any, query: str, sink: str) -> float:
    """Run a query into a sink; return the seconds."""
    begun = time.monotonic()
    found.execute_sql(f"CREATE TABLE written WITH ({sink}) AS {STATEMENTS[query]}").wait()
    return time.monotonic() - begun


def remaining(changes: pathlib.Path) -> list[str]:
    """Return the rows, as JSON, that remain when all written changes are applied."""
    rows: collections.Counter[str] = collections.Counter()
    for file in changes.iterdir():
        for line in file.read_text().splitlines() if file.name[0] not in "._" else ():
            change = json.loads(line)
            removed = change["op"] == "d"
            rows[json.dumps(change["before" if removed else "after"])] += -1 if removed else 1
    return list(rows.elements())


def main() -> None:
    """Run the queries."""
    order = json.loads(sys.argv[1])
    for query in order["queries"]:
        row = {"query": query, "sink": "none" if query in UPDATES else "json"}
        out = pathlib.Path(order["out"]) / query
        try:
            if query in UPDATES:
                row["s"] = timed(tables(order, query), query, "'connector' = 'blackhole'")
                changes = pathlib.Path(order["out"]) / "changes" / query
                timed(tables(order, query), query, files(changes, "debezium-json"))
                out.mkdir(parents=True)
                (out / "rows").write_text("".join(f"{line}\n" for line in remaining(changes)))
            else:
                row["s"] = timed(tables(order, query), query, files(out, "json"))
        except Exception as error:
            row["error"] = str(error)[:2000]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
