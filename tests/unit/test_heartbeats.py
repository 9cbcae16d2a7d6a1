"""The history tells when an agent, a Spark or a controller ended and was back, however often that happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headwater.control import heartbeats, tables
from headwater.control.rows import KEPT_ALIKE, MOST_ALIKE
from headwater.core.errors import Unavailable
from headwater.plan.port import NodeReport
from headwater.testing.nodes import SimulatedNode
from tests.unit.changes import FIRST
from tests.unit.controlled import Site

NODE = "E1"


class Lives:
    """The processes that one node reports; None: it cannot be reached."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.agent, self.spark, self.ending = "10-a", "20", ""
        self.former, self.resumed = "", frozenset[str]()
        self.reached = True
        said = SimulatedNode.report

        def report(node: SimulatedNode) -> NodeReport:
            if node.name != NODE:
                return said(node)
            if not self.reached:
                raise Unavailable("nobody answers")
            found = replace(said(node), agent=self.agent, spark=self.spark, ending=self.ending)
            return replace(found, former=self.former, resumed=self.resumed)

        monkeypatch.setattr(SimulatedNode, "report", report)
        monkeypatch.setattr(heartbeats, "SILENT", 0.0)

    def told(self) -> list[str]:
        """Poll; return the events so far about agents, Sparks and controllers."""
        self.site.controller.poll()
        heads = (f"agent of {NODE} ", f"Spark of {NODE} ", "controller ")
        return [e.text for e in self.site.store.events("f") if e.text.startswith(heads)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lives:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    site = Site(tmp_path)
    site.apply(FIRST)
    return Lives(site, monkeypatch)


def test_an_agent_and_a_spark_that_ended_are_told_once(node: Lives) -> None:
    assert node.told() == node.told() == []
    node.reached = False
    assert node.told() == node.told() == [f"agent of {NODE} cannot be reached: nobody answers"]
    node.reached, node.agent = True, "11-b"
    assert node.told()[1:] == [
        f"agent of {NODE} is reached again, after 0 s",
        f"agent of {NODE} has ended (process 10) and runs again (process 11)",
    ]
    node.spark = "21"
    assert node.told()[3:] == [f"Spark of {NODE} has ended and runs again"]
    node.spark = ""  # it ended because no unit ran
    node.told()
    node.spark = "22"
    assert len(node.told()) == 4
    node.spark, node.ending = "23", "it was killed (SIGKILL)"
    assert node.told()[4:] == [f"Spark of {NODE} has ended and runs again: it was killed (SIGKILL)"]


def test_the_next_controller_knows_what_was_reported_to_the_last_one(node: Lives) -> None:
    assert node.told() == []
    node.site.restart()
    node.agent = "12-c"
    assert node.told() == [f"agent of {NODE} has ended (process 10) and runs again (process 12)"]


def test_an_agent_that_ended_before_its_first_report_is_told_once(node: Lives) -> None:
    node.agent, node.former, node.resumed = "11-b", "10-a", frozenset({"f"})
    found = [f"agent of {NODE} has ended (process 10) and runs again (process 11)"]
    assert node.told() == node.told() == found
    node.site.restart()
    assert node.told() == found


def test_an_end_before_the_first_unit_of_a_deployment_is_not_told(node: Lives) -> None:
    node.agent, node.former, node.resumed = "11-b", "10-a", frozenset({"another"})
    assert node.told() == []


def test_a_controller_that_was_killed_is_told(node: Lives) -> None:
    store = node.site.store
    assert store.hold("next", 0.0) is None  # the lease is not over
    with store._writing() as connection:
        connection.exec_driver_sql("UPDATE headwater_leases SET seconds = 0")
    before = store.lease()
    assert store.hold("next", 600.0, label="b:2") and before is None
    (text,) = [e.text for e in store.events("f") if e.text.startswith("controller ")]
    assert text.endswith("has ended, or hangs: its lease expired; b:2 acts now")
    store.release("next")
    assert store.hold("third", 600.0)  # a released lease is no failure
    assert len([e for e in store.events("f") if e.text.startswith("controller ")]) == 1


def test_an_agent_that_ends_again_and_again_is_counted(node: Lives) -> None:
    node.told()
    for process in range(3 * MOST_ALIKE):
        node.agent = f"{process}-x"
        found = node.told()
    assert len(found) == MOST_ALIKE and found[-1].endswith(f" (and {2 * MOST_ALIKE} more)")
    store = node.site.store
    with store._writing() as connection:
        connection.exec_driver_sql("UPDATE headwater_events SET at = 0")
    for _ in range(2):
        store.tell_again(["f"], f"agent of {NODE} ", f"agent of {NODE} has ended")
    assert len(node.told()) == MOST_ALIKE + 2
    for _ in range(KEPT_ALIKE):
        store.tell_again(["f"], f"agent of {NODE} ", f"agent of {NODE} has ended")
        with store._writing() as connection:
            connection.exec_driver_sql("UPDATE headwater_events SET at = 0")
    assert len(node.told()) == KEPT_ALIKE
