"""The state of one unit of a node while an agent knows it: its spec, its query, and the totals of former queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from headwater.agent.heldoutput import HeldOutput
from headwater.agent.histories import HistoryRead
from headwater.agent.idleness import IdleInputs
from headwater.channels.log import Log
from headwater.core.errors import DeploymentError, RuntimeFailure
from headwater.plan.model import Channel, Unit
from headwater.plan.spec import UnitSpec
from headwater.query.query import Running


@dataclass
class Work:
    """One unit: its spec, and its query where there is one."""

    spec: UnitSpec
    running: Running | None = None
    controlled: bool = False
    """Whether its control directory must tell it the end of its input."""
    replayed: frozenset[str] = frozenset()
    """The sources whose replayed records the query reads."""
    finished: bool = False
    rows_before: int = 0
    late_before: int = 0
    last_batch: int = -1
    """The newest batch that ``publish_watermark`` has seen idle."""
    tables_due: dict[str, float] = field(default_factory=dict)
    """By operator, when to look for changed files of its reference table (monotonic)."""
    idle: IdleInputs = field(default_factory=IdleInputs)
    history: HistoryRead = field(default_factory=HistoryRead)
    held: HeldOutput = field(default_factory=HeldOutput)
    refused: DeploymentError | None = None
    """Why it was not started."""

    @property
    def unit(self) -> Unit:
        return self.spec.unit

    @property
    def rows_in(self) -> int:
        """Rows read from sources since the unit was first started."""
        return self.rows_before + (self.running.rows_in if self.running else 0)

    @property
    def late_rows(self) -> int:
        return self.late_before + (self.running.late_rows if self.running else 0)

    @property
    def error(self) -> RuntimeFailure | None:
        return self.running.error if self.running else None

    def has_read(self, channel: Channel, log: Log, goal: int) -> bool:
        """Return whether its finished batches contain a channel up to a position."""
        assert self.running is not None
        at = self.running.positions.get(channel.id)
        if at is None:  # no batch since this object began to watch
            known = log.readers()
            at = min(known.get(reader, -1) for reader in self.spec.own_readers[channel.operator])
        return at >= goal

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Note the error of a unit that is refused: its status is `failed`, and it is tried again."""
        try:
            yield
        except DeploymentError as error:
            self.refused = error
            raise
