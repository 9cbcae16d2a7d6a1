"""Hints of errors name only what exists: methods, functions of SQL, options and commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from pyspark import pipelines
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as pyspark_functions
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

import headwater as hw
from headwater import iot
from headwater.cli.app import app
from headwater.dataflow import habits
from headwater.dataflow.builder import DataflowBuilder, Reader
from headwater.dataflow.grouped import Grouped
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.rowwindows import Counted, Windowed
from headwater.dataflow.stream import Stream
from headwater.dataflow.tablereader import TableReader
from headwater.dataflow.writer import Writer, WrittenStream
from headwater.sql import functions, special
from headwater.sql.names import UNIT_FIRST

ROOT = Path(hw.__file__).parent
METHODS = [
    DataflowBuilder, Reader, TableReader, hw.Dataflow, Stream, ReferenceTable, Grouped, Counted, Windowed, Writer,
    WrittenStream,
]  # fmt: skip


def constants(node: ast.AST) -> str:
    """Join the fixed parts of an expression's texts; each inserted value becomes a blank."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else " "
    if isinstance(node, ast.FormattedValue):
        return " "
    return "".join(constants(child) for child in ast.iter_child_nodes(node))


@cache
def hints() -> list[tuple[str, str]]:
    """Return the place and the text of every hint."""
    return [*hints_in_code(), *hints_of_habits()]


def hints_in_code() -> Iterator[tuple[str, str]]:
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            found: list[ast.expr] = []
            if isinstance(node, ast.Call):
                found += [k.value for k in node.keywords if k.arg == "hint"]
                name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                found += node.args[1:2] if name == "error" and len(node.args) == 2 else []
            elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "hint" for t in node.targets):
                found.append(node.value)
            for one in found:
                if text := constants(one).strip():
                    yield f"{file.relative_to(ROOT)}:{one.lineno}", text


def hints_of_habits() -> Iterator[tuple[str, str]]:
    for table in (habits.STREAM, habits.GROUPED, habits.READER, habits.TABLE, habits.WRITER, habits.BUILDER):
        for name, text in table.items():
            yield f"habits, {name}", text


OTHERS = {"option", "fit", "cast", "build", "overwrite", "save"}
"""Methods of Spark's reader and of models, SQL's syntax, and a function of the user's."""


def test_methods_and_functions_in_hints_exist() -> None:
    methods = {name for owner in METHODS for name in dir(owner)} | OTHERS
    known = {*methods, *hw.__all__, *dir(iot), *dir(iot.Bloom), *UNIT_FIRST, *functions.GENERATORS}
    for table in (functions.SCALARS, functions.AGGREGATES, special.RULES, special.AGGREGATE_RULES):
        known |= set(table)
    named = [
        (place, before, name)
        for place, text in hints()
        for before, name in re.findall(r"(?<![\w`-])((?:\w+)?\.)?([a-z_]{2,})\(", text)
    ]
    assert len(named) > 60
    of_columns = set(dir(Column))
    # Hints for whole jobs name methods of PySpark.
    of_frames = {name for owner in (DataFrame, DataStreamReader, DataStreamWriter) for name in dir(owner)}
    names = {".": methods | of_columns, "F.": set(dir(pyspark_functions)), "dp.": set(dir(pipelines))}
    in_jobs = {**names, ".": methods | of_columns | of_frames, "a.": of_frames, "df.": of_frames}
    assert not [
        (place, before, name)
        for place, before, name in named
        if name not in (in_jobs if place.startswith("frames/") else names).get(before, known | {"alias", "asc", "desc"})
    ]


def test_options_and_commands_in_hints_exist() -> None:
    options: dict[str, set[str]] = {}
    todo: list[tuple[str, Any]] = [("", typer.main.get_command(app))]
    while todo:
        name, command = todo.pop()
        options[name] = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        todo += list(getattr(command, "commands", {}).items())
    known = set().union(*options.values())
    for place, text in hints():
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known, place
        assert set(re.findall(r"`headwater ([a-z-]+)", text)) <= set(options), place
