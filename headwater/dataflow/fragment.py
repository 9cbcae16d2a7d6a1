"""The part of a dataflow that one unit runs: its operators, and the types of its input streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema

from headwater.core.errors import DataflowError
from headwater.core.jsonform import custom_schema, problem
from headwater.dataflow.graph import Graph, key_over, operator_from_data, operator_to_data
from headwater.dataflow.operators import Operator
from headwater.dataflow.types import StreamType, stream_type

OUTSIDE = "(outside)"
"""Represents the readers outside of a fragment."""


@dataclass(frozen=True)
class Fragment:
    """Some operators of a dataflow, inputs first.

    ``given``: the types of streams from other fragments; ``leaving``: operators with readers outside. Raises
    DataflowError if an operator does not fit its inputs.
    """

    operators: tuple[Operator, ...]
    given: Mapping[str, StreamType]
    leaving: tuple[str, ...]

    def __post_init__(self) -> None:
        _ = self.types
        for id_ in self.leaving:
            if id_ not in self:
                raise DataflowError(f"'{id_}' leaves the fragment, but is not in it")

    @classmethod
    def of(cls, flow: Graph, operators: Iterable[str], leaving: Iterable[str]) -> Fragment:
        """Return the fragment of some operators, named in their order; ``leaving``: those with readers outside."""
        names = tuple(operators)
        inside = set(names)
        given = {i: flow.types[i] for id_ in names for i in flow[id_].inputs if i not in inside}
        return cls(tuple(flow[i] for i in names), given, tuple(leaving))

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """Content keys; a stream from outside is identified by its name and type alone."""
        keys: dict[str, str] = {}
        for id_ in self.order:
            parents = [keys.get(i) or f"{i}: {stream_type(self.types[i])}" for i in self[id_].inputs]
            keys[id_] = key_over(self, id_, parents)
        return keys

    def __getitem__(self, id_: str) -> Operator:
        return self._by_id[id_]

    def __contains__(self, id_: object) -> bool:
        return id_ in self._by_id

    @cached_property
    def _by_id(self) -> Mapping[str, Operator]:
        return {o.id: o for o in self.operators}

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the operators, inputs first."""
        return tuple(self._by_id)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """For each operator and given stream, the operators that read it; ``OUTSIDE`` for others."""
        found: dict[str, list[str]] = {i: [] for i in (*self.given, *self._by_id)}
        for operator in self.operators:
            for parent in dict.fromkeys(operator.inputs):
                found[parent].append(operator.id)
        for id_ in self.leaving:
            found[id_].append(OUTSIDE)
        return {k: tuple(v) for k, v in found.items()}

    @cached_property
    def types(self) -> Mapping[str, StreamType]:
        """The types of all streams: those from outside, and the operators' outputs."""
        types = dict(self.given)
        for operator in self.operators:
            missing = [i for i in operator.inputs if i not in types]
            if missing:
                raise DataflowError(f"reads unknown operator '{missing[0]}'", where=operator.where)
            types[operator.id] = operator.output(tuple(types[i] for i in operator.inputs))
        return types

    # ------------------------------------------------------------ JSON

    def to_data(self) -> dict[str, Any]:
        """Return the fragment as JSON-able data."""
        return {
            "operators": [operator_to_data(o) for o in self.operators],
            "given": _TYPES.dump_python(dict(self.given), mode="json"),
            "leaving": list(self.leaving),
        }

    @classmethod
    def from_data(cls, data: Any) -> Fragment:
        """Read the data of ``to_data``; raise DataflowError if it is invalid. Executes nothing."""
        try:
            entries = TypeAdapter(dict[str, Any]).validate_python(data)
            operators = TypeAdapter(list[dict[str, Any]]).validate_python(entries.get("operators"))
            given = _TYPES.validate_python(entries.get("given"))
            leaving = TypeAdapter(tuple[str, ...]).validate_python(entries.get("leaving"))
        except ValidationError as error:
            raise DataflowError(f"not a fragment of a dataflow: {problem(error)}") from error
        return cls(tuple(operator_from_data(o) for o in operators), given, leaving)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_schema(cls, cls.from_data, cls.to_data)


_TYPES: TypeAdapter[dict[str, StreamType]] = TypeAdapter(dict[str, StreamType])
