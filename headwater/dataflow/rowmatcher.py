"""Match a row pattern over the rows of a key, in order: the automaton, as the function of a scan.

The state of a key has the rows since the first one that a match may still begin with. From that row several *runs*
are open, the most preferred first: a run is a step of the program and its path, the variable of each row so far. A
match is known when no run that is preferred to it is left. Then the next match begins after its last row (SKIP PAST
LAST ROW); without a match it begins at the next row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

Values: TypeAlias = list[Any]
"""The values of a row that conditions and measures need."""
Run: TypeAlias = tuple[int, str]
_LARGEST = 2**63


def matching(settings: str) -> Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return the function of a scan for settings as JSON."""

    def match_recognize(state: dict[str, Any], row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return matcher_of(settings).fold(state, row)

    return match_recognize


@cache
def matcher_of(settings: str) -> RowMatcher:
    """Return the automaton of settings as JSON, made once per process."""
    found = json.loads(settings)
    return RowMatcher(
        program=tuple(map(tuple, found["program"])),
        conditions=found["conditions"],
        compares=tuple(sorted(set(_compares(list(found["conditions"].values()))))),
        within=found["within"],
        measures=tuple(map(tuple, found["measures"])),
        values=tuple(found["values"]),
        time=found["time"],
        kept=tuple(found["kept"]),
        matches=found["matches"],
        form=found["form"],
    )


@dataclass(frozen=True)
class RowMatcher:
    """The automaton of one pattern.

    Variables are single letters. ``compares``: the first and last rows of variables in conditions. ``within`` bounds
    the last row's value ``time`` in microseconds after the first's. ``values``: the columns of the values; ``kept``:
    those copied from the row that decides a match. ``form``: the name of the state; another pattern has another.
    """

    program: tuple[tuple[Any, ...], ...]
    conditions: dict[str, list[Any]]
    compares: tuple[tuple[str, str], ...]
    within: int | None
    measures: tuple[tuple[str, str, int | None], ...]
    values: tuple[str, ...]
    time: int
    kept: tuple[str, ...]
    matches: str
    form: str

    def fold(self, state: dict[str, Any], row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Take the next row of a key; return the matches that it decides, if any."""
        kept = state[self.form] or {"before": None, "rows": [], "runs": [], "best": ""}
        before, rows, best = kept["before"], kept["rows"], kept["best"]
        rows.append([row[name] for name in self.values])
        runs: list[Run] = [(step, path) for step, path in kept["runs"]]
        taken, found = len(rows) - 1, []
        while taken < len(rows):
            if taken == 0:
                runs, best = self._start(), ""
            if self.within is not None and rows[taken][self.time] - rows[0][self.time] > self.within:
                runs = []
            else:
                runs, better = self._advance(runs, rows, before)
                best, taken = better or best, taken + 1
            if not runs:
                if best:
                    found.append(self._measured(rows, best))
                gone = len(best) or 1
                before, rows, taken, best = rows[gone - 1], rows[gone:], 0, ""
        now = {"before": before, "rows": rows, "runs": runs, "best": best}
        if not found:
            return {self.form: now}, None
        return {self.form: now}, {**{name: row[name] for name in self.kept}, self.matches: found}

    def _start(self) -> list[Run]:
        runs: list[Run] = []
        self._follow(0, "", runs, set())
        return runs

    def _advance(self, runs: list[Run], rows: list[Values], before: Values | None) -> tuple[list[Run], str]:
        """Let all runs take their next row; return those that go on, and the path of a match, if any.

        Runs after a match are less preferred, and end.
        """
        going: list[Run] = []
        seen: set[tuple[Any, ...]] = set()
        for step, path in runs:
            longer = path + self.program[step][1]
            if self._holds(longer, rows, before) and self._follow(step + 1, longer, going, seen):
                return going, longer
        return going, ""

    def _follow(self, step: int, path: str, going: list[Run], seen: set[tuple[Any, ...]]) -> bool:
        """Add the steps that take a row, in the order of preference, up to the end of the program; return if it is met.

        A step that a preferred run has reached with the same rows to compare with is left out: it has the same future.
        """
        compared_rows = tuple(_place(row, variable, path) for row, variable in self.compares)
        todo = [step]
        while todo:
            at = todo.pop()
            if (at, compared_rows) in seen:
                continue
            seen.add((at, compared_rows))
            kind, *to = self.program[at]
            if kind == "end":
                return True
            if kind == "row":
                going.append((at, path))
            else:
                todo += reversed(to)
        return False

    def _holds(self, path: str, rows: list[Values], before: Values | None) -> bool:
        """Return whether the last row of a path satisfies the condition of its variable."""
        condition = self.conditions.get(path[-1])
        return condition is None or self._truth(condition, path, rows, before) is True

    def _truth(self, condition: list[Any], path: str, rows: list[Values], before: Values | None) -> bool | None:
        """Evaluate a condition in SQL's logic of three values; None is unknown."""
        kind, *parts = condition
        if kind == "true":
            own: bool | None = rows[len(path) - 1][parts[0]]
            return own
        if kind in ("and", "or"):
            decisive: bool = kind == "or"
            left = self._truth(parts[0], path, rows, before)
            if left is decisive:
                return decisive
            right = self._truth(parts[1], path, rows, before)
            return right if right is decisive or left is not None else None
        if kind == "not":
            inner = self._truth(parts[0], path, rows, before)
            return None if inner is None else not inner
        sides: list[Any] = [_side_value(side, path, rows, before) for side in parts]
        return sides[0] is None if kind == "null" else compared(kind, sides[0], sides[1])

    def _measured(self, rows: list[Values], path: str) -> dict[str, Any]:
        found = {}
        for n, (function, variable, value) in enumerate(self.measures):
            mine = [row for row, letter in zip(rows, path, strict=False) if variable in ("", letter)]
            found[f"g{n}"] = len(mine) if value is None else measured(function, [row[value] for row in mine])
        return found


def _compares(conditions: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of variables in the sides of comparisons."""
    for part in conditions:
        match part:
            case ["first" | "last" as row, str() as variable, int()] if variable:
                yield row, variable
            case [*parts]:
                yield from _compares(parts)


def _place(row: str, variable: str, path: str) -> int:
    return path.find(variable) if row == "first" else path.rfind(variable)


def _side_value(side: list[Any], path: str, rows: list[Values], before: Values | None) -> Any:
    row, variable, value = side
    if row == "this":
        return rows[len(path) - 1][value]
    if row == "prev":
        last = rows[len(path) - 2] if len(path) > 1 else before
        return None if last is None else last[value]
    at = _place(row, variable, path) if variable else 0
    return None if at < 0 else rows[at][value]


def compared(operator: str, left: Any, right: Any) -> bool | None:
    """Compare two values as Spark SQL does: NULL makes it unknown, and NaN equals itself and is the greatest."""
    if left is None or right is None:
        return (left is None and right is None) if operator == "<=>" else None
    a, b = (left != left, left), (right != right, right)
    equal = a[0] == b[0] and (a[0] or left == right)
    if operator in ("=", "<=>", "!="):
        return equal is not (operator == "!=")
    if equal:
        return operator in ("<=", ">=")
    less: bool = a[0] < b[0] or (a[0] == b[0] and left < right)
    return less is (operator in ("<", "<="))


def measured(function: str, values: list[Any]) -> Any:
    """Aggregate values in their order as Spark SQL does; ``first`` and ``last`` may be NULL."""
    if function in ("first", "last"):
        return values[0 if function == "first" else -1] if values else None
    present = [v for v in values if v is not None]
    if function == "count":
        return len(present)
    if not present:
        return None
    if function in ("min", "max"):
        return (min if function == "min" else max)(present, key=lambda v: (v != v, v))
    total = present[0]
    for value in present[1:]:
        total += value
    if function == "avg":
        return total / len(present)
    if isinstance(total, int) and not -_LARGEST <= total < _LARGEST:
        raise OverflowError("the sum of bigint overflows; write sum(CAST(v AS double))")
    return total
