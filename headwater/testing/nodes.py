"""Simulated nodes, in memory or in one file that several processes share, to test a controller.

They enforce the rules of real nodes (one writer per channel, no older epoch,
no unread rows deleted), and raise where a step breaks one. ``before`` injects failures.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.continuum.model import Node
from headwater.core.errors import ChannelError, DeploymentError, RuntimeFailure
from headwater.core.metrics import Progress, UnitProgress
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import Fence, NodeReport, Stamp, TakeStamp
from headwater.plan.spec import UnitSpec, spec_of
from headwater.plan.state import kept_state
from headwater.plan.steps import FormerOutputChoice
from headwater.plan.transfer import StateTransfer

UNREAD = 2
"""Number of ``drained`` calls after which a stopped unit's rows have been read."""
_MEANWHILE = ("check", "preflight", "warm_up", "catch_up", "drained")
"""Orders that may run while others about the unit do, and may arrive after them, as with the agent."""


@dataclass(frozen=True, kw_only=True)
class NodeCall:
    """A call to a node: its number among all, from 0, and its arguments."""

    number: int
    node: str
    name: str
    unit: str = ""


class SimulatedNodes:
    """The nodes of a continuum with their units. ``file`` shares them across processes.

    ``before`` is called before each call and ``after`` after it; their exceptions reach the caller.
    ``seen`` replaces the progress of a unit, which by default is running and empty.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        before: Callable[[NodeCall], None] = lambda call: None,
        after: Callable[[NodeCall], None] = lambda call: None,
        seen: Callable[[UnitProgress], UnitProgress] = lambda unit: unit,
    ) -> None:
        self.before = before
        self.after = after
        self.seen = seen
        self._file = file
        self._alone = threading.RLock()
        self.announced = 0
        """Numbered calls of this process that are about to be made."""
        names = ("units", "nodes", "channels", "latest", "saved", "terms")
        self._world: dict[str, Any] = {"calls": [], **{name: {} for name in names}}

    def open(self, node: Node, stamps: TakeStamp) -> SimulatedNode:
        """Return the port of a node: an ``OpenNode``."""
        return SimulatedNode(self, node.name, stamps)

    @property
    def calls(self) -> tuple[NodeCall, ...]:
        """All calls so far that changed or might have changed state, in order."""
        with self.world() as world:
            return tuple(NodeCall(number=n, node=c[0], name=c[1], unit=c[2]) for n, c in enumerate(world["calls"]))

    def differences(self, plan: DeploymentPlan | None, deployment: str) -> list[str]:
        """Describe how units and channels differ from a plan; [] where the nodes match it exactly."""
        wanted = {_key(s): _facts(s) for u in plan.units for s in [spec_of(plan, u.id)]} if plan else {}
        channels = (
            {f"{deployment}/{c.id}": {plan.unit(u).checkpoint for u in c.consumers} for c in plan.channels}
            if plan
            else {}
        )
        with self.world() as world:
            units = {k: u for k, u in world["units"].items() if k.startswith(f"{deployment}/")}
            stored = {k: set(c["readers"]) for k, c in world["channels"].items() if k.startswith(f"{deployment}/")}
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
        """Return, for each running unit and operator, the checkpoint that began the state."""
        with self.world() as world:
            return {
                u["id"]: dict(u["kept"])
                for k, u in world["units"].items()
                if k.startswith(f"{deployment}/") and u["runs"]
            }

    @contextlib.contextmanager
    def world(self) -> Iterator[dict[str, Any]]:
        """Lock the shared state; changes are stored on exit."""
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
class SimulatedNode:
    """The port of one simulated node."""

    nodes: SimulatedNodes
    name: str
    stamps: TakeStamp

    def former_output(self, spec: UnitSpec, choice: FormerOutputChoice, sinks: Sequence[str] = ()) -> None:
        """Find no output: simulated units have no sinks."""
        with self._called("former_output", spec):
            pass

    def check(self, spec: UnitSpec) -> None:
        """Check that the unit belongs to this node."""
        with self._called("check", spec):
            pass

    def prepare(self, spec: UnitSpec, *, joining: Sequence[str] = ()) -> None:
        """Create channels and readers, and an entry for the unit's state."""
        with self._called("prepare", spec) as world:
            for channel in spec.outputs:
                key = f"{spec.deployment}/{channel.id}"
                log = world["channels"].setdefault(key, {"epoch": 0, "readers": [], "unread": {}})
                for reader in spec.readers[channel.id]:
                    if reader.checkpoint not in log["readers"]:
                        log["readers"].append(reader.checkpoint)
            fresh = {**_facts(spec), "id": spec.id, "layer": spec.unit.layer, "runs": False, "outputs": []}
            fresh |= {"kept": {}, "wanted": "prepared", "deployment": spec.deployment}
            stored = world["units"].setdefault(_key(spec), fresh)
            self._mine(world)[_key(spec)] = True
            if not stored["runs"]:
                stored["wanted"] = "prepared"
            if not any(u["runs"] for u in self._incarnations(world, spec)):
                self._latest_of(world, spec)[spec.id] = _latest(spec)

    def start(self, spec: UnitSpec) -> None:
        """Run the unit, unless another runs in its place."""
        with self._called("start", spec) as world:
            unit, stored = spec.unit, world["units"].get(_key(spec))
            if stored is None:
                raise RuntimeFailure("started before it was prepared", where=unit.id, hint="prepare it first")
            for other in self._incarnations(world, spec):
                if other["runs"] and (other["tag"], other["epoch"]) != (unit.tag, unit.epoch):
                    raise RuntimeFailure("started while another runs", where=unit.id, hint="stop the other one first")
            if stored["runs"]:
                return
            latest = _latest(spec)
            for key in latest["outputs"]:
                if key not in world["channels"]:
                    raise ChannelError("not prepared", where=key)
                log = world["channels"][key]
                if log["epoch"] > unit.epoch:
                    raise ChannelError(f"epoch {unit.epoch} is older than {log['epoch']}", where=key)
                log["epoch"] = unit.epoch
            self._latest_of(world, spec)[spec.id] = latest
            stored.update(_facts(spec), runs=True, outputs=latest["outputs"], wanted="running")
            for kept in kept_state(spec.flow, unit):
                stored["kept"].setdefault(kept.operator, f"begun by {unit.checkpoint}")

    def update_inputs(self, spec: UnitSpec) -> None:
        """Update the running unit's inputs."""
        with self._called("update_inputs", spec) as world:
            stored = world["units"].get(_key(spec))
            if stored is None or not stored["runs"] or stored["epoch"] != spec.unit.epoch:
                raise RuntimeFailure("given inputs while it does not run", where=spec.id, hint="start it first")
            stored["inputs"] = _facts(spec)["inputs"]

    def stop(self, spec: UnitSpec, *, clean: bool = False) -> None:
        """Stop the unit; some rows of it are left unread."""
        with self._called("stop", spec) as world:
            self._end(world, world["units"].get(_key(spec)))

    def end(self, deployment: str, unit: str) -> None:
        """Stop the unit that runs under an id."""
        with self._asked("end", f"{deployment}/{unit}", unit) as world:
            for stored in world["units"].values():
                if (stored["deployment"], stored["id"]) == (deployment, unit):
                    self._end(world, stored)

    @staticmethod
    def _end(world: dict[str, Any], stored: dict[str, Any] | None) -> None:
        if stored is not None and stored["runs"]:
            stored.update(runs=False, wanted="stopped")
            for key in stored["outputs"]:
                log = world["channels"][key]
                log["unread"] = dict.fromkeys(log["readers"], UNREAD)

    def drained(self, spec: UnitSpec) -> bool:
        """Read more rows, and return whether all are read."""
        with self._called("drained", spec) as world:
            stored = world["units"].get(_key(spec))
            if stored is None or not stored["runs"]:
                raise RuntimeFailure("cannot read on: it does not run", where=spec.id, hint="start it")
            left = 0
            for channel in spec.inputs:
                log = world["channels"].get(f"{spec.deployment}/{channel.id}")
                if log is not None:
                    left += self._read(log, spec.unit.checkpoint)
            return not left

    def preflight(self, spec: UnitSpec, *, batches_only: bool = False) -> None:
        """Check that the unit belongs to this node."""
        with self._called("preflight", spec):
            pass

    def warm_up(self, spec: UnitSpec, transfer: StateTransfer | None, saved: Sequence[str]) -> None:
        """Check that the unit belongs to this node."""
        with self._called("warm_up", spec):
            pass

    def catch_up(self, spec: UnitSpec, transfer: StateTransfer, saved: Sequence[str]) -> int | None:
        """Catch up at once with a unit that runs, if this one has been prepared."""
        with self._called("catch_up", spec) as world:
            if world["units"].get(_key(spec)) is None:
                raise RuntimeFailure("is to catch up before it was prepared", where=spec.id, hint="prepare it first")
            return 0

    def save(self, spec: UnitSpec, *, sinks: Sequence[str] = ()) -> tuple[int, int]:
        """Save a stopped unit's state for other units."""
        with self._called("save", spec) as world:
            stored = world["units"].get(_key(spec))
            if stored is not None and stored["runs"]:
                raise RuntimeFailure("saved while it runs", where=spec.id, hint="stop it first")
            kept = stored["kept"] if stored else {}
            world["saved"][_key(spec)] = kept
            return len(kept), len(kept)

    def load(self, spec: UnitSpec, transfer: StateTransfer, saved: Sequence[str]) -> bool:
        """Load the saved state of other units into a unit."""
        with self._called("load", spec) as world:
            stored = world["units"].get(_key(spec))
            if stored is None:
                raise RuntimeFailure("loaded before it was prepared", where=spec.id, hint="prepare it first")
            places = dict(zip(transfer.source_units, saved, strict=True))
            for share in transfer.shares:
                saved_of = [
                    world["saved"][f"{spec.deployment}/{places[d.unit]}"] for d in share.source_units if places[d.unit]
                ]
                begun_by = [kept[share.operator] for kept in saved_of if share.operator in kept]
                if begun_by:
                    stored["kept"][share.operator] = " + ".join(sorted(set(begun_by)))
            return False

    def finish(self, spec: UnitSpec) -> bool:
        """Read the input to its end; every second call finds it done."""
        with self._called("finish", spec) as world:
            stored = world["units"][_key(spec)]
            stored["asked"] = stored.get("asked", 0) + 1
            if stored["asked"] < UNREAD:
                return False
            stored.update(runs=False, wanted="finished")
            return True

    def forget(self, spec: UnitSpec) -> bool:
        """Delete a stopped unit's state and channels, once its rows have been read."""
        with self._called("forget", spec) as world:
            unit, key, mine = spec.unit, _key(spec), _latest(spec)
            known = self._latest_of(world, spec)
            latest = known.get(spec.id, mine)
            itself = latest["is"] == mine["is"]
            stored = world["units"].get(key)
            if itself and stored is not None and stored["runs"]:
                raise DeploymentError("forgotten while it runs", where=spec.id, hint="stop it first")
            # Another unit may have taken over the writing of a channel.
            others = [u["outputs"] for k, u in known.items() if k != spec.id]
            going = set(mine["outputs"]).difference(*others, () if itself else latest["outputs"])
            if self._left(world, spec.deployment, going & world["channels"].keys()):
                return False
            for channel in going:
                world["channels"].pop(channel, None)
            same_state = not itself and latest["is"][0] == unit.tag
            # Removed inputs are not part of this plan, and may be unread.
            prefix = f"{spec.deployment}/"
            every = {c for c in world["channels"] if c.startswith(prefix)}
            left = set(mine["inputs"]).difference(latest["inputs"]) if same_state else every
            for id_ in left & every:
                log = world["channels"][id_]
                log["readers"] = [r for r in log["readers"] if r != unit.checkpoint]
                log["unread"].pop(unit.checkpoint, None)
            if not same_state:
                world["units"].pop(key, None)
                self._mine(world).pop(key, None)
            if itself:
                known.pop(spec.id, None)
            return True

    def report(self) -> NodeReport:
        """Return the node's units: running, or stopped."""
        self.nodes.before(NodeCall(number=-1, node=self.name, name="report"))
        with self.nodes.world() as world:
            self._admit(world, None)
            stored = [world["units"][key] for key in self._mine(world)]
            here: dict[str, list[dict[str, Any]]] = {}
            for one in stored:
                here.setdefault(one["deployment"], []).append(dict(one))
        return NodeReport(
            progress={name: self._progress(units) for name, units in here.items()},
            units={name: {(u["id"], u["tag"], u["epoch"]): u["wanted"] for u in units} for name, units in here.items()},
        )

    def _progress(self, units: Sequence[Mapping[str, Any]]) -> Progress:
        found = [
            UnitProgress(
                unit=u["id"],
                zone=u["zone"],
                layer=u["layer"],
                status="running" if u["runs"] else "stopped",
            )
            for u in units
        ]
        running = {u.unit for u in found if u.status == "running"}
        shown = [u for u in found if u.status == "running" or u.unit not in running]
        return Progress(seconds=0.0, units=tuple(self.nodes.seen(u) for u in shown))

    # ------------------------------------------------------------ one call

    @contextlib.contextmanager
    def _called(self, name: str, spec: UnitSpec) -> Iterator[dict[str, Any]]:
        if spec.unit.node != self.name:
            raise DeploymentError(f"belongs to node {spec.unit.node}", where=spec.id, hint="ask that one")
        fenced = None if name in _MEANWHILE else f"{spec.deployment}/{spec.id}"
        with self._asked(name, fenced, spec.id) as world:
            yield world

    @contextlib.contextmanager
    def _asked(self, name: str, fenced: str | None, unit: str) -> Iterator[dict[str, Any]]:
        stamp = self.stamps()
        with self.nodes.world() as world:
            number = len(world["calls"]) + self.nodes.announced
            self.nodes.announced += 1
        call = NodeCall(number=number, node=self.name, name=name, unit=unit)
        try:
            self.nodes.before(call)
        except BaseException:
            with self.nodes.world():
                self.nodes.announced -= 1
            raise
        with self.nodes.world() as world:
            self.nodes.announced -= 1
            self._admit(world, fenced, stamp)
            world["calls"].append([self.name, name, unit])
            yield world
        self.nodes.after(call)

    def _admit(self, world: dict[str, Any], unit: str | None, stamp: Stamp | None = None) -> None:
        """Refuse an order that is older than one taken before."""
        known = world["terms"].setdefault(self.name, {"terms": {}, "numbers": {}})
        fence = Fence(known["terms"], known["terms"].update, known["numbers"])
        fence.admit(stamp or self.stamps(), unit)

    def _mine(self, world: dict[str, Any]) -> dict[str, bool]:
        found: dict[str, bool] = world["nodes"].setdefault(self.name, {})
        return found

    @staticmethod
    def _latest_of(world: dict[str, Any], spec: UnitSpec) -> dict[str, Any]:
        found: dict[str, Any] = world["latest"].setdefault(spec.deployment, {})
        return found

    def _incarnations(self, world: dict[str, Any], spec: UnitSpec) -> list[dict[str, Any]]:
        here = [world["units"][key] for key in self._mine(world)]
        return [u for u in here if (u["deployment"], u["id"]) == (spec.deployment, spec.id)]

    def _left(self, world: dict[str, Any], deployment: str, channels: set[str]) -> int:
        """Make running readers read, and return the number of unread rows of all registered readers."""
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
        """Read some of a reader's rows; return the number of unread ones."""
        left = max(0, int(log["unread"].get(reader, 0)) - 1)
        log["unread"][reader] = left
        return left


def _key(spec: UnitSpec) -> str:
    return f"{spec.deployment}/{spec.unit.checkpoint}"


def _latest(spec: UnitSpec) -> dict[str, Any]:
    """Return a node's record of the last order for a unit."""
    name = spec.deployment
    return {
        "is": [spec.unit.tag, spec.unit.epoch],
        "outputs": [f"{name}/{c.id}" for c in spec.outputs],
        "inputs": [f"{name}/{c.id}" for c in spec.inputs],
    }


def _facts(spec: UnitSpec) -> dict[str, Any]:
    """Return the JSON form of all that distinguishes two incarnations of a unit."""
    facts = {
        "tag": spec.unit.tag,
        "epoch": spec.unit.epoch,
        "zone": spec.unit.zone,
        "inputs": sorted(c.id for c in spec.inputs),
        "content": spec.content,
    }
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found
