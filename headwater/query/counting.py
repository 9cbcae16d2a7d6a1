"""Row counts of a unit's operators, input and output: which are counted, and how the others are derived.

Spark reports for every batch how many rows it read from each source and wrote to the sink. A projection, a
watermark, a union and a sink give as many rows as they take, so their counts, and their neighbours', follow
from others. The remaining operators are counted inside the query by observations (``DataFrame.observe``). These
cost time for every row, so the query makes only those that are needed. Filters that a unit with several
outputs merges into one expression cannot be observed: unless their count follows from others, they have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.core.metrics import Latency, OperatorProgress
from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Graph
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source

_KEEPS_ROWS = (ops.Select, ops.Watermark, ops.Union, Sink)
_TIME, _LAG = "time ", "lag "
TAGS = "tags"
"""Name of the observation that counts the rows of each sink writer: ``c0``, ``c1`` and so on, by tag."""


@dataclass(frozen=True)
class Read:
    """One read of a query; reads are in the order of the query's progress.

    ``operator`` is the source, or the operator of another unit whose channels are read. ``counts``: the rows
    that Spark reads are the operator's rows, neither read a second time nor mixed with punctuation.
    """

    operator: str
    location: str | None = None
    counts: bool = True
    replayed: bool = False
    """Whether it reads the records replayed to the source, which the read before it does not."""


@dataclass(frozen=True)
class WatermarkInput:
    """An input whose event time advances by itself, without channels: its ``reads``, and its watermark's delay.

    ``name`` is that of its observed event time and of its control files. ``location``: where it is read, or its
    operator. Times in seconds. ``source``: where it is history, the name of its source in the query.
    """

    name: str
    location: str
    reads: tuple[int, ...]
    delay: float
    idle_after: float | None
    source: str | None = None


@dataclass
class Counting:
    """The counters of a query.

    ``observed``: operators whose output rows are observed. ``rejects``: source and location whose malformed
    records are observed. ``outputs``: operators that give rows to the sink, by tag; none where it has no counters.
    ``inputs``: whose event time is observed, where some input may be idle.
    """

    reads: list[Read] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    rejects: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    inputs: list[WatermarkInput] = field(default_factory=list)


def time_of(input_: str) -> str:
    """Name the observation of the newest event time of an input."""
    return f"{_TIME}{input_}"


def rows_of(operator: str, part: int = 0) -> str:
    """Name the observation of an operator's rows, or of one of its parts. No name of an operator has a blank."""
    return f"rows {operator} {part}" if part else f"rows {operator}"


def lag_of(source: str, location: str) -> str:
    """Name the observation of the age of a source's records as they are read: its quantiles, and their number."""
    return f"{_LAG}{source} {location}"


def latency_of(observed: Mapping[str, Any], over_s: float) -> Latency | None:
    """Return the age of the records that a batch has read, of the input whose records were oldest."""
    found = [list(row[0]) for name, row in observed.items() if name.startswith(_LAG)]
    known = [(quantiles, int(records)) for quantiles, records in found if quantiles]
    if not known:
        return None
    p50, p95 = (max(0.0, max(q[n] for q, _ in known) / 1000) for n in (0, 1))
    return Latency(p50=p50, p95=p95, rows=sum(records for _, records in known), over_s=over_s)


def rejects_of(source: str, location: str) -> str:
    """Name the observation of a source's malformed records."""
    return f"rejects {source} {location}"


def points(flow: Graph, operators: Collection[str], can_be: Collection[str], known: Iterable[str]) -> frozenset[str]:
    """Choose the operators to observe, so that the output rows of as many operators as possible are known.

    ``operators`` are the unit's, ``can_be`` those that can be observed, including the ones it reads from
    channels, and ``known`` those whose output rows are known without.
    """
    found: set[str] = set()
    counts = dict.fromkeys(known, 0)
    given = dict.fromkeys(i for id_ in flow.order for i in flow[id_].inputs if i not in flow)
    for id_ in reversed((*given, *flow.order)):
        if id_ not in can_be or (id_ in operators and isinstance(flow[id_], _KEEPS_ROWS)):
            continue
        if id_ not in completed(flow, operators, {**counts, **dict.fromkeys(found, 0)}):
            found.add(id_)
    return frozenset(found)


def completed(flow: Graph, operators: Collection[str], known: Mapping[str, int]) -> dict[str, int]:
    """Derive output rows of operators from the known ones; operators whose count does not follow are left out.

    ``known`` may include operators of other units, whose channels are read.
    """
    rows = dict(known)
    before = -1
    while before != len(rows):  # each pass finds a count or is the last
        before = len(rows)
        for id_ in flow.order:
            if id_ not in operators or not isinstance(flow[id_], _KEEPS_ROWS):
                continue
            inputs = flow[id_].inputs
            unknown = [i for i in inputs if i not in rows]
            if not unknown:
                rows.setdefault(id_, sum(rows[i] for i in inputs))
            elif len(unknown) == 1 and id_ in rows:
                rows[unknown[0]] = max(0, rows[id_] - sum(rows[i] for i in inputs if i in rows))
    return rows


class Tally:
    """Sums of the rows in a query's progress since it was started.

    ``times``: the newest event time of each of its ``inputs``, in microseconds. ``heard``: when the last batch with
    rows of a read was observed, in seconds of the monotonic clock.
    """

    def __init__(self, counting: Counting, rows: Mapping[str, int] | None = None) -> None:
        self.counting = counting
        self.rows: Counter[str] = Counter(rows or {})
        self.times: dict[str, int] = {}
        self.heard: dict[int, float] = {}

    def take(self, progress: Mapping[str, Any], now: float) -> None:
        """Add the progress of a batch that is observed ``now``, in seconds of the monotonic clock."""
        sources = progress["sources"]
        self.heard |= {n: now for n, source in enumerate(sources) if source["numInputRows"]}
        if len(sources) == len(self.counting.reads):
            for number, source in enumerate(sources):
                self.rows[f"read {number}"] += int(source["numInputRows"] or 0)
        written = (progress.get("sink") or {}).get("numOutputRows")
        if written is not None and int(written) >= 0:
            self.rows["written"] += int(written)
        for name, row in (progress.get("observedMetrics") or {}).items():
            values = list(row[0])
            if name.startswith(_TIME):
                if values[0] is not None:
                    input_ = name.removeprefix(_TIME)
                    self.times[input_] = max(int(values[0]), self.times.get(input_, int(values[0])))
            elif name == TAGS:
                self.rows.update({f"tag {n}": int(value) for n, value in enumerate(values)})
            elif name.startswith(("rows ", "rejects ")):
                whole = name.rpartition(" ")[0] if name.startswith("rows ") and name.count(" ") > 1 else name
                self.rows[whole] += int(values[0])

    @property
    def rejected(self) -> int:
        """Malformed records that the query has counted."""
        return sum(self.rows[rejects_of(source, location)] for source, location in self.counting.rejects)

    def known(self) -> dict[str, int]:
        """Return the output rows of the operators that the batches have counts for."""
        counting, rows = self.counting, self.rows
        found = {id_: rows[rows_of(id_)] for id_ in counting.observed if rows_of(id_) in rows}
        rejected = Counter({source: 0 for source, _ in counting.rejects})
        for source, location in counting.rejects:
            rejected[source] += rows[rejects_of(source, location)]
        for id_ in dict.fromkeys(r.operator for r in counting.reads if r.counts):
            read = [n for n, r in enumerate(counting.reads) if r.counts and r.operator == id_]
            if all(f"read {n}" in rows for n in read):
                found.setdefault(id_, max(0, sum(rows[f"read {n}"] for n in read) - rejected[id_]))
        if len(counting.outputs) == 1 and "written" in rows:
            found[counting.outputs[0]] = max(0, rows["written"] - rejected.total())
        elif len(counting.outputs) > 1:
            named = {f"tag {n}": id_ for n, id_ in enumerate(counting.outputs)}
            found |= {id_: rows[tag] for tag, id_ in named.items() if tag in rows}
        return found

    def operators(self, flow: Graph, operators: Iterable[str]) -> tuple[OperatorProgress, ...]:
        """Return the input and output rows of each operator of the unit; of a source at each of its locations."""
        if not self.counting.reads:
            return ()
        inside = tuple(operators)
        out = completed(flow, inside, self.known())
        seen: list[OperatorProgress] = []
        for id_ in inside:
            if isinstance(flow[id_], Source):
                seen += self._source(id_, out.get(id_))
                continue
            taken = [out.get(i) for i in flow[id_].inputs]
            rows_in = None if None in taken else sum(n for n in taken if n is not None)
            seen.append(OperatorProgress(operator=id_, rows_in=rows_in, rows_out=out.get(id_)))
        return tuple(seen)

    def _is_replayed(self, number: int) -> bool:
        return number < len(self.counting.reads) and self.counting.reads[number].replayed

    def _source(self, id_: str, rows_out: int | None) -> Iterable[OperatorProgress]:
        """Yield a source's counts: all its records as input, those that fit its schema as output."""
        reads = [(n, r) for n, r in enumerate(self.counting.reads) if r.operator == id_ and r.location]
        first = {r.location: n for n, r in reversed(reads)}
        for location, number in sorted(first.items(), key=lambda item: item[1]):
            taken = self.rows.get(f"read {number}")
            if taken is not None and self._is_replayed(number + 1):
                taken += self.rows[f"read {number + 1}"]
            given = rows_out
            if len(first) > 1:
                rejected = (id_, location) in self.counting.rejects
                less = self.rows[rejects_of(id_, str(location))] if rejected else 0
                exact = taken is not None and self.counting.reads[number].counts
                given = taken - less if exact and taken is not None else None
            yield OperatorProgress(
                operator=id_, rows_in=taken, rows_out=given, location=location if len(first) > 1 else None
            )
