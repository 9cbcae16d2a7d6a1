"""Names of what a unit's query reads: they are in its checkpoint, so that it goes on when its sources change."""

from __future__ import annotations

from pathlib import Path

from headwater.connectors.sources import name_of_replayed
from headwater.dataflow import sources
from headwater.disk.checkpoint import AGAIN
from headwater.disk.layout import Layout
from headwater.plan.content import source_locations
from headwater.plan.spec import UnitSpec
from headwater.query.counting import WatermarkInput


def lift_file(input_: WatermarkInput, lift: int | str) -> str:
    """Name the file, without its suffix, that lifts an idle input up to an event time in microseconds."""
    return f"lift-{input_.name}-{lift}"


def source_name(text: str) -> str:
    """Make a name that Spark accepts for a streaming source."""
    return "".join(c if c.isalnum() else "_" for c in text)


def name_of_channels(spec: UnitSpec, operator: str) -> str:
    """Name the source that reads an operator's channels."""
    return source_name(f"c_{spec.tags[operator]}")


def names_of_source(spec: UnitSpec, source: sources.Source) -> dict[str, str]:
    """Return the names of a source's reads, by location of the unit."""
    places = source_locations(spec.flow, spec.unit)[source.id]
    return {place: source_name(f"s_{spec.tags[source.id]}_{place}") for place in places}


def replayed_of(layout: Layout, source: sources.Source) -> Path | None:
    """Return the directory of a file source's replayed records, if a record was ever replayed here."""
    directory = layout.replayed(source.id)
    return directory if isinstance(source, sources.FileSource) and directory.is_dir() else None


def apart(again: str) -> str:
    """Return the suffix of a further read's name; see ``reads_agree``."""
    return f"{AGAIN}{again.removeprefix('_')}" if again else ""


def further_reads(spec: UnitSpec, operator: str, times: int) -> dict[str, list[str]]:
    """Return the names of the further reads of an input that is read some times, by the name of the first read."""
    if operator not in spec.flow:
        first = name_of_channels(spec, operator)
        return {first: [f"{first}_{n}" for n in range(2, times + 1)]}
    source = spec.flow[operator]
    assert isinstance(source, sources.Source)
    names = names_of_source(spec, source).values()
    firsts = [read for name in names for read in (name, name_of_replayed(name))]
    return {first: [first + apart(f"_{n}") for n in range(2, times + 1)] for first in firsts}
