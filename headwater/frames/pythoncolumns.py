"""Translate Columns with Python functions: each function becomes an operator that adds its results as a column."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwater.core.errors import DataflowError
from headwater.core.text import shown
from headwater.dataflow.stream import Stream
from headwater.frames.functions import Call, Form, with_results
from headwater.frames.pickled import calling, unpickled
from headwater.frames.types import spark_json, type_of
from headwater.sql.columnnames import free_name
from headwater.sql.columns import ExpressionMessages, Message
from headwater.sql.lexer import quoted
from headwater.sql.printer import canonical
from headwater.sql.schema import DataType
from headwater.sql.scope import names_in
from headwater.sql.syntax import Name, SyntaxNode

_FORMS: dict[int, Form] = {
    100: "rows",  # SQL_BATCHED_UDF
    101: "rows",  # SQL_ARROW_BATCHED_UDF
    200: "pandas",  # SQL_SCALAR_PANDAS_UDF
    204: "pandas batches",  # SQL_SCALAR_PANDAS_ITER_UDF
    250: "arrow",  # SQL_SCALAR_ARROW_UDF
    251: "arrow batches",  # SQL_SCALAR_ARROW_ITER_UDF
}


@dataclass(frozen=True)
class PythonCall:
    """A call of a Python function in an expression; ``name`` is the column of its results."""

    name: str
    function: Callable[..., Any]
    form: Form
    arguments: tuple[SyntaxNode, ...]
    returns: DataType

    def over(self, columns: list[str]) -> Call:
        """Return the call as a worker runs it, with the columns of its arguments."""
        return self.name, self.function, self.form, tuple(columns), json.dumps(spark_json(self.returns))


class PythonColumns:
    """Reads expressions over a stream, and adds the results of their Python functions to it.

    ``resolve`` replaces names by columns of the stream.
    """

    def __init__(self, stream: Stream, resolve: Callable[[SyntaxNode], SyntaxNode]) -> None:
        self.stream = stream
        self._resolve = resolve
        self._calls: list[PythonCall] = []

    def place(self, message: Message, reader: ExpressionMessages) -> SyntaxNode | None:
        """Read a call of a Python function as the column of its results."""
        if message.WhichOneof("expr_type") != "common_inline_user_defined_function":
            return None
        part = message.common_inline_user_defined_function
        called = part.function_name or "the function"
        form = _FORMS.get(part.python_udf.eval_type)
        if form is None:
            raise DataflowError(
                f"{shown(called)} is a Python function of a kind that is no column here",
                hint="use F.udf or F.pandas_udf for columns, and functions of Spark for aggregates",
            )
        if not part.deterministic:
            raise DataflowError(
                f"{shown(called)} is not deterministic, and a repeated batch must give the same rows",
                hint="leave out asNondeterministic(), and compute from columns only",
            )
        arguments = tuple(self._resolve(reader.value(argument)) for argument in part.arguments)
        function, returns = unpickled(part.python_udf.command)
        name = free_name("result", [*self.stream.columns, *(call.name for call in self._calls)])
        self._calls.append(PythonCall(name, function, form, arguments, type_of(returns)))
        return Name((name,))

    def finish(self) -> Stream:
        """Return the stream with the results as further columns; each operator has the calls that need no other's."""
        ready: list[PythonCall] = []
        for call in self._calls:
            pending = {other.name for other in ready}
            computed = [a for a in call.arguments if not isinstance(a, Name) or len(a.parts) > 1]
            if any(name.parts[0] in pending for a in computed for name in names_in(a)):
                self._add(ready)
                ready = []
            ready.append(call)
        if ready:
            self._add(ready)
        return self.stream

    def _add(self, calls: list[PythonCall]) -> None:
        stream, before = self.stream, self.stream.columns
        known = {c.lower(): c for c in before}
        results = [call.name for call in calls]
        done: list[Call] = []
        for call in calls:
            names = []
            for argument in call.arguments:
                if isinstance(argument, Name) and len(argument.parts) == 1:
                    plain = argument.parts[0]
                    if plain not in results:
                        stream._require_columns([plain], call.name)
                        plain = known[plain.lower()]
                    names.append(plain)
                    continue
                names.append(free_name("argument", [*stream.columns, *results]))
                stream = stream.with_columns(**{names[-1]: canonical(argument)})
            done.append(call.over(names))
        schema = [c.text for c in self.stream.schema] + [f"{quoted(call.name)} {call.returns.text}" for call in calls]
        run = calling([call.function for call in calls], with_results, tuple(done), (*before, *results))
        self.stream = stream.map_batches(run, ", ".join(schema))
