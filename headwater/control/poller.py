"""Poll the reports of nodes concurrently, and detect drift.

Each node is polled once for all deployments. Its report is stored only when it has changed: a node without news costs a
call and no write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from headwater.continuum.model import Node
from headwater.control.calls import Calls, Round
from headwater.control.drift import Drift, Key
from headwater.control.heartbeats import SILENT, NodeHeartbeats
from headwater.control.ports import Ports
from headwater.control.records import ReportRecord, whole
from headwater.control.store import Store
from headwater.core.errors import Fenced, HeadwaterError
from headwater.core.metrics import Progress
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import NodeReport
from headwater.plan.steps import UnitStatuses

ROUND_SECONDS = 8.0
"""Seconds after which a round ends; nodes that have not answered are not polled again until they do."""
STALE = 60.0
"""Seconds after which an unchanged report is stored all the same."""
TOGETHER = 50
"""Deployments whose new reports are stored in one transaction."""


@dataclass
class _Deployed:
    """A deployment's unit statuses and nodes, and their last reports."""

    unit_statuses: UnitStatuses
    plans: Mapping[str, DeploymentPlan]
    nodes: Mapping[Key, Node]
    said: dict[Key, ReportRecord] = field(default_factory=dict)
    news: set[Key] = field(default_factory=set)
    stored: float = -STALE
    """When a report was last stored."""
    changed: float = -STALE
    """When a changed report was last stored."""


class Poller:
    """Polls the progress of nodes.

    ``drifted`` is called when a node's units differ from the unit statuses in the store.
    """

    def __init__(
        self, store: Store, holder: str, ports: Ports, calls: Calls, *, drifted: Callable[[Drift], None]
    ) -> None:
        self._store, self._holder, self._ports = store, holder, ports
        self._round: Round[NodeReport] = Round(calls)
        self._drifted = drifted
        self._deployed: dict[str, _Deployed] = {}
        self._troubles: dict[tuple[str, str], str] = {}
        self._heartbeats = NodeHeartbeats(store)
        self.seconds = 0.0
        """Seconds of a core that a round uses: the lower of the last two, because the first round after a change
        also connects."""
        self._last_used = 0.0

    # ------------------------------------------------------------ poll

    def moved(self, name: str) -> None:
        """Note that a deployment's unit statuses have changed."""
        self._deployed.pop(name, None)

    def fresh(self, seconds: float) -> set[str]:
        """Return the deployments with a changed report stored in the last ``seconds``."""
        since = time.monotonic() - seconds
        return {name for name, one in list(self._deployed.items()) if one.changed >= since}

    def is_proven(self, name: str) -> bool:
        """Return whether all nodes of a deployment have been asked, and no unit is still to do its first batch."""
        one = self._deployed.get(name)
        if one is None:
            return False  # it has changed since it was polled, or is gone
        told = [said.progress for said in one.said.values() if said.error is None]
        return one.said.keys() >= one.nodes.keys() and not any(u.unproven for p in told if p for u in p.units)

    def _known(self) -> Mapping[str, _Deployed]:
        names = self._store.with_units()
        for gone in self._deployed.keys() - names:
            del self._deployed[gone]
        for name in names - self._deployed.keys():
            unit_statuses = self._store.unit_statuses(name)
            plans = self._store.plans_of(unit_statuses)
            nodes: dict[Key, Node] = {}
            for (unit, _, _), unit_status in unit_statuses.items():
                plan = plans[unit_status.plan]
                node = plan.continuum.node(plan.unit(unit).node)
                nodes[plan.continuum.name, node.name] = node
            self._deployed[name] = _Deployed(unit_statuses, plans, nodes)
        return dict(self._deployed)

    def poll(self, only: Collection[str] | None = None) -> None:
        """Poll the nodes of all deployments once, or of some, and store changed reports."""
        known = self._known()
        worked = time.thread_time()  # loading plans is no part of a round's cost
        wanted = {
            key: node for name, one in known.items() if only is None or name in only for key, node in one.nodes.items()
        }
        names = {f"{continuum}/{node}": (continuum, node) for continuum, node in wanted}
        costs: list[float] = []

        def ask(key: Key, node: Node) -> NodeReport:
            begun = time.thread_time()
            try:
                return self._ports.to(key[0], node).report()
            finally:
                costs.append(time.thread_time() - begun)

        of_node: dict[Key, list[str]] = {}
        for name, one in known.items():
            for key in one.nodes:
                of_node.setdefault(key, []).append(name)
        calls = ((text, partial(ask, key, wanted[key])) for text, key in names.items())
        for text, answer in self._round.make(calls, seconds=ROUND_SECONDS):
            continuum, _, node_name = text.partition("/")
            self._take(known, of_node.get((continuum, node_name), ()), (continuum, node_name), answer)
        for text, since in self._round.unanswered.items():
            continuum, _, node_name = text.partition("/")
            if since > SILENT:
                error = HeadwaterError("does not answer", where=node_name)
                self._take(known, of_node.get((continuum, node_name), ()), (continuum, node_name), error)
        self._store_news(known)
        used = time.thread_time() - worked + sum(costs)
        self.seconds, self._last_used = min(used, self._last_used), used

    # ------------------------------------------------------------ reports

    def _take(
        self,
        known: Mapping[str, _Deployed],
        names: Collection[str],
        key: Key,
        answer: NodeReport | Exception,
    ) -> None:
        if isinstance(answer, Fenced):
            raise answer
        self._heartbeats.note(key[1], names, answer)
        for name in names:
            self._note(name, known[name], key, answer)
            if isinstance(answer, NodeReport) and self._differs(known[name], key, answer, name):
                one = known[name]
                self._drifted(Drift(name, key, answer, partial(self._is_current, name, one)))

    def _is_current(self, name: str, one: _Deployed) -> bool:
        return self._deployed.get(name) is one

    def _note(self, name: str, one: _Deployed, key: Key, answer: NodeReport | Exception) -> None:
        now, before = time.time(), one.said.get(key)
        if isinstance(answer, Exception):
            what = answer.what if isinstance(answer, HeadwaterError) else f"{type(answer).__name__}: {answer}"
            last = before.progress if before else None
            found = ReportRecord(node=key[1], at=before.at if before else now, progress=last, error=what)
        else:
            progress = answer.progress.get(name, Progress(seconds=0.0))
            progress = replace(progress, agent=answer.agent, spark=answer.spark)
            found = ReportRecord(node=key[1], at=now, progress=progress)
            self._tell_troubles(name, progress)
        one.said[key] = found
        if before is None or (before.error, _lasting(before.progress)) != (
            found.error,
            _lasting(found.progress),
        ):
            one.news.add(key)

    def _tell_troubles(self, name: str, progress: Progress) -> None:
        """Write into the history that a unit has failed, or waits for a service, once for each reason."""
        for unit in progress.units:
            subject = f"{unit.unit} failed: " if unit.error else f"{unit.unit} waits: "
            wrong = unit.error or unit.waits or ""
            if wrong != self._troubles.get((name, unit.unit), ""):
                if wrong:
                    self._store.tell_again([name], subject, subject + wrong.splitlines()[0])
                self._troubles[name, unit.unit] = wrong

    @staticmethod
    def _differs(one: _Deployed, key: Key, report: NodeReport, name: str) -> bool:
        """Return whether a node's units differ from the unit statuses."""
        node = one.nodes[key].name
        here = {
            which: s.runs for which, s in one.unit_statuses.items() if one.plans[s.plan].unit(which[0]).node == node
        }
        told = report.units.get(name, {})
        running = {which for which, wanted in told.items() if wanted == "running"}
        return any(not here.get(which, False) for which in running) or any(
            runs and which not in running and told.get(which) != "finished" for which, runs in here.items()
        )

    def _store_news(self, known: Mapping[str, _Deployed]) -> None:
        now = time.monotonic()
        news = {name: one for name, one in known.items() if one.said and (one.news or now - one.stored > STALE)}
        # Several transactions: other writers, such as the renewal of the lease, get their turn in between.
        names, at = list(news), time.time()
        for begin in range(0, len(names), TOGETHER):
            some = {name: news[name] for name in names[begin : begin + TOGETHER]}
            self._store.report(
                self._holder,
                at,
                {
                    name: [s for key, s in one.said.items() if key in one.news or now - one.stored > STALE]
                    for name, one in some.items()
                },
                {
                    name: whole(answered)
                    for name, one in some.items()
                    if (answered := [said for said in one.said.values() if said.error is None])
                },
            )
            for one in some.values():
                one.stored = now
                if one.news:
                    one.changed = now
                    one.news.clear()


def _lasting(progress: Progress | None) -> Progress | None:
    """Return a progress without its time, which changes anyway."""
    return None if progress is None else replace(progress, seconds=0.0)
