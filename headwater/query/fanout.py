"""Several outputs of one query: rows are passed through scans and tagged with their output.

A row is read once, and copied for each output that it belongs to: Spark first computes the numbers of its copies, then
the row of each copy. Rows for scans go through one stateful operator of Spark's; rows that no scan takes pass through
it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.connectors.sources import DEAD_LETTER
from headwater.connectors.sparksql import expression
from headwater.connectors.sparktypes import MARK, known, spark_schema
from headwater.dataflow.graph import Graph
from headwater.dataflow.stateful import Scan, by_event_time
from headwater.plan.onepass import OnePass, Pass, melted_along
from headwater.query.corrupt import DEAD, GOOD
from headwater.query.scan import COMMON, FROM, KEY, KEYED, TIME, Scanning, key_text, keyed, together
from headwater.query.writer import TAG, tag_column
from headwater.sql.lexer import quote_string, quoted
from headwater.sql.schema import Column, Schema

_ENTRY, _COPY = "__entry", "__copy"
DEAD_LETTERS = Schema.parse(", ".join(f"{name} string" for name in DEAD_LETTER))
Count = Callable[[DataFrame, str, str], DataFrame]
"""Makes a query count a scan's rows: takes a frame, the scan, and the condition that selects its rows."""


@dataclass(frozen=True)
class _End:
    """One output of a row: its tag, the type of its rows, and, as SQL, the condition and the row."""

    tag: int
    schema: Schema
    condition: str
    row: str


@dataclass(frozen=True)
class _Copy:
    """One of the copies of a row: its number, the column of its row, and, as SQL, the condition and the row."""

    number: int
    column: str
    condition: str
    row: str


def tagged(
    flow: Graph, found: Pass, outputs: Sequence[str], base: DataFrame, count: Count, *, corrupt: bool = False
) -> DataFrame:
    """Compute the rows of all outputs, each with its tag, from those of the root.

    ``corrupt``: the base holds malformed records too; their dead letters get the next tag.
    """
    good = f"{GOOD} AND " if corrupt else ""
    ends, behind, wanted = [], [], set()
    for tag, id_ in enumerate(outputs):
        schema = flow.types[id_].schema
        for branch in found.branches(flow, id_):
            wanted.add(branch.origin)
            if branch.origin == found.root:
                condition, row = _row(flow, branch)
                ends.append(_End(tag, schema, good + condition, row))
            else:
                place = found.scans.index(branch.origin)
                condition, row = _row(flow, branch, within=f"s{place}")
                behind.append(_End(tag, schema, f"{quoted(FROM)} = {place} AND {condition}", row))
    if corrupt:
        ends.append(_End(len(outputs), DEAD_LETTERS, f"NOT ({GOOD})", quoted(DEAD)))
    if found.scans:
        scans = _scannings(flow, found, wanted)
        rows = _common_form(flow, found, scans, ends, base, good)
        base = together(rows, scans, [end.schema for end in ends])
        for place, id_ in enumerate(found.scans):
            if scans[place].out:
                base = count(base, id_, f"{quoted(FROM)} = {place}")
        ends = [
            replace(end, condition=f"{quoted(FROM)} = -1 AND p{n} IS NOT NULL", row=f"p{n}")
            for n, end in enumerate(ends)
        ]
    ends = sorted((*ends, *behind), key=lambda end: end.tag)
    types = {tag_column(end.tag): end.schema for end in ends}
    return _copied(base, [_Copy(e.tag, tag_column(e.tag), e.condition, e.row) for e in ends], TAG, types)


def _scannings(flow: Graph, found: Pass, wanted: Collection[str]) -> tuple[Scanning, ...]:
    """Return each scan's input: another scan's rows, or a stream computed from the root's."""
    parents = [flow[s].inputs[0] for s in found.scans]
    streams = list(dict.fromkeys(p for p in parents if p not in found.scans))
    scans = []
    for id_, parent in zip(found.scans, parents, strict=True):
        operator = flow[id_]
        assert isinstance(operator, Scan)
        reads = found.scans.index(parent) if parent in found.scans else f"i{streams.index(parent)}"
        time = by_event_time(operator, flow.types[parent])
        scans.append(Scanning(operator, time, reads, out=id_ in wanted))
    return tuple(scans)


def _common_form(
    flow: Graph, found: Pass, scans: Sequence[Scanning], ends: Sequence[_End], base: DataFrame, good: str
) -> DataFrame:
    """Return the rows for scans and the passing rows in the common form of Spark's operator."""
    ways: dict[tuple[str, str], Scanning] = {}
    for scan in scans:
        if isinstance(scan.reads, str):
            ways.setdefault((scan.reads, keyed(scan.operator)), scan)
    types = {column: flow.types[scan.operator.inputs[0]].schema for (column, _), scan in ways.items()}
    types |= {f"p{n}": end.schema for n, end in enumerate(ends)}
    copies, by, key, time = [], [], [], []
    for n, ((column, columns), scan) in enumerate(ways.items()):
        (stream,) = scan.operator.inputs
        (branch,) = found.branches(flow, stream)
        condition, row = _row(flow, branch)
        copies.append(_Copy(n, column, good + condition, row))
        by.append(f"WHEN {n} THEN {quote_string(columns)}")
        key.append(f"WHEN {n} THEN {key_text(scan.operator, flow.types[stream], within=column)}")
        if scan.event_time is not None:
            time.append(f"WHEN {n} THEN {column}.{quoted(scan.event_time)}")
    copies += [_Copy(len(ways) + n, f"p{n}", end.condition, end.row) for n, end in enumerate(ends)]
    rows = _copied(base, copies, _ENTRY, types)
    at = f"CASE {_ENTRY} {' '.join(time)} END" if time else "CAST(NULL AS timestamp)"
    framed = rows.select(
        expression(f"CASE {_ENTRY} {' '.join(by)} END").alias(KEYED),
        expression(f"CASE {_ENTRY} {' '.join(key)} END").alias(KEY),
        expression(at).alias(TIME, metadata={MARK: 0} if time else {}),
        _ENTRY,
        *types,
    )
    if time:  # a row without a time has no order
        framed = framed.where(expression(f"{_ENTRY} >= {len(ways)} OR {TIME} IS NOT NULL"))
    made = [*COMMON, *(Column(name, schema.struct) for name, schema in types.items())]
    return known(framed.drop(_ENTRY), spark_schema(made))


def _row(flow: Graph, branch: OnePass, *, within: str | None = None) -> tuple[str, str]:
    """Return two expressions over a row of a branch's origin: whether it gives a row at its end, and that row."""
    condition, columns = melted_along(flow, branch.origin, branch.steps, within=within)
    return condition, f"named_struct({', '.join(f'{quote_string(n)}, {t}' for n, t in columns)})"


def _copied(frame: DataFrame, copies: Sequence[_Copy], number: str, types: Mapping[str, Schema]) -> DataFrame:
    """Return, for each copy whose condition a row meets, its number, its row in its column, and NULL in the others.

    Spark compiles an array of numbers. It would interpret an array of rows, with all columns of all copies in each.
    """
    met = ", ".join(f"IF({copy.condition}, {n}, -1)" for n, copy in enumerate(copies))
    rows = frame.select("*", F.explode(expression(f"array_remove(array({met}), -1)")).alias(_COPY))
    numbers = " ".join(f"WHEN {n} THEN {copy.number}" for n, copy in enumerate(copies))
    columns = [expression(f"CASE {_COPY} {numbers} END").alias(number)]
    for column, schema in types.items():
        mine = " ".join(f"WHEN {n} THEN {copy.row}" for n, copy in enumerate(copies) if copy.column == column)
        columns.append(expression(f"CAST(CASE {_COPY} {mine} END AS {schema.struct.text})").alias(column))
    return rows.select(*columns)
