"""One error tree. Every error says what is wrong, where, and what to do next.

``retryable`` errors may go away by themselves (a broker that is down, a full
buffer); all others are fatal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class HeadwaterError(Exception):
    """Base of all errors raised on purpose.

    ``what`` states the problem, ``where`` the file and line, operator or unit in
    which it was found, ``hint`` what to do next.
    """

    retryable = False
    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  -> {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (Spark's Python workers) and must keep their parts.
        return (_rebuild, (type(self), self.what, self.where, self.hint))


def _rebuild(cls: type[HeadwaterError], what: str, where: str | None, hint: str | None) -> HeadwaterError:
    return cls(what, where=where, hint=hint)


class ErrorList(HeadwaterError):
    """Several errors found in one pass, shown together; the exit code is the first one's."""

    def __init__(self, errors: Sequence[HeadwaterError]) -> None:
        self.errors = tuple(errors)
        self.exit_code = next((e.exit_code for e in errors), 1)
        super().__init__("\n".join(str(e) for e in errors))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.errors,))


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint: the closest known name, or all known names.

    >>> suggestion("optimum", ["optimal", "aels"], "the strategies are")
    "did you mean 'optimal'?"
    >>> suggestion("x", ["optimal", "aels"], "the strategies are")
    'the strategies are optimal, aels'
    """
    there = list(known)
    near = get_close_matches(name, there, 1)
    return f"did you mean '{near[0]}'?" if near else f"{otherwise} {', '.join(there)}"


class DataflowError(HeadwaterError):
    """The dataflow itself is wrong: an unknown column, a wrong type, a cycle."""

    exit_code = 3


class ContinuumError(HeadwaterError):
    """The continuum file is wrong; ``where`` is ``file:line``."""

    exit_code = 3


class PlacementError(HeadwaterError):
    """The dataflow cannot be placed on the continuum."""

    exit_code = 4


class ChannelError(HeadwaterError):
    """A channel cannot be written or read."""


class NoSuchLog(ChannelError):
    """A node has no log of that name: its writer was never prepared there, or it was deleted."""


class ChannelFull(ChannelError):
    """The channel stayed full for longer than a writer may wait."""

    retryable = True


class RuntimeFailure(HeadwaterError):
    """A unit, or the Spark that runs it, failed."""

    exit_code = 5


class SparkStumbled(RuntimeFailure):
    """Spark failed temporarily: a retry of the same batch may succeed."""

    retryable = True


class WaitsForBroker(RuntimeFailure):
    """A unit's query has ended because no Kafka broker answers; the unit continues when one does."""

    retryable = True


class UserCodeError(RuntimeFailure):
    """A function given by the user raised; names the operator and the row."""


class DeploymentError(HeadwaterError):
    """The stored deployment does not allow the request."""

    exit_code = 6


class Missing(DeploymentError):
    """The store has no object of the given name."""


class Denied(DeploymentError):
    """The caller lacks permission."""


class Fenced(DeploymentError):
    """An order is older than one already accepted: another controller is active, or the order arrived late."""


class SpecUnknown(DeploymentError):
    """A node does not have the unit's spec yet; send the spec first."""


class Unavailable(HeadwaterError):
    """An external service (Java, a broker, a Spark server) is not available."""

    retryable = True
    exit_code = 7


class BrokerAway(Unavailable):
    """No Kafka broker answers."""


class Busy(Unavailable):
    """A change is in progress; retry when it has ended."""
