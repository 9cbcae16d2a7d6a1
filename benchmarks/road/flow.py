"""The road sensors' dataflow as a file for ``headwater``; paths, locations and the limit come from the environment.

Detectors report each minute. The edge counts cars in five minutes, the site finds slow roads and sums up its area, the
cloud ranks roads and sums up the day.
"""

from __future__ import annotations

import os

import headwater as hw

SCHEMA = "detector string, ts timestamp, cars int, speed double"


def road(data: str, results: str, locations: list[str], limit: str) -> hw.Dataflow:
    """Build the dataflow over CSV files in ``data/LOCATION``; roads slower than ``limit`` km/h are slow."""
    f = hw.flow("road", locations=locations)
    readings = f.read.csv(f"{data}/{{location}}", SCHEMA, location_as="area").where(
        "cars >= 0 AND speed BETWEEN 0 AND 200"
    )
    counted = (
        readings.with_watermark("ts", "5 minutes")
        .group_by(hw.window("ts", "5 minutes"), "area", "detector")
        .agg(cars="sum(cars)", slowest="min(speed)")
        .named("counted")
    )
    site = counted.to_layer("site")
    slow = site.where(f"slowest < {limit}").select("area", "detector", "window.start AS at", "slowest").named("slow")
    slow.to_layer("cloud").write.json(f"{results}/slow").named("slow_roads")
    hours = site.group_by(hw.window("window", "1 hour"), "area").agg(cars="sum(cars)").named("hours").to_layer("cloud")
    hours.write.json(f"{results}/hours").named("hours_by_area")
    busiest = counted.to_layer("cloud").group_by(hw.window("window", "1 hour"), "detector").agg(cars="sum(cars)")
    busiest.top_k(3, "cars").named("busiest").write.json(f"{results}/busiest").named("busiest_roads")
    return f.build()


def from_environment() -> hw.Dataflow:
    """Build the dataflow that the environment describes."""
    locations = os.environ["ROAD_LOCATIONS"].split(",")
    return road(os.environ["ROAD_INPUT"], os.environ["ROAD_OUTPUT"], locations, os.environ.get("ROAD_LIMIT", "30"))


if "ROAD_INPUT" in os.environ:
    flow = from_environment()
