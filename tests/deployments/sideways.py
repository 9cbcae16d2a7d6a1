"""Dataflows that name zones, on a continuum with a second cloud and links beside the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import headwater as hw
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.stream import Stream
from tests.deployments.flows import LOCATIONS, SCHEMA

TWO_CLOUDS = """
name: two-clouds
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  C2: {layer: cloud}
  S1: {layer: site, parent: C1}
  S2: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
  E4: {layer: edge, parent: S2, locations: [L4]}
links:
  - {between: [C1, C2], latency: 20ms}
  - {between: [S1, S2], bandwidth: 5Mbit/s}
"""

PAST_A_SITE = TWO_CLOUDS + "  - {between: [E4, C1], latency: 300ms, bandwidth: 64kbit/s}\n"
"""The same continuum with a link from an edge past its site."""


def _read(path: str) -> tuple[DataflowBuilder, Stream]:
    builder = hw.flow("sideways", locations=LOCATIONS)
    read = builder.read.json(path, SCHEMA, location_as="location").named("readings")
    return builder, read.with_watermark("ts", "5 seconds")


def _write(stream: Stream, name: str, out: str | None) -> None:
    if out is None:
        stream.write.memory(name)
    else:
        stream.write.parquet(f"{out}/{name}").named(name)


def clouds(path: str, out: str | None = None) -> DataflowBuilder:
    """Windows of a site's neighbour, summed in a second cloud; its sums act at an edge and return to the first."""
    builder, readings = _read(path)
    means = readings.to_zone("S1").group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", s="sum(id)")
    means = means.named("means")
    total = means.to_zone("C2").group_by(hw.window("window", "20 seconds"), "k").agg(n="sum(n)", s="sum(s)")
    total = total.named("total")
    _write(total, "totals", out)
    _write(total.to_zone("E4").where("n > 3").named("busy"), "at_edge", out)
    _write(total.to_layer("cloud").select("k", "n", "s").named("returned"), "in_first", out)
    return builder


def divided(path: str) -> DataflowBuilder:
    """Rows of a second cloud go to the edges that they name, and to the sites, beside one that took all of them."""
    builder, readings = _read(path)
    sent = readings.to_zone("C2").select("id", "ts", "location", "k", "v").named("sent")
    here = sent.to_layer("edge").where("id % 2 = 0").named("here")
    here.group_by(hw.window("ts", "10 seconds"), "location").agg(n="count(*)").write.memory("windows")
    all_ = sent.to_zone("S2").dropDuplicates(["location", "id"]).named("unique")
    all_.write.memory("all_rows")
    all_.to_layer("site").select("location", "id").named("again").write.memory("at_sites")
    return builder


SIDEWAYS: Mapping[str, Callable[[str], DataflowBuilder]] = {"clouds": clouds, "divided": divided}
