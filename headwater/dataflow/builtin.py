"""Functions of Headwater as values: a name and settings as JSON, so that a dataflow with them holds no code.

They stand where users' functions stand: in a scan, or over Arrow batches. A zone makes the function from its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headwater.core.errors import DataflowError, suggestion
from headwater.dataflow.predictor import Predictor, predicting, predictor_of
from headwater.dataflow.rowmatcher import matcher_of, matching


@dataclass(frozen=True)
class Builtin:
    """One kind of function: how it is made, and how its settings are read, which raises errors for malformed ones."""

    make: Callable[[str], Callable[..., Any]]
    read: Callable[[str], object]


BUILTINS: Mapping[str, Builtin] = {
    "match_recognize": Builtin(matching, matcher_of),
    "predict": Builtin(predicting, predictor_of),
}


@dataclass(frozen=True, slots=True)
class BuiltinFunction:
    """A function of Headwater: its name in ``BUILTINS``, and its settings."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    settings: str

    @property
    def model(self) -> Predictor | None:
        """The model of a prediction."""
        return predictor_of(self.settings) if self.name == "predict" else None

    @property
    def has_code(self) -> bool:
        """Whether it runs code of the dataflow: a pickled model's."""
        return self.model is not None and self.model.has_code

    def load(self) -> Callable[..., Any]:
        """Make the function."""
        return BUILTINS[self.name].make(self.settings)

    def check(self, where: str) -> None:
        """Raise DataflowError for an unknown name, or malformed settings."""
        if self.name not in BUILTINS:
            hint = suggestion(self.name, BUILTINS, "its functions are")
            raise DataflowError(f"Headwater has no function '{self.name}'", where=where, hint=hint)
        try:
            BUILTINS[self.name].read(self.settings)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataflowError(
                f"the settings of {self.name} are malformed: {type(error).__name__} {error}",
                where=where,
                hint="write the dataflow with the fluent API",
            ) from error
