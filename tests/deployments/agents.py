"""Agents as processes that were started by hand, with no more than their own credential."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from headwater.agent.agents import running_agent
from headwater.channels.credential import TOKEN_ENV, SiteSecret
from tests.conftest import free_port
from tests.deployments.test_replay import until

ROOT = Path(__file__).resolve().parents[2]
ALLOW = [word for kind in ("read", "write", "connect") for word in (f"--allow-{kind}", "*")]


class AgentProcess:
    """The agent of a zone: started, killed, and started again at the same address.

    ``tree``: the directory with the package of Headwater that it runs from its next start on.
    """

    def __init__(
        self,
        place: Path,
        zone: str,
        site: str,
        *options: str,
        environment: Mapping[str, str] = {},
        tree: Path = ROOT,
    ) -> None:
        self.tree = tree
        self.directory = place / zone
        self.directory.mkdir(parents=True)
        self.address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "headwater", "zone", zone, "--dir", str(self.directory), "--stand-in"]
        self._command = [*command, "--listen", self.address, "--quick", *ALLOW, *options]
        credential = SiteSecret.parse(site, where="test").of(zone).text
        self._environment = {**os.environ, **environment, TOKEN_ENV: credential}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        """Start it; return its process id."""
        environment = {**self._environment, "PYTHONPATH": str(self.tree)}
        with (self.directory / "agent.log").open("ab") as log:
            # From its own directory: Python looks for modules in the current one first.
            process = self._process = subprocess.Popen(
                self._command, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until(lambda: running_agent(self.directory) or process.poll() is not None, "the agent to start")
        found = running_agent(self.directory)
        assert found is not None and found["pid"] == process.pid, (self.directory / "agent.log").read_text()
        return process.pid

    def kill(self) -> None:
        """End it as a power cut would; its Spark and units go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def end(self) -> None:
        """End it with its units and its Spark."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
