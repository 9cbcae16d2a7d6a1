"""JDBC URLs, parsed: the hosts that they reach or the file that they open, and their parameters.

A driver takes parameters that load classes, run scripts or read files (``socketFactory`` of PostgreSQL, ``INIT`` of
H2, ``autoDeserialize`` of MySQL). So only URLs of known drivers in their plain form are accepted, with parameters
from an allow-list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.core.errors import DataflowError, suggestion


@dataclass(frozen=True, kw_only=True)
class KnownDatabase:
    """A kind of database, with the driver that Spark uses for it, and its default port.

    ``package``: the driver's, from Maven; None: part of Spark. ``driver``: its class; None: Java finds it.
    ``parameters``: those that a URL may have, in lower case.
    """

    package: str | None
    driver: str | None
    port: int = 0
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class DatabaseAddress:
    """A parsed URL: its kind of database, the hosts and ports that it reaches, or the file that it opens."""

    kind: str
    hosts: tuple[tuple[str, int], ...] = ()
    file: str | None = None


def _names(text: str) -> frozenset[str]:
    return frozenset(text.lower().split())


_MYSQL = _names(
    "useSSL requireSSL sslMode useTls characterEncoding useUnicode connectTimeout socketTimeout serverTimezone "
    "connectionTimeZone timezone rewriteBatchedStatements useServerPrepStmts cachePrepStmts tinyInt1isBit "
    "zeroDateTimeBehavior allowPublicKeyRetrieval tcpKeepAlive useCursorFetch useBulkStmts autoReconnect"
)

DRIVERS: Final[Mapping[str, KnownDatabase]] = {
    "postgresql": KnownDatabase(
        package="org.postgresql:postgresql:42.7.4",
        driver="org.postgresql.Driver",
        port=5432,
        parameters=_names(
            "ssl sslmode connectTimeout socketTimeout loginTimeout ApplicationName currentSchema tcpKeepAlive "
            "targetServerType loadBalanceHosts reWriteBatchedInserts stringtype prepareThreshold defaultRowFetchSize "
            "gssEncMode channelBinding binaryTransfer"
        ),
    ),
    "mysql": KnownDatabase(
        package="com.mysql:mysql-connector-j:8.4.0", driver="com.mysql.cj.jdbc.Driver", port=3306, parameters=_MYSQL
    ),
    "mariadb": KnownDatabase(
        package="org.mariadb.jdbc:mariadb-java-client:3.4.1",
        driver="org.mariadb.jdbc.Driver",
        port=3306,
        parameters=_MYSQL,
    ),
    "sqlserver": KnownDatabase(
        package="com.microsoft.sqlserver:mssql-jdbc:12.8.1.jre11",
        driver="com.microsoft.sqlserver.jdbc.SQLServerDriver",
        port=1433,
        parameters=_names(
            "databaseName database encrypt trustServerCertificate loginTimeout socketTimeout queryTimeout "
            "applicationName sendStringParametersAsUnicode useBulkCopyForBatchInsert hostNameInCertificate lockTimeout"
        ),
    ),
    "oracle": KnownDatabase(
        package="com.oracle.database.jdbc:ojdbc11:23.5.0.24.07", driver="oracle.jdbc.OracleDriver", port=1521
    ),
    "sqlite": KnownDatabase(package="org.xerial:sqlite-jdbc:3.46.1.3", driver="org.sqlite.JDBC"),
    "h2": KnownDatabase(
        package="com.h2database:h2:2.3.232",
        driver="org.h2.Driver",
        port=9092,
        parameters=_names(
            "MODE DATABASE_TO_UPPER DATABASE_TO_LOWER CASE_INSENSITIVE_IDENTIFIERS DB_CLOSE_DELAY DB_CLOSE_ON_EXIT "
            "IFEXISTS LOCK_TIMEOUT NON_KEYWORDS"
        ),
    ),
    "derby": KnownDatabase(package=None, driver=None, parameters=_names("create")),
}
"""The known drivers by the second part of the URL."""


def known_database(url: str) -> KnownDatabase | None:
    """Return the kind of database of a URL; None for an unknown one.

    >>> known_database("jdbc:derby:/data/db").package is None
    True
    """
    return DRIVERS.get(url.removeprefix("jdbc:").partition(":")[0])


_HOST = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
_PLAIN = re.compile(rf"//((?:{_HOST})(?::\d+)?(?:,(?:{_HOST})(?::\d+)?)*)(?:/([\w.%-]*))?")
_SQLSERVER = re.compile(rf"//({_HOST})(?:\\[\w$]+)?(?::(\d+))?")
_ORACLE = re.compile(rf"thin:@(?://)?({_HOST})(?::(\d+))?(?:[/:][\w.$#-]+)?")
_H2_SERVER = re.compile(rf"tcp://({_HOST})(?::(\d+))?/[\w./~-]+")
_PATH = re.compile(r"(?:file:)?(/[^;?!:\\{}*\0]+)")
_HINT = "write it in its plain form, such as jdbc:postgresql://db.plant:5432/name?sslmode=require"


def parse_jdbc_url(url: str, *, where: str) -> DatabaseAddress:
    """Parse a URL; raise DataflowError for an unknown driver, an unusual form, or a parameter that is not allowed.

    >>> parse_jdbc_url("jdbc:postgresql://a,b:5433/plant?ssl=true", where="x").hosts
    (('a', 5432), ('b', 5433))
    """
    scheme, _, rest = url.partition(":")
    kind, _, rest = rest.partition(":")
    known = DRIVERS.get(kind) if scheme == "jdbc" else None
    if known is None:
        raise DataflowError(
            f"the driver of '{scheme}:{kind[:40]}:' is not known",
            where=where,
            hint=suggestion(kind, DRIVERS, "the kinds of databases are"),
        )
    body, texts = _parameters(kind, rest)
    for text in texts:
        name = text.partition("=")[0].strip()
        if name.lower() in ("user", "username", "password"):
            raise DataflowError(
                f"'{name}' in a JDBC URL would be stored and shown",
                where=where,
                hint="name a secret instead: user_env='HEADWATER_SECRET_...', password_env='HEADWATER_SECRET_...'",
            )
        if name.lower() not in known.parameters:
            allowed = sorted(known.parameters)
            hint = suggestion(name.lower(), allowed, "leave it out; allowed are") if allowed else "leave it out"
            raise DataflowError(f"the parameter '{name}' of a {kind} URL is not allowed", where=where, hint=hint)
    hosts, file = _target(kind, body, known.port)
    if not hosts and file is None:
        raise DataflowError(f"a {kind} URL of this form is not accepted", where=where, hint=_HINT)
    return DatabaseAddress(kind=kind, hosts=hosts, file=file)


def _parameters(kind: str, rest: str) -> tuple[str, list[str]]:
    """Split the part behind the driver into what it reaches, and its parameters."""
    if kind in ("sqlserver", "h2", "derby"):
        body, *texts = rest.split(";")
        return body, [text for text in texts if text]
    body, mark, query = rest.partition("?")
    return body, [text for text in query.split("&") if text] if mark else []


def _target(kind: str, body: str, port: int) -> tuple[tuple[tuple[str, int], ...], str | None]:
    if kind in ("postgresql", "mysql", "mariadb") and (match := _PLAIN.fullmatch(body)):
        return tuple(_host(text, port) for text in match[1].split(",")), None
    one = {"sqlserver": _SQLSERVER, "oracle": _ORACLE, "h2": _H2_SERVER}.get(kind)
    if one is not None and (match := one.fullmatch(body)):
        return ((match[1].strip("[]").lower(), int(match[2] or port)),), None
    if kind in ("sqlite", "h2", "derby") and (match := _PATH.fullmatch(body)):
        return (), match[1]
    return (), None


def _host(text: str, port: int) -> tuple[str, int]:
    match = re.fullmatch(rf"({_HOST})(?::(\d+))?", text)
    assert match is not None  # as the whole URL
    return match[1].strip("[]").lower(), int(match[2] or port)
