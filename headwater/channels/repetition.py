"""How much of a location's rows the rows of other locations repeat, if they cross a link in the same stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headwater.channels.blocks import encodable, encode_block, uncompressed_block
from headwater.channels.linkcompression import LinkCompressor
from headwater.channels.linkstream import LEVELS
from headwater.channels.segments import conformed

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCKS = 3
"""Blocks in which the rows of a location are sent."""
_LEAST, _MOST = 0.05, 0.999
"""Share below which nothing is taken for repeated, and above which none can be."""


def split_by(rows: pa.Table, columns: Sequence[str], most: int) -> list[pa.Table]:
    """Return the rows of each location, at most so many of each; ``columns`` tell the locations apart."""
    import pyarrow.compute as pc

    found = []
    for own in rows.select(list(columns)).group_by(list(columns)).aggregate([]).to_pylist():
        here = None
        for name, value in own.items():
            equal = pc.is_null(rows[name]) if value is None else pc.equal(rows[name], value)
            here = equal if here is None else pc.and_kleene(here, equal)
        found.append(rows.filter(here).slice(0, most))
    return found


def repeated_share(locations: Sequence[pa.Table]) -> float | None:
    """Return the share of the bytes of one location's rows that those of any other repeat; None if it is not known.

    ``locations``: the rows of each, all of one schema. Of n streams that share the part r of their bytes, one stream of
    all rows has the part 1 - r (1 - 1/n).
    """
    import pyarrow as pa

    own = [_in_blocks(conformed(rows)) for rows in locations if rows.num_rows >= _BLOCKS]
    if len(own) < 2 or not encodable(own[0][0].schema):
        return None
    apart = sum(map(_stream_bytes, own))
    together = _stream_bytes(pa.concat_tables(blocks) for blocks in zip(*own, strict=True))
    share = (1.0 - together / apart) / (1.0 - 1.0 / len(own))
    return 0.0 if share < _LEAST else min(share, _MOST)


def _in_blocks(rows: pa.Table) -> list[pa.Table]:
    size = -(-rows.num_rows // _BLOCKS)
    return [rows.slice(size * number, size) for number in range(_BLOCKS)]


def _stream_bytes(blocks: Iterable[pa.Table]) -> int:
    """Return the bytes of blocks as one stream over a link."""
    compressor = LinkCompressor(LEVELS[-1])
    plain = (uncompressed_block(encode_block(block.combine_chunks(), level=LEVELS[0])) for block in blocks)
    return sum(len(compressor.compress(block)) for block in plain)
