"""The use cases of dead letters over zones: list them, and replay them to their sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.app.running import is_deployment
from headwater.app.stores import existing
from headwater.continuum.model import Node
from headwater.control.tables import HOME
from headwater.core.errors import DeploymentError, SpecUnknown, Unavailable
from headwater.plan.content import own_sources
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import Replayed

if TYPE_CHECKING:
    from headwater.connectors.replaying import ReplayRequest


def dead_letters(
    name: str,
    store_url: str | None = None,
    *,
    home: Path = HOME,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """Yield the dead letters of a deployment's nodes, also of those that it has left, the first thousand of each.

    Unreachable nodes are reported to ``say`` and skipped.
    """
    from headwater.agent.agents import Agents

    agents = Agents(home)
    for node in _nodes(_plans(name, store_url)):
        try:
            yield from agents.find(node).dead_letters(name)
        except Unavailable as error:
            say(f"{node.name}: {error.what}")
        except SpecUnknown:
            continue  # the agent does not know the deployment, or not any more


def in_directory(directory: Path) -> Iterator[dict[str, Any]]:
    """Return the dead letters of a deployment, running or not."""
    from headwater.connectors.deadletters import read_dead_letters
    from headwater.disk.layout import Layout

    layout = Layout(directory)
    if not is_deployment(directory):
        raise DeploymentError("no deployment here", where=str(directory), hint="give the --dir of `headwater run`")
    letters: Iterator[dict[str, Any]] = read_dead_letters(layout.all_dead_letters)
    return letters


def replay(
    name: str,
    ids: Sequence[str],
    store_url: str | None = None,
    *,
    records: Mapping[str, str] | None = None,
    force: bool = False,
    home: Path = HOME,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Replayed, ...]:
    """Replay dead letters, by id, to their sources, and return the outcome of each.

    ``records``: corrected records by id; the others are replayed as they are. ``force``: even where a record does not
    fit its schema or was replayed before. A node that does not answer may have replayed its part: repeating the call is
    safe. Raises DeploymentError where the deployment is not running, or an id is invalid.
    """
    wanted = _wanted(ids, records or {})
    plans = _plans(name, store_url)
    if not plans:
        raise DeploymentError("it is not running", where=f"deployment '{name}'", hint="apply it first")
    return _replay(name, _nodes(plans), wanted, home, force=force, say=say)


def _wanted(ids: Sequence[str], records: Mapping[str, str]) -> tuple[ReplayRequest, ...]:
    """Return the ids to replay, each with its corrected record or None; refuse invalid ids."""
    from headwater.connectors.replaying import MOST, read_wanted

    strange = [id_ for id_ in records if id_ not in ids]
    if strange:
        raise DeploymentError(
            f"a record is given for dead letter {strange[0]}, which is not replayed",
            hint="name the dead letter as well",
        )
    letters = [{"id": id_, "record": records.get(id_)} for id_ in dict.fromkeys(ids)]
    found: list[ReplayRequest] = []
    for n in range(0, max(1, len(letters)), MOST):
        found += read_wanted(letters[n : n + MOST], where="dead letters to replay")
    return tuple(found)


def _replay(
    name: str,
    nodes: Sequence[Node],
    wanted: Sequence[ReplayRequest],
    home: Path,
    *,
    force: bool,
    say: Callable[[str], None],
) -> tuple[Replayed, ...]:
    """Replay dead letters on the nodes that keep them; return the outcomes in the order of ``wanted``."""
    from headwater.agent.agents import Agents
    from headwater.connectors.replaying import MOST

    agents = Agents(home)
    found: dict[str, Replayed] = {}
    silent: list[str] = []
    for node in nodes:
        left = [one for one in wanted if one.id not in found]
        if not left:
            break
        try:
            for n in range(0, len(left), MOST):
                asked = left[n : n + MOST]
                answers = agents.find(node).replay(name, asked, force=force)
                found |= {one.id: one for one in answers if one.outcome != "unknown"}
        except Unavailable as error:
            silent.append(node.name)
            say(f"{node.name}: {error.what}")
        except SpecUnknown:
            continue  # the agent does not know the deployment yet
    why = "no such dead letter"
    if silent:
        why += f" in zones that answered; {', '.join(silent)} did not: ask again when it does"
    return tuple(found.get(o.id) or Replayed(id=o.id, outcome="unknown", reason=why) for o in wanted)


def _plans(name: str, store_url: str | None) -> list[DeploymentPlan]:
    """Return the active plan of a deployment and those of its changes, newest first; none where it has not run."""
    with existing(store_url) as store:
        active = store.deployment(name).active_plan
        if active is None:
            return []
        ran = [c.plan for c in reversed(store.changes(name)) if c.plan is not None]
        return [store.plan(id_) for id_ in dict.fromkeys((active, *ran))]


def _nodes(plans: Sequence[DeploymentPlan]) -> list[Node]:
    """Return the nodes of plans, of each plan those with sources first: they keep most dead letters."""
    found: dict[str, Node] = {}
    for plan in plans:
        for unit in sorted(plan.units, key=lambda u: not own_sources(plan.dataflow, u)):
            found.setdefault(unit.node, plan.continuum.node(unit.node))
    return list(found.values())


def read_wanted(text: str, *, where: str) -> dict[str, str | None]:
    """Parse dead letters as `headwater deadletters --json` prints them; return their records by id.

    >>> read_wanted('{"id": "0123456789abcdef", "record": "1,2.5", "unit": "a@E1"}', where="letters.jsonl")
    {'0123456789abcdef': '1,2.5'}
    """
    found: dict[str, str | None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            letter = json.loads(line)
            id_, record = letter["id"], letter.get("record")
        except (ValueError, TypeError, KeyError, AttributeError):
            id_ = record = None
        if not isinstance(id_, str) or not isinstance(record, str | None):
            raise DeploymentError(
                "not a dead letter",
                where=f"{where}:{number}",
                hint="edit the records in what `headwater deadletters --json` writes",
            )
        found[id_] = record
    return found
