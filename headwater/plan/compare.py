"""Compare strategies: each one's placement by the model of the requested one and within the same limits. Pure."""

from __future__ import annotations

from dataclasses import replace

from headwater.placement.schedule import SCHEDULERS
from headwater.plan.place import PlacementRequest, judged, place
from headwater.plan.prediction import Prediction
from headwater.plan.setting import Setting


def compared(setting: Setting, request: PlacementRequest, strategy: str) -> Prediction:
    """Predict a strategy's placement by the model of the requested strategy, and within the same limits.

    Raises PlacementError if the strategy finds none.
    """
    asked = replace(request, strategy=strategy)
    if strategy not in SCHEDULERS:
        asked = PlacementRequest(strategy=strategy, beside=request.beside)
    deployment, prediction = place(setting, asked)
    if prediction.limit_check is not None:
        return prediction
    return replace(prediction, limit_check=judged(setting, request, deployment))
