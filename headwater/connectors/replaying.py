"""Dead letters offered again to the sources that they came from, each once.

What is done about a letter is noted beside it, on disk, in this order:

1. the record is made ready: a file that waits, under a name that is not read;
2. the letter is noted as begun;
3. the record is offered, in one step: the file gets its name;
4. the letter is noted as done.

Whoever asks for a letter that is begun sees by the waiting file how far it came. If the file waits, nothing
was offered, and all is done over; if it does not, all is done but the note. So a crash neither loses nor
doubles a record. Of a message to a broker nobody can say that: it is not sent again unless that is forced.
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
from headwater.core.errors import DeploymentError, HeadwaterError
from headwater.dataflow.sources import FileSource, MqttSource, Source
from headwater.disk.durable import read_note, read_object, write_atomically
from headwater.disk.layout import Layout
from headwater.plan.content import source_locations
from headwater.plan.port import Replayed
from headwater.plan.spec import UnitSpec

MOST = 1000
"""Letters that one request may be about."""
LONGEST = 4 * 2**20
"""Characters of a record that is given."""

_ID = re.compile(r"[0-9a-f]{16}")
_REPLACED = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """A letter that is to be replayed; ``record``: the corrected one, None: as it is."""

    id: str
    record: str | None = None


def read_wanted(data: object, *, where: str) -> tuple[ReplayRequest, ...]:
    """Read what is to be replayed from a request; raise DeploymentError where it is not well-formed."""
    hint = 'send [{"id": "0123456789abcdef", "record": "..."}, ...], without a record for one as it is'

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


Find = Callable[[str, str | None], tuple[Source, str]]
"""Gives the source of a name, and the location that it is read at; raises DeploymentError where it is not."""


def sources_of(units: Iterable[UnitSpec], layout: Layout) -> Find:
    """Find sources among those that some units read."""
    here = list(units)

    def find(name: str, location: str | None) -> tuple[Source, str]:
        finished = None
        for spec in here:
            places = source_locations(spec.flow, spec.unit).get(name, ())
            source = spec.flow[name] if places else None
            if isinstance(source, Source) and (location in places or not source.per_location):
                if not read_note(layout.state(spec.unit)).get("finished"):
                    return source, location or places[0]
                finished = spec.id
        at = f" at {location}" if location else ""
        if finished:
            raise DeploymentError(f"unit {finished} has used up its input and takes no more")
        raise DeploymentError(f"source '{name}'{at} is not read here any more")

    return find


class Offer(Protocol):
    """A record on its way to a source. ``draft``: the file that waits where it is made ready on disk."""

    @property
    def target(self) -> str: ...

    @property
    def draft(self) -> str | None: ...

    def make_ready(self) -> None:
        """Do all that can fail."""

    def offer(self) -> None:
        """Let the source have it, in one step."""

    def leave(self) -> None:
        """Give up what was held for it."""


def _offer(source: Source, location: str, letter: DeadLetter, record: str, mark: str) -> Offer:
    from headwater.connectors.offerfile import file_offer
    from headwater.connectors.offermqtt import mqtt_offer

    match source:
        case FileSource():
            return file_offer(source, location, letter, record, mark)
        case MqttSource():
            return mqtt_offer(source, location, letter, record)
    raise DeploymentError(f"a source of kind {source.kind} takes no records back")


# ---------------------------------------------------------------- notes


@dataclass(frozen=True, kw_only=True)
class _Note:
    """What is known of a letter's replays. ``record``: a hash of the last one's record; ``times``: how many.

    ``done``: whether the last one is known to have been offered; ``draft``: the file that waits until then.
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
            "what was replayed of it is not readable", where=str(file), hint="restore or delete that file"
        ) from error


def _write(file: Path, note: _Note) -> None:
    write_atomically(file, json.dumps(asdict(note)))


def _digest(record: str) -> str:
    return hashlib.sha256(record.encode(errors="surrogatepass")).hexdigest()


# ---------------------------------------------------------------- replaying


def replay(directory: Path, wanted: Sequence[ReplayRequest], find: Find, *, force: bool = False) -> list[Replayed]:
    """Offer the records of letters below ``directory`` again, and say of each what came of it.

    ``force`` also replays what does not fit its schema, or was replayed before.
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
    """Let one replay at a time go on, whoever asks for it."""
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
    source, location = find(str(letter.data.get("operator")), letter.data.get("location"))
    _check(letter, source, record, given=record != kept, force=force)
    times = 1 + (0 if note is None else note.times if note.done else note.times - 1)
    offer = _offer(source, location, letter, record, _mark(letter, times))
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
    """Tell whether a replay that was cut off came to offer its record."""
    if begun.draft is not None:
        # A source may remove its files when it has read them: the draft alone tells.
        return not os.path.lexists(begun.draft)
    if force:
        return True
    raise DeploymentError(
        f"it was being sent to {begun.target} at {begun.at}, that was cut off, and nobody knows if it came",
        hint="see whether its row is there; force it to send it again",
    )


def _check(letter: DeadLetter, source: Source, record: str, *, given: bool, force: bool) -> None:
    """Raise why a record would not be taken; ``given``: it is not as it was."""
    if letter.data.get("truncated") and not given:
        raise DeploymentError("only its beginning was kept", hint="give the whole record")
    if force:
        return
    if _REPLACED in record and not given:
        raise DeploymentError("it was not UTF-8 text, and its bytes were not kept", hint="give the record")
    format_ = source.format if isinstance(source, FileSource) else "json"
    options = dict(source.options) if isinstance(source, FileSource) else {}
    schema = source.schema().text
    reason = misfit(record, format=format_, schema=schema, options=options)
    if reason is None and not given:
        # Spark did not take it, if for a reason that nobody found: by the same schema it will not now.
        unexplained = explain(record, format=format_, schema=schema, options=options)
        reason = unexplained if letter.data.get("reason") == unexplained else None
    if reason is not None:
        raise DeploymentError(f"it does not fit: {reason}", hint="correct the record")
