"""Examine a host: all checks of `headwater.app.hostchecks`, and the agents of a continuum."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from headwater.app import hostchecks
from headwater.app.hostchecks import EXTRAS, Finding
from headwater.continuum.model import Continuum, Node
from headwater.core.errors import HeadwaterError

PORTS = (("an agent", 7070), ("the dashboard", 8470), ("Spark", 0))


def examined(home: Path, continuum: Continuum | None = None) -> Iterator[Finding]:
    """Yield the findings about this host, one after the other, then about the agents of a continuum."""
    yield hostchecks.java()
    yield hostchecks.pyspark()
    yield hostchecks.memory()
    yield hostchecks.cores()
    yield hostchecks.disk(home)
    yield hostchecks.inodes(home)
    yield hostchecks.temporary_space()
    yield hostchecks.temporary_programs()
    yield hostchecks.shared_memory()
    yield hostchecks.home_directory()
    for what, number in PORTS:
        yield hostchecks.port(what, number)
    yield hostchecks.clock()
    yield hostchecks.class_archive()
    yield hostchecks.token(os.environ)
    yield hostchecks.authority(os.environ)
    yield from map(hostchecks.extra, EXTRAS)
    if continuum is not None:
        yield from agents(continuum.nodes, home)


def agents(nodes: Iterable[Node], home: Path) -> Iterator[Finding]:
    """Ask each agent for its version and its clock; those of this machine need not run yet."""
    from headwater.agent.agents import Agents

    known = Agents(home)
    for node in nodes:
        check = f"agent {node.name}"
        try:
            client = known.find(node)
            asked = time.time()
            told = client.hello()
        except HeadwaterError as error:
            yield hostchecks.failed(check, error, "optional" if node.at is None else "missing")
        else:
            version = told.get("version", "that it does not state")
            yield Finding(check=check, state="ok", text=f"answers at {node.at or 'this machine'}, version {version}")
            if isinstance(there := told.get("time"), float):
                yield hostchecks.clock_difference(node.name, there, asked, time.time())


def is_complete(findings: Iterable[Finding]) -> bool:
    """Return whether nothing is missing that a run needs."""
    return all(finding.state != "missing" for finding in findings)
