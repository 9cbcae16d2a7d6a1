"""Match a call's arguments with the signatures of the function table."""

from __future__ import annotations

from collections.abc import Callable

from headwater.core.errors import DataflowError
from headwater.sql.coercion import (
    DATETIME,
    INTEGRAL,
    Typed,
    common_type,
    converts,
    is_numeric,
    is_orderable,
)
from headwater.sql.functions import Pattern, Signature, build, exact
from headwater.sql.schema import (
    BINARY,
    DOUBLE,
    FLOAT,
    STRING,
    VOID,
    ArrayType,
    DataType,
    IntervalType,
    MapType,
)
from headwater.sql.syntax import Lambda

Variables = dict[str, DataType]
LambdaTyping = Callable[[Lambda, tuple[DataType, ...]], Typed]


class _Mismatch(DataflowError):
    """This signature does not fit; another may."""


def match(
    signatures: tuple[Signature, ...], arguments: tuple[Typed | Lambda, ...], *, type_lambda: LambdaTyping
) -> tuple[DataType, tuple[Typed, ...]]:
    """Return the result's type and the arguments, lambdas typed; the first signature that fits wins."""
    problems: list[_Mismatch] = []
    fitting = [s for s in signatures if _count_fits(s, len(arguments))]
    for signature in fitting:
        try:
            return _match_one(signature, arguments, type_lambda)
        except _Mismatch as problem:
            problems.append(problem)
    forms = " or ".join(s.text for s in signatures)
    if not fitting:
        name, count = signatures[0].name, len(arguments)
        raise DataflowError(f"{name} does not take {count} argument{'s' * (count != 1)}", hint=f"write {forms}")
    raise DataflowError(problems[-1].what, hint=problems[-1].hint if len(fitting) == 1 else f"write {forms}")


def _count_fits(signature: Signature, count: int) -> bool:
    most = len(signature.parameters)
    return signature.required <= count and (signature.variadic or count <= most)


def _match_one(
    signature: Signature, arguments: tuple[Typed | Lambda, ...], type_lambda: LambdaTyping
) -> tuple[DataType, tuple[Typed, ...]]:
    variables: Variables = {}
    found: list[Typed | Lambda] = list(arguments)
    last = len(signature.parameters) - 1
    patterns = [signature.parameters[min(i, last)] for i in range(len(arguments))]
    for i, (pattern, argument) in enumerate(zip(patterns, arguments, strict=True)):
        if isinstance(argument, Lambda) != pattern.head.startswith("=>"):
            given = "a lambda" if isinstance(argument, Lambda) else argument.shown
            raise _mismatch(signature, i, given, pattern)
        if isinstance(argument, Typed) and not _unify(pattern, argument.type, variables):
            raise _mismatch(signature, i, argument.shown, pattern, argument)
    # Lambdas are last: the collections give their parameters' types.
    for i, (pattern, argument) in enumerate(zip(patterns, arguments, strict=True)):
        if isinstance(argument, Lambda):
            found[i] = _match_lambda(signature, pattern, argument, variables, type_lambda)
    return build(signature.result, variables), tuple(a for a in found if isinstance(a, Typed))


def _match_lambda(
    signature: Signature, pattern: Pattern, node: Lambda, variables: Variables, type_lambda: LambdaTyping
) -> Typed:
    *parameters, result = pattern.parts
    if len(parameters) != len(node.parameters):
        raise _Mismatch(
            f"the lambda of {signature.name} has {len(node.parameters)} parameters, not {len(parameters)}",
            hint=f"write {pattern.text[9:]}",
        )
    typed = type_lambda(node, tuple(build(p, variables) for p in parameters))
    if pattern.head == "=>=":
        if typed.type != variables[result.head]:
            start = variables[result.head]
            raise DataflowError(
                f"{signature.name} starts with {start}, and its lambda returns {typed.type}",
                hint=f"start with CAST(... AS {typed.type}), or cast the lambda's result to {start}",
            )
    elif not _unify(result, typed.type, variables):
        raise DataflowError(
            f"the lambda of {signature.name} returns {typed.type}, and {result.text.rstrip('!')} is needed",
            hint="cast its result",
        )
    return typed


def _mismatch(
    signature: Signature, place: int, given: str, pattern: Pattern, argument: Typed | None = None
) -> _Mismatch:
    wanted = pattern.text.rstrip("!")
    if pattern.is_variable and wanted == "any type":
        wanted = "of a type that matches the arguments before it"
    hint = f"write {signature.text}"
    if argument and exact(wanted) and (argument.type == STRING or is_numeric(argument.type)):
        hint = f"cast it: CAST({argument.text} AS {wanted})"
    return _Mismatch(f"{given}; argument {place + 1} of {signature.name} must be {wanted}", hint=hint)


def _unify(pattern: Pattern, given: DataType, variables: Variables) -> bool:
    head = pattern.head
    if head == "any":
        return True
    if head == "number":
        return is_numeric(given) or given == VOID
    if head == "hashed":
        return is_orderable(given)
    if head == "moment":
        return given in (STRING, VOID, *DATETIME)
    if head == "words":
        return converts(given, STRING) or (isinstance(given, ArrayType) and converts(given.element, STRING))
    if pattern.is_variable:
        return _unify_variable(head, given, variables)
    if head == "array":
        element = given.element if isinstance(given, ArrayType) else VOID if given == VOID else None
        return element is not None and _unify(pattern.parts[0], element, variables)
    if head == "map":
        if given == VOID:
            given = MapType(VOID, VOID)
        return isinstance(given, MapType) and all(
            _unify(p, t, variables) for p, t in zip(pattern.parts, (given.key, given.value), strict=True)
        )
    wanted = exact(head.rstrip("!"))
    assert wanted is not None, f"{head} is not a parameter"
    return given in (wanted, VOID) if head.endswith("!") else converts(given, wanted)


def _unify_variable(head: str, given: DataType, variables: Variables) -> bool:
    narrowed = _narrow(head, given)
    if narrowed is None:
        return False
    found = common_type(variables.get(head, VOID), narrowed)
    if found is None:
        return False
    variables[head] = found
    return True


def _narrow(head: str, given: DataType) -> DataType | None:
    """Return the type that a class of variables takes for a given one, or None if it takes none."""
    if given == VOID:
        return {"F": DOUBLE, "S": STRING}.get(head, given)
    match head:
        case "N":
            return given if is_numeric(given) else None
        case "M":
            return given if is_numeric(given) or isinstance(given, IntervalType) else None
        case "I":
            return given if given in INTEGRAL else None
        case "F":
            return given if given in (FLOAT, DOUBLE) else DOUBLE if is_numeric(given) else None
        case "O":
            return given if is_orderable(given) else None
        case "S":
            return given if given == BINARY else STRING if converts(given, STRING) else None
    return given
