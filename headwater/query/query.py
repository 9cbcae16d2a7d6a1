"""One streaming query over Spark Connect: start it, watch it, stop it between two batches."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable
from headwater.core.jsonform import dump, load
from headwater.core.metrics import Latency
from headwater.disk.checkpoint import cut_off, may_be_taken_back, newest_batch, reads_agree
from headwater.query.counting import Counting, Tally, latency_of
from headwater.query.failure import translated
from headwater.query.late import late_rows, watermark_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

IDLE_SECONDS = 30.0
READY_SECONDS = 30.0
BATCHES = 100
"""Number of a run's newest batches that are kept."""
_PACE, _LONGEST = 10, 5.0  # batches and seconds after which a run is observed again
_LOOK = 0.02  # seconds between two checks of the checkpoint of a query that is to stop
_ASK = 0.5  # seconds after which Spark is asked whether the query still runs
_TOPIC = "KafkaV2["  # begins Spark's description of a source of Kafka
_CLOSED = ("Cannot invoke RPC", "NO_ACTIVE_SESSION")


@dataclass(frozen=True)
class Batch:
    """One executed batch: when it was triggered (seconds of the epoch) and how long it took.

    ``rows`` counts the rows that Spark read for it: of every read of a source, punctuation included.
    """

    id: int
    begun: float
    seconds: float
    rows: int


@dataclass
class Running:
    """A unit's running query, and the totals of its progress."""

    query: StreamingQuery
    scans: int = 1
    """How often the query reads each of its sources."""
    late_rows: int = 0
    passed: int = 0
    """The watermark of its newest batch, in microseconds."""
    last_batch: int = -1
    watermark: str | None = None
    recent_ms: list[float] = field(default_factory=list)
    recent_rate: list[float] = field(default_factory=list)
    ends: dict[int, dict[str, int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    """Records that the newest batch left unread, by the number of the read of a Kafka topic."""
    reached: Mapping[str, int] = field(default_factory=dict)
    """Position in each channel before the first observed batch, where it is known."""
    error: RuntimeFailure | None = None
    stopped: bool = False
    """Whether it was stopped on request."""
    batches: deque[Batch] = field(default_factory=lambda: deque(maxlen=BATCHES))
    """The newest batches observed, including those without rows; oldest first."""
    done: int = 0
    """Number of executed batches, including those without rows."""
    busy_s: float = 0.0
    """Seconds that the batches took."""
    cpu_s: float = 0.0
    """Seconds of a core attributed to the query; see ``hosts``."""
    state_rows: int = 0
    state_bytes: int = 0
    """Bytes of its state as of the newest batch: RocksDB's files, which hold all of it when a batch has ended."""
    paid: int = -1
    """The newest batch included in ``cpu_s``."""
    tally: Tally = field(default_factory=lambda: Tally(Counting()))
    explain: Callable[[str, str], RuntimeFailure] = translated
    """Makes the error of Spark's text and the unit's name."""
    real_time: float = 0.0
    """Seconds that a batch lasts in Spark's real-time mode; 0 for a query that ends a batch with its rows."""
    slots: int = 0
    """Task slots that it holds in real-time mode."""
    paced: bool = False
    """Whether its source waits for the begin of each batch, instead of Spark; see ``disk.pace``."""
    back_to_back: bool = False
    """Whether Spark begins its batches one after another, not at the zone's trigger."""
    latency: Latency | None = None
    """Age of the records of the newest batch with records in real-time mode, as they were read."""
    checkpoint: Path | None = None
    """Its checkpoint, which tells whether there is a batch to observe; None: Spark is asked each time."""
    before: int = -1
    """The newest batch that was committed when the query started."""
    _is_over: bool = False
    """Whether it was found ended after its stop: it cannot fail any more."""
    _scanned: int = 0
    _looked: float = 0.0
    _looking: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def rows_in(self) -> int:
        """Rows from sources; those from channels follow from its positions."""
        return self._scanned // self.scans

    def note(self) -> dict[str, Any]:
        """Return the totals from which another agent continues counting; ``resumed`` reads them."""
        return {
            "scans": self.scans,
            "batch": self.last_batch,
            "passed": self.passed,
            "counting": dump(self.tally.counting),
            "counted": dict(self.tally.rows),
            "done": self.done,
            "busy_s": self.busy_s,
            "cpu_s": self.cpu_s,
            "real_time": self.real_time,
            "slots": self.slots,
            "paced": self.paced,
            "back_to_back": self.back_to_back,
        }

    @classmethod
    def resumed(
        cls,
        query: StreamingQuery,
        note: Mapping[str, Any],
        explain: Callable[[str, str], RuntimeFailure] = translated,
        *,
        reached: Mapping[str, int] = MappingProxyType({}),
        checkpoint: Path | None = None,
    ) -> Running:
        """Adopt a running query, with the totals of its last note and the positions that it has ``reached``."""
        return cls(
            query,
            explain=explain,
            reached=reached,
            checkpoint=checkpoint,
            scans=int(note.get("scans", 1)),
            last_batch=int(note.get("batch", -1)),
            paid=int(note.get("batch", -1)),
            passed=int(note.get("passed", 0)),
            tally=Tally(load(Counting, note.get("counting", {}), what="what was counted"), note.get("counted")),
            done=int(note.get("done", 0)),
            busy_s=float(note.get("busy_s", 0.0)),
            cpu_s=float(note.get("cpu_s", 0.0)),
            real_time=float(note.get("real_time", 0.0)),
            slots=int(note.get("slots", 0)),
            paced=bool(note.get("paced", False)),
        )

    def wait_until_ready(self) -> None:
        """Wait until the query has its sources, or has failed."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and "nitializing" in self.query.status["message"]:
            time.sleep(0.02)

    @property
    def begins(self) -> bool:
        """Return whether its first batch is still to end; False where none is due, because there is no input."""
        return self.last_batch < 0 and not str(self.query.status["message"]).startswith("Waiting")

    def keep_up(self) -> None:
        """Observe the query before Spark forgets batches; it remembers enough that this is rarely needed."""
        newest = [b.begun for b in list(self.batches)[-_PACE:]]
        pace = (newest[-1] - newest[0]) / (len(newest) - 1) if len(newest) > 1 else 0.0
        if time.monotonic() - self._looked >= min(_LONGEST, _PACE * pace):
            self.observe()

    def observe(self) -> None:
        """Add the batches since the last call; concurrent calls count each batch once.

        Spark is not asked where no batch was committed since: its answer has some kilobytes for each kept batch.
        """
        with self._looking:
            self._looked = time.monotonic()
            if self._is_observed():
                return
            for progress in self.query.recentProgress:
                self._take_batch(progress)

    def _is_observed(self) -> bool:
        """Return whether every committed batch is observed. Spark reports a batch shortly after its commit."""
        if self.checkpoint is None or self.real_time:
            return False
        return newest_batch(self.checkpoint / "commits") <= max(self.last_batch, self.before)

    def _take_batch(self, progress: Mapping[str, Any]) -> None:
        batch = int(progress["batchId"])
        # An idle query reports too, under the number of the batch that is still to come.
        if batch <= self.last_batch or "addBatch" not in progress["durationMs"]:
            return
        self.last_batch = batch
        rows = sum(int(s["numInputRows"] or 0) for s in progress["sources"])
        durations = progress["durationMs"]
        waited = float(durations.get("latestOffset", 0)) if self.paced else 0.0
        # In real-time mode a batch lasts that long whatever it has to do.
        took = max(0.0, float(durations.get("triggerExecution", 0)) - waited - self.real_time * 1000)
        if self.real_time:
            self.latency = latency_of(progress.get("observedMetrics") or {}, self.real_time) or self.latency
        begun = _epoch(progress["timestamp"]) + waited / 1000
        rate = float(progress.get("inputRowsPerSecond") or 0.0)
        if self.paced and self.batches:  # Spark's rate begins with a trigger that may have had no input
            rate = rows / max(begun - self.batches[-1].begun, 0.001)
        self.batches.append(Batch(batch, begun, took / 1000, rows))
        self.busy_s += took / 1000
        self.done += 1
        self.state_rows = sum(int(o.get("numRowsTotal", 0)) for o in progress["stateOperators"])
        self.state_bytes = sum(_bytes(o) for o in progress["stateOperators"])
        self.tally.take(progress, time.monotonic())
        for number, source in enumerate(progress["sources"]):
            self._take(number, source)
        self.late_rows += late_rows(progress, self.passed)
        self.passed = max(self.passed, watermark_of(progress))
        self.watermark = (progress.get("eventTime") or {}).get("watermark", self.watermark)
        if rows:
            self.recent_ms = [*self.recent_ms[-19:], took]
            self.recent_rate = [*self.recent_rate[-19:], rate]

    @property
    def positions(self) -> dict[str, int]:
        """Position in each channel that the newest batch has reached with all reads; left channels are missing."""
        if not self.ends:
            return dict(self.reached)
        found: dict[str, int] = {}
        for ends in self.ends.values():
            for channel, at in ends.items():
                found[channel] = min(at, found.get(channel, at))
        return found

    def _take(self, number: int, source: Any) -> None:
        """Count a source's rows; for a channel take its position, which is more exact."""
        end = source["endOffset"]
        end = json.loads(end) if isinstance(end, str) and end.startswith("{") else end
        reads = self.tally.counting.reads
        is_spool = number < len(reads) and reads[number].location is not None  # its rows are those of a source
        if isinstance(end, dict) and end and all("@" in key for key in end) and not is_spool:
            self.ends[number] = {key: int(position) for key, position in end.items()}
        elif "/control]" not in source["description"]:
            self._scanned += int(source["numInputRows"] or 0)
            if source["description"].startswith(_TOPIC):
                self.left[number] = unread_records(end, source.get("latestOffset"))

    @property
    def behind(self) -> int | None:
        """Records that the newest batch left unread in Kafka topics; None for a query that reads none."""
        return sum(self.left.values()) // self.scans if self.left else None

    @property
    def began(self) -> float | None:
        """Start of the newest observed batch, in seconds since 1970."""
        return self.batches[-1].begun if self.batches else None

    @property
    def batch_ms(self) -> float | None:
        return median(self.recent_ms) if self.recent_ms else None

    @property
    def rows_per_s(self) -> float | None:
        return median(self.recent_rate) if self.recent_rate else None

    def failure(self, unit: str, active: Collection[str] = ()) -> RuntimeFailure | None:
        """Return the error that ended the query, in the user's terms, or None while all is well.

        ``active`` are run ids that Spark has just reported as active: no request is made for such a query, nor again
        for one that has ended after its stop.
        """
        if self.error is not None or self._is_over or (active and str(self.query.runId) in active):
            return self.error
        if not self.query.isActive:
            exception = self.query.exception()
            if exception is not None:
                self.error = self.explain(str(exception), unit)
            self._is_over = self.stopped
        return self.error

    def stop(self, checkpoint: Path | None = None, *, at_once: bool = False, level: bool = False) -> None:
        """Stop between two batches: an interrupted batch is repeated, but its errors in the log alarm people.

        An overloaded query begins its next batch at once: with its ``checkpoint`` it is
        stopped when a batch has ended, at the start of the next. ``at_once``: do not wait for a batch that
        may be taken back. ``level``: stop only where ``reads_agree``.
        """
        deadline = time.monotonic() + IDLE_SECONDS
        before = newest_batch(checkpoint / "commits") if checkpoint else -1

        def between_batches() -> bool:
            if checkpoint is None:
                return bool(self.real_time) or not self.query.status["isTriggerActive"]
            # Read the files: on a busy core Spark answers slowly.
            # In real-time mode a batch writes its offsets at its end only.
            rests = not cut_off(checkpoint) and not self.real_time
            ended = newest_batch(checkpoint / "commits") > before or rests
            return ended or (at_once and may_be_taken_back(checkpoint))

        asked = -math.inf
        while (now := time.monotonic()) < deadline:
            if between_batches() and (not level or checkpoint is None or reads_agree(checkpoint)):
                break
            if now - asked >= _ASK:
                if not self.query.isActive:
                    break
                asked = now
            time.sleep(_LOOK)
        self.query.stop()
        self.stopped = True


def unread_records(end: Any, latest: Any) -> int:
    """Return the records between two offsets of a Kafka topic; partitions that the first one lacks are unread.

    >>> unread_records({"t": {"0": 5, "1": 2}}, '{"t": {"0": 7, "1": 2}}')
    2
    """
    latest = json.loads(latest) if isinstance(latest, str) and latest.startswith("{") else latest
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return 0
    found = 0
    for topic, partitions in latest.items():
        for partition, newest in partitions.items():
            found += max(0, int(newest) - int(end.get(topic, {}).get(partition, 0)))
    return found


def _bytes(operator: Mapping[str, Any]) -> int:
    """Return the bytes of a stateful operator's state: on disk where RocksDB reports it, else in memory."""
    custom = operator.get("customMetrics") or {}
    return int(custom.get("rocksdbSstFileSize", operator.get("memoryUsedBytes", 0)))


def _epoch(timestamp: str) -> float:
    """Read Spark's time of a batch, as 2026-01-31T12:00:00.000Z."""
    return datetime.fromisoformat(timestamp).timestamp()


@contextlib.contextmanager
def reaching_spark(where: str) -> Iterator[None]:
    """Raise Unavailable where Spark does not answer a request: the server has ended, or is about to."""
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as error:
        if not _is_unanswered(error):
            raise
        raise Unavailable("Spark does not answer", where=where, hint="it may have ended; read its log") from error


def _is_unanswered(error: BaseException | None) -> bool:
    import grpc

    while error is not None:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE:
            return True
        # A thread that found Spark gone has closed the client which another thread was about to use.
        if any(text in str(error) for text in _CLOSED):
            return True
        error = error.__cause__ or error.__context__
    return False


def running_query(spark: SparkSession, name: str) -> StreamingQuery | None:
    """Find the query that runs under a name in this session."""
    return next((q for q in spark.streams.active if q.name == name), None)
