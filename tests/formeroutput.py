"""Settle the output of other runs in all sinks of a plan, as its agents do before units start."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.agent.formeroutput import settle
from headwater.plan.model import DeploymentPlan
from headwater.plan.spec import spec_of
from headwater.plan.steps import FormerOutputChoice


def settled(plan: DeploymentPlan, choice: FormerOutputChoice, spark: Any = None) -> None:
    """Settle each unit; without ``spark`` a plan with tables fails."""
    for unit in plan.units:
        settle(spec_of(plan, unit.id), choice, lambda: spark or pytest.fail("Spark was asked for"))
