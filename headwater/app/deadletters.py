"""The use cases of dead letters over zones: see them, and offer them again to the sources they came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.app.stores import HOME, existing
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
    """Give the malformed records that a deployment's zones keep, the first thousand of each.

    What cannot be reached is said, and passed over.
    """
    from headwater.agent.agents import Agents

    plan = _in_force(name, store_url)
    if plan is None:
        return
    agents = Agents(home)
    for node in _nodes(plan):
        try:
            yield from agents.find(plan.continuum.node(node)).dead_letters(name)
        except Unavailable as error:
            say(f"{node}: {error.what}")


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
    """Offer dead letters, by id, again to the sources they came from, and say of each what came of it.

    ``records``: corrected ones by id; the others go as they are. ``force``: even where a record does not fit
    or was replayed before. A zone that does not answer may have done its part: to ask again does no harm.
    Raises DeploymentError where the deployment is not in force, or an id is none.
    """
    wanted = _wanted(ids, records or {})
    plan = _in_force(name, store_url)
    if plan is None:
        raise DeploymentError("it is not in force", where=f"deployment '{name}'", hint="apply it first")
    return _replay(plan, wanted, home, force=force, say=say)


def _wanted(ids: Sequence[str], records: Mapping[str, str]) -> tuple[ReplayRequest, ...]:
    """Say which letters are to be replayed, and which with another record; refuse what is no letter's id."""
    from headwater.connectors.replaying import MOST, read_wanted

    strange = [id_ for id_ in records if id_ not in ids]
    if strange:
        raise DeploymentError(
            f"a record is given for letter {strange[0]}, which is not to be replayed",
            hint="name the letter, too",
        )
    letters = [{"id": id_, "record": records.get(id_)} for id_ in dict.fromkeys(ids)]
    found: list[ReplayRequest] = []
    for n in range(0, max(1, len(letters)), MOST):
        found += read_wanted(letters[n : n + MOST], where="what is to be replayed")
    return tuple(found)


def _replay(
    plan: DeploymentPlan,
    wanted: Sequence[ReplayRequest],
    home: Path,
    *,
    force: bool,
    say: Callable[[str], None],
) -> tuple[Replayed, ...]:
    """Have each zone replay those letters that it keeps; what came of them, in their order."""
    from headwater.agent.agents import Agents
    from headwater.connectors.replaying import MOST

    agents, name = Agents(home), plan.dataflow.name
    found: dict[str, Replayed] = {}
    silent: list[str] = []
    for node in _nodes(plan):
        left = [one for one in wanted if one.id not in found]
        if not left:
            break
        try:
            for n in range(0, len(left), MOST):
                asked = left[n : n + MOST]
                answers = agents.find(plan.continuum.node(node)).replay(name, asked, force=force)
                found |= {one.id: one for one in answers if one.outcome != "unknown"}
        except Unavailable as error:
            silent.append(node)
            say(f"{node}: {error.what}")
        except SpecUnknown:
            continue  # the agent has not been given the deployment yet
    why = "no such letter"
    if silent:
        why += f" in zones that answered; {', '.join(silent)} did not: ask again when it does"
    return tuple(found.get(o.id) or Replayed(id=o.id, outcome="unknown", reason=why) for o in wanted)


def _in_force(name: str, store_url: str | None) -> DeploymentPlan | None:
    with existing(store_url) as store:
        store.deployment(name)
        return store.active_plan(name)


def _nodes(plan: DeploymentPlan) -> tuple[str, ...]:
    """Name the nodes, first those that read sources, where letters come from."""
    units = sorted(plan.units, key=lambda unit: not own_sources(plan.dataflow, unit))
    return tuple(dict.fromkeys(u.node for u in units))


def read_wanted(text: str, *, where: str) -> dict[str, str | None]:
    """Read letters as `headwater deadletters --json` writes them: ids, each with its record.

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
