"""Replay of a record to a source of files: as a new file in a directory of Headwater's own.

In that directory the file has the path that it would have beside the file that the record came from, and the source
reads the directory as it reads the root. So no text of a user reaches a directory that other programs read.

Spark reads files that it has not seen, so the new file gets a unique name, made of the
letter's id. The name has to fit the source's pattern and options, without a leading ``_`` or ``.``.
The file is compressed only where the pattern demands the name of a compressed file.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from headwater.connectors.deadletters import DeadLetter, local_path
from headwater.connectors.globs import MARK, fits, is_glob
from headwater.core.errors import DeploymentError
from headwater.dataflow.sources import FileSource
from headwater.disk.durable import make_directory, sync_directory, write_atomically
from headwater.disk.layout import full_path

_LONGEST = 120  # bytes of the old file's name that the new one keeps
_MARK = re.compile(MARK)
_COMPRESSED = (".gz", ".bz2", ".deflate", ".zst", ".lz4", ".snappy")
_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".deflate": zlib.compress,
}


class FileOffer:
    """A complete file under a name that the source skips; one rename makes it visible."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self._data = path, data

    @property
    def target(self) -> str:
        """Return the path that the record gets."""
        return str(self.path)

    @property
    def draft(self) -> str | None:
        """Return the path of the prepared file."""
        return str(self.path.with_name(f".{self.path.name}.waits"))

    def make_ready(self) -> None:
        """Write the file durably, under the name that the source skips."""
        assert self.draft is not None
        make_directory(self.path.parent)
        write_atomically(Path(self.draft), self._data)

    def offer(self) -> None:
        """Rename the file to its final name."""
        assert self.draft is not None
        os.rename(self.draft, self.path)
        sync_directory(self.path.parent)

    def leave(self) -> None:
        """Do nothing: the prepared file stays, and shows whether the record was offered."""


def file_offer(source: FileSource, location: str, below: Path, letter: DeadLetter, record: str, mark: str) -> FileOffer:
    """Prepare a record for a source at a location: a file ``below`` a directory; ``mark`` becomes part of its name.

    Raise DeploymentError, with the reason, where the source would read no file with the record.
    """
    options = {key.lower(): value for key, value in source.options}
    data = _content(source, options, record)
    base = _local(full_path(source.path.replace("{location}", location)))
    origin = _origin(local_path(str(letter.data.get("source") or "")), below)
    directory = _directory(base, origin)
    name = PurePosixPath(origin).name if origin else f"records.{source.format}"
    for new, compressed in _names(name, mark):
        path = directory / new
        if _is_read(base, options, path):
            return FileOffer(below / path.relative_to("/"), _COMPRESS[compressed](data) if compressed else data)
    raise DeploymentError(
        "no name of a new file fits the source's pattern",
        where=base,
        hint=f"put the record into a file there yourself, or extend the pattern to '*{mark}*'",
    )


def _origin(path: str | None, below: Path) -> str | None:
    """Return the path of a record's file, without the directory of replayed records."""
    if path is not None and Path(path).is_relative_to(below):
        return str("/" / Path(path).relative_to(below))
    return path


def _local(base: str) -> str:
    """Return the source's path on this disk."""
    path = local_path(base) if "://" in base else base
    if path is None:
        raise DeploymentError(
            f"the source's files are not on this disk, but behind {base.partition('://')[0]}",
            hint="put the corrected record into a file there yourself",
        )
    return os.path.normpath(path)


def _directory(base: str, origin: str | None) -> Path:
    """Return the directory for the new file: that of the record's old one, if the source still reads there."""
    if not is_glob(base):
        if os.path.isfile(base):
            raise DeploymentError("the source reads one file alone", where=base, hint="add the record to it")
        if origin is not None and Path(origin).is_relative_to(base):
            return Path(origin).parent
        return Path(base)
    if origin is None or not _takes_in(base, Path(origin)):
        raise DeploymentError(
            "the record's directory is unknown, or the source no longer reads it",
            where=base,
            hint="put the corrected record into a file that the source reads yourself",
        )
    return Path(origin).parent


def _names(name: str, mark: str) -> Iterator[tuple[str, str]]:
    """Yield candidate names, similar to the old file's, each with the compression of its suffix."""
    inner, packed = name, ""
    if (suffix := PurePosixPath(name).suffix.lower()) in _COMPRESSED:
        inner, packed = name[: -len(suffix)], name[-len(suffix) :]
    old, extension = os.path.splitext(inner)
    stem = _MARK.sub("", old).encode()[:_LONGEST].decode(errors="ignore").lstrip("._") or "records"
    for compressed in ("", packed) if packed.lower() in _COMPRESS else ("",):
        for made in (f"{stem}-{mark}", f"{mark}-{stem}", mark):
            yield f"{made}{extension}{compressed}", compressed.lower()


def _is_read(base: str, options: Mapping[str, str], path: Path) -> bool:
    """Return whether the source would read a file."""
    by_name = options.get("pathglobfilter")
    if path.name.startswith(("_", ".")) or (by_name and not fits(path.name, by_name)):
        return False
    return not is_glob(base) or _takes_in(base, path)


def _takes_in(pattern: str, path: Path) -> bool:
    """Return whether a pattern matches a file, or a directory above it."""
    return any(fits(str(one), pattern) for one in (path, *path.parents))


# ---------------------------------------------------------------- content


def _content(source: FileSource, options: Mapping[str, str], record: str) -> bytes:
    """Encode a record in the format of the source's files."""
    separator = options.get("linesep")
    several = options.get("multiline", "false").lower() == "true"
    breaks = (separator,) if separator else ("\n", "\r")
    if not several and any(one in record for one in breaks):
        raise DeploymentError("the record has several lines, and the source reads lines", hint="write it as one line")
    comment = options.get("comment", "")
    if source.format == "csv" and comment and record.startswith(comment[0]):
        raise DeploymentError(f"the source skips lines that begin with {comment[0]!r}", hint="quote the record")
    lines = [record]
    if source.format == "csv" and options.get("header", "false").lower() == "true":
        lines.insert(0, _header(source, options))
    text = "".join(line + (separator or "\n") for line in lines)
    name = options.get("encoding", options.get("charset", "UTF-8"))
    try:
        return text.encode(codecs.lookup(name).name)
    except LookupError:
        raise DeploymentError(
            f"the encoding {name} is unknown here", hint="put the record into a file yourself"
        ) from None
    except UnicodeEncodeError as error:
        raise DeploymentError(
            f"{record[error.start : error.end][:20]!r} cannot be written in {name}",
            hint="write the record without it",
        ) from None


def _header(source: FileSource, options: Mapping[str, str]) -> str:
    """Return the line of column names, which Spark skips, or checks against the schema."""
    out = io.StringIO()
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    names = source.schema().names
    if len(separator) != 1:
        return separator.join(names)
    quote = options.get("quote", '"')[:1] or '"'
    csv.writer(out, delimiter=separator, quotechar=quote, lineterminator="").writerow(names)
    return out.getvalue()
