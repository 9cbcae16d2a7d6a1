"""Requests to a Spark that has gone, told from those that fail for their own reasons."""

from __future__ import annotations

import grpc
import pytest

from headwater.errors import RuntimeFailure, Unavailable
from headwater.runtime.ports import free_ports
from headwater.runtime.query import reaching_spark


def ask_nobody() -> None:
    """Ask at a port where nobody listens."""
    with grpc.insecure_channel(f"127.0.0.1:{free_ports(1)[0]}") as channel:
        channel.unary_unary("/spark.connect.SparkConnectService/Config")(b"", timeout=10)


def test_where_nobody_answers_it_may_be_tried_again() -> None:
    with pytest.raises(Unavailable, match="Spark does not answer") as raised, reaching_spark("zone E1"):
        try:
            ask_nobody()
        except grpc.RpcError as error:
            raise ConnectionError("gave up") from error
    assert raised.value.retryable and raised.value.where == "zone E1"


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), reaching_spark("zone E1"):
        raise ZeroDivisionError
    with pytest.raises(RuntimeFailure, match="its own"), reaching_spark("zone E1"):
        try:
            ask_nobody()
        except grpc.RpcError as error:
            raise RuntimeFailure("its own", where="unit U") from error
