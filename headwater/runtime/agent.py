"""A zone's agent: carries out what it is told, remembers it, and goes on alone when nobody is there.

What it was told last of each unit is on its own disk. So after a restart, of the agent or of the
machine, with or without a link, its units go on; queries that still run are adopted.

Directory of an agent::

    agent.json                       its address and process, for this machine's eyes
    peers.json                       where other zones' agents are
    spark/<host>/                    one Spark for each kind of host
    deployments/<name>/              channels, checkpoints, sinks (see layout.py)
    deployments/<name>/plans/        plans by digest
    deployments/<name>/tasks.json    each unit, its plan and whether it is to run
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.errors import ChannelError, DeploymentError, HeadwaterError
from headwater.plan.carry import Carry, carry_from_data
from headwater.plan.document import from_document
from headwater.plan.model import DeploymentPlan, Unit
from headwater.runtime import carrying
from headwater.runtime.channels.filelog import FileLog
from headwater.runtime.deadletters import read_dead_letters
from headwater.runtime.durable import read_note, write_atomically
from headwater.runtime.hosts import Hosts
from headwater.runtime.query import reaching_spark
from headwater.runtime.rehearsal import rehearse
from headwater.runtime.replaying import replay, sources_of, wanted_from_data
from headwater.runtime.savedstate import StateStore
from headwater.runtime.settings import UnitSettings
from headwater.runtime.sparks import Sparks
from headwater.runtime.tasks import Deployed
from headwater.runtime.wire import Action, Credentials

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,300}")
_LOOK = 1.0  # seconds between two looks at what runs
_SAVE = 5.0  # seconds between two notes of the units' totals


class Agent:
    """The units, channels and Sparks of one zone. Its methods may be called from many threads."""

    def __init__(
        self,
        zone: str,
        directory: Path,
        credentials: Credentials,
        sparks: Sparks,
        settings: UnitSettings | None = None,
    ) -> None:
        self.zone = zone
        self.directory = directory.resolve()
        self._credentials = credentials
        self._sparks = sparks
        self._settings = settings or UnitSettings()
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._deployed: dict[str, Deployed] = {}
        self._hosts = Hosts(zone, sparks)
        self._peers: dict[str, str] = read_note(self.directory / "peers.json")
        self._guard = threading.Thread(target=self._watch, name="guard", daemon=True)

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        """Go on with what was to run when the agent ended last."""
        home = self.directory / "deployments"
        home.mkdir(parents=True, exist_ok=True)
        for place in sorted(home.iterdir()):
            if (place / "tasks.json").exists():
                self._open(place.name)
        self._guard.start()

    def end(self, *, units: bool) -> None:
        """End the agent; with ``units`` the queries and their Spark as well, at a batch boundary."""
        self._stopping.set()
        with self._lock:
            for deployed in self._deployed.values():
                deployed.leave(stop=units)
            if units:
                self._sparks.stop()

    def find_log(self, name: str) -> FileLog:
        """Give the log of a name ``<deployment>/<channel>``, or of a sink: ``<deployment>/sinks/<log>``."""
        parts = name.split("/")
        if len(parts) == 2:
            parts.insert(1, "channels")
        if len(parts) != 3 or parts[1] not in ("channels", "sinks") or not all(map(_NAME.fullmatch, parts)):
            raise ChannelError(f"not a log's name: {name!r}", where=f"zone {self.zone}")
        path = self.directory / "deployments" / parts[0] / parts[1] / parts[2]
        if not path.is_dir():
            raise ChannelError(
                "there is no such log (yet)", where=f"zone {self.zone}: {name}", hint="is its unit prepared?"
            )
        return FileLog(path)

    # ------------------------------------------------------------ requests

    def actions(self) -> dict[str, Action]:
        """Give what may be asked, by name; see ``agents.AgentClient`` for the other side."""
        return {
            "hello": lambda body: {"zone": self.zone, "deployments": sorted(self._deployed)},
            "peers": self._meet,
            "hold": self._hold,
            "check": self._of_unit(lambda d, plan, unit: d.check(plan, unit)),
            "prepare": lambda body: self._of_unit(
                lambda d, plan, unit: d.prepare(plan, unit, frozenset(map(str, body.get("joining") or ())))
            )(body),
            "start": self._of_unit(lambda d, plan, unit: d.start(plan, unit)),
            "feed": self._of_unit(lambda d, plan, unit: d.feed(plan, unit)),
            "stop": lambda body: self._of_unit(
                lambda d, plan, unit: d.stop(unit, clean=bool(body.get("clean")))
            )(body),
            "settle": self._of_unit(lambda d, plan, unit: d.settle(plan, unit)),
            "drained": self._of_unit(lambda d, plan, unit: d.drained(plan, unit)),
            "survey": self._of_unit(self._survey),
            "rehearse": self._rehearse,
            "save": self._of_unit(self._save),
            "load": self._load,
            "finish": self._of_unit(lambda d, plan, unit: d.finish(plan, unit)),
            "forget": self._of_unit(self._forget),
            "progress": lambda body: self._named(body).progress().to_data(),
            "dead_letters": self._dead_letters,
            "replay": self._replay,
        }

    def _meet(self, body: Mapping[str, Any]) -> None:
        """Note where other zones' agents are."""
        peers = {str(k): str(v) for k, v in dict(body.get("peers") or {}).items()}
        if any(self._peers.get(zone) != address for zone, address in peers.items()):
            self._peers |= peers
            write_atomically(self.directory / "peers.json", json.dumps(self._peers))

    def _hold(self, body: Mapping[str, Any]) -> str:
        """Store a plan."""
        document = dict(body["document"])
        plan = from_document(document)
        with self._lock:
            return self._open(plan.dataflow.name).hold(document, plan)

    def _carry(self, body: Mapping[str, Any]) -> tuple[Carry, list[str]]:
        """Read what a unit takes over, and the names of what was saved of its donors."""
        carry, names = carry_from_data(body.get("carry")), [str(n) for n in body.get("saved") or ()]
        if not all(n == "" or _NAME.fullmatch(n) for n in names) or len(names) != len(carry.donors):
            raise DeploymentError(f"not the names of what was saved: {names}", where=f"zone {self.zone}")
        return carry, names

    def _rehearse(self, body: dict[str, Any]) -> None:
        """Run a unit on a trifle, from what its donors keep by now if it takes over anything."""
        carried = self._carry(body) if body.get("carry") is not None else None

        def run(deployed: Deployed, plan: DeploymentPlan, unit: Unit) -> None:
            with deployed.acting(plan, unit) as units:
                dressed = (
                    carrying.dress(units, plan, unit, *carried, self._state_store()) if carried else None
                )
            rehearse(units, plan, unit, dressed)

        self._of_unit(run)(body)

    def _load(self, body: dict[str, Any]) -> None:
        """Make a unit's checkpoint of what others have saved."""
        carry, names = self._carry(body)

        def load(deployed: Deployed, plan: DeploymentPlan, unit: Unit) -> None:
            with deployed.acting(plan, unit) as units:
                carrying.load(units, plan, unit, carry, names, self._state_store())

        self._of_unit(load)(body)

    def _dead_letters(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give the first malformed records of a deployment."""
        letters = read_dead_letters(self._named(body).layout.all_dead_letters)
        return list(itertools.islice(letters, int(body.get("most", 1000))))

    def _replay(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Offer dead letters again to the sources that they came from."""
        wanted = wanted_from_data(body.get("letters"), where=f"zone {self.zone}")
        deployed, force = self._named(body), body.get("force") is True
        find = sources_of(deployed.in_force(), deployed.layout)
        found = replay(deployed.layout.all_dead_letters, wanted, find, force=force)
        return [replace(one, zone=self.zone).to_data() for one in found]

    def _survey(self, deployed: Deployed, plan: DeploymentPlan, unit: Unit) -> None:
        """Raise what stands in the way of saving what a unit keeps."""
        with deployed.acting(plan, unit) as units:
            carrying.survey(units, plan, unit, self._state_store())

    def _save(self, deployed: Deployed, plan: DeploymentPlan, unit: Unit) -> dict[str, int]:
        """Put what a stopped unit kept where other zones find it; tell its size."""
        with deployed.acting(plan, unit) as units:
            saved, sent = carrying.save(units, plan, unit, self._state_store())
        return {"bytes": saved.bytes, "sent": sent}

    def _forget(self, deployed: Deployed, plan: DeploymentPlan, unit: Unit) -> bool:
        """Delete what is stored of a unit here, and what it left for others."""
        carrying.remove(deployed.layout, unit)
        return deployed.forget(plan, unit)

    def _state_store(self) -> StateStore:
        if self._settings.state_store is None:
            raise DeploymentError(
                "there is no place to leave state for other units",
                where=f"zone {self.zone}",
                hint="start its agent with --state-store URI, the same for all zones",
            )
        return StateStore(self._settings.state_store)

    def _of_unit(self, call: Callable[[Deployed, DeploymentPlan, Unit], Any]) -> Action:
        def answer(body: dict[str, Any]) -> Any:
            deployed = self._named(body)
            plan = deployed.plan(str(body.get("digest")))
            unit = plan.unit(str(body.get("unit")))
            if unit.zone != self.zone:
                raise DeploymentError(
                    f"unit {unit.id} is not of this zone",
                    where=f"zone {self.zone}",
                    hint="check the addresses",
                )
            with reaching_spark(f"zone {self.zone}"):
                return call(deployed, plan, unit)

        return answer

    def _named(self, body: Mapping[str, Any]) -> Deployed:
        name = str(body.get("deployment"))
        with self._lock:
            if name not in self._deployed:
                raise DeploymentError("is not here", where=f"zone {self.zone}: deployment {name}")
            return self._deployed[name]

    def _open(self, name: str) -> Deployed:
        with self._lock:
            if name not in self._deployed:
                if not _NAME.fullmatch(name):
                    raise DeploymentError(f"not a deployment's name: {name!r}")
                place = self.directory / "deployments" / name
                self._deployed[name] = Deployed(
                    name,
                    self.zone,
                    place,
                    self._sparks,
                    self._peers,
                    self._credentials,
                    self._settings,
                    self._hosts,
                )
            return self._deployed[name]

    # ------------------------------------------------------------ the guard

    def _watch(self) -> None:
        saved = time.monotonic()
        while not self._stopping.wait(_LOOK):
            for deployed in list(self._deployed.values()):
                try:
                    deployed.look()
                    if time.monotonic() - saved > _SAVE:
                        deployed.save()
                except HeadwaterError as error:
                    _LOG.warning("%s: %s", deployed.name, error)
                except Exception:  # the guard must not die of what nobody thought of
                    _LOG.exception("deployment %s", deployed.name)
            self._look_at_hosts()
            if time.monotonic() - saved > _SAVE:
                saved = time.monotonic()

    def _look_at_hosts(self) -> None:
        try:
            self._hosts.look([r for deployed in list(self._deployed.values()) for r in deployed.running()])
        except Exception:  # nothing that runs depends on it
            _LOG.exception("the hosts of zone %s", self.zone)
