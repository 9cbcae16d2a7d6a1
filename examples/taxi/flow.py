"""StrIoT's taxi query: the ten top routes of the last minutes, whenever that list changes.

The steps are those of StrIoT's ``examples/taxi`` (after the DEBS 2015 challenge); README.md lists the differences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headwater as hw

HERE = Path(__file__).resolve().parent
DATA, RESULTS = str(HERE / "data"), str(HERE / "results")

TRIP = """
    medallion string, hack_license string, pickup_datetime timestamp, dropoff_datetime timestamp,
    trip_time_in_secs int, trip_distance double, pickup_longitude double, pickup_latitude double,
    dropoff_longitude double, dropoff_latitude double, payment_type string, fare_amount decimal(10,2),
    surcharge decimal(10,2), mta_tax decimal(10,2), tip_amount decimal(10,2), tolls_amount decimal(10,2),
    total_amount decimal(10,2)
"""

# The challenge's grid: cells of 500 m, counted from the north-west; cell 1.1 has this centre.
CELL_LATITUDE, CELL_LONGITUDE = 0.004491556, 0.005986
NORTH, WEST = 41.474937 + CELL_LATITUDE / 2, -74.913585 - CELL_LONGITUDE / 2
GRID = 300

RANKINGS = {
    "most frequent": "cast(count(*) AS double)",
    "most profitable": "cast(sum(fare_amount + tip_amount) AS double)",
}


def taxi(
    data: str,
    results: str | None,
    *,
    name: str,
    window: str = "30 minutes",
    slide: str = "5 minutes",
    ranking: str = "most frequent",
    k: int = 10,
    lateness: str = "5 minutes",
) -> hw.Dataflow:
    """Build the query over the CSV files in ``{data}/{location}``.

    Changed lists go to JSON files in ``{results}/{name}``, or to memory where ``results`` is None.
    """
    f = hw.flow(name, locations=["nyc"])
    journeys = (
        f.read.csv(f"{data}/{{location}}", TRIP)
        .named("trips")
        .with_watermark("dropoff_datetime", lateness)
        .select(
            "dropoff_datetime AS ts",
            *cell("start", "pickup"),
            *cell("end", "dropoff"),
            "fare_amount",
            "tip_amount",
        )
        .named("journeys")
        .where(in_range("start"))
        .named("start_in_range")
        .where(in_range("end"))
        .named("end_in_range")
    )
    routes = (
        journeys.to_layer("cloud")
        .group_by(hw.window("ts", window, slide), "start_row", "start_column", "end_row", "end_column")
        .agg(score=RANKINGS[ranking])
        .named("routes")
    )
    # One row per window: the list must be seen whole to tell whether it has changed.
    best = "sort_array(collect_list(struct(score, start_row, start_column, end_row, end_column)), false)"
    changes = (
        routes.group_by("window")
        .agg(top=f"slice({best}, 1, {k})")
        .named("top_routes")
        .select("window_time(window) AS ts", "to_json(top) AS top")
        .filter_acc(latest, changed, keys=[], order_by="ts")
        .named("changes")
    )
    if results is None:
        changes.write.memory("result")
    else:
        changes.write.json(f"{results}/{name}").named("result")
    return f.build()


def cell(name: str, end: str) -> tuple[str, str]:
    """Write the grid cell of a trip's end as two columns."""
    return (
        f"cast(floor(({NORTH!r} - {end}_latitude) / {CELL_LATITUDE!r}) AS int) + 1 AS {name}_row",
        f"cast(floor(({end}_longitude - ({WEST!r})) / {CELL_LONGITUDE!r}) AS int) + 1 AS {name}_column",
    )


def in_range(name: str) -> str:
    """Write the condition that a cell lies on the grid; trips without a position do not."""
    return f"{name}_row BETWEEN 1 AND {GRID} AND {name}_column BETWEEN 1 AND {GRID}"


def latest(state: str | None, row: dict[str, Any]) -> str:
    """Remember the routes of the newest list."""
    return only_routes(row["top"])


def changed(state: str | None, row: dict[str, Any]) -> bool:
    """Return whether the routes, in their order, differ from those before; a score alone may change."""
    return state != only_routes(row["top"])


def only_routes(top: str) -> str:
    """Leave the scores out of a list."""
    import json

    return json.dumps([{k: v for k, v in route.items() if k != "score"} for route in json.loads(top)])


frequent = taxi(DATA, RESULTS, name="taxi-frequent")
profitable = taxi(
    DATA, RESULTS, name="taxi-profitable", window="30 seconds", slide="30 seconds", ranking="most profitable"
)
