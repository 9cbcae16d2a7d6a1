"""The published statements over whole tables, in Spark's SQL: what the dataflows' results are held against.

They are those of the benchmark's Flink suite, without locations, bounds of time or watermarks. Only spelling differs
(``window`` for ``HOP`` and ``TUMBLE``, ``split_part`` for ``SPLIT_INDEX``, no functions of Java), except that

* rows of equal rank have an order, in which they are taken (queries 9, 18 and 19);
* a bid at the end of a window of query 7 belongs to the next one only;
* query 6 orders auctions by their begin, and not by the time of the winning bid;
* means are not rounded to whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

_OFFERS = "FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires"
_WINNERS = f"""
    SELECT A.id, A.seller, A.category, A.dateTime, max(B.price) AS final {_OFFERS}
    GROUP BY A.id, A.seller, A.category, A.dateTime"""
_COUNTS = """
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids"""
_DISTINCT_COUNTS = ",".join(
    f"""
    count(DISTINCT {what}) AS total_{what}s,
    count(DISTINCT {what}) FILTER (WHERE price < 10000) AS rank1_{what}s,
    count(DISTINCT {what}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{what}s,
    count(DISTINCT {what}) FILTER (WHERE price >= 1000000) AS rank3_{what}s"""
    for what in ("bidder", "auction")
)
_DAY = "date_format(dateTime, 'yyyy-MM-dd')"

STATEMENTS: Mapping[str, str] = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": """
        SELECT auction, bidder, CAST(0.908 * price AS decimal(23, 3)) AS price, dateTime, extra
        FROM bid""",
    "q2": "SELECT auction, price FROM bid WHERE mod(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id
        FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
    "q4": f"""
        SELECT category, count(*) AS auctions, avg(final) AS average
        FROM ({_WINNERS}) GROUP BY category""",
    "q5": """
        WITH counts AS (
            SELECT auction, count(*) AS num, window.start AS starttime
            FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
        )
        SELECT starttime, auction, num FROM counts
        JOIN (SELECT starttime, max(num) AS maxn FROM counts GROUP BY starttime) USING (starttime)
        WHERE num >= maxn""",
    "q6": f"""
        SELECT seller, id AS auction, avg(final) OVER (
            PARTITION BY seller ORDER BY dateTime, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
        ) AS avg_price
        FROM ({_WINNERS})""",
    "q7": """
        SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
        FROM bid B JOIN (
            SELECT max(price) AS maxprice, window.start AS begin, window.end AS until
            FROM bid GROUP BY window(dateTime, '10 seconds')
        ) B1 ON B.price = B1.maxprice
        WHERE B.dateTime >= B1.begin AND B.dateTime < B1.until""",
    "q8": """
        SELECT P.id, P.name, P.starttime
        FROM (
            SELECT id, name, window.start AS starttime, window.end AS endtime
            FROM person GROUP BY id, name, window(dateTime, '10 seconds')
        ) P JOIN (
            SELECT seller, window.start AS starttime, window.end AS endtime
            FROM auction GROUP BY seller, window(dateTime, '10 seconds')
        ) A ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "q9": f"""
        SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
            auction, bidder, price, bid_dateTime, bid_extra
        FROM (
            SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
                row_number() OVER (
                    PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC, B.bidder DESC, B.extra DESC
                ) AS rownum
            {_OFFERS}
        ) WHERE rownum <= 1""",
    "q11": """
        SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
        FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')""",
    "q13": """
        SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
        FROM bid B JOIN side_input S ON mod(B.auction, 10000) = S.key""",
    "q14": """
        SELECT auction, bidder, CAST(0.908 * price AS decimal(23, 3)) AS price,
            CASE
                WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime'
            END AS bidTimeType,
            dateTime, extra, length(regexp_replace(extra, '[^c]', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY} AS day, {_COUNTS}, {_DISTINCT_COUNTS} FROM bid GROUP BY {_DAY}",
    "q16": f"""
        SELECT channel, {_DAY} AS day, max(date_format(dateTime, 'HH:mm')) AS minute, {_COUNTS}, {_DISTINCT_COUNTS}
        FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""
        SELECT auction, {_DAY} AS day, {_COUNTS}, min(price) AS min_price, max(price) AS max_price,
            avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, {_DAY}""",
    "q18": """
        SELECT auction, bidder, price, channel, url, dateTime, extra
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC, channel DESC, url DESC, extra DESC
            ) AS rank_number
            FROM bid
        ) WHERE rank_number <= 1""",
    "q19": """
        SELECT * FROM (
            SELECT *, row_number() OVER (
                PARTITION BY auction
                ORDER BY price DESC, bidder DESC, channel DESC, url DESC, dateTime DESC, extra DESC
            ) AS rank_number
            FROM bid
        ) WHERE rank_number <= 10""",
    "q20": """
        SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
            itemName, description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category,
            A.extra AS auction_extra
        FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
        WHERE A.category = 10""",
    "q21": """
        SELECT auction, bidder, price, channel,
            CASE
                WHEN lower(channel) = 'apple' THEN '0'
                WHEN lower(channel) = 'google' THEN '1'
                WHEN lower(channel) = 'facebook' THEN '2'
                WHEN lower(channel) = 'baidu' THEN '3'
                ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')
            END AS channel_id
        FROM bid
        WHERE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') IS NOT NULL
            OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
        SELECT auction, bidder, price, channel,
            split(url, '/')[3] AS dir1, split(url, '/')[4] AS dir2, split(url, '/')[5] AS dir3
        FROM bid""",
    "q23": """
        SELECT bidder, price, channel, url, B.extra AS bid_extra, P.id AS person_id, name, emailAddress, creditCard,
            city, state, P.extra AS person_extra, itemName, description, initialBid, reserve,
            A.dateTime AS auction_dateTime, expires, seller, category, A.extra AS auction_extra
        FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder""",
}
