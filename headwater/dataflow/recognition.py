"""A row pattern as operators: projection, scan, one row per match, projection."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow.types import StreamType, is_time
from headwater.sql.columnnames import free_name
from headwater.sql.lexer import quoted
from headwater.sql.rowpattern import is_bounded, parse_pattern, program_of, variables_of
from headwater.sql.rowvalues import Condition, RowValues
from headwater.sql.schema import ArrayType, Column, Schema, StructType


@dataclass(frozen=True)
class Recognition:
    """The settings of the operators that find a pattern.

    ``columns`` are computed of each row. ``settings`` are those of the automaton (``rowmatcher``): it returns rows of
    ``schema_text`` with an array of ``matches``; of each element, ``result``, ``outputs`` are the results.
    """

    columns: tuple[tuple[str, str], ...]
    settings: str
    initial: dict[str, None]
    schema_text: str
    order_by: tuple[str, ...]
    matches: str
    result: str
    outputs: tuple[tuple[str, str], ...]


def recognition(
    pattern: str,
    type_: StreamType,
    *,
    measures: Mapping[str, str],
    define: Mapping[str, str],
    keys: tuple[str, ...],
    order_by: tuple[str, ...],
    within: float | None,
    where: str,
) -> Recognition:
    """Check a pattern with its conditions and measures, and return the operators' settings; ``within`` in seconds."""

    def error(what: str, hint: str) -> DataflowError:
        return DataflowError(what, where=where, hint=hint)

    time = type_.event_time
    if time is None or not is_time(type_.schema.column(time.column).type):
        raise error("the rows have no event time, so no order", ".with_watermark('ts', '10 seconds') before it")
    try:
        tree = parse_pattern(pattern)
        program = program_of(tree)
    except DataflowError as refused:
        raise error(refused.what, refused.hint or "write it as 'A B+ C'") from None
    if within is None and not is_bounded(tree):
        raise error("a match may become longer and longer", "bound its time: within='10 minutes'")
    variables = variables_of(tree)
    if len(variables) > len(string.ascii_letters):
        raise error(f"the pattern has {len(variables)} variables", f"use at most {len(string.ascii_letters)}")
    letters = dict(zip(variables, string.ascii_letters, strict=False))
    if unknown := [name for name in define if name.lower() not in letters]:
        raise error(f"define has '{cut(unknown[0], 200)}', which is not in the pattern", _variables(variables))
    if len({name.lower() for name in define}) < len(define):
        raise error("define has a variable twice", "names ignore case: define each once")
    if not measures:
        raise error("no measures", 'say what a match gives: measures={"since": "first(a.ts)", "n": "count(*)"}')

    names = {c.lower(): c for c in type_.schema.names}
    for name in (*keys, *order_by):
        if name.lower() not in names:
            raise error(f"no column '{cut(name, 200)}'", f"the columns are {cut(', '.join(type_.schema.names), 600)}")
    grouped = [names[k.lower()] for k in keys]
    order = [names[o.lower()] for o in order_by] or [time.column]
    if order[0].lower() != time.column.lower():
        raise error(
            f"the order begins with '{order[0]}', but the event time is '{time.column}'",
            f"leave order_by out, or order equal times: order_by=['{time.column}', ...]",
        )
    if clash := {k.lower() for k in grouped} & {m.lower() for m in measures}:
        raise error(f"'{cut(min(clash), 200)}' is a key and a measure", "keys are in the result: rename the measure")

    kept = list(dict.fromkeys([*grouped, *order]))
    values = RowValues(type_.schema, variables, where=where)
    conditions = {
        letters[n.lower()]: _lettered(values.condition(n.lower(), text), letters) for n, text in define.items()
    }
    at = values.value(quoted(time.column))
    taken = {c.lower() for c in kept}
    matches, result = free_name("matches", taken), free_name("match", taken)
    outputs = [(c, quoted(c)) for c in [*grouped, order[0]] if c.lower() not in {m.lower() for m in measures}]
    outputs += [(name, values.measure(text, result)) for name, text in measures.items()]
    value_names = [free_name(f"value{n}", taken) for n in range(len(values.texts))]
    aggregates = [(m.function, letters.get(m.variable, ""), m.value) for m in values.measures]
    returned = [type_.schema.column(c) for c in dict.fromkeys([*grouped, order[0]])]
    struct = StructType(tuple(Column(f"g{n}", m.stored) for n, m in enumerate(values.measures)))
    settings: dict[str, Any] = {"program": _program(program, letters), "conditions": conditions, "measures": aggregates}
    conditional = _true_values(list(conditions.values()))
    texts = ["" if n in conditional else text for n, text in enumerate(values.texts)]
    form = hashlib.sha256(json.dumps([settings, texts]).encode()).hexdigest()[:16]
    settings |= {
        "within": None if within is None else round(within * 1_000_000),
        "values": value_names,
        "time": at,
        "kept": [c.name for c in returned],
        "matches": matches,
        "form": form,
    }
    return Recognition(
        columns=(*((c, quoted(c)) for c in kept), *zip(value_names, values.texts, strict=True)),
        settings=json.dumps(settings),
        initial={form: None},
        schema_text=Schema((*returned, Column(matches, ArrayType(struct)))).text,
        order_by=tuple(order),
        matches=matches,
        result=result,
        outputs=tuple(outputs),
    )


def _variables(variables: tuple[str, ...]) -> str:
    return f"its variables are {cut(', '.join(variables), 600)}"


def _program(program: tuple[Any, ...], letters: Mapping[str, str]) -> list[Any]:
    return [("row", letters[step[1]]) if step[0] == "row" else step for step in program]


def _lettered(condition: Condition, letters: Mapping[str, str]) -> Condition:
    """Write letters for the variables in the sides of a condition."""
    match condition:
        case ["this" | "prev" | "first" | "last" as row, str() as variable, int() as value]:
            return [row, letters.get(variable, ""), value]
        case [kind, *parts]:
            return [kind, *(_lettered(p, letters) if isinstance(p, list) else p for p in parts)]
    return condition


def _true_values(conditions: list[Any]) -> set[int]:
    """Return the numbers of values that only say whether a row's own condition is true."""
    found: set[int] = set()
    for part in conditions:
        match part:
            case ["true", int() as value]:
                found.add(value)
            case [_, *parts]:
                found |= _true_values(parts)
    return found
