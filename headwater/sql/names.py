"""Names of functions that have typing rules in ``special``, and of units of time.

They are apart from the rules: the printer needs the names, and the rules need the printer for their messages.
"""

from __future__ import annotations

OPERATORS = {
    "mod": "%", "pmod": "%", "try_mod": "%", "try_add": "+", "try_subtract": "-", "try_multiply": "*",
    "try_divide": "/",
}  # fmt: skip
"""Functions that stand for an operator."""
CASTS = {
    "tinyint": "tinyint", "smallint": "smallint", "int": "int", "bigint": "bigint", "float": "float",
    "double": "double", "decimal": "decimal", "string": "string", "boolean": "boolean", "binary": "binary",
    "date": "date", "timestamp": "timestamp",
}  # fmt: skip
"""Functions that cast, and their type."""
RULED = frozenset(
    [
        *OPERATORS,
        *CASTS,
        *("round", "bround", "ceil", "ceiling", "floor", "nullif", "equal_null", "nullifzero", "zeroifnull"),
        *("array", "arrays_zip", "concat", "decode", "element_at", "try_element_at", "sequence"),
        *("map", "map_entries", "map_from_entries", "named_struct", "struct"),
        *("from_json", "from_csv", "to_json", "to_csv"),
        *("date_part", "datepart", "make_dt_interval", "make_ym_interval", "window_time"),
    ]
)
"""Functions of one row with a rule."""
RULED_AGGREGATES = frozenset(
    ["sum", "try_sum", "avg", "mean", "try_avg", "percentile_approx", "approx_percentile", "count"]
)
UNIT_FIRST = frozenset(["timestampadd", "timestampdiff", "dateadd", "date_add", "datediff", "date_diff"])
"""Functions whose first of three arguments is a bare unit of time."""
TIME_UNITS = frozenset(
    [
        *("microsecond", "millisecond", "second", "minute", "hour"),
        *("day", "dayofyear", "week", "month", "quarter", "year"),
    ]
)
SECONDS = frozenset(["second", "s", "sec", "seconds", "secs"])
TIME_PARTS = frozenset(
    [
        *("year", "y", "years", "yr", "yrs", "yearofweek", "quarter", "qtr", "month", "mon", "mons", "months"),
        *("week", "w", "weeks", "day", "d", "days", "dayofweek", "dow", "dayofweek_iso", "dow_iso", "doy"),
        *("hour", "h", "hours", "hr", "hrs", "minute", "m", "min", "mins", "minutes", *SECONDS),
    ]
)
"""Parts of a time, as ``date_part`` takes them."""
