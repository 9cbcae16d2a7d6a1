"""Costs and selectivities of a dataflow's operators, measured on a sample or assumed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headwater.core.errors import PlacementError
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sources import Source
from headwater.sql.schema import DataType, Schema, StructType

ASSUMED_RATE = 1_000.0
"""Rows/s of a source at a location."""
ASSUMED_CPU_S = 5e-6
"""Core seconds per row; Spark's cost of a filter or a projection over rows of a few columns."""


Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class OperatorProfile(BaseModel):
    """One operator. ``cpu_s``: core seconds per row in. ``selectivity``: rows out per row in.

    ``bytes_out``: per row, as it crosses a link or as a channel stores it. ``columns``: each column's bytes by itself,
    as a share of the row's. ``repeated``: the share of the bytes of a location's rows that those of another one repeat
    if they cross a link in the same stream. ``state_bytes``: size of its state.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu_s: float = Field(default=ASSUMED_CPU_S, ge=0, allow_inf_nan=False)
    selectivity: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    bytes_out: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    columns: Mapping[str, Rate] | None = None
    repeated: float | None = Field(default=None, ge=0, lt=1, allow_inf_nan=False)
    state_bytes: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Profile(BaseModel):
    """Profile of a dataflow. ``rates``: for each source rows/s by location; ``*`` stands for all others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataflow: str = ""
    operators: Mapping[str, OperatorProfile] = Field(default_factory=dict)
    rates: Mapping[str, Mapping[str, Rate]] = Field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str, *, where: str = "profile") -> Profile:
        """Read a profile; raise PlacementError if it is invalid."""
        try:
            return cls.model_validate(json.loads(text))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise PlacementError(
                f"the profile is wrong at {place or 'its top'}: {first['msg']}", where=where, hint=_HINT
            ) from error
        except (ValueError, RecursionError) as error:
            raise PlacementError(f"the profile is not JSON: {error}", where=where, hint=_HINT) from error

    def to_json(self) -> str:
        """Write the profile in the form that ``from_json`` reads."""
        return json.dumps(self.model_dump(exclude_none=True), indent=2) + "\n"


_HINT = "headwater profile FLOW --sample DATA writes one"


@dataclass(frozen=True)
class Known:
    """A profile applied to a dataflow: a value for every operator and source, and the list of assumed ones."""

    dataflow: Dataflow
    profile: Profile | None
    assumed: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        known = self.profile or Profile()
        strangers = [n for n in (*known.operators, *known.rates) if n not in self.dataflow.order]
        if strangers:
            raise PlacementError(
                f"the profile has unknown operator '{strangers[0]}' of dataflow '{self.dataflow.name}'",
                hint=f"measure it again: {_HINT}",
            )
        sources = {s.id for s in self.dataflow.sources}
        missing = [f"cost of '{o}'" for o in self.dataflow.order if o not in known.operators]
        missing += [f"rate of '{s}'" for s in self.dataflow.order if s in sources and s not in known.rates]
        object.__setattr__(self, "assumed", tuple(missing))

    def operator(self, name: str) -> OperatorProfile:
        """Return an operator's profile."""
        found = None if self.profile is None else self.profile.operators.get(name)
        return found or OperatorProfile()

    def rate(self, source: Source, location: str | None) -> float:
        """Return the rows/s of a source at a location."""
        rates = {} if self.profile is None else self.profile.rates.get(source.id, {})
        return rates.get(location or "*", rates.get("*", ASSUMED_RATE))

    def bytes_out(self, name: str) -> float:
        """Return the bytes per output row of an operator."""
        return self.operator(name).bytes_out or row_bytes(self.dataflow.types[name].schema)


_BYTES: Mapping[str, float] = {
    "boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4,
    "bigint": 8, "double": 8, "timestamp": 8, "timestamp_ntz": 8,
}  # fmt: skip


def row_bytes(schema: Schema) -> float:
    """Estimate the bytes of a row; at least 1."""
    return sum(value_bytes(column.type) for column in schema.columns) or 1.0


def value_bytes(type_: DataType) -> float:
    """Estimate the bytes of a value: 8 for most numbers and times, 20 for types without a fixed length.

    A structure has those of its fields, and one more: its fields can be NULL together.
    """
    if isinstance(type_, StructType):
        return 1.0 + sum(value_bytes(each.type) for each in type_.fields)
    return _BYTES.get(type_.text, 20.0)
