"""Functions of Headwater as values: a name and settings as JSON, so that a dataflow with them holds no code.

They stand where users' functions stand: in a scan, or over Arrow batches. A zone makes the function from its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headwater.core.errors import DataflowError, suggestion
from headwater.dataflow.blobs import BlobContainer, container_of, downloading
from headwater.dataflow.predictor import Predictor, predicting, predictor_of, spark_predictor_of
from headwater.dataflow.rowmatcher import matcher_of, matching

Over = Literal["rows", "batches", "frames"]
"""The input of a function: a key's rows in order, Arrow batches, or a DataFrame."""


@dataclass(frozen=True)
class Builtin:
    """One kind of function: its input, a reader of its settings, and its maker.

    The reader raises errors for malformed settings. Functions of DataFrames have no maker: they are applied where
    DataFrames are compiled.
    """

    over: Over
    read: Callable[[str], object]
    make: Callable[[str], Callable[..., Any]] | None


BUILTINS: Mapping[str, Builtin] = {
    "download_blobs": Builtin("batches", container_of, downloading),
    "match_recognize": Builtin("rows", matcher_of, matching),
    "predict": Builtin("batches", predictor_of, predicting),
    "predict_spark_ml": Builtin("frames", spark_predictor_of, None),
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
        found = self._read()
        return found if isinstance(found, Predictor) else None

    @property
    def container(self) -> str | None:
        """The container of a download of blobs: a path or URI."""
        found = self._read()
        return found.path if isinstance(found, BlobContainer) else None

    @property
    def has_code(self) -> bool:
        """Whether it runs code of the dataflow: a pickled model's."""
        return self.model is not None and self.model.has_code

    def load(self) -> Callable[..., Any]:
        """Make the function of rows or batches."""
        make = BUILTINS[self.name].make
        if make is None:
            raise TypeError(f"{self.name} is a function of DataFrames")
        return make(self.settings)

    def _read(self) -> object:
        return BUILTINS[self.name].read(self.settings) if self.name in BUILTINS else None

    def check(self, where: str, over: Over) -> None:
        """Raise DataflowError for an unknown name, a function of another input, or malformed settings."""
        known = [name for name, found in BUILTINS.items() if found.over == over]
        if self.name not in known:
            hint = suggestion(self.name, known, f"its functions of {over} are")
            raise DataflowError(f"Headwater has no function '{self.name}' of {over}", where=where, hint=hint)
        try:
            BUILTINS[self.name].read(self.settings)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataflowError(
                f"the settings of {self.name} are malformed: {type(error).__name__} {error}",
                where=where,
                hint="write the dataflow with the fluent API",
            ) from error
