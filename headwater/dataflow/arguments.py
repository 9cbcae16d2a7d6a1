"""Check every argument of the fluent API by the rule of its annotation, before the method sees it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, get_type_hints

from headwater.core.errors import DataflowError
from headwater.core.rules import MOST_ITEMS, ListOf, OneLine, Refused, Rule, rule_of

P = ParamSpec("P")
R = TypeVar("R")


class ArgumentGuard:
    """An object of the dataflow whose public methods get checked arguments; so have those of later methods."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, _guarded(method, lambda self, n=name: self._place_of(n)))

    def _place_of(self, method: str) -> str:
        """Return the place of a call in error messages: the method, and the stream it was called on."""
        raise NotImplementedError


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function of the public API."""
    return _guarded(function, lambda *_: f"hw.{function.__name__}")


def _guarded(function: Callable[..., R], place: Callable[..., str]) -> Callable[..., R]:
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        if len(kwargs) > MOST_ITEMS:  # binding them would take seconds
            raise DataflowError(
                f"{len(kwargs)} arguments by name", where=place(*args[:1]), hint=f"give at most {MOST_ITEMS}"
            )
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's own words for a missing or unknown argument
        rules = _rules(function)
        for name, value in bound.arguments.items():
            if (rule := rules.get(name)) is None:
                continue
            try:
                bound.arguments[name] = _checked(signature.parameters[name], rule, value)
            except Refused as error:
                raise DataflowError(error.what, where=place(*args[:1]), hint=error.hint) from error
        return function(*bound.args, **bound.kwargs)

    return call


def _checked(parameter: inspect.Parameter, rule: Rule, value: Any) -> Any:
    match parameter.kind:
        case parameter.VAR_POSITIONAL:
            return ListOf(rule).check(value, parameter.name)
        case parameter.VAR_KEYWORD:
            names = ListOf(OneLine()).check(value.keys(), parameter.name)
            return {name: rule.check(value[name], name) for name in names}
        case _:
            return rule.check(value, parameter.name)


@cache
def _rules(function: Callable[..., Any]) -> dict[str, Rule]:
    """Return the rule of each argument; annotations are evaluated at the first call, when all classes exist."""
    hints = get_type_hints(function, include_extras=True)
    return {name: rule_of(hint) for name, hint in hints.items() if name != "return"}
