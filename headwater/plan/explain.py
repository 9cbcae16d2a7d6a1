"""Steps in plain words, for a person to agree to: the second reader of what is carried out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.core.quantity import format_duration
from headwater.plan.steps import (
    Check,
    Drain,
    Finish,
    Forget,
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
"""How long a unit stands between its stop and the first batch of what takes its place: measured, 3 to 6 s."""

_STATE = {
    "kept": "its state is kept",
    "transferred": "its state is carried over",
    "none": "it keeps no state",
    "given up": "its state is given up: open windows and what it remembers are lost",
}


def explain(steps: Sequence[Step]) -> list[str]:
    """Say what will happen, in order: what stops and for how long, what waits, what happens to state."""
    lines: list[str] = []
    checks = [s.unit for s in steps if isinstance(s, Check)]
    if checks:
        lines.append(f"check in their zones, before anything stops: {_names(checks)}")
    if preflighted := [s.unit for s in steps if isinstance(s, Preflight)]:
        lines.append(f"see, before anything stops, whether their state can be taken out: {_names(preflighted)}")
    if warmed_up := [s.unit for s in steps if isinstance(s, WarmUp)]:
        lines.append(f"run on a trifle, beside all that counts, so that they start soon: {_names(warmed_up)}")
    replaced = {s.unit for s in steps if isinstance(s, Start) and s.again}
    for step in steps:
        line = _line(step, replaced)
        if line:
            lines.append(line)
    if not lines:
        return ["nothing to do"]
    stopped = [s for s in steps if isinstance(s, Stop)]
    if not stopped:
        lines.append("nothing that runs is stopped")
    return lines


def _line(step: Step, replaced: set[str]) -> str | None:
    match step:
        case Check() | Preflight() | WarmUp() | Prepare() | Save():
            return None  # checks stand together, preparing is part of starting, saving of loading
        case Load():
            shares = step.transfer.shares
            if not shares:
                return f"let {step.unit} read on where {_names(step.transfer.source_units)} stood"
            source_units = dict.fromkeys(d.unit for s in shares for d in s.source_units)
            return f"give {step.unit} the state of {_names(s.operator for s in shares)} from {_names(source_units)}"
        case Switch():
            return "from here on the new units count: before, all can go back to where it was"
        case Stop() if step.unit in replaced:
            return None  # told with the start that follows
        case Stop():
            return f"stop {step.unit} at a batch boundary: {step.why}; {_stopped_state(step)}"
        case Start() if step.again:
            return (
                f"replace {step.unit}: {step.why}; it stands still for {PAUSE}, its input waits meanwhile; "
                f"{_STATE[step.state]}"
            )
        case Start():
            state = "; it goes on with its state" if step.state in ("kept", "transferred") else ""
            return f"start {step.unit}: {step.why}{state}"
        case UpdateInputs():
            return f"feed {step.unit} without a restart" + (f": {step.why}" if step.why else "")
        case Drain():
            return f"wait until {step.unit} has read what was written for it in the old form"
        case Finish():
            return f"let {step.unit} use up its input and close its windows"
        case Forget() if step.unit in replaced:
            return None  # what both use stays
        case Forget():
            return f"delete what {step.unit} has stored, once all has been read: {step.why}"
        case Watch():
            return (
                f"watch {_names(step.units)} for {format_duration(step.seconds)}; "
                "if they do worse than before, go back to what ran"
            )


def _stopped_state(step: Stop) -> str:
    if step.state == "kept":
        return "its state stays"
    return _STATE[step.state]


def _names(units: Iterable[str]) -> str:
    return ", ".join(units)
