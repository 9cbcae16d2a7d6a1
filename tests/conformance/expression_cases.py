"""Expressions whose types Headwater and Spark are compared on; ``expressions/*.sql`` has one per line."""

from __future__ import annotations

from pathlib import Path

COLUMNS = (
    "a int, b bigint, t tinyint, s smallint, f float, d double, dec decimal(10,2), dec2 decimal(20,5), "
    "str string, bo boolean, bin binary, da date, ts timestamp, ntz timestamp_ntz, arr array<int>, "
    "sarr array<string>, m map<string,int>, st struct<x:int,y:string>, sts array<struct<x:int,y:string>>, "
    "w struct<start:timestamp,end:timestamp>, vo int, id bigint, `odd name` int, `end` int, `select` int, "
    "CamelCase int, sarr2 array<array<string>>"
)

ROW = r"""
SELECT 7 a, 2L b, 3Y t, 4S s, 1.5F f, 2.25D d, 12.34BD dec, 1.23456BD dec2, '2026' str,
  true bo, X'414243' bin,
  DATE '2026-02-28' da, TIMESTAMP '2026-02-28 13:45:30.5' ts, TIMESTAMP_NTZ '2026-02-28 13:45:30.5' ntz,
  array(3, 1, 2) arr, array('a', 'b', 'c') sarr, map('x', 1, 'y', 2) m, named_struct('x', 5, 'y', 'why') st,
  array(named_struct('x', 2, 'y', 'p'), named_struct('x', 1, 'y', 'q')) sts,
  named_struct('start', TIMESTAMP '2026-02-28 13:45:00', 'end', TIMESTAMP '2026-02-28 13:50:00') w,
  CAST(NULL AS int) vo, 99L id, 1 `odd name`, 2 `end`, 3 `select`, 4 CamelCase, array(array('z')) sarr2
"""

# Right in type, but they fail when they run on the row above.
RAISING = frozenset(
    [
        "str = bo",
        "cast(str as boolean)",
        "cast(str as interval day to second)",
        "map_concat(m, m)",
        "transform_keys(m, (k, v) -> length(k))",
        "from_json(str, 'a int', map('mode','FAILFAST'))",
        "unix_timestamp(str)",
        "map_from_entries(collect_list(struct(str, a)))",
    ]
)


def _lines(name: str) -> list[str]:
    text = (Path(__file__).parent / "expressions" / f"{name}.sql").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("--")]


SCALARS = _lines("scalars")
AGGREGATES = _lines("aggregates")
REFUSED = _lines("refused")
STRICTER = _lines("stricter")
