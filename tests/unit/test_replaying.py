"""Replay of dead letters: the targets of their records, refusals, and the state after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headwater.connectors import replaying
from headwater.connectors.deadletters import DeadLetter, dead_letters_of, read_dead_letters
from headwater.connectors.offerfile import FileOffer
from headwater.connectors.offermqtt import mqtt_offer
from headwater.connectors.replaying import ReplayedSource, ReplayRequest, read_wanted, replay
from headwater.core.errors import DeploymentError
from headwater.dataflow.sources import FileSource, MqttSource
from headwater.plan.port import Replayed
from tests.unit.test_deadletters import put, rows

SCHEMA = "id bigint, temperature double, ts timestamp"
BAD, GOOD = "1,abc,2024-01-01", "1,2.5,2024-01-01"


@dataclass
class Scene:
    """A file source with one or more dead letters."""

    place: Path
    path: str = "{in}/{location}"
    format: str = "csv"
    options: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA
    own: str = "{place}/own"

    @property
    def input(self) -> Path:
        return self.place / "in"

    @property
    def directory(self) -> Path:
        """Headwater's directory of replayed records."""
        return Path(self.own.replace("{place}", str(self.place)))

    @property
    def made(self) -> Path:
        """The directory in it for the files of the input."""
        return self.directory / self.input.relative_to("/")

    @property
    def letters(self) -> Path:
        return self.place / "deadletters"

    @property
    def source(self) -> FileSource:
        return FileSource(
            id="files_1",
            path=self.path.replace("{in}", str(self.input)),
            format=self.format,  # type: ignore[arg-type]
            schema_text=self.schema,
            options=tuple(sorted(self.options.items())),
        )

    def malformed(self, *records: str, file: str = "L1/a.csv", batch: int = 0) -> list[str]:
        """Turn records of a file into dead letters; return their ids."""
        origin = self.input / file
        origin.parent.mkdir(parents=True, exist_ok=True)
        origin.write_text("".join(f"{r}\n" for r in records))
        known = {x.id for x in dead_letters_of(self.letters)}
        given = rows(*records, source=origin.as_uri(), location="L1", format=self.format)
        put(self.letters / "u-1@E1", batch, given, options={"files_1": self.options})
        return [x.id for x in dead_letters_of(self.letters) if x.id not in known]

    def find(self, name: str, location: str | None) -> ReplayedSource:
        if name != "files_1":
            raise DeploymentError(f"source '{name}' is not read here any more")
        return ReplayedSource(source=self.source, location=location or "L1", directory=self.directory)

    def replay(self, *ids: str, record: str | None = GOOD, force: bool = False) -> list[Replayed]:
        return replay(self.letters, [ReplayRequest(id=i, record=record) for i in ids], self.find, force=force)

    def one(self, id_: str, record: str | None = GOOD, *, force: bool = False) -> Replayed:
        (found,) = self.replay(id_, record=record, force=force)
        return found

    def new(self) -> dict[str, bytes]:
        """Return the files that replays have made, as a source would see them."""
        seen = (f for f in self.made.rglob("*") if f.is_file() and not f.name.startswith((".", "_")))
        return {str(f.relative_to(self.made)): f.read_bytes() for f in seen}

    def known(self, id_: str) -> Any:
        return next(x["replayed"] for x in read_dead_letters(self.letters) if x["id"] == id_)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# ---------------------------------------------------------------- dead letters


def test_a_letter_keeps_its_id(scene: Scene) -> None:
    first = scene.malformed(BAD, "x,1,2024-01-01")
    second = scene.malformed(BAD, file="L1/b.csv", batch=1)
    assert len({*first, *second}) == 3
    assert [x["id"] for x in read_dead_letters(scene.letters)] == [*first, *second]
    assert all(x["replayed"] is None for x in read_dead_letters(scene.letters))
    put(scene.letters / "u-1@E2", 0, rows(BAD))  # the same position in another unit
    assert len({x["id"] for x in read_dead_letters(scene.letters)}) == 4


def test_a_corrected_record_is_a_new_file_beside_the_old_one(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    found = scene.one(id_, GOOD + "\n")
    path = scene.made / f"L1/a-replayed-{id_}.csv"
    assert (found.outcome, found.reason, found.target) == ("replayed", None, str(path))
    assert scene.new() == {f"L1/a-replayed-{id_}.csv": f"{GOOD}\n".encode()}
    assert os.listdir(scene.made / "L1") == [path.name]  # no drafts are left
    assert os.listdir(scene.input / "L1") == ["a.csv"]
    known = scene.known(id_)
    assert known["done"] and known["target"] == str(path) and known["at"] == found.at
    assert GOOD not in str(known) and len(known["record"]) == 64  # a hash of the record


def test_a_second_replay_is_refused_unless_it_is_forced(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    scene.one(id_)
    again = scene.one(id_)
    assert again.outcome == "refused" and "it was replayed at" in str(again.reason)
    assert len(scene.new()) == 1
    assert scene.one(id_, "1,3.5,2024-01-01", force=True).outcome == "replayed"
    assert scene.new().keys() == {f"L1/a-replayed-{id_}.csv", f"L1/a-replayed-{id_}-2.csv"}
    assert scene.known(id_)["times"] == 2


def test_a_letter_of_a_replayed_file_gets_no_longer_a_name(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    scene.one(id_, BAD, force=True)
    (new,) = scene.malformed(BAD, file=f"L1/a-replayed-{id_}.csv", batch=1)
    scene.one(new)
    assert f"L1/a-replayed-{new}.csv" in scene.new()


def test_each_letter_is_told_of_by_itself(scene: Scene) -> None:
    ids = scene.malformed(BAD, "x,1,2024-01-01")
    found = scene.replay(ids[0], "0" * 16, ids[1])
    assert [x.outcome for x in found] == ["replayed", "unknown", "replayed"]
    nowhere = replay(scene.place / "none", [ReplayRequest(id=ids[0])], scene.find)
    assert [x.outcome for x in nowhere] == ["unknown"]


# ---------------------------------------------------------------- refusals


def refused(found: Replayed, says: str) -> None:
    assert found.outcome == "refused" and says in str(found.reason), found


def test_what_still_does_not_fit_is_refused_unless_forced(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    refused(scene.one(id_, "1,warm,2024-01-01"), "field 'temperature': 'warm' is not a double")
    refused(scene.one(id_, None), "'abc' is not a double")
    refused(scene.one(id_, ""), "empty record")
    assert scene.new() == {} and scene.known(id_) is None
    assert scene.one(id_, None, force=True).outcome == "replayed"
    assert list(scene.new().values()) == [f"{BAD}\n".encode()]


def test_as_it_is_a_record_fits_where_the_schema_was_changed(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    scene.schema = "id bigint, temperature string, ts timestamp"
    assert scene.one(id_, None).outcome == "replayed"


def test_what_spark_refused_for_an_unknown_reason_does_not_fit_as_it_is(scene: Scene) -> None:
    (id_,) = scene.malformed("1,2.5,2024-01-01")  # no reason against it is found
    refused(scene.one(id_, None), "does not fit the schema")
    assert scene.one(id_, "1,2.5,2024-01-02").outcome == "replayed"


def test_only_a_whole_record_is_replayed(scene: Scene) -> None:
    (id_,) = scene.malformed(f"1,2.5,{'x' * 70_000}")
    (kept,) = read_dead_letters(scene.letters)
    for record in (None, kept["record"]):
        refused(scene.one(id_, record, force=True), "only its beginning was stored")
    assert scene.one(id_).outcome == "replayed"


def test_bytes_that_are_lost_are_not_made_up(scene: Scene) -> None:
    scene.schema = "id bigint, name string, ts timestamp"
    (id_,) = scene.malformed("1,caf\ufffd,soon")
    scene.schema = "id bigint, name string, ts string"
    refused(scene.one(id_, None), "its bytes were not stored")
    assert scene.one(id_, "1,café,soon").outcome == "replayed"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "s3a://key:secret@bucket/{location}"}, "not on this disk, but behind s3a"),
        ({"own": "/proc/none"}, "cannot write /proc/none"),
        ({"path": "{in}/{location}/a.csv"}, "reads one file alone"),
        ({"path": "{in}/{location}/[ab].csv"}, "no name of a new file fits"),
        ({"path": "{in}/other-*/*.csv"}, "no longer reads it"),
        ({"options": {"pathGlobFilter": "?.csv"}}, "no name of a new file fits"),
        ({"options": {"comment": "#"}}, "begin with '#'"),
        ({"options": {"encoding": "US-ASCII"}}, "'ü' cannot be written in US-ASCII"),
        ({"options": {"encoding": "klingon"}}, "the encoding klingon is unknown"),
        ({"options": {"lineSep": "|"}}, "several lines"),
        ({}, "several lines"),
    ],
)
def test_a_source_that_cannot_take_it_back_says_so(scene: Scene, change: dict[str, Any], says: str) -> None:
    (id_,) = scene.malformed(BAD)
    record = {"comment": "#1,2", "encoding": "1,ü", "lineSep": "1|2"}.get(
        next(iter(change.get("options", {})), ""), GOOD if change else "1,2.5,\n2024-01-01"
    )
    found = replace(scene, **change).one(id_, record, force=True)
    refused(found, says)
    assert "secret" not in str(found.reason) and scene.new() == {}


# ---------------------------------------------------------------- crashes


class Killed(BaseException):
    """A stand-in for SIGKILL: no handler catches it."""


STEPS: list[tuple[Any, str, int, str]] = [
    (FileOffer, "make_ready", 1, "before"),
    (FileOffer, "make_ready", 1, "after"),
    (replaying, "_write", 1, "after"),
    (FileOffer, "offer", 1, "after"),
    (replaying, "_write", 2, "before"),
    (replaying, "_write", 2, "after"),
]


def kill_at(
    patch: pytest.MonkeyPatch, where: Any, name: str, number: int, when: str, also: Callable[[], object]
) -> None:
    """Kill the process before or after the call of that number."""
    real, calls = getattr(where, name), iter(range(1, 9))

    def call(*given: Any) -> Any:
        last = next(calls) == number
        if last and when == "before":
            raise Killed
        real(*given)
        if last:
            also()
            raise Killed

    patch.setattr(where, name, call)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_kill_neither_loses_nor_doubles(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step: int, force: bool
) -> None:
    (id_,) = scene.malformed(BAD)
    with monkeypatch.context() as patch:
        kill_at(patch, *STEPS[step], lambda: None)
        with pytest.raises(Killed):
            scene.one(id_, force=force)
    again = scene.one(id_, force=force and step < 5)
    # If all steps were done before the kill, nothing is left to do.
    assert again.outcome == ("refused" if step == 5 else "replayed")
    assert scene.new() == {f"L1/a-replayed-{id_}.csv": f"{GOOD}\n".encode()}
    assert os.listdir(scene.made / "L1") == [f"a-replayed-{id_}.csv"]
    assert scene.known(id_)["done"] and scene.known(id_)["times"] == 1
    refused(scene.one(id_), "it was replayed at")


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_after_a_kill_another_record_counts_only_if_the_first_was_not_offered(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    (id_,) = scene.malformed(BAD)
    with monkeypatch.context() as patch:
        kill_at(patch, *STEPS[step], lambda: None)
        with pytest.raises(Killed):
            scene.one(id_)
    other = "1,9.5,2024-01-01"
    again = scene.one(id_, other)
    offered = step >= 3
    assert again.outcome == ("refused" if offered else "replayed")
    assert list(scene.new().values()) == [f"{GOOD if offered else other}\n".encode()]


def test_a_source_that_removes_what_it_has_read_gets_it_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (id_,) = scene.malformed(BAD)
    gone: list[Path] = []

    def clean() -> None:
        gone.extend(scene.made.rglob("*replayed*"))
        for file in gone:
            file.unlink()

    with monkeypatch.context() as patch:
        kill_at(patch, FileOffer, "offer", 1, "after", clean)
        with pytest.raises(Killed):
            scene.one(id_)
    assert len(gone) == 1 and not scene.known(id_)["done"]
    assert scene.one(id_).outcome == "replayed" and scene.new() == {}


def test_a_draft_in_a_directory_that_is_not_read_any_more_goes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (id_,) = scene.malformed(BAD)
    with monkeypatch.context() as patch:
        kill_at(patch, replaying, "_write", 1, "after", lambda: None)
        with pytest.raises(Killed):
            scene.one(id_)
    scene.path = "{in}/elsewhere/{location}"
    assert scene.one(id_).target == f"{scene.made}/elsewhere/L1/a-replayed-{id_}.csv"
    assert os.listdir(scene.input / "L1") == ["a.csv"]


def test_two_at_once_replay_it_once(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    code = (
        "import sys; from pathlib import Path; from tests.unit.test_replaying import Scene\n"
        "print(Scene(Path(sys.argv[1])).one(sys.argv[2]).outcome)"
    )
    command = [sys.executable, "-c", code, str(scene.place), id_]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(p.communicate(timeout=120)[0].strip() for p in both) == ["refused", "replayed"]
    assert len(scene.new()) == 1


def test_a_real_kill_between_file_and_note(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.unit.test_replaying import Scene\n"
        "from headwater.connectors.offerfile import FileOffer\n"
        "real = FileOffer.offer\n"
        "def offer(self): real(self); os.kill(os.getpid(), signal.SIGKILL)\n"
        "FileOffer.offer = offer\n"
        "Scene(Path(sys.argv[1])).one(sys.argv[2])"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(scene.place), id_], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not scene.known(id_)["done"] and len(scene.new()) == 1
    began = time.monotonic()
    assert scene.one(id_).outcome == "replayed" and len(scene.new()) == 1  # no process holds the lock
    assert time.monotonic() - began < 60


def test_a_damaged_note_is_no_licence_to_double(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD)
    scene.one(id_)
    (note,) = (scene.letters / "u-1@E1/.headwater/replayed").iterdir()
    for text in ("half a no", '{"done": true}'):
        note.write_text(text)
        refused(scene.one(id_), "not readable")
    assert len(scene.new()) == 1


# ---------------------------------------------------------------- MQTT without a broker


def topic_for(pattern: str, source: str | None) -> str:
    mqtt = MqttSource(id="m", broker="b", topic=pattern, schema_text="id bigint")
    return mqtt_offer(mqtt, "L1", DeadLetter("x", Path("."), {"source": source}), "{}").target


@pytest.mark.parametrize(
    ("pattern", "source", "target"),
    [
        ("plant/{location}/+", "mqtt:plant/L1/temp", "mqtt:plant/L1/temp"),
        ("plant/#", "mqtt:plant/L1/temp", "mqtt:plant/L1/temp"),
        ("$share/g/plant/#", "mqtt:plant", "mqtt:plant"),
        ("plant/{location}", "mqtt:(topic is not UTF-8)", "mqtt:plant/L1"),
        ("plant/{location}", None, "mqtt:plant/L1"),
        ("plant/{location}", "mqtt:plant/L1/deeper", "mqtt:plant/L1"),
    ],
)
def test_a_message_goes_to_the_topic_it_came_from(pattern: str, source: str | None, target: str) -> None:
    assert topic_for(pattern, source) == target


@pytest.mark.parametrize("source", [None, "mqtt:(topic is not UTF-8)", "mqtt:other/L1/temp", "mqtt:plant/+"])
def test_without_a_topic_there_is_nowhere_to_go(source: str | None) -> None:
    with pytest.raises(DeploymentError, match="the record's topic is unknown"):
        topic_for("plant/+", source)


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        "0" * 16,
        ["0" * 16],
        [{}],
        [{"id": 7}],
        [{"id": "0" * 15}],
        [{"id": "../../../etc/pass"}],
        [{"id": "0" * 16, "record": 7}],
        [{"id": "0" * 16, "record": "x" * (replaying.LONGEST + 1)}],
        [{"id": "0" * 16}, {"id": "0" * 16}],
        [{"id": f"{n:016x}"} for n in range(replaying.MOST + 1)],
    ],
)
def test_a_request_that_is_none_is_refused(data: Any) -> None:
    with pytest.raises(DeploymentError) as found:
        read_wanted(data, where="zone E1")
    assert found.value.hint and len(str(found.value)) < 400


def test_a_request_is_read() -> None:
    data = [{"id": "0" * 16}, {"id": "f" * 16, "record": "x"}]
    assert read_wanted(data, where="") == (ReplayRequest(id="0" * 16), ReplayRequest(id="f" * 16, record="x"))
