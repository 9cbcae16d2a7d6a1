"""Replay of dead letters: offer their records again to the sources they came from, each once.

The replay of a letter is recorded beside it, on disk, in this order:

1. the record is prepared: as a draft file, under a name that the source skips;
2. the letter is recorded as begun;
3. the record is offered, in one step: the file is renamed;
4. the letter is recorded as done.

For a letter that is begun, the draft shows how far its replay came. If it exists, nothing was offered, and
the replay starts again; if it is gone, only the last step is missing. So a crash neither loses nor
doubles a record. A message to a broker has no draft: it is not sent again unless that is forced.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from headwater.connectors.deadletters import DeadLetter, dead_letters_of, explain, misfit, notes_at
from headwater.connectors.kafkavalues import BASE64
from headwater.core.errors import DeploymentError, HeadwaterError
from headwater.dataflow.httpsource import HttpSource
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.sources import FileSource, MqttSource, Source
from headwater.dataflow.sparkplug import SparkplugSource
from headwater.disk.durable import read_note, read_object, write_atomically
from headwater.disk.layout import Layout
from headwater.plan.content import source_locations
from headwater.plan.port import Replayed
from headwater.plan.spec import UnitSpec

MOST = 1000
"""Most letters in one request."""
LONGEST = 4 * 2**20
"""Most characters of a corrected record."""

_ID = re.compile(r"[0-9a-f]{16}")
_REPLACED = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """A request to replay a letter; ``record``: the corrected record, None: the stored one."""

    id: str
    record: str | None = None


def read_wanted(data: object, *, where: str) -> tuple[ReplayRequest, ...]:
    """Parse the letters to replay from a request; raise DeploymentError where it is not well-formed."""
    hint = 'send [{"id": "0123456789abcdef", "record": "..."}, ...]; leave "record" out to replay the stored one'

    def wrong(what: str) -> DeploymentError:
        return DeploymentError(what, where=where, hint=hint)

    if not isinstance(data, list) or not 0 < len(data) <= MOST:
        raise wrong(f"not a list of 1 to {MOST} letters")
    found = []
    for one in data:
        if not isinstance(one, dict) or not isinstance(id_ := one.get("id"), str) or not _ID.fullmatch(id_):
            raise wrong(f"not a dead letter's id: {str(one)[:80]}")
        record = one.get("record")
        if record is not None and (not isinstance(record, str) or len(record) > LONGEST):
            raise wrong(f"the record of letter {id_} is no text of up to {LONGEST} characters")
        found.append(ReplayRequest(id=id_, record=record))
    if len({one.id for one in found}) < len(found):
        raise wrong("a letter is named twice")
    return tuple(found)


# ---------------------------------------------------------------- sources


@dataclass(frozen=True, kw_only=True)
class ReplayedSource:
    """A source, the location where it is read, and Headwater's directory for records replayed to its files."""

    source: Source
    location: str
    directory: Path


Find = Callable[[str, str | None], ReplayedSource]
"""Returns the source of a name at a location; raises DeploymentError where it is not read."""


def sources_of(units: Iterable[UnitSpec], layout: Layout) -> Find:
    """Return a function that finds a source among those that the units read."""
    here = list(units)

    def find(name: str, location: str | None) -> ReplayedSource:
        finished = None
        for spec in here:
            places = source_locations(spec.flow, spec.unit).get(name, ())
            source = spec.flow[name] if places else None
            if isinstance(source, Source) and (location in places or not source.per_location):
                if not read_note(layout.state(spec.unit)).get("finished"):
                    return ReplayedSource(
                        source=source, location=location or places[0], directory=layout.replayed(source.id)
                    )
                finished = spec.id
        at = f" at {location}" if location else ""
        if finished:
            raise DeploymentError(
                f"unit {finished} has read its input to the end and takes no more",
                hint="apply a plan that reads it again",
            )
        raise DeploymentError(
            f"source '{name}'{at} is not read here any more", hint="add the record to its input yourself"
        )

    return find


class Offer(Protocol):
    """The replay of one record to a source. ``draft``: its prepared file, None for a source without files."""

    @property
    def target(self) -> str: ...

    @property
    def draft(self) -> str | None: ...

    def make_ready(self) -> None:
        """Do all work that can fail."""

    def offer(self) -> None:
        """Pass the record to the source, in one step."""

    def leave(self) -> None:
        """Release connections."""


def _offer(target: ReplayedSource, letter: DeadLetter, record: str, mark: str) -> Offer:
    from headwater.connectors.offerfile import file_offer
    from headwater.connectors.offerhttp import HttpOffer
    from headwater.connectors.offerkafka import kafka_offer
    from headwater.connectors.offermqtt import mqtt_offer

    match target.source:
        case FileSource():
            return file_offer(target.source, target.location, target.directory, letter, record, mark)
        case MqttSource() if not isinstance(target.source, SparkplugSource):
            return mqtt_offer(target.source, target.location, letter, record)
        case HttpSource():
            return HttpOffer(target.source, target.location, record, mark)
        case KafkaSource(ending=str()):
            raise DeploymentError(
                "the source has read its topic up to an end, and a record sent again would be behind it",
                where=target.source.where,
                hint="send the corrected record to the topic: the source that reads on from the end gets it",
            )
        case KafkaSource():
            return kafka_offer(target.source, target.location, letter, record)
    raise DeploymentError(
        f"a source of kind {target.source.kind} takes no records back", hint="correct the record where it comes from"
    )


# ---------------------------------------------------------------- records of replays


@dataclass(frozen=True, kw_only=True)
class _Note:
    """A letter's replays. ``record``: a hash of the last one's record; ``times``: their number.

    ``done``: whether the last one was surely offered; ``draft``: its prepared file until then.
    """

    at: str
    record: str
    target: str
    times: int
    done: bool
    draft: str | None = None


def _read(file: Path) -> _Note | None:
    data = read_object(file)
    try:
        return None if data is None else _Note(**data)
    except TypeError as error:
        raise DeploymentError(
            "the record of its replays is not readable", where=str(file), hint="restore or delete that file"
        ) from error


def _write(file: Path, note: _Note) -> None:
    write_atomically(file, json.dumps(asdict(note)))


def _digest(record: str) -> str:
    return hashlib.sha256(record.encode(errors="surrogatepass")).hexdigest()


# ---------------------------------------------------------------- replaying


def replay(directory: Path, wanted: Sequence[ReplayRequest], find: Find, *, force: bool = False) -> list[Replayed]:
    """Offer the records of letters below ``directory`` again, and return each one's result.

    ``force`` also replays records that do not fit their schema, or were replayed before.
    """
    if not directory.is_dir():
        return [Replayed(id=one.id, outcome="unknown") for one in wanted]
    found = []
    with _alone(directory):
        ids = {one.id for one in wanted}
        letters = {letter.id: letter for letter in dead_letters_of(directory) if letter.id in ids}
        for one in wanted:
            letter = letters.get(one.id)
            if letter is None:
                found.append(Replayed(id=one.id, outcome="unknown"))
                continue
            try:
                found.append(_replay(letter, one, find, force=force))
            except HeadwaterError as error:
                where = f" ({error.where})" if error.where else ""
                hint = f": {error.hint}" if error.hint else ""
                found.append(Replayed(id=one.id, outcome="refused", reason=f"{error.what}{where}{hint}"))
            except OSError as error:
                reason = f"cannot write {error.filename or letter.home}: {error.strerror}"
                found.append(Replayed(id=one.id, outcome="refused", reason=reason))
    return found


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock that lets one replay run at a time."""
    with open(directory / ".replaying", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replay(letter: DeadLetter, one: ReplayRequest, find: Find, *, force: bool) -> Replayed:
    file = notes_at(letter.home) / f"{letter.id}.json"
    kept = str(letter.data.get("record") or "")
    record = kept if one.record is None else one.record.removesuffix("\n").removesuffix("\r")
    note = _read(file)
    if note is not None and not note.done and _was_offered(note, force=force):
        ended = replace(note, done=True, draft=None)
        _write(file, ended)
        if note.draft is not None and note.record == _digest(record):
            return _told(letter, ended)
        note = ended
    if note is not None and note.done and not force:
        raise DeploymentError(f"it was replayed at {note.at}, to {note.target}", hint="force it to replay it again")
    target = find(str(letter.data.get("operator")), letter.data.get("location"))
    _check(letter, target.source, record, given=record != kept, force=force)
    times = 1 + (0 if note is None else note.times if note.done else note.times - 1)
    offer = _offer(target, letter, record, _mark(letter, times))
    begun = _Note(
        at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        record=_digest(record),
        target=offer.target,
        times=times,
        done=False,
        draft=offer.draft,
    )
    offer.make_ready()
    try:
        _write(file, begun)
        if note is not None and note.draft not in (None, begun.draft):
            Path(str(note.draft)).unlink(missing_ok=True)
        offer.offer()
    finally:
        offer.leave()
    done = replace(begun, done=True, draft=None)
    _write(file, done)
    return _told(letter, done)


def _mark(letter: DeadLetter, times: int) -> str:
    return f"replayed-{letter.id}" + (f"-{times}" if times > 1 else "")


def _told(letter: DeadLetter, note: _Note) -> Replayed:
    return Replayed(id=letter.id, outcome="replayed", at=note.at, target=note.target)


def _was_offered(begun: _Note, *, force: bool) -> bool:
    """Return whether an interrupted replay has offered its record."""
    if begun.draft is not None:
        # A source may remove files that it has read: only the draft shows it.
        return not os.path.lexists(begun.draft)
    if force:
        return True
    raise DeploymentError(
        f"its replay to {begun.target} at {begun.at} was interrupted: it is unknown whether the record arrived",
        hint="check whether its row is there; force the replay to send it again",
    )


def _check(letter: DeadLetter, source: Source, record: str, *, given: bool, force: bool) -> None:
    """Raise DeploymentError where the source would refuse a record; ``given``: the caller corrected it."""
    if letter.data.get("truncated") and not given:
        raise DeploymentError("only its beginning was stored", hint="give the whole record")
    if force:
        return
    if _REPLACED in record and not given:
        raise DeploymentError("it was not UTF-8 text, and its bytes were not stored", hint="give the record")
    if isinstance(source, KafkaSource) and source.is_binary:
        from headwater.connectors.offerkafka import misfit_of_bytes

        if (reason := misfit_of_bytes(source, record)) is not None:
            raise DeploymentError(f"it does not fit: {reason}", hint=f"correct the record: '{BASE64}...'")
        return
    format_, options, schema = source.record_format or "", source.record_options, source.schema().text
    reason = misfit(record, format=format_, schema=schema, options=options)
    if reason is None and not given:
        # Spark refused it for an unknown reason: by the same schema it refuses it again.
        unexplained = explain(record, format=format_, schema=schema, options=options)
        reason = unexplained if letter.data.get("reason") == unexplained else None
    if reason is not None:
        raise DeploymentError(f"it does not fit: {reason}", hint="correct the record")
