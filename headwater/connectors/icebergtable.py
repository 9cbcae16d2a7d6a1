"""Iceberg tables of SQL catalogs: opened for a sink or a source, with all of their files below one directory.

A catalog says where the files of a table are, and a table's properties may name other directories and Python classes.
So a table outside the warehouse, or with such properties, is refused: the warehouse is what a zone permits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headwater.connectors.tablefiles import library, wait_for_turn
from headwater.core.errors import ChannelError, HeadwaterError, Unavailable
from headwater.core.permissions import is_below
from headwater.disk.credentials import read_secret
from headwater.disk.layout import full_path

if TYPE_CHECKING:
    from headwater.dataflow.tablesinks import IcebergSink
    from headwater.dataflow.tablesources import IcebergSource

_REFUSED = ("write.data.path", "write.metadata.path", "write.py-location-provider.impl", "py-io-impl")
_TRIES = 5
_SECONDS = 60  # that another process may hold SQLite's lock
_IO = "headwater.connectors.icebergio.TableFiles"


@dataclass(frozen=True, kw_only=True)
class IcebergAddress:
    """A table, and how its catalog is reached; secrets are named."""

    table: str
    catalog: str
    warehouse: str
    catalog_name: str = "default"
    user_env: str | None = None
    password_env: str | None = None
    fsync: bool = True

    @classmethod
    def of(cls, operator: IcebergSink | IcebergSource) -> IcebergAddress:
        """Return the address of the table of a sink or source."""
        return cls(
            table=operator.table,
            catalog=operator.catalog,
            warehouse=full_path(operator.warehouse),
            catalog_name=operator.catalog_name,
            user_env=operator.user_env,
            password_env=operator.password_env,
        )

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> IcebergAddress:
        """Read the JSON form; other entries are left alone."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})

    @property
    def where(self) -> str:
        return f"table {self.table} of {self.catalog}"


@contextlib.contextmanager
def opened(address: IcebergAddress) -> Iterator[Any]:
    """Have the catalog; raise Unavailable where its database does not answer."""
    sql = library("pyiceberg.catalog.sql", where=address.where)
    alchemy = library("sqlalchemy", where=address.where)
    settings = {"uri": _url(address), "warehouse": f"file://{address.warehouse}"}
    settings |= {"py-io-impl": _IO} if address.fsync else {}
    for left in reversed(range(_TRIES)):
        try:
            catalog = sql.SqlCatalog(address.catalog_name, **settings)
            break
        except alchemy.exc.SQLAlchemyError as error:
            # Another unit may make the catalog's tables at the same moment.
            if left == 0 or "exists" not in str(error):
                raise unavailable(error, address) from error
            wait_for_turn(0)
    try:
        yield catalog
    except alchemy.exc.SQLAlchemyError as error:
        raise unavailable(error, address) from error
    finally:
        catalog.close()


def _url(address: IcebergAddress) -> str:
    """Return SQLAlchemy's URL of the catalog's database, with user and password."""
    from sqlalchemy.engine import make_url

    url = make_url(address.catalog)
    user = read_secret(address.user_env, where=address.where)
    password = read_secret(address.password_env, where=address.where)
    if url.drivername == "postgresql":
        library("psycopg", where=address.where)
        url = url.set(drivername="postgresql+psycopg", username=user, password=password)
        url = url.update_query_dict({"passfile": f"{os.devnull}/none"})  # as for PostgreSQL as a sink
    else:
        url = url.update_query_dict({"timeout": str(_SECONDS)})
    return url.render_as_string(hide_password=False)


def unavailable(error: Exception, address: IcebergAddress) -> HeadwaterError:
    """Return the error of a catalog's database that does not answer, in one line and without secrets."""
    text = str(getattr(error, "orig", None) or type(error).__name__).strip()
    return Unavailable(
        f"the catalog does not answer: {text.splitlines()[0] if text else type(error).__name__}",
        where=address.where,
        hint="check its address and secrets, and that its directory exists",
    )


def existing(catalog: Any, address: IcebergAddress) -> Any | None:
    """Return the table; None where there is none. Raise ChannelError where it may have files elsewhere."""
    errors = library("pyiceberg.exceptions", where=address.where)
    try:
        table = catalog.load_table(address.table)
    except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
        return None
    roots = (os.path.realpath(address.warehouse),)
    for location in (table.location(), table.metadata_location):
        if not is_below(os.path.realpath(local_path(location)), roots):
            raise ChannelError(
                f"its files are at '{location}', which is outside the warehouse '{address.warehouse}'",
                where=address.where,
                hint="give the directory of the table's files as warehouse=",
            )
    for name in _REFUSED:
        if name in table.properties:
            raise ChannelError(
                f"the table's property {name} is not supported",
                where=address.where,
                hint="remove the property, or write to another table",
            )
    return table


def local_path(location: str) -> str:
    """Return the path of a location, which may be a ``file:`` URI.

    >>> local_path("file:///data/a%20b"), local_path("/data/x")
    ('/data/a b', '/data/x')
    """
    parts = urlsplit(location)
    return unquote(parts.path) if parts.scheme == "file" else location
