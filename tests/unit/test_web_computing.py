"""Computations of requests in processes of their own: results, errors, and the time limit."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import psutil
import pytest

from headwater.core.errors import DataflowError, ErrorList, Missing, PlacementError, RuntimeFailure
from headwater.core.quantity import QuantityError, parse_duration
from headwater.web.computing import Computing
from tests.deployments.test_replay import until

AGES = partial(re.fullmatch, "(a+)+b", "a" * 64)
"""Compiled code that would run for centuries."""


@pytest.fixture
def computing() -> Iterator[Computing]:
    with closing(Computing(60.0)) as made:
        yield made


def fail(error: Exception) -> None:
    raise error


def test_one_process_computes_one_thing_after_another(computing: Computing) -> None:
    found = {computing.run(os.getpid) for _ in range(3)}
    assert len(found) == 1 and os.getpid() not in found
    assert computing.run(os.getcwd) == os.getcwd()
    assert Computing(None).run(os.getpid) == os.getpid()
    (process,) = found
    os.kill(process, signal.SIGKILL)
    until(lambda: psutil.Process(process).status() == psutil.STATUS_ZOMBIE, "its end")
    assert computing.run(os.getpid) != process, "another one takes its place"


def test_two_computations_do_not_wait_for_each_other(computing: Computing) -> None:
    with ThreadPoolExecutor(2) as threads, closing(Computing(600.0)) as slow:
        endless = threads.submit(slow.run, AGES)
        until(lambda: slow._busy, "it to begin")
        assert threads.submit(computing.run, os.getpid).result(60) != os.getpid()
        assert not endless.done()
        slow.close()
        with pytest.raises(RuntimeFailure, match="has ended: SIGKILL"):
            endless.result(60)


def test_errors_arrive_as_they_were_raised(computing: Computing) -> None:
    with pytest.raises(QuantityError) as wrong:
        computing.run(partial(parse_duration, "1 apple"))
    assert wrong.value.hint == "durations are written 10ms, 1.5s, 2min or 1h"
    for error in (Missing("none", where="there", hint="look"), ErrorList([DataflowError("a"), PlacementError("b")])):
        with pytest.raises(type(error)) as raised:
            computing.run(partial(fail, error))
        assert str(raised.value) == str(error)
    with pytest.raises(RuntimeFailure, match="an unexpected ZeroDivisionError"):
        computing.run(partial(divmod, 1, 0))
    with pytest.raises(RuntimeFailure, match="an unexpected"):
        computing.run(threading.Lock)  # no result that can be sent


def test_compiled_code_ends_at_the_limit() -> None:
    with closing(Computing(0.5)) as short:
        with pytest.raises(PlacementError, match="it was not computed within 500ms"):
            short.run(AGES)
        assert not short._busy and not short._idle


def test_no_process_is_left() -> None:
    before = {one.pid for one in psutil.Process().children()}
    with closing(Computing(60.0)) as one:
        process = one.run(os.getpid)
    assert process not in before and not psutil.pid_exists(process)
