"""A Spark that starts while the caller loads modules."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from headwater.core.errors import Unavailable
from headwater.spark.endpoint import LocalEndpoint
from headwater.spark.starting import starting


class Spark:
    """It counts how often it is stopped."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


def test_the_caller_goes_on_while_it_starts_and_it_is_stopped_once() -> None:
    spark, goes_on = Spark(), threading.Event()

    def start() -> LocalEndpoint:
        assert goes_on.wait(60), "the caller waits for the start"
        return cast(LocalEndpoint, spark)

    with starting(start) as started:
        goes_on.set()
        assert started() is spark
        assert started() is spark
        assert spark.stops == 0
    assert spark.stops == 1


def test_it_is_stopped_where_the_caller_fails_before_it_is_there() -> None:
    spark, fails = Spark(), threading.Event()

    def start() -> LocalEndpoint:
        assert fails.wait(60)
        return cast(LocalEndpoint, spark)

    with pytest.raises(ValueError, match="a wrong dataflow"), starting(start):
        fails.set()
        raise ValueError("a wrong dataflow")
    assert spark.stops == 1


def test_the_error_of_its_start_is_raised_to_the_caller() -> None:
    def start() -> LocalEndpoint:
        raise Unavailable("Java is missing")

    with pytest.raises(Unavailable, match="Java is missing"), starting(start) as started:
        started()
