"""Predict the plans to which a deployment may change, so that their units can be warmed up in time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headwater.adapt.decide import Alarm, Case, decide
from headwater.adapt.model import Facts
from headwater.adapt.options import Work, work_of
from headwater.plan.model import DeploymentPlan

_RATES = (3.0, 10.0, 20.0)
_NARROWER = 0.5
"""Assumed link capacity, as a share of the current traffic: too little."""
_CROWDED = 0.5
"""Assumed share of a host's cores taken by additional load."""


def likely(case: Case) -> tuple[DeploymentPlan, ...]:
    """Return the plans to choose under more load, a narrower link or a crowded host."""
    found: dict[Work, DeploymentPlan] = {}
    for facts in _scenarios(case):
        if case.options(facts).current.keeps:
            continue
        chosen = decide(case, Alarm("expected change", "if it came to that"), facts).chosen
        if chosen is not None:
            found.setdefault(work_of(chosen.plan), chosen.plan)
    return tuple(found.values())


def _scenarios(case: Case) -> Iterator[Facts]:
    facts = case.facts()
    for times in _RATES:
        rates = {s: {x: r * times for x, r in own.items()} for s, own in facts.profile.rates.items()}
        yield replace(facts, profile=facts.profile.model_copy(update={"rates": rates}))
    now = {name: link.bytes for name, link in case.seen.links.items() if link.bytes > 0}
    for name, bytes_ in now.items():
        yield replace(facts, capacity={**facts.capacity, name: bytes_ * _NARROWER})
    for key, cores in facts.cores.items():
        yield replace(facts, others={**facts.others, key: facts.others.get(key, 0.0) + _CROWDED * cores})
