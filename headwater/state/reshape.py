"""Rewrite an operator's state with Spark: merge several units' state, divide it, or change its partitions.

A process with a Spark of its own does it, on the checkpoints' files; see ``reshaper``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headwater.plan.transfer import OperatorTransfer
from headwater.query.scan import KEY
from headwater.sql.lexer import quote_string, quoted
from headwater.state.reshapingprocess import SHARED

KEYS = "headwater_keys"
"""Column of an entry's key columns by their names in the dataflow."""


@dataclass(frozen=True, kw_only=True)
class StatePiece:
    """A checkpoint that holds the operator's state, under its new number, as of a batch.

    ``takes``: the condition that selects its entries, by the key columns ``by``; None selects all.
    """

    checkpoint: str
    batch: int
    takes: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reshaping:
    """A rewriting: the state of all pieces becomes that of ``batch`` of ``checkpoint``."""

    checkpoint: str
    operator: int
    batch: int
    partitions: int
    pieces: list[StatePiece]


def taken_of(share: OperatorTransfer) -> str | None:
    """Return the condition that selects a share's entries; None where it takes all.

    Keys of scans end with their tags; Spark's own entries, its timers, belong to every share.
    """
    conditions = []
    if share.tag is not None:
        tag = f"encode({quote_string(share.tag)}, 'UTF-8')"
        conditions.append(f"(column_family_name LIKE '$%' OR right(key_bytes, {len(share.tag)}) = {tag})")
    if share.by is not None:
        name = quote_string(f"$.{share.by.lower()}")
        of_scan = f"get_json_object(partition_key.{quoted(KEY)}, {name})"
        column = f"{KEYS}.{quoted(share.by)}" if share.tag is None else of_scan
        values = ", ".join(quote_string(v) for v in share.values)
        conditions.append(f"{column} IN ({values})")
    if (part := share.part) is not None:
        name = quote_string(f"$.{part.column.lower()}")
        of_scan = f"CAST(get_json_object(partition_key.{quoted(KEY)}, {name}) AS {part.type})"
        column = f"{KEYS}.{quoted(part.column)}" if share.tag is None else of_scan
        conditions.append(f"pmod(xxhash64({column}), {part.count}) = {part.index}")
    return f"({' AND '.join(conditions)})" if conditions else None


def columns_of(share: OperatorTransfer) -> tuple[str, ...]:
    """Return the key columns that the condition of a share names; a scan's keys are text."""
    names = (share.by, share.part.column if share.part is not None else None)
    return tuple(dict.fromkeys(n for n in names if n is not None)) if share.tag is None else ()


def reshape(wanted: Sequence[Reshaping], *, within: Path) -> None:
    """Run the rewritings one after the other; raise RuntimeFailure with the end of Spark's messages."""
    SHARED.ask([asdict(_absolute(one)) for one in wanted], where=str(within))


def _absolute(wanted: Reshaping) -> Reshaping:
    pieces = [replace(piece, checkpoint=str(Path(piece.checkpoint).absolute())) for piece in wanted.pieces]
    return replace(wanted, checkpoint=str(Path(wanted.checkpoint).absolute()), pieces=pieces)
