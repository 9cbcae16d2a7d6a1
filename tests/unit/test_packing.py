"""Rows packed by key come back whole, with their keys, in any number of chunks."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headwater.query import packing
from headwater.query.packing import masks_of, pack, unpack

Rows = dict[tuple[Any, ...], list[tuple[Any, ...]]]


def through(table: pa.Table, keys: int, kinds: tuple[str, ...], *, size: int = 100) -> Rows:
    """Pack rows, hand the packed rows over in two parts, as Spark may, and read them back by key."""
    names = tuple(str(n) for n in range(table.num_columns + masks_of(len(kinds))))
    packed = pa.Table.from_batches(pack(table.to_batches(size), names=names, kinds=kinds)).to_pandas()
    found: Rows = defaultdict(list)
    half = len(packed) // 2
    for part in (packed.iloc[:half], packed.iloc[half:]):
        for _, row in part.iterrows():
            one = unpack(pd.DataFrame([row]), keys, kinds)
            values, masks = one[: len(kinds)], one[len(kinds) :]
            key = tuple(None if pd.isna(k) else k for k in row.iloc[:keys])
            for i in range(len(values[0])):
                null = [(masks[n // packing.BITS][i] >> (n % packing.BITS)) & 1 for n in range(len(kinds))]
                found[key].append(tuple(None if z else v[i] for v, z in zip(values, null, strict=True)))
    return found


def rows_of(table: pa.Table, keys: int) -> Rows:
    wanted: Rows = defaultdict(list)
    for row in zip(*(c.to_pylist() for c in table.columns), strict=True):
        wanted[row[:keys]].append(row[keys:])
    return wanted


@pytest.mark.parametrize("chunk", [1, 70, 100_000])
def test_rows_keep_their_keys_values_and_nulls(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_ROWS", chunk)
    rng = random.Random(7)
    rows = 500
    table = pa.table(
        {
            "k": pa.array([rng.choice(["a", "b", None, ""]) for _ in range(rows)]),
            "j": pa.array([rng.choice([None, -1, 2**40]) for _ in range(rows)], pa.int64()),
            "v": pa.array([rng.choice([None, 0, rng.randrange(-(2**62), 2**62)]) for _ in range(rows)], pa.int64()),
            "w": pa.array([rng.choice([None, 0.5, -1e300]) for _ in range(rows)], pa.float64()),
            "x": pa.array([rng.randrange(100) for _ in range(rows)], pa.int32()),
        }
    )
    got, wanted = through(table, 2, ("int64", "float64", "int64")), rows_of(table, 2)
    assert set(got) == set(wanted)
    for key, mine in wanted.items():
        assert got[key] == mine  # also in order


def test_more_values_than_bits_of_a_mask() -> None:
    count = packing.BITS + 3
    columns = {
        f"v{n}": pa.array([None if (n + i) % 7 == 0 else n * i for i in range(20)], pa.int64()) for n in range(count)
    }
    table = pa.table({"k": pa.array([i % 3 for i in range(20)], pa.int64()), **columns})
    assert through(table, 1, ("int64",) * count, size=6) == rows_of(table, 1)


def test_many_keys_of_many_values_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_DENSE", 10)  # numbers the keys anew at each column
    grid = np.stack(np.meshgrid(range(8), range(9), range(10)), -1).reshape(-1, 3)
    table = pa.table({**{f"k{n}": grid[:, n] for n in range(3)}, "v": np.arange(len(grid))})
    got = through(table, 3, ("int64",), size=1000)
    assert got == rows_of(table, 3)
    assert len(got) == len(grid)


def test_no_rows_give_no_packed_rows() -> None:
    empty = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.int64())})
    assert not list(pack(empty.to_batches(), names=("k", "v", "n"), kinds=("int64",)))
