"""Replay a trace of rates against placement strategies, without running anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.app.profiles import read_text
from headwater.continuum.model import Continuum
from headwater.core.metrics import Observe
from headwater.dataflow.graph import Dataflow
from headwater.plan import build as planning

if TYPE_CHECKING:
    from headwater.placement.replay import Score
    from headwater.plan.place import PlacementRequest
    from headwater.plan.profile import Profile
    from headwater.plan.setting import Setting


def simulate(
    dataflow: Dataflow,
    continuum: Continuum,
    trace: str | Path,
    desired_states: Sequence[PlacementRequest],
    *,
    profile: Profile | None = None,
    forecast: str | None = None,
    text: str | None = None,
    observe: Observe = lambda what, done, of: None,
) -> Mapping[str, Sequence[Score]]:
    """Replay a trace of rates: return the decisions of each request's strategy, step by step.

    ``trace`` is a file, or the name of ``text`` in errors. ``observe`` is called before each step. Raises
    PlacementError where it cannot be read or is invalid.
    """
    from headwater.plan.rates import read_trace, replayed_by_each

    setting = _setting(dataflow, continuum, profile)
    steps = read_trace(read_text(trace, "trace") if text is None else text, setting, where=str(trace))
    return replayed_by_each(setting, steps, desired_states, forecast=forecast, observe=observe)


def _setting(dataflow: Dataflow, continuum: Continuum, profile: Profile | None) -> Setting:
    from headwater.plan.profile import Known
    from headwater.plan.setting import Setting

    return Setting(dataflow, continuum, planning.marked_layers(dataflow, continuum), Known(dataflow, profile))
