"""All rewrite rules, in the order in which they are tried. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.core.errors import PlacementError, suggestion
from headwater.rewrite.aggregates import DROP_EARLY, GROUP_VALUES, SPLIT_AGGREGATE
from headwater.rewrite.filters import FILTER_DOWN, FILTER_ORDER
from headwater.rewrite.gathering import GATHER_STREAMS
from headwater.rewrite.projections import PRUNE_COLUMNS, SELECT_DOWN
from headwater.rewrite.rule import RewriteRule
from headwater.rewrite.semijoins import SEMI_JOIN

RULES: tuple[RewriteRule, ...] = (
    FILTER_DOWN,
    SELECT_DOWN,
    PRUNE_COLUMNS,
    SEMI_JOIN,
    SPLIT_AGGREGATE,
    GROUP_VALUES,
    DROP_EARLY,
    FILTER_ORDER,
    GATHER_STREAMS,
)
"""Those that only leave things out come first: a rule that adds work has to save more than they do, and one that adds a
unit comes last."""


def rules_without(names: Iterable[str]) -> tuple[RewriteRule, ...]:
    """Return all rules but those of these names; raise PlacementError for an unknown name."""
    known = [rule.name for rule in RULES]
    for name in names:
        if name not in known:
            raise PlacementError(f"unknown rewrite rule '{name}'", hint=suggestion(name, known, "the rules are"))
    return tuple(rule for rule in RULES if rule.name not in set(names))
