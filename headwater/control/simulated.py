"""Zones in memory, or in one file that several processes share: ports to try a controller with.

They hold a plan's units to the rules that real zones enforce (one writer per channel, no older epoch,
nothing unread deleted), and raise where a step breaks one. Failures are injected by ``before``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.continuum import Zone
from headwater.errors import ChannelError, DeploymentError, RuntimeFailure
from headwater.metrics import Progress, UnitProgress
from headwater.plan.carry import Carry
from headwater.plan.content import unit_content
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.state import kept_state

UNREAD = 2
"""Questions after which a stopped unit's rows have been read."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call to a zone: its number among all, from 0, and what was asked."""

    number: int
    zone: str
    name: str
    unit: str = ""


class SimulatedZones:
    """The zones of a continuum with what runs in them. ``file`` keeps that across processes.

    ``before`` is called before each call and ``after`` behind it; what they raise the caller gets.
    ``seen`` makes the progress of a unit other than running and empty.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        before: Callable[[Call], None] = lambda call: None,
        after: Callable[[Call], None] = lambda call: None,
        seen: Callable[[UnitProgress], UnitProgress] = lambda unit: unit,
    ) -> None:
        self.before = before
        self.after = after
        self.seen = seen
        self._file = file
        self._alone = threading.RLock()
        self.announced = 0
        """Calls about to be made, by this process; each has a number already."""
        self._world: dict[str, Any] = {"calls": [], "units": {}, "channels": {}, "latest": {}, "saved": {}}

    def open(self, zone: Zone) -> SimulatedZone:
        """Give the port of a zone: an ``OpenZone``."""
        return SimulatedZone(self, zone.name)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls so far that changed or might have changed something, in order."""
        with self.world() as world:
            return tuple(
                Call(number=n, zone=c[0], name=c[1], unit=c[2]) for n, c in enumerate(world["calls"])
            )

    def differences(self, plan: DeploymentPlan | None, deployment: str) -> list[str]:
        """Say how what runs and is stored differs from a plan; [] where the zones hold exactly it."""
        wanted = {_key(deployment, u): _facts(plan, u) for u in plan.units} if plan else {}
        channels = (
            {f"{deployment}/{c.id}": {plan.unit(u).checkpoint for u in c.consumers} for c in plan.channels}
            if plan
            else {}
        )
        with self.world() as world:
            units = {k: u for k, u in world["units"].items() if k.startswith(f"{deployment}/")}
            stored = {
                k: set(c["readers"]) for k, c in world["channels"].items() if k.startswith(f"{deployment}/")
            }
        found = [f"{k} is not there" for k in wanted.keys() - units.keys()]
        found += [f"{k} was left" for k in units.keys() - wanted.keys()]
        for key in wanted.keys() & units.keys():
            if not units[key]["runs"]:
                found.append(f"{key} does not run")
            found += [
                f"{key}: {name} is {units[key][name]}, not {value}"
                for name, value in wanted[key].items()
                if units[key][name] != value
            ]
        found += [f"channel {c} is not there" for c in channels.keys() - stored.keys()]
        found += [f"channel {c} was left" for c in stored.keys() - channels.keys()]
        return found + [
            f"channel {c} is kept for {', '.join(sorted(stored[c]))}, not {', '.join(sorted(channels[c]))}"
            for c in channels.keys() & stored.keys()
            if channels[c] != stored[c]
        ]

    def kept(self, deployment: str) -> dict[str, dict[str, str]]:
        """Tell for each unit that runs, by operator, who began what it keeps."""
        with self.world() as world:
            return {
                u["id"]: dict(u["kept"])
                for k, u in world["units"].items()
                if k.startswith(f"{deployment}/") and u["runs"]
            }

    @contextlib.contextmanager
    def world(self) -> Iterator[dict[str, Any]]:
        """Hold what there is, alone; changes are kept."""
        if self._file is None:
            with self._alone:
                yield self._world
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            world = json.loads(self._file.read_text()) if self._file.exists() else self._world
            yield world
            scratch = self._file.with_suffix(".new")
            scratch.write_text(json.dumps(world))
            os.replace(scratch, self._file)


@dataclass
class SimulatedZone:
    """The port of one simulated zone."""

    zones: SimulatedZones
    name: str

    def check(self, plan: DeploymentPlan, unit: str) -> None:
        """Find the unit in the plan."""
        with self._called("check", unit):
            self._own(plan, unit)

    def prepare(self, plan: DeploymentPlan, unit: str, *, joining: Sequence[str] = ()) -> None:
        """Make channels and readers, and a place for the unit's state."""
        with self._called("prepare", unit) as world:
            own = self._own(plan, unit)
            for channel in plan.outputs(own):
                key = f"{plan.dataflow.name}/{channel.id}"
                log = world["channels"].setdefault(key, {"epoch": 0, "readers": [], "unread": {}})
                for consumer in channel.consumers:
                    reader = plan.unit(consumer).checkpoint
                    if reader not in log["readers"]:
                        log["readers"].append(reader)
            fresh = {**_facts(plan, own), "id": unit, "layer": own.layer, "runs": False, "outputs": []}
            fresh["kept"] = {}
            world["units"].setdefault(_key(plan.dataflow.name, own), fresh)
            if not any(u["runs"] for u in self._incarnations(world, plan, unit)):
                world["latest"][f"{plan.dataflow.name}/{unit}"] = _latest(plan, own)

    def start(self, plan: DeploymentPlan, unit: str) -> None:
        """Run the unit, if no other does in its place."""
        with self._called("start", unit) as world:
            own = self._own(plan, unit)
            stored = world["units"].get(_key(plan.dataflow.name, own))
            if stored is None:
                raise RuntimeFailure("started before it was prepared", where=unit, hint="prepare it first")
            for other in self._incarnations(world, plan, unit):
                if other["runs"] and (other["tag"], other["epoch"]) != (own.tag, own.epoch):
                    raise RuntimeFailure(
                        "started while another runs", where=unit, hint="stop the other one first"
                    )
            if stored["runs"]:
                return
            latest = _latest(plan, own)
            for key in latest["outputs"]:
                if key not in world["channels"]:
                    raise ChannelError("not prepared", where=key)
                log = world["channels"][key]
                if log["epoch"] > own.epoch:
                    raise ChannelError(f"epoch {own.epoch} is older than {log['epoch']}", where=key)
                log["epoch"] = own.epoch
            world["latest"][f"{plan.dataflow.name}/{unit}"] = latest
            stored.update(_facts(plan, own), runs=True, outputs=latest["outputs"])
            for kept in kept_state(plan, own):
                stored["kept"].setdefault(kept.operator, f"begun by {own.checkpoint}")

    def feed(self, plan: DeploymentPlan, unit: str) -> None:
        """Give the running unit its inputs."""
        with self._called("feed", unit) as world:
            own = self._own(plan, unit)
            stored = world["units"].get(_key(plan.dataflow.name, own))
            if stored is None or not stored["runs"] or stored["epoch"] != own.epoch:
                raise RuntimeFailure("fed while it does not run", where=unit, hint="start it first")
            stored["inputs"] = _facts(plan, own)["inputs"]

    def stop(self, plan: DeploymentPlan, unit: str, *, clean: bool = False) -> None:
        """Stop the unit; some rows of it are left unread."""
        with self._called("stop", unit) as world:
            own = self._own(plan, unit)
            stored = world["units"].get(_key(plan.dataflow.name, own))
            if stored is not None and stored["runs"]:
                stored["runs"] = False
                for key in stored["outputs"]:
                    log = world["channels"][key]
                    log["unread"] = dict.fromkeys(log["readers"], UNREAD)

    def drained(self, plan: DeploymentPlan, unit: str) -> bool:
        """Read on, and tell whether all is read."""
        with self._called("drained", unit) as world:
            own = self._own(plan, unit)
            stored = world["units"].get(_key(plan.dataflow.name, own))
            if stored is None or not stored["runs"]:
                raise RuntimeFailure("cannot read on: it does not run", where=unit, hint="start it")
            left = 0
            for channel in plan.inputs(own):
                log = world["channels"].get(f"{plan.dataflow.name}/{channel.id}")
                if log is not None:
                    left += self._read(log, own.checkpoint)
            return not left

    def survey(self, plan: DeploymentPlan, unit: str) -> None:
        """Find the unit."""
        with self._called("survey", unit):
            self._own(plan, unit)

    def rehearse(self, plan: DeploymentPlan, unit: str, carry: Carry | None, saved: Sequence[str]) -> None:
        """Find the unit."""
        with self._called("rehearse", unit):
            self._own(plan, unit)

    def save(self, plan: DeploymentPlan, unit: str) -> tuple[int, int]:
        """Put what a stopped unit keeps where others find it."""
        with self._called("save", unit) as world:
            own = self._own(plan, unit)
            stored = world["units"].get(_key(plan.dataflow.name, own))
            if stored is not None and stored["runs"]:
                raise RuntimeFailure("saved while it runs", where=unit, hint="stop it first")
            kept = stored["kept"] if stored else {}
            world["saved"][f"{plan.dataflow.name}/{own.checkpoint}"] = kept
            return len(kept), len(kept)

    def load(self, plan: DeploymentPlan, unit: str, carry: Carry, saved: Sequence[str]) -> None:
        """Give a unit what others have saved."""
        with self._called("load", unit) as world:
            own, name = self._own(plan, unit), plan.dataflow.name
            stored = world["units"].get(_key(name, own))
            if stored is None:
                raise RuntimeFailure("loaded before it was prepared", where=unit, hint="prepare it first")
            places = dict(zip(carry.donors, saved, strict=True))
            for share in carry.shares:
                saved_of = [
                    world["saved"][f"{name}/{places[d.unit]}"] for d in share.donors if places[d.unit]
                ]
                begun_by = [kept[share.operator] for kept in saved_of if share.operator in kept]
                if begun_by:
                    stored["kept"][share.operator] = " + ".join(sorted(set(begun_by)))

    def finish(self, plan: DeploymentPlan, unit: str) -> bool:
        """Use up the input; every second question finds it done."""
        with self._called("finish", unit) as world:
            stored = world["units"][_key(plan.dataflow.name, self._own(plan, unit))]
            stored["asked"] = stored.get("asked", 0) + 1
            if stored["asked"] < UNREAD:
                return False
            stored["runs"] = False
            return True

    def forget(self, plan: DeploymentPlan, unit: str) -> bool:
        """Delete what a stopped unit has, once its rows have been read."""
        with self._called("forget", unit) as world:
            own, name = self._own(plan, unit), plan.dataflow.name
            key, mine = _key(name, own), _latest(plan, own)
            latest = world["latest"].get(f"{name}/{unit}", mine)
            itself = latest["is"] == mine["is"]
            stored = world["units"].get(key)
            if itself and stored is not None and stored["runs"]:
                raise DeploymentError("forgotten while it runs", where=unit, hint="stop it first")
            # Another unit may have taken over to write a channel.
            others = [u["outputs"] for k, u in world["latest"].items() if k != f"{name}/{unit}"]
            going = set(mine["outputs"]).difference(*others, () if itself else latest["outputs"])
            if self._left(world, name, going & world["channels"].keys()):
                return False
            for channel in going:
                world["channels"].pop(channel, None)
            same_state = not itself and latest["is"][0] == own.tag
            # What was taken out of its inputs is no input of this plan, and may not have been read.
            left = (
                set(mine["inputs"]).difference(latest["inputs"]) if same_state else world["channels"].keys()
            )
            for id_ in left & world["channels"].keys():
                log = world["channels"][id_]
                log["readers"] = [r for r in log["readers"] if r != own.checkpoint]
                log["unread"].pop(own.checkpoint, None)
            if not same_state:
                world["units"].pop(key, None)
            if itself:
                world["latest"].pop(f"{name}/{unit}", None)
            return True

    def progress(self, deployment: str) -> Progress:
        """Give the zone's units: running, or stopped."""
        self.zones.before(Call(number=-1, zone=self.name, name="progress"))
        with self.zones.world() as world:
            units = [
                UnitProgress(
                    unit=u["id"],
                    zone=self.name,
                    layer=u["layer"],
                    status="running" if u["runs"] else "stopped",
                )
                for k, u in world["units"].items()
                if k.startswith(f"{deployment}/") and u["id"].endswith(f"@{self.name}")
            ]
        running = {u.unit for u in units if u.status == "running"}
        shown = [u for u in units if u.status == "running" or u.unit not in running]
        return Progress(seconds=0.0, units=tuple(self.zones.seen(u) for u in shown))

    # ------------------------------------------------------------ one call

    @contextlib.contextmanager
    def _called(self, name: str, unit: str) -> Iterator[dict[str, Any]]:
        with self.zones.world() as world:
            number = len(world["calls"]) + self.zones.announced
            self.zones.announced += 1
        call = Call(number=number, zone=self.name, name=name, unit=unit)
        try:
            self.zones.before(call)
        except BaseException:
            with self.zones.world():
                self.zones.announced -= 1
            raise
        with self.zones.world() as world:
            self.zones.announced -= 1
            world["calls"].append([self.name, name, unit])
            yield world
        self.zones.after(call)

    def _own(self, plan: DeploymentPlan, unit: str) -> Unit:
        found = plan.unit(unit)
        if found.zone != self.name:
            raise DeploymentError(f"belongs to zone {found.zone}", where=unit, hint="ask that one")
        return found

    @staticmethod
    def _incarnations(world: dict[str, Any], plan: DeploymentPlan, unit: str) -> list[dict[str, Any]]:
        prefix = f"{plan.dataflow.name}/"
        return [u for k, u in world["units"].items() if k.startswith(prefix) and u["id"] == unit]

    def _left(self, world: dict[str, Any], deployment: str, channels: set[str]) -> int:
        """Let those that run read on, and give how many rows all registered readers still have to read."""
        left = 0
        for channel in channels:
            log = world["channels"][channel]
            for reader in log["readers"]:
                runs = self._reads(world, deployment, reader)
                left += self._read(log, reader) if runs else int(log["unread"].get(reader, 0))
        return left

    @staticmethod
    def _reads(world: dict[str, Any], deployment: str, reader: str) -> bool:
        unit = world["units"].get(f"{deployment}/{reader}")
        return unit is not None and bool(unit["runs"])

    @staticmethod
    def _read(log: dict[str, Any], reader: str) -> int:
        """Read some of what is left for a reader; give how much still is."""
        left = max(0, int(log["unread"].get(reader, 0)) - 1)
        log["unread"][reader] = left
        return left


def _key(deployment: str, unit: Unit) -> str:
    return f"{deployment}/{unit.checkpoint}"


def _latest(plan: DeploymentPlan, unit: Unit) -> dict[str, Any]:
    """Give what a zone remembers of what it was last told of a unit."""
    name = plan.dataflow.name
    return {
        "is": [unit.tag, unit.epoch],
        "outputs": [f"{name}/{c.id}" for c in plan.outputs(unit)],
        "inputs": [f"{name}/{c.id}" for c in plan.inputs(unit)],
    }


def _facts(plan: DeploymentPlan, unit: Unit) -> dict[str, Any]:
    """Give what tells two ways of running a unit apart, as JSON has it."""
    facts = {
        "tag": unit.tag,
        "epoch": unit.epoch,
        "inputs": sorted(c.id for c in plan.inputs(unit)),
        "content": unit_content(plan, unit),
    }
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found
