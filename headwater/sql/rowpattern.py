"""Row patterns: sequences of rows, as in PATTERN of SQL's MATCH_RECOGNIZE, and their programs.

A pattern is written with variables, ``|``, parentheses, and the repetitions ``*``, ``+``, ``?`` and ``{n,m}``, which
take as many rows as they can; with a further ``?`` as few. A program is a list of steps that one automaton runs: it
prefers what SQL prefers, the first branch of ``|`` and the longer repetition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from headwater.core.errors import DataflowError
from headwater.sql.lexer import TokenReader, shorten, tokens
from headwater.sql.syntax import MAX_DEPTH

MOST_STEPS = 1_000
"""Steps of a pattern's program: each row of a key may have to be tried with each of them."""

Step: TypeAlias = tuple[str, str] | tuple[str, int] | tuple[str, int, int] | tuple[str]
"""``("row", variable)`` takes a row, ``("jump", step)``, ``("split", preferred, other)``, ``("end",)``."""


@dataclass(frozen=True)
class PatternVariable:
    """One row that satisfies the variable's condition."""

    name: str


@dataclass(frozen=True)
class PatternSequence:
    """Parts one after the other."""

    parts: tuple[RowPattern, ...]


@dataclass(frozen=True)
class PatternChoice:
    """One of several branches, the first that leads to a match."""

    branches: tuple[RowPattern, ...]


@dataclass(frozen=True)
class PatternRepetition:
    """A part ``least`` to ``most`` times (None: without end), as often as possible, or as seldom."""

    part: RowPattern
    least: int
    most: int | None
    greedy: bool = True


RowPattern: TypeAlias = PatternVariable | PatternSequence | PatternChoice | PatternRepetition


def parse_pattern(text: str) -> RowPattern:
    """Read a pattern; refuse one that an automaton cannot hold, or that matches no row at all."""
    reader = _PatternReader(tokens(text), text=text)
    found = reader.whole()
    if _can_be_empty(found):
        raise DataflowError(
            f"the pattern {shorten(text)} also matches no rows at all",
            hint="at least one row must be required, as in 'A B*'",
        )
    return found


def variables_of(pattern: RowPattern) -> tuple[str, ...]:
    """Return the variables of a pattern in lower case, each once, in their order."""
    return tuple(dict.fromkeys(_variables(pattern)))


def is_bounded(pattern: RowPattern) -> bool:
    """Return whether a match has a greatest number of rows."""
    match pattern:
        case PatternVariable():
            return True
        case PatternRepetition(part, _, most):
            return most is not None and is_bounded(part)
        case PatternSequence(parts) | PatternChoice(parts):
            return all(map(is_bounded, parts))


def program_of(pattern: RowPattern) -> tuple[Step, ...]:
    """Return the program of a pattern: its steps, and ``("end",)``."""
    program = _Program()
    program.add(pattern)
    return (*program.steps, ("end",))


def _variables(pattern: RowPattern) -> Iterator[str]:
    match pattern:
        case PatternVariable(name):
            yield name
        case PatternRepetition(part):
            yield from _variables(part)
        case PatternSequence(parts) | PatternChoice(parts):
            for part in parts:
                yield from _variables(part)


def _can_be_empty(pattern: RowPattern) -> bool:
    match pattern:
        case PatternVariable():
            return False
        case PatternRepetition(part, least):
            return least == 0 or _can_be_empty(part)
        case PatternSequence(parts):
            return all(map(_can_be_empty, parts))
        case PatternChoice(branches):
            return any(map(_can_be_empty, branches))


class _Program:
    """Writes the steps of a pattern."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, pattern: RowPattern) -> None:
        match pattern:
            case PatternVariable(name):
                self._step(("row", name))
            case PatternSequence(parts):
                for part in parts:
                    self.add(part)
            case PatternChoice(branches):
                self._choice(branches)
            case PatternRepetition(part, least, most, greedy):
                for _ in range(least):
                    self.add(part)
                if most is None:
                    self._loop(part, greedy)
                else:
                    self._optional(part, most - least, greedy)

    def _step(self, step: Step) -> int:
        if len(self.steps) >= MOST_STEPS:
            raise DataflowError(
                f"the pattern has more than {MOST_STEPS} steps", hint="repeat with + or *, and bound the time by within"
            )
        self.steps.append(step)
        return len(self.steps) - 1

    def _choice(self, branches: tuple[RowPattern, ...]) -> None:
        ends = []
        for branch in branches[:-1]:
            split = self._step(("jump", 0))
            self.add(branch)
            ends.append(self._step(("jump", 0)))
            self.steps[split] = ("split", split + 1, len(self.steps))
        self.add(branches[-1])
        for end in ends:
            self.steps[end] = ("jump", len(self.steps))

    def _loop(self, part: RowPattern, greedy: bool) -> None:
        split = self._step(("jump", 0))
        self.add(part)
        self._step(("jump", split))
        self.steps[split] = self._split(split + 1, len(self.steps), greedy)

    def _optional(self, part: RowPattern, times: int, greedy: bool) -> None:
        splits = []
        for _ in range(times):
            splits.append(self._step(("jump", 0)))
            self.add(part)
        for split in splits:
            self.steps[split] = self._split(split + 1, len(self.steps), greedy)

    @staticmethod
    def _split(body: int, after: int, greedy: bool) -> Step:
        return ("split", body, after) if greedy else ("split", after, body)


class _PatternReader(TokenReader):
    hint: ClassVar[str] = "write variables, |, (...), *, +, ? and {n,m}, as in 'A B+ (C | D)?'"

    _nested = 0

    def whole(self) -> RowPattern:
        found = self._choice()
        if self._peek().kind != "end":
            raise self._unexpected(self._peek(), "a variable")
        return found

    def _choice(self) -> RowPattern:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return PatternChoice(tuple(branches)) if len(branches) > 1 else branches[0]

    def _sequence(self) -> RowPattern:
        parts = [self._repeated()]
        while self._peek().kind in ("word", "quoted") or self._peek().text == "(":
            parts.append(self._repeated())
        return PatternSequence(tuple(parts)) if len(parts) > 1 else parts[0]

    def _repeated(self) -> RowPattern:
        part = self._part()
        times = self._times()
        if times is None:
            return part
        if _can_be_empty(part):
            raise DataflowError(
                f"a repeated part of the pattern {shorten(self._text)} also matches no rows",
                hint="repeat it once: 'A*' in place of '(A*)+' or '(A?)*'",
            )
        return PatternRepetition(part, *times, greedy=not self._take("?"))

    def _part(self) -> RowPattern:
        if self._take("("):
            self._nested += 1
            if self._nested > MAX_DEPTH:
                raise DataflowError(f"the pattern is nested more than {MAX_DEPTH} deep", hint="write it flatter")
            found = self._choice()
            self._expect(")")
            self._nested -= 1
            return found
        token = self._next()
        if token.kind not in ("word", "quoted"):
            raise self._unexpected(token, "a variable")
        if token.upper == "PERMUTE" and self._peek().text == "(":
            raise self._unexpected(token, "no PERMUTE", "write the orders: '(A B | B A)'")
        return PatternVariable(token.text.lower())

    def _times(self) -> tuple[int, int | None] | None:
        for symbol, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(symbol):
                return times
        if not self._take("{"):
            return None
        least = most = None
        if self._peek().kind == "number":
            least = most = self._count()
        if least is None or self._peek().text == ",":
            self._expect(",")
            most = self._count() if self._peek().kind == "number" or least is None else None
        self._expect("}")
        if most is not None and ((least or 0) > most or most == 0):
            raise DataflowError(
                f"{{{least or 0},{most}}} in the pattern {shorten(self._text)} repeats nothing",
                hint="write the lower number first, as in 'A{2,5}'",
            )
        return least or 0, most

    def _count(self) -> int:
        token = self._next()
        if token.kind != "number" or not token.text.isdecimal() or len(token.text) > 6:
            raise self._unexpected(token, "a whole number below a million")
        return int(token.text)
