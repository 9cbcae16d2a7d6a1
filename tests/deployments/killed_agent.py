"""Run a zone's agent that is killed when a replayed record is in its source but the replay is not recorded yet.

``python -m tests.deployments.killed_agent ORDER zone ...``: it is killed once, if a file ORDER exists then.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from headwater.connectors.offerfile import FileOffer


def main(order: Path) -> None:
    """Run the agent."""
    offer = FileOffer.offer

    def offer_and_die(self: FileOffer) -> None:
        offer(self)
        if order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    FileOffer.offer = offer_and_die  # type: ignore[method-assign]
    from headwater.cli import main as run

    run()


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
