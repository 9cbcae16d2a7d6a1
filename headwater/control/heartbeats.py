"""Tell in the history of deployments when the agent or the Spark of a node ended, and when it was back."""

from __future__ import annotations

import time
from collections.abc import Collection

from headwater.control.store import Store
from headwater.core.errors import HeadwaterError
from headwater.plan.port import NodeReport

SILENT = 5.0
"""Seconds after which a silent node is reported as unreachable."""


class NodeHeartbeats:
    """The processes of each node as last reported, and since when a node is silent.

    What was reported to a former controller is in the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: set[str] = set()
        """Deployments whose stored reports were read."""
        self._known: dict[str, tuple[str, str]] = {}
        self._silent: dict[str, float] = {}
        self._told: set[str] = set()

    def note(self, node: str, deployments: Collection[str], answer: NodeReport | Exception) -> None:
        """Compare an answer of a node with the last one; add events to its deployments where it differs."""
        now = time.monotonic()
        if isinstance(answer, Exception):
            since = self._silent.setdefault(node, now)
            if now - since >= SILENT and node not in self._told:
                self._told.add(node)
                what = answer.what if isinstance(answer, HeadwaterError) else f"{type(answer).__name__}: {answer}"
                self._tell(deployments, f"agent of {node}", f"cannot be reached: {what}")
            return
        since = self._silent.pop(node, now)
        if node in self._told:
            self._told.discard(node)
            self._tell(deployments, f"agent of {node}", f"is reached again, after {now - since:.0f} s")
        agent, spark = self._last(node, deployments)
        touched = deployments
        if not agent:  # an agent that ended before its first report is known only to the one that replaced it
            agent, touched = answer.former, answer.resumed.intersection(deployments)
        if agent and answer.agent and agent != answer.agent:
            before, new = agent.partition("-")[0], answer.agent.partition("-")[0]
            self._tell(touched, f"agent of {node}", f"has ended (process {before}) and runs again (process {new})")
        if spark and answer.spark and spark != answer.spark:
            why = f": {answer.ending}" if answer.ending else ""
            self._tell(deployments, f"Spark of {node}", f"has ended and runs again{why}")
        self._known[node] = answer.agent or agent, answer.spark

    def _last(self, node: str, deployments: Collection[str]) -> tuple[str, str]:
        for name in set(deployments) - self._read:
            self._read.add(name)
            for report in self._store.reports(name):
                if report.progress is not None:
                    self._known.setdefault(report.node, (report.progress.agent, report.progress.spark))
        return self._known.get(node, ("", ""))

    def _tell(self, deployments: Collection[str], subject: str, what: str) -> None:
        self._store.tell_again(deployments, f"{subject} ", f"{subject} {what}")
