"""Write seeded trips of several garages: ``python -m examples.debs2015.generate --rows 20000 --out DIR``.

The trips are those of ``examples.taxi.generate``: no real trip, identifier or place is in them. A taxi belongs to one
garage, whose gateway has the trips in the order of their drop-off: ``DIR/garage-a/trips-0001.csv`` and so on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from examples.debs2015.flow import GARAGES
from examples.taxi.generate import BAD_SHARE, trips


def garage_of(taxi: str, garages: Sequence[str] = GARAGES) -> str:
    """Return the garage of a taxi, by its number."""
    return garages[int(taxi.rpartition("-")[2]) % len(garages)]


def write_files(
    out: Path,
    rows: int,
    *,
    seed: int = 1,
    late: float = 0.0,
    bad: float = BAD_SHARE,
    taxis: int = 4630,
    per_file: int = 10_000,
    garages: Sequence[str] = GARAGES,
) -> Iterator[Path]:
    """Write the trips of all garages, ``per_file`` at a time, one file for each garage; yield each file.

    Raise ValueError for shares that are none, and fewer than one trip a file.
    """
    if per_file < 1:
        raise ValueError(f"per_file is {per_file}: give at least 1")
    source = trips(rows, seed=seed, late=late, bad=bad, taxis=taxis)
    number = 0
    while part := list(islice(source, per_file)):
        number += 1
        for garage in garages:
            path = out / garage / f"trips-{number:04d}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name(f".{path.name}.part")
            hidden.write_text("".join(f"{','.join(t)}\n" for t in part if garage_of(t[0], garages) == garage))
            hidden.replace(path)
            yield path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write trips from the command line."""
    parser = argparse.ArgumentParser(prog="examples.debs2015.generate", description="Write seeded taxi trips as CSV.")
    parser.add_argument("--rows", type=int, default=20_000, help="trips of all garages (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--late", type=float, default=0.0, help="share of trips that come late")
    parser.add_argument("--bad", type=float, default=BAD_SHARE, help="share of trips without a position")
    parser.add_argument("--per-file", type=int, default=10_000, help="trips before a new file (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="directory of the garages' directories")
    given = parser.parse_args(arguments)
    try:
        files = list(
            write_files(given.out, given.rows, seed=given.seed, late=given.late, bad=given.bad, per_file=given.per_file)
        )
    except ValueError as error:
        parser.error(str(error))
    print(f"{given.rows} trips in {len(files)} files under {given.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
