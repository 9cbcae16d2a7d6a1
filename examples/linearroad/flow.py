"""Linear Road's tolls and accident alerts over roadside units, control rooms and a data center.

docs/suites/linear-road.md says how the published definitions become windows of event time, and what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headwater as hw

HERE = Path(__file__).resolve().parent
STRETCHES = ("x0-west", "x0-east", "x1-west", "x1-east")
REPORT = """
    ts timestamp, vehicle bigint, speed int, expressway int, lane int, direction int, segment int, position int
"""
FOLLOWED = """
    stretch string, vehicle bigint, ts timestamp, expressway int, direction int, segment int, lane int, position int,
    crossed boolean, standing boolean
"""
SEGMENT = ("expressway", "direction", "segment")
EVERY = 30  # seconds between two reports of a vehicle
STOPPED = 4  # equal reports of a vehicle that stands
EXIT = 4  # the lane of vehicles that leave
REACH = 4  # segments behind an accident whose drivers are alerted, and pay no toll
FREE_SPEED, FREE_CARS = 40, 50  # no toll from this speed on, and up to this number of cars


def linear_road(data: str, results: str | None, *, stretches: Sequence[str] = STRETCHES) -> hw.Dataflow:
    """Build the dataflow over the CSV files in ``{data}/{stretch}``.

    Tolls and alerts go to JSON files in ``{results}/tolls`` and ``{results}/alerts``, or to memory where ``results``
    is None.
    """
    f = hw.flow("linearroad", locations=stretches)
    reports = f.read.csv(f"{data}/{{location}}", REPORT, location_as="stretch").named("reports")
    reports = reports.with_watermark("ts", "10 seconds").named("timed")
    followed = reports.scan(follow, FOLLOWED, keys=["stretch", "vehicle"], order_by="ts").named("followed")
    crossings = followed.where("crossed").select("ts", "vehicle", *SEGMENT).named("crossings").to_layer("cloud")
    blocked = blocked_segments(followed)
    tolls = segment_tolls(reports, blocked)
    # A crossing's minute begins a microsecond after the time of the minute before.
    before = ("-1 minute", "-1 microsecond")
    found = {
        "tolls": crossings.join(tolls, SEGMENT, between=before, how="left").select(
            "ts", "vehicle", *SEGMENT, "cast(lav AS double) AS lav", "coalesce(toll, 0) AS toll"
        ),
        "alerts": crossings.join(blocked, SEGMENT, between=before).select("ts", "vehicle", *SEGMENT, "distance"),
    }
    for name, stream in found.items():
        if results is None:
            stream.write.memory(name)
        else:
            stream.write.json(f"{results}/{name}").named(name)
    return f.build()


def blocked_segments(followed: hw.Stream) -> hw.Stream:
    """Return the segments of each minute from which an accident is at most ``REACH`` segments downstream.

    An accident: at least two vehicles that stand at one place within the minute.
    """
    place = ("stretch", *SEGMENT, "lane", "position")
    accidents = (
        followed.where("standing")
        .group_by(hw.window("ts", "1 minute"), *place)
        .agg(vehicles="count(DISTINCT vehicle)")
        .where("vehicles > 1")
        .named("accidents")
    )
    behind = f"IF(direction = 0, sequence(segment - {REACH}, segment), sequence(segment, segment + {REACH}))"
    return (
        accidents.to_layer("cloud")
        .explode(behind, "behind")
        .group_by("window", "expressway", "direction", "behind")
        .agg(distance="min(abs(segment - behind))")
        .select("window_time(window) AS accident_ts", "expressway", "direction", "behind AS segment", "distance")
        .named("blocked")
    )


def segment_tolls(reports: hw.Stream, blocked: hw.Stream) -> hw.Stream:
    """Return toll and latest average velocity (LAV, mph) of each segment for the minute after ``toll_ts``."""
    speeds = (
        reports.group_by(hw.window("ts", "1 minute"), "stretch", *SEGMENT, "vehicle")
        # Decimals add up to the same mean in every order of arrival.
        .agg(speed="avg(cast(speed AS decimal(10, 0)))")
        .named("vehicle_speeds")
    )
    minutes = (
        speeds.group_by("window", "stretch", *SEGMENT)
        .agg(cars="count(*)", speed="avg(speed)")
        .select("window", "window.end AS until", "stretch", *SEGMENT, "cars", "speed")
        .named("segment_minutes")
    )
    latest = (
        minutes.to_layer("site")
        .group_by(hw.window("window", "5 minutes", "1 minute"), "stretch", *SEGMENT)
        .agg(lav="avg(speed)", last="max(struct(until, cars))")
        .select("window_time(window) AS toll_ts", *SEGMENT, "lav", "IF(last.until = window.end, last.cars, 0) AS cars")
        .named("latest")
    )
    free = f"lav >= {FREE_SPEED} OR cars <= {FREE_CARS} OR distance IS NOT NULL"
    return (
        latest.to_layer("cloud")
        .join(blocked, SEGMENT, between=("0 seconds", "0 seconds"), how="left")
        .select("toll_ts", *SEGMENT, "lav", f"IF({free}, 0, 2 * (cars - {FREE_CARS}) * (cars - {FREE_CARS})) AS toll")
        .named("segment_tolls")
    )


def follow(state: dict[str, Any] | None, row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Follow a vehicle: has it entered a segment, and does it stand?"""
    place = [row[name] for name in ("expressway", "direction", "lane", "position")]
    segment = [row[name] for name in SEGMENT]
    on_time = state is not None and (row["ts"] - state["ts"]).total_seconds() <= EVERY
    equal = state["equal"] + 1 if on_time and state is not None and state["place"] == place else 1
    same = on_time and state is not None and state["segment"] == segment
    crossed, standing = not same and row["lane"] != EXIT, equal >= STOPPED
    after = {"ts": row["ts"], "place": place, "segment": segment, "equal": equal}
    if not crossed and not standing:
        return after, None
    return after, {**row, "crossed": crossed, "standing": standing}


flow = linear_road(str(HERE / "data"), str(HERE / "results"))
