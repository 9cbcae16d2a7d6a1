"""Python data sources for tests: numbered JSON files as the outside, and variants with one fault each."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

SCHEMA = "n bigint, name string"


class Outside:
    """Rows in files 0.json, 1.json, ... of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def count(self) -> int:
        return sum(1 for _ in self.directory.glob("*.json"))

    def add(self, rows: int) -> list[dict[str, Any]]:
        begin = self.count()
        made = [{"n": n, "name": f"row {n}"} for n in range(begin, begin + rows)]
        for row in made:
            draft = self.directory / f"{row['n']}.draft"
            draft.write_text(json.dumps(row))
            os.rename(draft, self.directory / f"{row['n']}.json")
        return made


@dataclass
class Numbers(InputPartition):
    begin: int
    end: int


def rows_of(directory: str, part: Numbers) -> Iterator[tuple[Any, ...]]:
    for n in range(part.begin, part.end):
        row = json.loads((Path(directory) / f"{n}.json").read_text())
        yield row["n"], row["name"]


class FilesReader(DataSourceReader):
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def partitions(self) -> list[InputPartition]:
        return [Numbers(0, Outside(Path(self.directory)).count())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Numbers)
        return rows_of(self.directory, partition)


class FilesStream(DataSourceStreamReader):
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def initialOffset(self) -> Any:
        return {"next": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        return {"next": Outside(Path(self.directory)).count()}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [Numbers(start["next"], end["next"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Numbers)
        return rows_of(self.directory, partition)


class Files(DataSource):
    """A source that keeps its promises."""

    stream: type[FilesStream] = FilesStream

    @classmethod
    def name(cls) -> str:
        return "files_of_tests"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return FilesReader(self.options["path"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return self.stream(self.options["path"])


class Drawn(FilesStream):
    def initialOffset(self) -> Any:
        return {"next": 0, "at": random.random()}


class NoJson(FilesStream):
    def initialOffset(self) -> Any:
        return {0: 0}


class Changing(FilesStream):
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for n, _ in super().read(partition):
            yield n, f"{random.random()}"


class Overlapping(FilesStream):
    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [Numbers(max(0, start["next"] - 1), end["next"])]


class Standing(FilesStream):
    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        return {"next": min(2, Outside(Path(self.directory)).count())}


FAULTS = {
    "another one in another process": Drawn,
    "is another value once it was stored as JSON": NoJson,
    "has other rows when it is read again": Changing,
    "are not the whole range": Overlapping,
    "stays where it was although rows came": Standing,
}


class FilesWriter(DataSourceStreamWriter):
    """A writer that stores each batch under its number, by one rename."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        made: Any = WriterCommitMessage()
        made.rows = [row.asDict() for row in iterator]
        return made  # type: ignore[no-any-return]

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.store(f"{batchId}.json", [row for message in messages for row in message.rows])

    def store(self, name: str, rows: list[Any]) -> None:
        Path(self.directory).mkdir(parents=True, exist_ok=True)
        draft = Path(self.directory) / f"{name}.draft"
        draft.write_text(json.dumps(rows))
        os.rename(draft, Path(self.directory) / name)

    def abort(self, messages: list[Any], batchId: int) -> None:
        pass


class FilesSink(DataSource):
    """A sink that keeps its promises."""

    @classmethod
    def name(cls) -> str:
        return "files_of_tests"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return FilesWriter(self.options["path"])


class AppendingWriter(FilesWriter):
    def commit(self, messages: list[Any], batchId: int) -> None:
        number = sum(1 for _ in Path(self.directory).glob("*.json")) if Path(self.directory).exists() else 0
        self.store(f"{number}.json", [row for message in messages for row in message.rows])


class AppendingSink(FilesSink):
    """A sink that writes a repeated batch again."""

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return AppendingWriter(self.options["path"])


def stored(directory: Path) -> list[dict[str, Any]]:
    return [row for file in directory.glob("*.json") for row in json.loads(file.read_text())]
