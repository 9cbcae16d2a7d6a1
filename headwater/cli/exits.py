"""The meaning of exit codes: the one table, shown by ``--help`` and compared with the documentation."""

from __future__ import annotations

from collections.abc import Mapping

EXITS: Mapping[int, str] = {
    0: "done, or stopped by Ctrl-C at a batch boundary",
    1: "another error, or you answered no",
    2: "wrong arguments",
    3: "the dataflow or the continuum is wrong",
    4: "it cannot be placed",
    5: "a unit failed, or the demo differs from the batch result",
    6: "the stored deployment or the directory does not allow the command",
    7: "Java, Spark, a broker or a database is not available",
    130: "a second Ctrl-C: ended at once",
}

IN_WORDS = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXITS.items())}."
