"""Name columns without a name as Spark does, where its rule is simple: ``avg(v)``."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.sql.syntax import Call, Name, Star, SyntaxNode

_AGGREGATES = """
    any_value avg bit_and bit_or bit_xor bool_and bool_or collect_list collect_set corr count covar_pop covar_samp
    first kurtosis last max max_by median min min_by regr_count skewness stddev stddev_pop stddev_samp sum
    var_pop var_samp variance
"""
_NAMED_AS_WRITTEN = frozenset(_AGGREGATES.split())
_SAME = {"mean": "avg"}


def spark_name(node: SyntaxNode) -> str | None:
    """Return the name that Spark gives an aggregate of plain columns, or None: then the user has to give one."""
    match node:
        case Call("count", (Star(parts=()),), False, None):
            return "count(1)"
        case Call(called, arguments, False, None, False) if _SAME.get(called, called) in _NAMED_AS_WRITTEN:
            if arguments and all(isinstance(a, Name) and len(a.parts) == 1 for a in arguments):
                names = (a.parts[0] for a in arguments if isinstance(a, Name))
                return f"{_SAME.get(called, called)}({', '.join(names)})"
    return None


def free_name(name: str, used: Iterable[str]) -> str:
    """Return the name, or one like it that is not in use."""
    taken, found, number = {u.lower() for u in used}, name, 1
    while found.lower() in taken:
        number += 1
        found = f"{name}_{number}"
    return found
