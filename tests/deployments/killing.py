"""A controller that kills a process at one step of a change: itself, a zone's Spark, or all as in a power cut.

``python -m tests.deployments.killing STORE HOME``; HOME/kill.json states the process to kill and the step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil

from headwater.agent.agents import Agents, running_agent
from headwater.control.controller import Controller
from headwater.control.executor import Attempt, Executor
from headwater.control.ports import Ports
from headwater.control.store import Store
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import Step
from headwater.spark.endpoint import LocalEndpoint
from headwater.state.reshapingprocess import MODULE

POWER = "power"
RESHAPER = "reshaper"
"""The processes that divide and merge state."""
_CUT = "power-cut"


def order_kill(home: Path, step: Step, target: str) -> None:
    """Order the death of ``target``, "controller", a zone, ``RESHAPER`` or ``POWER``, at a step of the controller."""
    unit = getattr(step, "unit", "")
    (home / "kill.json").write_text(json.dumps({"kind": step.kind, "unit": unit, "target": target}))


def is_ordered(home: Path) -> bool:
    """Return whether a kill is still to come."""
    return (home / "kill.json").exists()


def was_cut(home: Path) -> bool:
    """Return whether the power was cut since the last call."""
    mark = home / _CUT
    cut = mark.exists()
    mark.unlink(missing_ok=True)
    return cut


def call_off(home: Path) -> None:
    """Cancel an ordered kill."""
    (home / "kill.json").unlink(missing_ok=True)


class Killing(Executor):
    """Executes steps, and kills once: a Spark or reshaper before the step, the controller or all processes after it."""

    def __init__(self, ports: Ports, home: Path) -> None:
        super().__init__(ports)
        self._home = home

    def attempt(self, step: Step, plan: DeploymentPlan, **more: Any) -> Attempt:
        order = self._order(step)
        if order == RESHAPER:
            _kill_reshapers(self._home)
        elif order not in (None, "controller", POWER):
            _kill_sparks(self._home / "zones" / str(order))
        done = super().attempt(step, plan, **more)
        if order == POWER:
            (self._home / _CUT).touch()
            for zone in (self._home / "zones").iterdir():
                if (agent := running_agent(zone)) is not None:
                    os.kill(int(agent["pid"]), signal.SIGKILL)
                _kill_sparks(zone)
        if order in ("controller", POWER):
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def _order(self, step: Step) -> str | None:
        try:
            order = json.loads((self._home / "kill.json").read_text())
        except FileNotFoundError:
            return None
        if (order["kind"], order["unit"]) != (step.kind, getattr(step, "unit", "")):
            return None
        call_off(self._home)
        return str(order["target"])


def _kill_sparks(zone: Path) -> None:
    for directory in (zone / "spark").iterdir():
        spark = LocalEndpoint.attach(directory)
        if spark is not None:
            os.killpg(spark.pid, signal.SIGKILL)


def _kill_reshapers(home: Path) -> None:
    """Kill the agents' children that rewrite state, with their Java."""
    for zone in (home / "zones").iterdir():
        if (agent := running_agent(zone)) is None:
            continue
        for child in psutil.Process(int(agent["pid"])).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended, and not been waited for
                if MODULE in child.cmdline():
                    for one in (*child.children(recursive=True), child):
                        one.kill()


def main() -> None:
    """Run the controller until it is killed."""
    import threading

    store, home = sys.argv[1], Path(sys.argv[2])
    zones = Agents(home, options=("--quick",)).open
    Controller(Store(store), zones, executor=lambda ports: Killing(ports, home), lease=2.0).run(threading.Event())


if __name__ == "__main__":
    main()
