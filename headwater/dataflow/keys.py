"""Keys of a grouping: names of columns, windows, and expressions with a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from headwater.core.errors import DataflowError
from headwater.core.quantity import parse_duration
from headwater.core.rules import OneLine, Refused, Rule, a_type
from headwater.core.text import cut
from headwater.dataflow.settings import Several, refused_argument
from headwater.dataflow.stateful import SessionWindow, TimeWindow, session_window, window
from headwater.sql.columns import SparkColumn, column_tree, is_column
from headwater.sql.functions import GROUPINGS
from headwater.sql.printer import canonical
from headwater.sql.syntax import Alias, Call, Literal, Name, SyntaxNode

_WINDOWS = (
    'write F.window("ts", "1 hour"), F.window("ts", "1 hour", "5 minutes") or F.session_window("ts", "5 minutes")'
)


@dataclass(frozen=True)
class KeyExpression:
    """A key that is computed before the grouping: a name, and an expression of Spark SQL."""

    name: str
    text: str


Key: TypeAlias = str | TimeWindow | SessionWindow | KeyExpression


@dataclass(frozen=True)
class KeyRule(Rule):
    """Keys as names, windows, or Columns of PySpark."""

    def check(self, value: Any, name: str) -> Key:
        if isinstance(value, TimeWindow | SessionWindow):
            return value
        if is_column(value):
            with refused_argument(name):
                return key_of(column_tree(value))
        if not isinstance(value, str):
            raise Refused(
                f"{name} is {a_type(value)} where a key is wanted",
                hint='write group_by(hw.window("ts", "1 minute"), "machine")',
            )
        return OneLine().check(value, name)


Keys = Annotated[
    str | SparkColumn | TimeWindow | SessionWindow | list[str | SparkColumn | TimeWindow | SessionWindow],
    Several(KeyRule()),
]


def key_of(node: SyntaxNode) -> Key:
    """Return the key of a grouping that an expression is."""
    match node:
        case Name((name,)):
            return name
        case Alias(Name((name,)), alias) if alias.lower() == name.lower():
            return name
        case Call(called, arguments) if called in GROUPINGS:
            return _window(called, arguments)
        case Alias(Call(called), alias) if called in GROUPINGS:
            raise DataflowError(
                f"the window's column is '{called}', not {alias!r}",
                hint=f'leave out alias(), and rename it after agg(...): .select("{called} AS {alias}", ...)',
            )
        case Alias(value, name):
            return KeyExpression(name, canonical(value))
    raise DataflowError(f"the key {cut(canonical(node), 300)} has no name", hint='give it one: .alias("key")')


def _window(called: str, arguments: tuple[SyntaxNode, ...]) -> TimeWindow | SessionWindow:
    """Read ``window(ts, '1 hour', '5 minutes')``; PySpark writes a fourth argument, the start, also where it is 0."""
    column, *spans = arguments
    if isinstance(column, Call) and column.name == "window_time":
        raise DataflowError(
            "a window of windows",
            hint='name the time first: .with_columns(t="window_time(window)"), with F.window("t", ...)',
        )
    if not isinstance(column, Name) or len(column.parts) > 1:
        raise DataflowError(f"the window is over {cut(canonical(column), 300)}, not a column", hint=_WINDOWS)
    texts = [span.value for span in spans if isinstance(span, Literal) and isinstance(span.value, str)]
    if len(texts) < len(spans):
        raise DataflowError("the window's spans are no constant text", hint=_WINDOWS)
    if called == "session_window":
        return session_window(column.parts[0], *texts)
    if len(texts) == 3 and parse_duration(texts.pop()) != 0:
        raise DataflowError("windows begin at the epoch, without a start of their own", hint="leave out startTime")
    return window(column.parts[0], *texts)
