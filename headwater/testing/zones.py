"""A deployment over zones, each with an agent, a Spark and a disk of its own, with injected failures.

The zones run on one machine, joined by links that can be cut. Data passes from zone to zone
only over these links.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.agent.agents import AgentClient, Agents, running_agent
from headwater.channels.channelspec import is_copied
from headwater.channels.flight import FlightLog
from headwater.control.stamps import Stamps
from headwater.core.errors import Unavailable
from headwater.dataflow.sinks import MemorySink
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.spec import spec_of
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing.link import CutLink

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE = 240.0
"""Seconds after which an operation counts as hanging."""


class ZoneRun:
    """Run a plan over zones, through their agents alone, and inject failures.

    ``options`` are the agents' command-line options, such as ``--quick``. Use it as a context manager: it
    stops the processes that it has started.
    """

    def __init__(self, plan: DeploymentPlan, home: Path, *, options: tuple[str, ...] = ("--quick",)) -> None:
        self.plan = plan
        self.links = {node: CutLink() for node in dict.fromkeys(u.node for u in plan.units)}
        routes = {node: link.address for node, link in self.links.items()}
        self._stamps = Stamps("test", 1)
        self._agents = Agents(home, options=options, routes=routes)

    def __enter__(self) -> ZoneRun:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links.values():
            link.close()
        self._agents.end()

    # ------------------------------------------------------------ running

    def node(self, name: str) -> AgentClient:
        """Return a client of a node's agent, which is started if it does not run."""
        client = self._agents.open(self.plan.continuum.node(name), self._stamps)
        record = running_agent(self._agents.home / "zones" / name)
        if record is not None:
            self.links[name].lead_to(str(record["address"]))
        return client

    def start(self) -> None:
        """Check, prepare and start all units."""
        for step in ("check", "prepare", "start"):
            for unit in self.plan.units:
                getattr(self.node(unit.node), step)(spec_of(self.plan, unit.id))

    def settle(self) -> None:
        """Wait until every unit has processed the rows that have arrived at the sources."""
        for unit in self.plan.units:
            for channel in self.plan.inputs(unit):
                if is_copied(channel, unit):
                    self._arrive(channel.id, channel.node, unit)
            self.insist(lambda unit=unit: self._settled(unit))

    def _settled(self, unit: Unit) -> bool:
        self.node(unit.node).settle(spec_of(self.plan, unit.id))
        return True

    def _arrive(self, channel: str, node: str, unit: Unit) -> None:
        """Wait until the replica of a channel has reached the original's present position."""
        wanted = self._log(node, channel).latest()
        self.insist(lambda: self._log(unit.node, channel).latest() >= wanted)

    def _log(self, node: str, channel: str) -> FlightLog:
        return self._agents.channel(self.plan.continuum.node(node), self.plan.dataflow.name, channel)

    def finish(self) -> None:
        """Let every unit read its input to the end, from the sources on."""
        for unit in self.plan.units:
            self.insist(lambda unit=unit: self.node(unit.node).finish(spec_of(self.plan, unit.id)))

    def rows(self) -> dict[str, pa.Table]:
        """Read back the memory sinks."""
        import pyarrow as pa

        found = {}
        for sink in self.plan.dataflow.sinks:
            if isinstance(sink, MemorySink):
                batches = [b for u in self.plan.units if sink.id in u.outputs for b in self._read(u, sink.id)]
                found[sink.id] = pa.Table.from_batches(batches)
        return found

    def _read(self, unit: Unit, sink: str) -> Iterator[pa.RecordBatch]:
        log = self._agents.sink(self.plan, unit.id, sink)
        yield from log.read(log.earliest(), log.latest())

    @staticmethod
    def insist(ask: object) -> None:
        """Repeat a request until it succeeds; failed processes and links recover by themselves."""
        assert callable(ask)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if ask():
                    return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.1)

    # ------------------------------------------------------------ failures

    def kill_agent(self, zone: str) -> None:
        """SIGKILL a zone's agent; the next call to the zone starts it again."""
        record = running_agent(self._agents.home / "zones" / zone)
        assert record is not None, f"no agent runs in {zone}"
        os.kill(int(record["pid"]), signal.SIGKILL)
        while running_agent(self._agents.home / "zones" / zone) is not None:
            time.sleep(0.01)

    def kill_spark(self, zone: str) -> None:
        """SIGKILL a zone's Spark; its agent starts it again."""
        for directory in (self._agents.home / "zones" / zone / "spark").iterdir():
            endpoint = LocalEndpoint.attach(directory)
            if endpoint is not None:
                os.killpg(endpoint.pid, signal.SIGKILL)

    def harm(self, rng: random.Random) -> str:
        """Inject a random failure; return its description."""
        zone = rng.choice(sorted(self.links))
        match rng.choice(("agent", "spark", "link")):
            case "agent":
                self.kill_agent(zone)
                return f"agent of {zone} killed"
            case "spark":
                self.kill_spark(zone)
                return f"Spark of {zone} killed"
        self.links[zone].cut()
        time.sleep(rng.uniform(0.1, 8.0))
        self.links[zone].mend()
        return f"link of {zone} cut for a while"
