"""A controller that stops itself with SIGSTOP in the middle of a step: before an order is sent, or after it.

``python -m tests.deployments.pausing STORE HOME``; HOME/pause.json states the step and the moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from headwater.agent.agents import AgentClient, Agents
from headwater.continuum.model import Node
from headwater.control.calls import Calls
from headwater.control.controller import Controller
from headwater.control.database import LeaseLost
from headwater.control.executor import Attempt, Executor
from headwater.control.ports import Ports
from headwater.control.store import Store
from headwater.core.errors import Fenced
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import TakeStamp
from headwater.plan.steps import Step, Switch

FENCED = 3
"""The exit code of a controller that was told that another controller acts."""


def order_pause(home: Path, step: Step, moment: str) -> None:
    """Order the controller to stop at a step: "before" an order is sent, or "after" it was answered."""
    unit = getattr(step, "unit", "")
    (home / "pause.json").write_text(json.dumps({"kind": step.kind, "unit": unit, "moment": moment}))


def paused(home: Path) -> bool:
    """Return whether the ordered pause has begun."""
    return not (home / "pause.json").exists()


class GatedStore(Store):
    """A store that is not used while its process stands still: it would keep SQLite's lock."""

    def __init__(self, place: str) -> None:
        self.gate = threading.RLock()
        super().__init__(place)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self.gate, super()._reading() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.gate, super()._writing() as connection:
            yield connection


class _Pauses:
    def __init__(self, home: Path, store: GatedStore) -> None:
        self._file = home / "pause.json"
        self._store = store
        self._here = threading.local()
        self._lock = threading.Lock()

    def enter(self, step: Step) -> None:
        self._here.step = step

    def perhaps(self, moment: str) -> None:
        """Stop the process if this is the ordered moment."""
        step = getattr(self._here, "step", None)
        with self._lock:
            try:
                order = json.loads(self._file.read_text())
            except FileNotFoundError:
                return
            wanted = order["kind"], order["unit"], order["moment"]
            if step is None or wanted != (step.kind, getattr(step, "unit", ""), moment):
                return
            self._file.unlink()
            with self._store.gate:
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.2)  # a thread may go on for a moment before all stand still


class Pausing(Executor):
    """Executes steps, and records the step of each thread."""

    def __init__(self, ports: Ports, pauses: _Pauses) -> None:
        super().__init__(ports, calls=Calls("call"))
        self._pauses = pauses

    def attempt(self, step: Step, plan: DeploymentPlan, **more: Any) -> Attempt:
        if not isinstance(step, Switch):
            return super().attempt(step, plan, **more)
        self._pauses.enter(step)
        self._pauses.perhaps("before")
        done = super().attempt(step, plan, **more)
        self._pauses.perhaps("after")
        return done

    def _attempt(self, step: Step, *more: Any) -> Attempt:
        self._pauses.enter(step)
        return super()._attempt(step, *more)


class PausingAgents(Agents):
    """Calls agents, and stops between an order's stamp and the order, or after its answer."""

    pauses: _Pauses

    def open(self, node: Node, stamps: TakeStamp | None = None) -> AgentClient:
        client = super().open(node, stamps)
        ask = client._ask

        def pausing(call: str, body: Mapping[str, Any], seconds: float) -> Any:
            if "stamp" in body:
                self.pauses.perhaps("before")
            answer = ask(call, body, seconds)
            if "stamp" in body:
                self.pauses.perhaps("after")
            return answer

        client._ask = pausing
        return client


def main() -> None:
    """Run the controller until another one acts."""
    store, home = GatedStore(sys.argv[1]), Path(sys.argv[2])
    pauses = _Pauses(home, store)
    agents = PausingAgents(home, options=("--quick",))
    agents.pauses = pauses
    controller = Controller(store, agents.open, executor=lambda ports: Pausing(ports, pauses), lease=3.0)
    try:
        controller.run(threading.Event(), say=lambda text: print(text, flush=True))
    except (LeaseLost, Fenced) as error:
        print(f"ends: {error}", flush=True)
        sys.exit(FENCED)


if __name__ == "__main__":
    main()
