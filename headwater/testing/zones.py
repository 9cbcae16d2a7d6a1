"""A deployment over zones, each with an agent, a Spark and a disk of its own, and what befalls it.

The zones run on one machine, joined by links that can be cut. Nothing but what crosses these
links passes from zone to zone.
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
"""Seconds that anything may take before it counts as hanging."""


class ZoneRun:
    """Carry a plan out over zones, by their agents alone, and do harm to them.

    ``options`` are given to the agents, such as ``--quick``. Use it as a context: what it started ends
    with it.
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

    # ------------------------------------------------------------ life

    def node(self, name: str) -> AgentClient:
        """Give the way to a node, with an agent that runs."""
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
        """Wait until what has arrived at the sources so far has gone through every unit."""
        for unit in self.plan.units:
            for channel in self.plan.inputs(unit):
                if channel.node != unit.node:
                    self._arrive(channel.id, channel.node, unit)
            self.insist(lambda unit=unit: self._settled(unit))

    def _settled(self, unit: Unit) -> bool:
        self.node(unit.node).settle(spec_of(self.plan, unit.id))
        return True

    def _arrive(self, channel: str, node: str, unit: Unit) -> None:
        """Wait until the copy of a channel is where the original is now."""
        wanted = self._log(node, channel).latest()
        self.insist(lambda: self._log(unit.node, channel).latest() >= wanted)

    def _log(self, node: str, channel: str) -> FlightLog:
        return self._agents.channel(self.plan.continuum.node(node), self.plan.dataflow.name, channel)

    def finish(self) -> None:
        """Let every unit use up its input, from the sources on."""
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
        """Ask again until it is so; what is broken comes back by itself."""
        assert callable(ask)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if ask():
                    return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            assert time.monotonic() < deadline, "did not come about in time"
            time.sleep(0.1)

    # ------------------------------------------------------------ harm

    def kill_agent(self, zone: str) -> None:
        """SIGKILL a zone's agent; it is started again by whoever asks the zone next."""
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
        """Do something bad, chosen by chance; give what it was."""
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
