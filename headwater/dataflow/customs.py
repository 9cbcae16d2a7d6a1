"""Connectors of the user's own: Python data sources of Spark (`pyspark.sql.datasource`) as sources and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from headwater.core.errors import DataflowError
from headwater.core.text import cut, shown_value
from headwater.dataflow import habits
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.settings import ColumnName, Label, Option, Place, SchemaOf, option_text
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.dataflow.streambase import S, schema_text
from headwater.sql.lexer import quoted
from headwater.sql.schema import Schema

_BASE = ("pyspark.sql.datasource", "DataSource")
W = TypeVar("W")
"""A written stream."""
Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class CustomSource(Source):
    """Rows of a Python data source; '{location}' in the values of its options is replaced.

    ``bounded``: it ends, and can run with ``--until-drained``. The class is code of the user's.
    """

    kind: ClassVar[str] = "custom"
    shown: ClassVar[tuple[str, ...]] = ("provider",)
    provider: PythonFunction
    schema_text: str
    options: Options = ()
    bounded: bool = False

    @property
    def per_location(self) -> bool:
        return any("{location}" in value for _, value in self.options)

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)


@dataclass(frozen=True, kw_only=True)
class CustomSink(Sink):
    """Rows for a Python data source's stream writer, which gets each batch with its number.

    A failure may write a batch again, with the same number: a writer that stores the newest number writes each batch
    once. ``{zone}`` in the values of its options is replaced. The class is code of the user's.
    """

    kind: ClassVar[str] = "custom_out"
    shown: ClassVar[tuple[str, ...]] = ("provider",)
    provider: PythonFunction
    options: Options = ()


def provider_of(given: object, registered: Mapping[str, PythonFunction], *, where: str) -> PythonFunction:
    """Return a data source's class as a value: the class itself, or one that was registered by its name."""
    if isinstance(given, str):
        if given in registered:
            return registered[given]
        known = ", ".join(registered) or "none"
        raise DataflowError(
            f"there is no data source '{cut(given, 200)}'",
            where=where,
            hint=f"give the class itself, format(MySource), or register it first (registered: {known})",
        )
    if not (isinstance(given, type) and any((c.__module__, c.__name__) == _BASE for c in given.__mro__)):
        raise DataflowError(
            f"{shown_value(given)} is no Python data source",
            where=where,
            hint="give a class that inherits from pyspark.sql.datasource.DataSource",
        )
    return PythonFunction.of(given, where=where)


class DataSources:
    """The data sources that a dataflow knows by name, as ``spark.dataSource``."""

    def __init__(self, dataflow: str) -> None:
        self._dataflow = dataflow
        self.known: dict[str, PythonFunction] = {}

    def register(self, source: type[Any]) -> None:
        """Make a class known by its ``name()``."""
        where = f"dataSource.register of dataflow '{self._dataflow}'"
        provider = provider_of(source, {}, where=where)
        self.known[str(source.name())] = provider


@dataclass(frozen=True)
class CustomReader(habits.NameGuard, Generic[S]):
    """A data source that is being described, as PySpark's ``readStream.format(...)``."""

    make: Callable[..., S]
    provider: PythonFunction
    where: str
    text: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def schema(self, schema: SchemaOf) -> CustomReader[S]:
        """Set the columns; else the data source's own are taken."""
        return replace(self, text=schema_text(schema, self.where))

    def option(self, key: Label, value: Option) -> CustomReader[S]:
        """Set an option of the data source."""
        return replace(self, settings={**self.settings, key: option_text(value)})

    def options(self, **options: Option) -> CustomReader[S]:
        """Set several options."""
        return replace(self, settings={**self.settings, **{k: option_text(v) for k, v in options.items()}})

    def load(self, path: Place | None = None, *, bounded: bool = False, location_as: ColumnName | None = None) -> S:
        """Return the stream. ``path`` is an option of this name; ``bounded``: the source ends."""
        settings = self.settings if path is None else {**self.settings, "path": path}
        text = self.text or self._own_schema(settings)
        return self.make(
            CustomSource,
            provider=self.provider,
            schema_text=text,
            options=tuple(sorted(settings.items())),
            bounded=bounded,
            location_as=location_as,
        )

    def _own_schema(self, settings: Mapping[str, str]) -> str:
        try:
            found: Any = self.provider.load()(dict(settings)).schema()
        except Exception as error:
            raise DataflowError(
                f"the data source tells no schema: {cut(str(error) or type(error).__name__, 300)}",
                where=self.where,
                hint='give the columns: .schema("id bigint, v double")',
            ) from error
        if not isinstance(found, str):
            found = ", ".join(f"{quoted(f.name)} {f.dataType.simpleString()}" for f in found.fields)
        return schema_text(found, self.where)

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, {}, where=self.where)

    def _place_of(self, method: str) -> str:
        return f"{self.where}.{method}"


@dataclass(frozen=True)
class CustomWriter(habits.NameGuard, Generic[W]):
    """A sink of a data source that is being described, as PySpark's ``writeStream.format(...)``."""

    make: Callable[..., W]
    provider: PythonFunction
    where: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def option(self, key: Label, value: Option) -> CustomWriter[W]:
        """Set an option of the data source."""
        return replace(self, settings={**self.settings, key: option_text(value)})

    def options(self, **options: Option) -> CustomWriter[W]:
        """Set several options."""
        return replace(self, settings={**self.settings, **{k: option_text(v) for k, v in options.items()}})

    def start(self, path: Place | None = None) -> W:
        """Write the stream. ``path`` is an option of this name. Nothing runs yet."""
        settings = self.settings if path is None else {**self.settings, "path": path}
        return self.make(CustomSink, provider=self.provider, options=tuple(sorted(settings.items())))

    save = start

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, {}, where=self.where)

    def _place_of(self, method: str) -> str:
        return f"{self.where}.{method}"
