"""Sources that are tables with a log of their own: Delta, Iceberg."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Annotated, ClassVar

from headwater.core.rules import Whole
from headwater.dataflow.settings import Place
from headwater.dataflow.sources import Source
from headwater.dataflow.tablesinks import check_iceberg, has_structs_in_lists
from headwater.dataflow.types import StreamType
from headwater.sql.schema import Schema

Version = Annotated[int, Whole(0)]
FilesPerBatch = Annotated[int, Whole(1, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class DeltaSource(Source):
    """The rows of a Delta table in the directory ``path`` ('{location}' is replaced).

    First the rows of a version: ``version``, the one of a ``timestamp``, or the newest one when the unit first starts.
    With ``follow`` then the rows that later versions add. A version that deletes or changes rows ends the unit with an
    error; with ``ignore_changes`` its new files are read, and rows that it only moved come again.
    """

    kind: ClassVar[str] = "delta"
    shown: ClassVar[tuple[str, ...]] = ("path",)

    path: Place
    schema_text: str
    version: Version | None = None
    timestamp: Place | None = None
    follow: bool = True
    ignore_changes: bool = False
    max_files_per_batch: FilesPerBatch = 1000

    @property
    def per_location(self) -> bool:
        return "{location}" in self.path

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        if "://" in self.path and not self.path.lower().startswith("file:"):
            raise self.error(f"'{self.path}' is not a directory", "give a local directory, or one of a shared disk")
        if self.version is not None and self.timestamp is not None:
            raise self.error("version and timestamp both choose a version", "give one of them")
        if self.timestamp is not None:
            self.instant(self.timestamp)
        return super().output(inputs)

    def instant(self, text: str) -> datetime.datetime:
        """Read a timestamp; without a zone it is in UTC. Raise DataflowError for other texts."""
        try:
            found = datetime.datetime.fromisoformat(text)
        except ValueError:
            raise self.error(f"'{text}' is no timestamp", "write it as 2026-01-31T12:00:00Z") from None
        return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


@dataclass(frozen=True, kw_only=True)
class IcebergSource(Source):
    """The rows of one snapshot of an Iceberg table: ``snapshot``, or the newest one when the unit first starts.

    ``catalog`` and the others: see IcebergSink.
    """

    kind: ClassVar[str] = "iceberg"
    shown: ClassVar[tuple[str, ...]] = ("table",)

    table: Place
    catalog: Place
    warehouse: Place
    schema_text: str
    catalog_name: Place = "default"
    snapshot: Version | None = None
    user_env: Place | None = None
    password_env: Place | None = None
    max_files_per_batch: FilesPerBatch = 1000

    @property
    def per_location(self) -> bool:
        return False

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        check_iceberg(self.table, self.catalog, self.warehouse, where=self.where)
        found = super().output(inputs)
        for column in found.schema.columns:
            if has_structs_in_lists(column.type):
                raise self.error(
                    f"'{column.name}' of type {column.type.text} has structs in an array or a map, and the library for "
                    "Iceberg makes empty ones of those that are NULL",
                    "leave the column out of the schema",
                )
        return found
