"""Dataflows that come and go while rows flow: each has the output of a run alone, from its start on."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app import deployments, pools
from headwater.continuum.model import Continuum
from headwater.core.errors import ChannelError
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan.steps import FormerOutputChoice
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from headwater.testing.compare import Difference
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, running, sink_rows
from tests.patience import PATIENCE

CONTINUUM = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
""")
SCHEMA = "id bigint, ts timestamp, k string, v double"
BEGIN = 1_700_000_000
PIECE = 20
GAP = 60  # seconds of event time between two releases: all windows and folds of before are done


def flows(path: str) -> dict[str, Dataflow]:
    """Return dataflows that overlap: folds, windows, filters of filters, branches that meet, and a later layer."""

    def sum_(state: float, row: Mapping[str, Any]) -> Any:
        return state + row["v"], {"id": row["id"], "ts": row["ts"], "k": row["k"], "total": state + row["v"]}

    def nth(state: int, row: Mapping[str, Any]) -> Any:
        return state + 1, {"id": row["id"], "n": state + 1}

    made: dict[str, Dataflow] = {}

    def add(name: str, write: Any) -> None:
        builder = hw.flow(name, locations=["L1"])
        rows = builder.read.json(path, SCHEMA).with_watermark("ts", "2250 milliseconds").named("rows")
        write(rows)
        made[name] = builder.build()

    def summed(rows: Stream) -> Stream:
        return rows.where("v > 0").scan(
            sum_,
            "id bigint, ts timestamp, k string, total double",
            keys="k",
            order_by=["ts", "id"],
            initial=0,
        )

    add("high", lambda r: r.where("v > 20").select("id", "v").write.memory("out"))
    add("higher", lambda r: r.where("v > 40").select("id", "v AS much").write.memory("out"))
    add("sums", lambda r: summed(r).select("id", "total").write.memory("out"))
    add("big", lambda r: summed(r).where("total > 100").select("id", "k").write.memory("out"))
    add(
        "ranks",
        lambda r: (
            r.where("v > 0")
            .scan(nth, "id bigint, n int", keys=(), order_by=["ts", "id"], initial=0)
            .write.memory("out")
        ),
    )
    add(
        "apart",
        lambda r: (
            r.where("v > 30")
            .select("id", "v")
            .union(r.where("v < 0").select("id", "-v AS v"))
            .to_layer("cloud")
            .write.memory("out")
        ),
    )
    add(
        "windows",
        lambda r: (
            r.group_by(hw.window("ts", "10 seconds"), "k")
            .agg(n="count(*)", s="sum(v)")
            .select("window.start AS begin", "k", "n", "s")
            .write.memory("out")
        ),
    )
    add(
        "cloudy",
        lambda r: (
            r.where("v > 20")
            .to_layer("cloud")
            .group_by(hw.window("ts", "10 seconds"))
            .agg(n="count(*)")
            .select("window.start AS begin", "n")
            .write.memory("out")
        ),
    )
    add(
        "longer",
        lambda r: (
            r.group_by(hw.window("ts", "20 seconds"))
            .agg(n="count(*)", s="sum(v)")
            .select("window.start AS begin", "n", "s")
            .write.memory("out")
        ),
    )
    return made


DELAY = 2.25  # no row is exactly at a watermark: behind a channel, such a row waits for the next watermark
TIMES = {  # the column that tells a sink row's time; rows of other sinks pass at once
    "sums": "id", "big": "id", "ranks": "id", "windows": "begin", "cloudy": "begin", "longer": "begin",
}  # fmt: skip
LASTS = {"longer": 20.0}
"""Seconds of a window, where it is not 10."""
EDITS = {"big": ("total > 100", "total > 150"), "high": ("v > 20", "v > 25"), "higher": ("v > 40", "v > 30")}
"""A text of each of these dataflows, and that of another version of it."""
KEEPS = {"sums": "sum", "big": "sum", "ranks": "rank", "windows": "window", "cloudy": "cloudy", "longer": "longer"}
"""The stateful part of each dataflow; dataflows with the same word share it."""


class World:
    """A pool of dataflows over a source that is released in pieces, and the expected output of each dataflow."""

    def __init__(
        self, place: Path, controller: Controller, endpoint: LocalEndpoint, address: str, *, pieces: int, kill: bool
    ) -> None:
        self.place, self._controller, self._spark, self._kill = place, controller, endpoint.session(), kill
        self._continuum, self._address = on_spark(CONTINUUM, address), address
        self.store = str(place / "store.db")
        drawn = random.Random(5)
        self._rows = [
            {
                "id": piece * 100 + n,
                "ts": _text(BEGIN + piece * GAP + n * 0.5),
                "k": f"k{drawn.randrange(3)}",
                "v": float(drawn.randrange(-10, 60)),
            }
            for piece in range(pieces)
            for n in range(PIECE)
        ]
        self.source = BoundedSource(place / "in", {"L1": self._rows}, rows_per_file=PIECE)
        self.flows = flows(self.source.path)
        self._released = iter(self.source.release())
        self.released = 0
        self.since: dict[str, int] = {}
        self.ingested: dict[str, int] = {}
        self._edited: set[str] = set()
        self.of_shorter = False
        """Whether the windows of ``longer`` are computed from those of ``windows``."""
        self._wider = False

    def more(self) -> None:
        """Release a piece and wait until every sink holds its rows and has reached its event time."""
        next(self._released)
        self.released += 1
        self.check()

    def submit(self, name: str) -> None:
        joined = pools.plan_submission(self.flows[name], self._continuum, "team", self.store).apply()
        self._controller.carry_out(joined.version, kill=self._kill)
        if name == "longer" and joined.notes:
            self.of_shorter = True
            # The window that is open holds the newest piece.
            self.ingested["longer"] = max(self.ingested["window"], self.released - 1)
        self.since[name] = self.released
        if name in KEEPS:
            self.ingested.setdefault(KEEPS[name], self.released)

    def update(self, name: str) -> None:
        """Replace a running dataflow by its other version."""
        self._edited ^= {name}
        joined = pools.plan_submission(
            self._version(name, self.source.path), self._continuum, "team", self.store, update=True
        )
        self._controller.carry_out(joined.apply().version, kill=self._kill)
        self.since[name] = self.released

    def _version(self, name: str, path: str) -> Dataflow:
        """Return a dataflow as it runs now."""
        flow = flows(path)[name]
        if name not in self._edited:
            return flow
        text = json.dumps(flow.to_data())
        assert EDITS[name][0] in text
        return Dataflow.from_data(json.loads(text.replace(*EDITS[name])))

    def change_hosts(self) -> None:
        """Give each zone another host, or take it away again: the next submission brings it."""
        self._wider = not self._wider
        data: dict[str, Any] = CONTINUUM.to_data()
        if self._wider:
            for name, zone in data["zones"].items():
                zone["hosts"][f"{name}-more"] = {"n_cpu": 1}
        self._continuum = on_spark(Continuum.from_data(data), self._address)

    def remove(self, name: str) -> None:
        joined = pools.plan_removal(name, "team", self.store).apply()
        self._controller.carry_out(joined.version, kill=self._kill)
        del self.since[name]
        self._edited.discard(name)
        kept = {KEEPS.get(n) for n in self.since} | (
            {"window"} if self.of_shorter and "longer" in self.since else set()
        )
        self.ingested = {part: first for part, first in self.ingested.items() if part in kept}
        self.of_shorter = self.of_shorter and "longer" in self.since

    def defragment(self) -> None:
        self._controller.carry_out(pools.plan_defragmentation(pools.POOL, self.store).apply().version, kill=self._kill)

    def finish(self) -> None:
        version = deployments.stop(pools.POOL, self.store, how="finish")
        self._controller.carry_out(version, kill=self._kill)

    def check(self, *, ended: bool = False) -> None:
        """Compare every sink with a run of its dataflow alone over the rows since its start."""
        (pool,) = pools.pools(self.store)
        pool.check()
        assert {s.name for s in pool.submissions} == set(self.since)
        wanted = {name: self._expected(name, ended=ended) for name in self.since}
        deadline, calm = time.monotonic() + PATIENCE, 0
        while calm < 4:  # a duplicate comes a little later
            found = {name: self._difference(pool[name].sinks["out"], wanted[name]) for name in wanted}
            late = time.monotonic() > deadline
            wrong = {n: d for n, d in found.items() if d and (late or d.duplicated)}
            assert not wrong, (wrong, self.since, self.released)
            calm = calm + 1 if not any(found.values()) else 0
            time.sleep(0.5)

    def _difference(self, sink: str, wanted: pa.Table | None) -> Difference:
        try:
            got = sink_rows(self.place, pools.POOL, sink)
        except ChannelError:  # nothing was written yet
            got = None
        if wanted is None or not got:
            lost, found = (len(t) if t is not None else 0 for t in (wanted, got))
            return Difference(lost, found, ())
        return compare(wanted, got)

    def _expected(self, name: str, *, ended: bool) -> pa.Table | None:
        first = self.ingested[KEEPS[name]] if name in KEEPS else self.since[name]
        place = self.place / "alone" / f"{name}-{first}-{self.released}"
        rows = self._rows[first * PIECE : self.released * PIECE]
        if not rows:
            return None
        alone = BoundedSource(place, {"L1": rows}, rows_per_file=PIECE)
        alone.release_all()
        whole = batch_result(self._spark, self._version(name, alone.path), CONTINUUM)["out"]
        if name not in TIMES:
            return whole
        after = self._passed(self.since[name])
        until = float("inf") if ended else self._passed(self.released)
        times = [_time(name, row) for row in whole.to_pylist()]
        return whole.filter(pa.array([after < t <= until for t in times], pa.bool_()))

    def _passed(self, pieces: int) -> float:
        """Return the event time that has passed after this number of pieces."""
        if pieces == 0:
            return 0.0
        return BEGIN + (pieces - 1) * GAP + (PIECE - 1) * 0.5 - DELAY


def _time(name: str, row: dict[str, Any]) -> float:
    """Return the event time at which a row of a sink is output."""
    if TIMES[name] == "begin":
        return row["begin"].replace(tzinfo=UTC).timestamp() + LASTS.get(name, 10.0)
    piece, n = divmod(row["id"], 100)
    return BEGIN + piece * GAP + n * 0.5


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def controller(tmp_path: Path, spark_address: str) -> Iterator[Controller]:
    with running(pools.POOL, tmp_path, seed=11) as started:
        yield started


def test_a_fold_goes_on_while_the_dataflows_that_share_it_change(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    world = World(tmp_path, controller, endpoint, spark_address, pieces=3, kill=False)
    world.submit("sums")
    world.more()
    world.submit("big")  # its input is folded already
    world.more()
    world.update("big")  # the fold of both versions goes on
    world.remove("sums")
    world.more()
    world.finish()
    world.check(ended=True)


@pytest.mark.long
def test_dataflows_come_and_go(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    world = World(tmp_path, controller, endpoint, spark_address, pieces=8, kill=False)
    world.submit("high")
    world.more()
    world.submit("sums")  # the first fold, in a query without state so far
    world.more()
    world.submit("big")  # its input is folded already
    world.submit("ranks")  # a second fold beside the first
    world.more()
    world.submit("windows")  # a separate unit, fed from now on
    world.submit("higher")  # a filter of a filter
    world.more()
    world.update("big")  # the fold of both versions goes on
    world.more()
    world.remove("sums")
    world.remove("windows")
    world.more()
    world.defragment()
    world.more()
    world.finish()
    world.check(ended=True)


@pytest.mark.long
def test_longer_windows_are_computed_from_those_of_another_dataflow(
    endpoint: LocalEndpoint,
    spark_address: str,
    tmp_path: Path,
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "cheapest", lambda found, facts: found[0])  # as if nothing were measured
    world = World(tmp_path, controller, endpoint, spark_address, pieces=4, kill=False)
    world.submit("windows")
    world.more()
    world.submit("longer")
    assert world.of_shorter
    world.more()
    world.remove("windows")  # its windows run on for the longer ones
    world.more()
    world.submit("windows")
    world.remove("longer")
    world.more()
    world.finish()
    world.check(ended=True)


@pytest.mark.long
def test_a_unit_that_reads_its_source_more_often_goes_on_where_it_was(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    """Branches that meet again are computed in one read beside other outputs, and in one read each alone."""
    world = World(tmp_path, controller, endpoint, spark_address, pieces=4, kill=False)
    world.submit("apart")
    world.submit("higher")
    world.more()
    world.remove("higher")
    world.more()
    world.submit("higher")
    world.more()
    world.remove("higher")  # the further reads of before have stood still meanwhile
    world.more()


@pytest.mark.long
def test_a_dataflow_that_joins_a_pool_does_not_mix_its_rows_with_those_of_another_run(
    tmp_path: Path, controller: Controller
) -> None:
    store, out = str(tmp_path / "store.db"), tmp_path / "out"
    source = BoundedSource(tmp_path / "in", {"L1": [{"id": n, "v": float(n)} for n in range(80)]}, rows_per_file=PIECE)
    released = iter(source.release())

    def written(name: str, *, files: bool) -> Dataflow:
        builder = hw.flow(name, locations=["L1"])
        stream = builder.read.json(source.path, "id bigint, v double").named("read").to_layer("cloud")
        if files:
            stream.write.json(str(out)).named("kept")
        else:
            stream.write.memory("shown")
        return builder.build()

    def submit(name: str, former_output: FormerOutputChoice = "refuse") -> int:
        flow = written(name, files=name == "kept")
        change = pools.plan_submission(flow, CONTINUUM, "team", store, former_output=former_output)
        return change.apply().version

    def carry_out(version: int) -> None:
        controller.carry_out(version, kill=False)

    def visible() -> list[int]:
        return sorted(json.loads(line)["id"] for file in out.glob("*.json") for line in file.read_text().splitlines())

    def more() -> None:
        """Release a piece, and wait until its last row is in the directory."""
        next(released)
        last = len(list((tmp_path / "in").rglob("*.json"))) * PIECE - 1
        deadline = time.monotonic() + PATIENCE
        while visible()[-1:] != [last]:
            assert time.monotonic() < deadline, visible()
            time.sleep(0.2)

    carry_out(submit("stays"))
    carry_out(submit("kept"))
    more()
    first = visible()
    assert len(first) == PIECE
    carry_out(pools.plan_removal("kept", "team", store).apply().version)
    refused = controller.end_of(submit("kept"), kill=False)
    assert f"holds {PIECE} rows of another run" in refused.message and refused.outcome == "failed", refused.message
    (pool,) = pools.pools(store)
    assert [s.name for s in pool.submissions] == ["stays"] and visible() == first
    carry_out(submit("kept", "append"))
    more()
    both = visible()
    assert both[:PIECE] == first and len(both) == len(set(both)) > PIECE
    carry_out(pools.plan_removal("kept", "team", store).apply().version)
    carry_out(submit("kept", "overwrite"))
    more()
    assert set(visible()).isdisjoint(both) and len(visible()) == PIECE


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_any_history(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller, seed: int
) -> None:
    drawn = random.Random(seed)
    world = World(tmp_path, controller, endpoint, spark_address, pieces=12, kill=True)
    world.submit(drawn.choice(sorted(world.flows)))
    for _ in range(11):
        away = [n for n in world.flows if n not in world.since]
        edited = sorted(EDITS.keys() & world.since)
        if drawn.random() < 0.2:
            world.change_hosts()
        choice = drawn.random()
        if choice < 0.5 and away:
            world.submit(drawn.choice(away))
        elif choice < 0.65 and edited:
            world.update(drawn.choice(edited))
        elif choice < 0.85 and len(world.since) > 1:
            world.remove(drawn.choice(sorted(world.since)))
        else:
            world.defragment()
        world.more()
    world.finish()
    world.check(ended=True)
    assert controller.kills > 3
