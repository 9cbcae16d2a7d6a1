"""Aggregates whose results are output as they change, and the sinks in which a later result replaces an earlier one.

Each result carries the number of rows that it was computed from (``headwater_rows``). It grows with every result of a
group, so a sink that keeps the row with the greatest number holds the newest result in whatever order rows come, over
repeated batches, channels and several units. When the last row has come, its results are those of a batch run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow.operators import Operator, Select, Where
from headwater.dataflow.sinks import Sink
from headwater.dataflow.stateful import ROWS, Aggregate, updates
from headwater.dataflow.tablesinks import DeltaSink, PostgresSink
from headwater.dataflow.types import StreamType
from headwater.sql.expressions import check, check_condition
from headwater.sql.parser import parse
from headwater.sql.schema import Schema
from headwater.sql.syntax import Name

_KEYS = "the results' keys are those of group_by, such as keys=['start', 'machine'] after .select('window.start', ...)"
HOW = "write .write.output_mode('update').postgres(url, 'table', keys=[...]), or .delta(path, keys=[...])"

_Known = Mapping[str, frozenset[str]]
"""The columns that are equal in all results of a group, in lower case, each with the keys that it identifies."""


def update_problems(
    operators: Mapping[str, Operator], consumers: Mapping[str, tuple[str, ...]], types: Mapping[str, StreamType]
) -> Iterator[DataflowError]:
    """Yield an error for each operator that gets results before they are final, and cannot replace them."""

    def below(id_: str, known: _Known, groups: frozenset[str]) -> Iterator[DataflowError]:
        schema = types[id_].schema
        for consumer in consumers[id_]:
            match operators[consumer]:
                case Where() as operator:
                    if (problem := _where_problem(operator, schema, known)) is not None:
                        yield problem
                    else:
                        yield from below(consumer, known, groups)
                case Select() as operator:
                    if not _has_rows(operator):
                        yield operator.error(
                            f"the column {ROWS} is left out, by which a later result replaces an earlier one",
                            f"select it too: .select(..., '{ROWS}')",
                        )
                    else:
                        yield from below(consumer, _selected(operator, schema, known), groups)
                case operator:
                    yield from _at_sink(operator, known, groups)

    for operator in operators.values():
        if isinstance(operator, Aggregate) and updates(operator):
            groups = {k.lower() for k in operator.keys} | ({"window"} if operator.window is not None else set())
            yield from below(operator.id, {name: frozenset([name]) for name in groups}, frozenset(groups))


def _where_problem(operator: Where, schema: Schema, known: _Known) -> DataflowError | None:
    read = {c.lower() for c in check_condition(operator.condition, schema).columns}
    if not (changing := sorted(read - known.keys())):
        return None
    return operator.error(
        f"'{cut(changing[0], 100)}' changes from one result of a group to the next: a row that was written would stay "
        "when its later result is dropped",
        "filter by the keys of the group, or where the table is read",
    )


def _has_rows(operator: Select) -> bool:
    return any(name.lower() == ROWS and text.strip("`").lower() == ROWS for name, text in operator.columns)


def _selected(operator: Select, schema: Schema, known: _Known) -> _Known:
    """Return what is known of the columns of a select."""
    found: dict[str, frozenset[str]] = {}
    for name, text in operator.columns:
        node = parse(text)
        parts = [p.lower() for p in node.parts] if isinstance(node, Name) else []
        if len(parts) == 1 or (len(parts) == 2 and parts[1] in ("start", "end")):
            if parts[0] in known:
                found[name.lower()] = known[parts[0]]  # windows have one size: either end identifies them
        elif {c.lower() for c in check(text, schema).columns} <= known.keys():
            found[name.lower()] = frozenset()
    return found


def _at_sink(operator: Operator, known: _Known, groups: frozenset[str]) -> Iterator[DataflowError]:
    keys: tuple[str, ...] = ()
    match operator:
        case PostgresSink() if operator.order_by == (ROWS,):
            keys = operator.keys
        case DeltaSink():
            keys = operator.keys or ()
    if not keys:
        what = "adds rows, and does not replace them" if isinstance(operator, Sink) else "takes final results only"
        yield operator.error(f"'{operator.kind}' {what}", HOW)
        return
    if changing := [k for k in keys if k.lower() not in known]:
        yield operator.error(f"the key '{changing[0]}' changes from one result of a group to the next", _KEYS)
    elif missing := groups.difference(*(known[k.lower()] for k in keys)):
        yield operator.error(f"two groups may have equal keys: '{min(missing)}' is not among them", _KEYS)
