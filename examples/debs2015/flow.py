"""The two queries of the DEBS 2015 Grand Challenge over taxis of several garages.

docs/suites/debs2015.md says how the published definitions become windows of event time, and what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headwater as hw

HERE = Path(__file__).resolve().parent
GARAGES = ("garage-a", "garage-b", "garage-c", "garage-d")
TOP = 10
TRIP = """
    medallion string, hack_license string, pickup_datetime timestamp, dropoff_datetime timestamp,
    trip_time_in_secs int, trip_distance double, pickup_longitude double, pickup_latitude double,
    dropoff_longitude double, dropoff_latitude double, payment_type string, fare_amount decimal(10,2),
    surcharge decimal(10,2), mta_tax decimal(10,2), tip_amount decimal(10,2), tolls_amount decimal(10,2),
    total_amount decimal(10,2)
"""

# Query 1 has 300 x 300 cells of 500 m, query 2 areas of 250 m: four in a cell. Published: cell 1.1 has this centre.
HEIGHT, WIDTH = 0.004491556, 0.005986  # of a cell, in degrees
NORTH, WEST = 41.474937 + HEIGHT / 2, -74.913585 - WIDTH / 2
PLACES = ("start_column", "start_row", "end_column", "end_row")
AREAS, GRID = 2, 600  # areas in a row of a cell, and in a row of the grid


def half_hours(trips: hw.Stream, *, slide: str = "1 minute") -> hw.Stream:
    """Count the trips of each route in the last 30 minutes: counts of minutes at the sites, their sums in the cloud."""
    minutes = (
        trips.to_layer("site")
        .select("ts", "garage", number("start", "origin", AREAS), number("end", "destination", AREAS))
        .group_by(hw.window("ts", slide), "garage", "origin", "destination")
        .agg(trips="count(*)", newest="max(ts)")
        .named("route_minutes")
    )
    return (
        minutes.to_layer("cloud")
        .group_by(hw.window("window", "30 minutes", slide), "origin", "destination")
        .agg(trips="sum(trips)", newest="max(newest)")
        .named("half_hours")
    )


def frequent_routes(trips: hw.Stream, *, slide: str = "1 minute") -> hw.Stream:
    """Answer query 1: the ten most frequent routes of the last 30 minutes, whenever the list changes."""
    routes = half_hours(trips, slide=slide)
    rows = routes.select("window_time(window) AS ts", "trips", "newest", "origin", "destination")
    found = lists(rows, "trips", "route")
    return changes(found.select("ts", "transform(top, r -> struct(r.origin, r.destination, r.trips)) AS top"))


def profitable_areas(trips: hw.Stream, *, slide: str = "1 minute") -> hw.Stream:
    """Answer query 2: the ten most profitable areas, whenever the list changes.

    Profitability: median of fare and tip of the trips that began in the area and ended in the last 15 minutes, in
    cents, over the number of taxis whose newest trip of the last 30 minutes ended in the area.
    """
    profits = (
        trips.to_layer("cloud")
        .select("ts", number("start", "area"), "cents")
        .group_by(hw.window("ts", "15 minutes", slide), "area")
        .agg(profit="percentile_cont(0.5) WITHIN GROUP (ORDER BY cents)", newest="max(ts)")
        .select("window_time(window) AS ts", "area", "profit", "newest")
        .named("profits")
    )
    last = "max(struct(ts, pickup, area))"
    stops = (
        trips.to_layer("site")
        .select("ts", "garage", "taxi", "pickup", number("end", "area"))
        .group_by(hw.window("ts", slide), "garage", "taxi")
        .agg(last=last)
        .named("stop_minutes")
    )
    empty = (
        stops.to_layer("cloud")
        .group_by(hw.window("window", "30 minutes", slide), "taxi")
        .agg(last="max(last)")
        .select("window", "last.area AS area")
        .named("last_stops")
        .group_by("window", "area")
        .agg(empty="count(*)")
        .select("window_time(window) AS at", "area", "empty")
        .named("empty_taxis")
    )
    both = profits.join(empty, "area", between=("0 seconds", "0 seconds")).named("profits_per_taxi")
    ranked = both.select("ts", "profit / empty AS profitability", "newest", "area", "empty", "profit")
    found = lists(ranked, "profitability", "area")
    return changes(found.select("ts", "transform(top, a -> struct(a.area, a.empty, a.profit, a.profitability)) AS top"))


QUERIES = {"routes": frequent_routes, "areas": profitable_areas}


def on_the_grid(trips: hw.Stream, *, lateness: str = "5 minutes") -> hw.Stream:
    """Compute the areas of the trips' ends, and drop trips that begin or end outside of the grid."""
    return (
        trips.with_watermark("dropoff_datetime", lateness)
        .select(
            "dropoff_datetime AS ts",
            "garage",
            "medallion AS taxi",
            "pickup_datetime AS pickup",
            *place("start", "pickup"),
            *place("end", "dropoff"),
            "cast(100 * (fare_amount + tip_amount) AS bigint) AS cents",
        )
        .where(" AND ".join(f"{name} BETWEEN 1 AND {GRID}" for name in PLACES))
        .named("in_range")
    )


def debs2015(
    data: str,
    results: str | None,
    *,
    queries: Sequence[str] = ("routes", "areas"),
    garages: Sequence[str] = GARAGES,
    slide: str = "1 minute",
) -> hw.Dataflow:
    """Build the queries over the CSV files in ``{data}/{garage}``.

    Lists go to JSON files in ``{results}/routes`` and ``{results}/areas``, or to memory where ``results`` is None.
    ``slide``: the pause between two lists, a divisor of 15 minutes.
    """
    f = hw.flow("debs2015", locations=garages)
    trips = on_the_grid(f.read.csv(f"{data}/{{location}}", TRIP, location_as="garage").named("trips"))
    for name in queries:
        found = QUERIES[name](trips, slide=slide)
        if results is None:
            found.write.memory(name)
        else:
            found.write.json(f"{results}/{name}").named(name)
    return f.build()


def place(name: str, end: str) -> tuple[str, str]:
    """Write the column and the row of the area of a trip's end, from 1, as two columns."""
    east, south = (
        f"({end}_longitude - ({WEST!r})) / {WIDTH / AREAS!r}",
        f"({NORTH!r} - {end}_latitude) / {HEIGHT / AREAS!r}",
    )
    return f"cast(floor({east}) AS int) + 1 AS {name}_column", f"cast(floor({south}) AS int) + 1 AS {name}_row"


def number(end: str, name: str, parts: int = 1) -> str:
    """Write the number of the square that a trip's end lies in, east before south: ``163.158``."""
    column, row = (f"({end}_{axis} + {parts - 1}) div {parts}" for axis in ("column", "row"))
    return f"concat({column}, '.', {row}) AS {name}"


def lists(rows: hw.Stream, score: str, name: str) -> hw.Stream:
    """Collect the ten best rows of each time; of equal scores the newer trip goes first, then the higher number."""
    rest = ", ".join(c for c in rows.columns if c not in ("ts", score))
    best = f"sort_array(collect_list(struct({score}, {rest})), false)"
    return rows.group_by("ts").agg(top=f"slice({best}, 1, {TOP})").named(f"top_{name}s")


def changes(found: hw.Stream) -> hw.Stream:
    """Keep the lists whose routes or areas, in their order, are not those of the list before."""
    return found.filter_acc(latest, changed, keys=[], order_by="ts")


def latest(state: Any, row: dict[str, Any]) -> list[list[str]]:
    """Remember the routes, or areas, of the newest list."""
    return names(row)


def changed(state: Any, row: dict[str, Any]) -> bool:
    """Return whether routes or areas, in their order, differ from those before; figures alone may change."""
    return bool(state != names(row))


def names(row: dict[str, Any]) -> list[list[str]]:
    """Leave the figures out of a list."""
    return [[value for name, value in item.items() if name in ("origin", "destination", "area")] for item in row["top"]]


flow = debs2015(str(HERE / "data"), str(HERE / "results"))
