"""Finish units: use up their input and end them, each in a thread of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from headwater.agent.units import Units


@dataclass
class _Going:
    thread: threading.Thread
    stop: threading.Event = field(default_factory=threading.Event)
    done: bool = False
    error: Exception | None = None


class Finishing:
    """Units that are finishing; not thread-safe."""

    def __init__(self) -> None:
        self._going: dict[str, _Going] = {}

    def go_on(self, units: Units, unit: str) -> None:
        """Begin to finish a unit, unless it is finishing already; raise its last failure."""
        going = self._going.get(unit)
        if going is not None and (going.thread.is_alive() or going.done):
            return
        if going is not None and going.error is not None:
            del self._going[unit]
            raise going.error
        self._begin(units, unit)

    def end(self, unit: str) -> None:
        """Stop finishing a unit."""
        going = self._going.pop(unit, None)
        if going is not None:
            going.stop.set()
            going.thread.join()

    def _begin(self, units: Units, unit: str) -> None:
        def run() -> None:
            try:
                going.done = units.finish(unit, going.stop)
            except Exception as error:  # raised at the next `begin`
                going.error = error

        going = _Going(threading.Thread(target=run, name=f"finish {unit}", daemon=True))
        self._going[unit] = going
        going.thread.start()
