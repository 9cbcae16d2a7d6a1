"""The rows of a reference table in a database, read by the zone's Spark through JDBC.

One statement reads them, so they are of one moment. User and password are read from the environment of the agent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headwater.connectors.jdbc import lacks_driver, scheme_of
from headwater.connectors.packages import how_to_add
from headwater.connectors.sparksql import expression, items
from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.dataflow.jdbcurl import known_database
from headwater.dataflow.lookup import Lookup
from headwater.disk.credentials import read_secret
from headwater.sql.lexer import quoted
from headwater.sql.schema import DataType, Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_WIDER = {"decimal": ("decimal", "float", "double"), "float": ("double",), "date": ("timestamp",)}


def database_rows(spark: SparkSession, lookup: Lookup) -> DataFrame:
    """Return the rows of a table in a database, in the columns and types of its schema.

    Raise HeadwaterError where the database does not answer, or has other columns. A value that does not fit its type
    is an error when the rows are read.
    """
    reader: Any = spark.read.format("jdbc").options(**_options(lookup))
    try:
        frame: DataFrame = reader.load()
        fields = frame.schema.fields  # asks the database
    except Exception as error:
        raise jdbc_failure(error, lookup) from error
    found = {f.name.lower(): (f.name, DataType.parse(f.dataType.simpleString())) for f in fields}
    columns = []
    for column in Schema.parse(lookup.schema_text).columns:
        if column.name.lower() not in found:
            raise RuntimeFailure(
                f"the table in the database has no column '{column.name}'",
                where=lookup.where,
                hint=f"its columns are {', '.join(name for name, _ in found.values())}",
            )
        name, type_ = found[column.name.lower()]
        if not _fits(type_.text, column.type.text):
            raise RuntimeFailure(
                f"'{name}' is {type_.text} in the database, not {column.type.text}",
                where=lookup.where,
                hint=f"declare it as {type_.text}, or convert it: query='SELECT CAST(... AS ...) AS {name} ...'",
            )
        columns.append(f"CAST({quoted(name)} AS {column.type.text}) AS {quoted(column.name)}")
    return frame.select(*items(*columns))


def content_of(frame: DataFrame) -> str:
    """Return a fingerprint of a frame's rows in any order."""
    row = f"sha2(to_json(struct({', '.join(quoted(n) for n in frame.columns)})), 256)"
    parts = [f"CAST(conv(substr({row}, {at}, 15), 16, 10) AS decimal(38, 0))" for at in (1, 16)]
    sums = frame.select(*(expression(part).alias(f"part{n}") for n, part in enumerate(parts)))
    found = sums.agg(*items("count(*) AS count", "sum(part0) AS first", "sum(part1) AS second")).collect()[0]
    return f"{found['count']}-{found['first']}-{found['second']}"


def jdbc_failure(error: Exception, lookup: Lookup) -> Exception:
    """Shorten a Java stack trace to an error of one line."""
    if lacks_driver(error):
        return Unavailable(
            f"Spark has no driver for {scheme_of(lookup.path)}", where=lookup.where, hint=how_to_add(lookup)
        )
    text = str(error).strip() or type(error).__name__
    *_, cause = [text.splitlines()[0], *_CAUSE.findall(text)]  # the driver's own words are the last ones
    return RuntimeFailure(
        f"the table in the database was not read: {cause}",
        where=lookup.where,
        hint="check that the database answers, that the user may read the table, and that its values fit the schema "
        "given to table.jdbc(...); the unit starts again by itself",
    )


def _options(lookup: Lookup) -> dict[str, str]:
    rows, known = lookup.database, known_database(lookup.path)
    assert rows is not None
    named: dict[str, Any] = {
        "user": read_secret(rows.user_env, where=lookup.where),
        "password": read_secret(rows.password_env, where=lookup.where),
        "driver": known.driver if known is not None else None,
        "dbtable": rows.table,
        "query": rows.query,
        "url": lookup.path,
    }
    if scheme_of(lookup.path) == "jdbc:postgresql:":  # a function in the statement may write
        named["url"] += f"{'&' if '?' in lookup.path else '?'}readOnly=true&readOnlyMode=always"
    return {**dict(lookup.options), **{k: v for k, v in named.items() if v is not None}}


def _fits(found: str, declared: str) -> bool:
    """Return whether a column may be converted to a declared type: values then fit, or are an error.

    >>> _fits("int", "bigint"), _fits("decimal(38,18)", "double"), _fits("double", "int"), _fits("boolean", "date")
    (True, True, False, False)
    """
    kind, wanted = found.partition("(")[0], declared.partition("(")[0]
    if found == declared or declared == "string":
        return True
    if kind in _WHOLE:
        return wanted in (*_WHOLE, *_WIDER["decimal"])
    return wanted in _WIDER.get(kind, ())
