"""Event time in a unit that is assembled from other units."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.plan.transfer import OperatorTransfer, Reading, StateTransfer, TransferSource
from headwater.state.assembly import assemble, event_time
from headwater.state.savedstate import Saved, StateStore

AHEAD = Saved(batch=4, watermark=100, next_watermark=120)
BEHIND = Saved(batch=3, watermark=80, next_watermark=100)
UNTIMED = Saved(batch=9)


def share(operator: str, *source_units: str) -> OperatorTransfer:
    return OperatorTransfer(
        operator=operator,
        number=0,
        source_units=tuple(TransferSource(unit=d, number=0) for d in source_units),
    )


def transfer(shares: list[OperatorTransfer], *readings: tuple[str, ...]) -> StateTransfer:
    source_units = {d.unit for s in shares for d in s.source_units} | {d for r in readings for d in r}
    return StateTransfer(
        unit="U",
        source_units=tuple(sorted(source_units)),
        shares=tuple(shares),
        readings=tuple(Reading(operator=f"i{n}", source_units=d) for n, d in enumerate(readings)),
    )


def joined(transfer: StateTransfer, *at_work: str) -> StateTransfer:
    """Mark the readings as joined by new channels; ``at_work``: units that computed the rows of these so far."""
    readings = tuple(replace(r, joined=True) for r in transfer.readings)
    return replace(transfer, readings=readings, source_units=(*transfer.source_units, *at_work))


def prompt(transfer: StateTransfer) -> StateTransfer:
    return replace(transfer, readings=tuple(replace(r, prompt=True) for r in transfer.readings))


@pytest.mark.parametrize(
    ("taken", "known", "late", "passed"),
    [
        # Rows that the upper unit holds back are not late because the lower unit's event time has passed them.
        (transfer([share("once", "E"), share("counted", "C")], ("E",)), {"E": AHEAD, "C": BEHIND}, 80, 120),
        # A unit without state does not decide which rows are late for a unit with state.
        (transfer([share("counted", "C")], ("E",)), {"E": UNTIMED, "C": BEHIND}, 80, 100),
        (transfer([share("once", "E")], ("E",)), {"E": AHEAD, "C": BEHIND}, 100, 120),
        # One operator's state of two streams: the slower stream counts.
        (transfer([share("counted", "E", "F")], ("E", "F")), {"E": AHEAD, "F": BEHIND}, 80, 100),
        (transfer([share("counted", "C")], ("E", "F")), {"E": AHEAD, "F": UNTIMED, "C": BEHIND}, 80, 80),
        # A new channel brings its own event time.
        (transfer([share("counted", "C")], ()), {"C": BEHIND}, 80, 80),
        (transfer([], ("E",)), {"E": AHEAD}, 100, 120),
        # A prompt channel cannot bring rows older than the source unit's event time.
        (prompt(transfer([share("counted", "C")], ())), {"C": BEHIND}, 80, 100),
        # Rows of a location that joins have the event time of the unit that they come from.
        (prompt(joined(transfer([], ("C",)), "E")), {"C": AHEAD, "E": BEHIND}, 80, 100),
        (prompt(joined(transfer([share("rising", "E", "C")], ("C",)))), {"C": AHEAD, "E": BEHIND}, 80, 100),
        (joined(transfer([share("rising", "E", "C")], ("C",))), {"C": AHEAD, "E": BEHIND}, 80, 80),
    ],
)
def test_rows_are_late_where_they_are_for_all(
    taken: StateTransfer, known: dict[str, Saved], late: int, passed: int
) -> None:
    assert event_time(taken, known) == (late, passed)


def test_scans_begin_with_what_spark_made_of_nothing(tmp_path: Path) -> None:
    blank, checkpoint = tmp_path / "blank", tmp_path / "unit"
    made = blank / "state" / "0"
    for name, text in {
        "_metadata/v2/0": 'v2\n{"operatorInfo":{"operatorId":0},"stateStoreInfo":[{"storeName":"default",'
        '"numPartitions":1,"stateSchemaFilePaths":["file:/elsewhere/state/0/_stateSchema/default/0_a"]}]}',
        "_stateSchema/default/0_a": "schema",
        "0/1.zip": "nothing",
        "0/.1.zip.crc": "sum",
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    found = replace(AHEAD, conf={"spark.sql.shuffle.partitions": "2"})
    begins = replace(transfer([], ("E",)), fresh=(1,))
    store = StateStore(str(tmp_path / "store"))

    def unasked() -> Path:
        raise AssertionError("nothing blank is needed")

    assert assemble(checkpoint, begins, store, {"E": "E"}, {"E": found}, (), lambda: blank) is not None
    place = checkpoint / "state" / "1"
    assert sorted(p.name for p in place.rglob("*.zip*")) == ["5.zip", "5.zip"]  # the version after batch 4
    data = json.loads((place / "_metadata" / "v2" / "0").read_text().split("\n", 1)[1])
    assert data["operatorInfo"]["operatorId"] == 1
    assert data["stateStoreInfo"][0]["numPartitions"] == 2
    schema = data["stateStoreInfo"][0]["stateSchemaFilePaths"][0]
    assert schema == f"file:{checkpoint}/state/1/_stateSchema/default/0_a"
    assert assemble(tmp_path / "new", begins, store, {"E": "E"}, {"E": Saved()}, (), unasked) is not None
    assert not (tmp_path / "new" / "state").exists()  # without a completed batch, Spark creates its state itself


def test_late_rows_are_counted_on_by_one_unit(tmp_path: Path) -> None:
    store = StateStore(str(tmp_path / "store"))

    def unasked() -> Path:
        raise AssertionError("nothing blank is needed")

    halves = [transfer([], ("E",)), replace(transfer([], ("E",)), counted=("E",))]
    late = []
    for number, half in enumerate(halves):
        made = assemble(tmp_path / str(number), half, store, {"E": ""}, {"E": replace(AHEAD, late_rows=7)}, (), unasked)
        late.append(made.late_rows if made else None)
    assert late == [0, 7]
