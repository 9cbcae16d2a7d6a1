"""The dataflow of a rewritten plan as it was written, and the way from one to the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.dataflow.graph import Dataflow


@dataclass(frozen=True, kw_only=True)
class Written:
    """The dataflow from which a plan's dataflow was rewritten.

    ``without_rules``: names of rules that may not be applied. ``rules``: the applied ones, in words. ``origins``: for
    operators that rules made or changed, the operator of the written dataflow whose selectivity they have; '' for one
    that keeps all rows.
    """

    dataflow: Dataflow
    without_rules: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
