"""Describe steps in plain words, for a person's approval. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.core.quantity import format_duration
from headwater.plan.steps import (
    CatchUp,
    Check,
    Drain,
    Finish,
    Forget,
    FormerOutput,
    Load,
    Preflight,
    Prepare,
    Save,
    Start,
    Step,
    Stop,
    Switch,
    UpdateInputs,
    WarmUp,
    Watch,
)

PAUSE = "about 5 s"
"""Pause of a unit from its stop to the first batch of its replacement; measured: 3 to 6 s."""

_STATE = {
    "kept": "its state is kept",
    "transferred": "its state is transferred",
    "none": "it keeps no state",
    "given up": "its state is given up: open windows and other state are lost",
}


def explain(steps: Sequence[Step]) -> list[str]:
    """Describe the steps in order: stopped units, pauses, waiting input, and the fate of state."""
    lines: list[str] = []
    checks = [s.unit for s in steps if isinstance(s, Check)]
    if checks:
        lines.append(f"check in their zones, before anything stops: {_names(checks)}")
    if preflighted := [s.unit for s in steps if isinstance(s, Preflight)]:
        lines.append(f"check, before anything stops, that their state can be saved: {_names(preflighted)}")
    if warmed_up := [s.unit for s in steps if isinstance(s, WarmUp)]:
        lines.append(f"warm up on a sample, whose output is discarded, for a fast start: {_names(warmed_up)}")
    for choice, what in (("append", "write after"), ("overwrite", "remove")):
        if units := [s.unit for s in steps if isinstance(s, FormerOutput) and s.choice == choice]:
            lines.append(f"{what} output of other runs in the sinks of {_names(units)}")
    replaced = {s.unit for s in steps if isinstance(s, Start) and s.again}
    for step in steps:
        line = _line(step, replaced)
        if line:
            lines.append(line)
    if not lines:
        return ["nothing to do"]
    stopped = [s for s in steps if isinstance(s, Stop)]
    if not stopped:
        lines.append("no running unit is stopped")
    return lines


def _line(step: Step, replaced: set[str]) -> str | None:
    match step:
        case FormerOutput() | Check() | Preflight() | WarmUp() | Prepare() | Save():
            return None  # checks share a line, as does former output; prepare is part of start, save of load
        case CatchUp():
            (source,) = step.transfer.source_units
            return (
                f"let {step.unit} catch up with {source} while that one runs, to take over without a first batch; "
                f"meanwhile it needs {step.price or 'as much processor time and memory as that one'}"
            )
        case Load():
            shares = step.transfer.shares
            if not shares:
                return f"let {step.unit} read on from the positions of {_names(step.transfer.source_units)}"
            source_units = dict.fromkeys(d.unit for s in shares for d in s.source_units)
            return f"give {step.unit} the state of {_names(s.operator for s in shares)} from {_names(source_units)}"
        case Switch():
            return "switch to the new units: until here, the change can be rolled back"
        case Stop() if step.unit in replaced:
            return None  # described with the start that follows
        case Stop():
            return f"stop {step.unit} at a batch boundary: {step.why}; {_stopped_state(step)}"
        case Start() if step.again:
            return (
                f"replace {step.unit}: {step.why}; it pauses for {PAUSE}, and its input is buffered; "
                f"{_STATE[step.state]}"
            )
        case Start():
            state = "; it keeps its state" if step.state in ("kept", "transferred") else ""
            return f"start {step.unit}: {step.why}{state}"
        case UpdateInputs():
            return f"update the inputs of {step.unit} without a restart" + (f": {step.why}" if step.why else "")
        case Drain():
            return f"wait until {step.unit} has read its old input"
        case Finish():
            return f"let {step.unit} finish its input and close its windows"
        case Forget() if step.unit in replaced:
            return None  # data that both use stays
        case Forget():
            return f"delete the stored data of {step.unit}, once it has been read: {step.why}"
        case Watch():
            return (
                f"watch {_names(step.units)} for {format_duration(step.seconds)}; "
                "roll back if they do worse than before"
            )


def _stopped_state(step: Stop) -> str:
    if step.state == "kept":
        return "its state is kept"
    return _STATE[step.state]


def _names(units: Iterable[str]) -> str:
    return ", ".join(units)
