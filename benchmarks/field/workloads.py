"""The dataflows of the comparison, each in the form of every system, and their input.

A dataflow is here in three forms: Headwater's, a PySpark query and a Flink SQL query. To add one, add a `Workload` to
`WORKLOADS`. Results are rows of windows with their ends, in seconds since 1970, in the column `ends`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING

import headwater as hw
from examples.debs2015 import flow as debs
from examples.debs2015.generate import garage_of
from examples.taxi.generate import trips

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_DELAY = "0 seconds"  # of the watermark, in every system: the rows of a location come in order
Step = Mapping[str, list[str]]
"""The lines of CSV of one step of event time, by location."""


@dataclass(frozen=True)
class FlinkQuery:
    """A query for Flink: the columns of the input with their event time, the result's columns, and the SELECT.

    The SELECT reads the view ``entries``, which has the input's columns and ``location``.
    """

    columns: str
    time: str
    result: str
    select: str


@dataclass(frozen=True)
class Workload:
    """A dataflow and its input; ``time`` is the position of the event time in a line."""

    name: str
    schema: str
    time: int
    rows_of_step: int
    """About so many rows, of all locations, are in a step."""
    steps: Callable[[Sequence[str]], Iterator[Step]]
    dataflow: Callable[[str, str, Sequence[str]], hw.Dataflow]
    """Given the input's path with ``{location}``, the results' directory and the locations."""
    spark: Callable[[Mapping[str, DataFrame]], DataFrame]
    """Given the stream of each location."""
    flink: FlinkQuery


def event_time(line: str, position: int) -> float:
    """Return the event time of a line of CSV, in seconds since 1970."""
    return datetime.fromisoformat(line.split(",")[position]).replace(tzinfo=UTC).timestamp()


# ---------------------------------------------------------------- the ten most frequent routes of DEBS 2015


def routes_steps(locations: Sequence[str]) -> Iterator[Step]:
    """Yield trips minute by minute, their ends spread over its seconds; a taxi belongs to one location."""
    for _, minute in groupby(trips(10**9, seed=7), key=lambda trip: trip[3]):
        step: dict[str, list[str]] = {location: [] for location in locations}
        those = list(minute)
        for number, trip in enumerate(those):
            end = f"{trip[3][:-2]}{60 * number // len(those):02d}"
            step[garage_of(trip[0], locations)].append(",".join([*trip[:3], end, *trip[4:]]))
        yield step


def routes_flow(data: str, results: str, locations: Sequence[str]) -> hw.Dataflow:
    """Build the query: each minute the ten most frequent routes of the last 30 minutes."""
    f = hw.flow("routes", locations=locations)
    read = debs.on_the_grid(f.read.csv(data, debs.TRIP, location_as="garage"), lateness=NO_DELAY)
    top = debs.half_hours(read).top_k(debs.TOP, ["trips", "newest", "origin", "destination"], rank="place")
    top.select("unix_timestamp(window.end) AS ends", "place", "origin", "destination", "trips").write.parquet(
        results
    ).named("result")
    return f.build()


def routes_spark(streams: Mapping[str, DataFrame]) -> DataFrame:
    """Return the query as one of Structured Streaming."""
    from pyspark.sql import functions as F

    found = []
    for rows in streams.values():
        placed = rows.withWatermark("dropoff_datetime", NO_DELAY).selectExpr(
            "dropoff_datetime AS ts", *debs.place("start", "pickup"), *debs.place("end", "dropoff")
        )
        kept = placed.where(" AND ".join(f"{name} BETWEEN 1 AND {debs.GRID}" for name in debs.PLACES))
        ends = (debs.number("start", "origin", debs.AREAS), debs.number("end", "destination", debs.AREAS))
        found.append(kept.selectExpr("ts", *ends))
    every = reduce(lambda a, b: a.unionByName(b), found)
    counted = every.groupBy(F.window("ts", "30 minutes", "1 minute"), "origin", "destination").agg(
        F.count("*").alias("trips"), F.max("ts").alias("newest")
    )
    best = "slice(sort_array(collect_list(struct(trips, newest, origin, destination)), false), 1, 10)"
    top = counted.groupBy("window").agg(F.expr(best).alias("best"))
    rows = top.selectExpr("unix_timestamp(window.end) AS ends", "posexplode(best) AS (position, row)")
    return rows.selectExpr("ends", "position + 1 AS place", "row.origin", "row.destination", "row.trips")


def _flink_cell(end: str, name: str) -> str:
    """Write the number of a cell of 500 m as Flink SQL; literals with an exponent are doubles."""
    parts = []
    for axis, origin, sign, size in (
        ("longitude", debs.WEST, 1, debs.WIDTH),
        ("latitude", debs.NORTH, -1, debs.HEIGHT),
    ):
        offset = f"{end}_{axis} - ({origin:.17e})" if sign > 0 else f"{origin:.17e} - {end}_{axis}"
        parts.append(f"CAST(FLOOR(({offset}) / {size:.17e}) AS INT) + 1")
    column, row = parts
    return f"{column} AS {name}_column, {row} AS {name}_row"


_FLINK_ROUTES = f"""
WITH placed AS (
    SELECT dropoff_datetime AS ts, {_flink_cell("pickup", "origin")}, {_flink_cell("dropoff", "destination")}
    FROM entries
), kept AS (
    SELECT ts, CONCAT(CAST(origin_column AS STRING), '.', CAST(origin_row AS STRING)) AS origin,
        CONCAT(CAST(destination_column AS STRING), '.', CAST(destination_row AS STRING)) AS destination
    FROM placed WHERE origin_column BETWEEN 1 AND 300 AND origin_row BETWEEN 1 AND 300
        AND destination_column BETWEEN 1 AND 300 AND destination_row BETWEEN 1 AND 300
), counted AS (
    SELECT window_start, window_end, origin, destination, COUNT(*) AS trips, MAX(ts) AS newest
    FROM TABLE(HOP(TABLE kept, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '30' MINUTES))
    GROUP BY window_start, window_end, origin, destination
)
SELECT CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_end) AS BIGINT) AS ends,
    CAST(place AS INT) AS place, origin, destination, trips
FROM (
    SELECT *, ROW_NUMBER() OVER (
        PARTITION BY window_start, window_end ORDER BY trips DESC, newest DESC, origin DESC, destination DESC
    ) AS place FROM counted
) WHERE place <= 10
"""
ROUTES = Workload(
    name="routes",
    schema=debs.TRIP,
    time=3,
    rows_of_step=185,
    steps=routes_steps,
    dataflow=routes_flow,
    spark=routes_spark,
    flink=FlinkQuery(
        columns="medallion STRING, hack_license STRING, pickup_datetime TIMESTAMP(3), dropoff_datetime TIMESTAMP(3), "
        "trip_time_in_secs INT, trip_distance DOUBLE, pickup_longitude DOUBLE, pickup_latitude DOUBLE, "
        "dropoff_longitude DOUBLE, dropoff_latitude DOUBLE, payment_type STRING, fare_amount DECIMAL(10, 2), "
        "surcharge DECIMAL(10, 2), mta_tax DECIMAL(10, 2), tip_amount DECIMAL(10, 2), tolls_amount DECIMAL(10, 2), "
        "total_amount DECIMAL(10, 2)",
        time="dropoff_datetime",
        result="ends BIGINT, place INT, origin STRING, destination STRING, trips BIGINT",
        select=_FLINK_ROUTES,
    ),
)

# ---------------------------------------------------------------- half-hour means of machines

READING = "machine string, ts timestamp, celsius double"
MACHINES, EVERY = 20, 60  # of a location; seconds between two readings of a machine
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def means_steps(locations: Sequence[str]) -> Iterator[Step]:
    """Yield readings half hour by half hour; one in a hundred is not plausible."""
    drawn = random.Random(7)
    second = 0
    while True:
        step: dict[str, list[str]] = {location: [] for location in locations}
        for at in range(second, second + 1800, EVERY):
            for location in locations:
                for machine in range(MACHINES):
                    ts = (BEGIN + timedelta(seconds=at + machine)).strftime("%Y-%m-%d %H:%M:%S")
                    celsius = 900.0 if drawn.random() < 0.01 else drawn.uniform(20, 90)
                    step[location].append(f"m{machine},{ts},{celsius:.3f}")
        second += 1800
        yield step


def means_flow(data: str, results: str, locations: Sequence[str]) -> hw.Dataflow:
    """Build the dataflow: means at the edge, as in the first part of Acme's."""
    f = hw.flow("means", locations=locations)
    means = (
        f.read.csv(data, READING, location_as="location")
        .where("celsius BETWEEN -50 AND 200")
        .with_watermark("ts", NO_DELAY)
        .group_by(hw.window("ts", "30 minutes"), "location", "machine")
        .agg(mean="avg(celsius)", n="count(*)")
    )
    rows = means.to_layer("cloud").select("unix_timestamp(window.end) AS ends", "location", "machine", "mean", "n")
    rows.write.parquet(results).named("result")
    return f.build()


def means_spark(streams: Mapping[str, DataFrame]) -> DataFrame:
    """Return the dataflow as one query of Structured Streaming."""
    from pyspark.sql import functions as F

    timed = [rows.where("celsius BETWEEN -50 AND 200").withWatermark("ts", NO_DELAY) for rows in streams.values()]
    every = reduce(lambda a, b: a.unionByName(b), timed)
    means = every.groupBy(F.window("ts", "30 minutes"), "location", "machine").agg(
        F.avg("celsius").alias("mean"), F.count("*").alias("n")
    )
    return means.selectExpr("unix_timestamp(window.end) AS ends", "location", "machine", "mean", "n")


_FLINK_MEANS = """
SELECT CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_end) AS BIGINT) AS ends,
    location, machine, AVG(celsius) AS mean, COUNT(*) AS n
FROM TABLE(TUMBLE(TABLE plausible, DESCRIPTOR(ts), INTERVAL '30' MINUTES))
GROUP BY window_start, window_end, location, machine
"""
MEANS = Workload(
    name="means",
    schema=READING,
    time=1,
    rows_of_step=2 * MACHINES * 1800 // EVERY,
    steps=means_steps,
    dataflow=means_flow,
    spark=means_spark,
    flink=FlinkQuery(
        columns="machine STRING, ts TIMESTAMP(3), celsius DOUBLE",
        time="ts",
        result="ends BIGINT, location STRING, machine STRING, mean DOUBLE, n BIGINT",
        select="WITH plausible AS (SELECT * FROM entries WHERE celsius BETWEEN -50 AND 200)" + _FLINK_MEANS,
    ),
)
WORKLOADS = {workload.name: workload for workload in (ROUTES, MEANS)}
