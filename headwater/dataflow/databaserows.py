"""Rows of a database that a reference table has: of a table, or of a SELECT statement."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow.jdbcurl import parse_jdbc_url
from headwater.dataflow.settings import Place, Statement

_PART = r'(?:[^\W\d][\w$]*|"[^"\0]+"|`[^`\0]+`)'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|--|/\*|\$\$|.", re.DOTALL)
_VIEW = "make a view of it in the database, and name the view: table='...'"


@dataclass(frozen=True, kw_only=True)
class DatabaseRows:
    """All rows of ``table``, ``[[catalog.]schema.]name``, or the result of ``query``, one SELECT statement.

    ``user_env``, ``password_env``: names of secrets, which are read in the zone that reads the database.
    """

    table: Place | None = None
    query: Statement | None = None
    user_env: Place | None = None
    password_env: Place | None = None

    def check(self, url: str, *, where: str) -> None:
        """Raise DataflowError for a URL, table or statement that is not accepted."""
        parse_jdbc_url(url, where=where)
        if (self.table is None) == (self.query is None):
            raise DataflowError(
                "rows of a database are those of a table, or of a query",
                where=where,
                hint="give one of table='machines' and query='SELECT machine, most FROM machines'",
            )
        if self.table is not None and not _TABLE.fullmatch(self.table):
            raise DataflowError(
                f"'{cut(self.table, 200)}' is no name of a table",
                where=where,
                hint="write it as 'table' or 'schema.table', or give a statement: query='SELECT ...'",
            )
        if self.query is not None and (problem := _problem(self.query)) is not None:
            raise DataflowError(f"the query {problem}", where=where, hint=_VIEW)


def _problem(query: str) -> str | None:
    """Return why a text is not one plain SELECT statement, which Spark puts in parentheses; None where it is one.

    >>> _problem("SELECT a FROM t WHERE b = ';'"), _problem("SELECT a FROM t) x; DROP TABLE t")
    (None, 'closes a parenthesis that it has not opened')
    """
    if not re.match(r"\s*(select|with)\b", query, re.IGNORECASE):
        return "does not begin with SELECT or WITH"
    if "\\" in query or "\0" in query:
        return "has a backslash, by which databases end texts in different places"
    depth = 0
    for token in _TOKEN.findall(query):
        match token:
            case "(":
                depth += 1
            case ")":
                depth -= 1
                if depth < 0:
                    return "closes a parenthesis that it has not opened"
            case ";":
                return "has a semicolon: it is to be one statement"
            case "--" | "/*" | "$$" | "#":
                return f"has '{token}', which begins a comment or a text in some databases"
            case "'" | '"' | "`":
                return f"has a quote {token} without its end"
    return "opens a parenthesis that it does not close" if depth else None
