"""Flow files that raise, exit, are no Python, or change the process that loads them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.app.loading import load_dataflow
from headwater.core.errors import DataflowError, HeadwaterError

FLOW = 'import headwater as hw\nf = hw.flow("tiny", locations=["L1"])\n'
SINK = 'f.read.csv("in/{location}", "id int").write.memory("out")\n'
ZONES = "name: one\nlayers: [cloud]\nzones:\n  C1: {layer: cloud, locations: [L1]}\n"
MINE = "class Mine({}):\n    def __str__(self):\n        {}\nraise Mine\n"


def written(directory: Path, content: str | bytes, name: str = "flow.py") -> str:
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@contextmanager
def planned(directory: Path, content: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``headwater plan --json`` of a flow file, as a process of its own that a Ctrl-C can end."""
    written(directory, content)
    written(directory, ZONES, "zones.yaml")
    command = [sys.executable, "-m", "headwater", "plan", "flow.py", "-c", "zones.yaml", "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Tests that run in the background of a shell ignore Ctrl-C, and so would their children.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, cwd=directory, **pipes)
    finally:
        signal.signal(signal.SIGINT, former)
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("raised", "what"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise SystemExit('good bye')", "SystemExit: good bye"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise StopIteration", "StopIteration"),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
        ("raise MemoryError", "MemoryError"),
        ("bytearray(1 << 60)", "MemoryError"),
        ("(lambda g: g(g))(lambda g: g(g))", "RecursionError: maximum recursion depth exceeded"),
        ("raise type('Mine', (BaseException,), {})('own')", "Mine: own"),
        ("raise BaseExceptionGroup('both', [KeyboardInterrupt(), SystemExit(0)])", "BaseExceptionGroup: both"),
        ("import click; raise click.exceptions.Exit(0)", "Exit: 0"),
        ("raise ValueError('\\n  second line')", "ValueError: second line"),
        ("raise ValueError('  ')", "ValueError"),
        ("raise ValueError('\\x1b[31mred')", "ValueError: \\x1b[31mred"),
    ],
)
def test_anything_that_a_file_raises_is_an_error_at_its_line(tmp_path: Path, raised: str, what: str) -> None:
    file = written(tmp_path, FLOW + SINK + raised + "\n")
    with pytest.raises(DataflowError) as caught:
        load_dataflow(file)
    assert caught.value.what.startswith(f"the file raised {what}")
    assert caught.value.where == f"{file}:4"
    assert caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("body", "failure"),
    [("raise RuntimeError('none')", "RuntimeError"), ("raise SystemExit(0)", "SystemExit"), ("return 5", "TypeError")],
)
def test_an_exception_without_a_text_is_named(tmp_path: Path, body: str, failure: str) -> None:
    with pytest.raises(DataflowError, match=f"raised Mine, whose __str__ raises {failure}") as caught:
        load_dataflow(written(tmp_path, MINE.format("BaseException", body)))
    assert str(caught.value.where).endswith("flow.py:4")


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    with pytest.raises(DataflowError) as caught:
        load_dataflow(written(tmp_path, "raise ValueError('x' * 10_000_000)\n"))
    assert len(str(caught.value)) < 1000


def test_what_build_raises_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(DataflowError, match="the file raised SystemExit: 0") as caught:
        load_dataflow(written(tmp_path, "import sys\ndef build():\n    sys.exit(0)\n"))
    assert str(caught.value.where).endswith("flow.py:3")


def test_an_error_class_of_the_file_is_a_wrong_dataflow(tmp_path: Path) -> None:
    text = "from headwater.core.errors import HeadwaterError\nclass Mine(HeadwaterError):\n    exit_code = 0\n"
    text += "    def __init__(self, a, b):\n        super().__init__('own')\nraise Mine(1, 2)\n"
    with pytest.raises(DataflowError, match="own") as caught:
        load_dataflow(written(tmp_path, text))
    assert caught.value.exit_code == 3
    assert str(caught.value.where).endswith("flow.py:6")


@pytest.mark.parametrize(
    ("content", "what", "line"),
    [
        (b"", "the file is empty", ""),
        (b" \n\n", "the file is empty", ""),
        (b"import os\nx = '\xff\xfe'\n", "the text is not UTF-8", ":2"),
        (bytes(range(256)), "a binary file, not Python", ""),
        (b"# coding: no-such-coding\n", "not Python: unknown encoding", ":1"),
        (b"x = 1\ndef (:\n", "not Python: invalid syntax", ":2"),
        (b"  x = 1\n", "not Python: unexpected indent", ":1"),
        (b"x = " + b"(" * 5000 + b")" * 5000, "not Python: too many nested parentheses", ":1"),
        (b"raise SyntaxError('my own')\n", "the file raised SyntaxError: my own", ":1"),
    ],
)
def test_a_file_that_is_no_python_is_refused(tmp_path: Path, content: bytes, what: str, line: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(DataflowError) as caught:
        load_dataflow(file)
    assert what in caught.value.what
    assert caught.value.where == f"{file}{line}"
    assert caught.value.hint


def test_directories_and_other_encodings_of_json_are_refused(tmp_path: Path) -> None:
    (tmp_path / "flow.py").mkdir()
    with pytest.raises(DataflowError, match="a directory, not a file"):
        load_dataflow(str(tmp_path / "flow.py"))
    with pytest.raises(DataflowError, match="not UTF-8"):
        load_dataflow(written(tmp_path, b"{\xff}", "flow.json"))


def test_a_file_in_the_library_is_not_named_for_an_error_in_a_file_above_it(tmp_path: Path) -> None:
    """The flow file may lie in a directory that holds Headwater or Python."""
    package = Path(__file__).parents[2]
    file = package / "flow_above_the_package.py"
    file.write_text(FLOW + 'f.read.csv("in", "no such type")\n')
    try:
        with pytest.raises(HeadwaterError) as caught:
            load_dataflow(str(file))
    finally:
        file.unlink()
    assert "flow_above_the_package.py:3" in str(caught.value.where)


def test_the_process_is_as_it_was(tmp_path: Path) -> None:
    text = "import signal, sys, warnings\nsys.setrecursionlimit(200)\nwarnings.simplefilter('error')\n"
    text += "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    before = sys.getrecursionlimit(), list(warnings.filters), signal.getsignal(signal.SIGINT)
    load_dataflow(written(tmp_path, text + FLOW + SINK))
    assert (sys.getrecursionlimit(), list(warnings.filters), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize(
    "first",
    [
        "import os; os.close(1)",
        "import threading, time; threading.Thread(target=time.sleep, args=(3600,), name='busy').start()",
        *(
            pytest.param(first, marks=pytest.mark.long)
            for first in (
                "import sys; sys.stdout.close()",
                "import sys; sys.stdout = None; sys.stderr = None",
                "import os; os.close(2)",
            )
        ),
    ],
)
def test_a_plan_is_printed_whatever_the_file_does_to_the_process(tmp_path: Path, first: str) -> None:
    with planned(tmp_path, f"{first}\n{FLOW}{SINK}") as command:
        out, err = command.communicate(timeout=120)
    assert command.returncode == 0, err
    assert json.loads(out)["dataflow"]
    assert ("left running: busy" in err) == ("busy" in first)


@pytest.mark.parametrize(
    "caught",
    ["", "except KeyboardInterrupt: pass\n", "except KeyboardInterrupt: raise ValueError('other') from None\n"],
)
def test_a_real_ctrl_c_ends_the_command(tmp_path: Path, caught: str) -> None:
    text = f"import time\nprint('ready', flush=True)\ntry: time.sleep(3600)\n{caught or 'finally: pass'}\n"
    with planned(tmp_path, FLOW + SINK + text) as command:
        assert command.stderr is not None and command.stderr.readline() == "ready\n"
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=120)
    assert (command.returncode, out) == (130, "")
    assert "raised" not in err


def test_a_second_ctrl_c_ends_a_file_that_catches_all(tmp_path: Path) -> None:
    text = "import sys, time\nwhile True:\n    try:\n        print('ready', flush=True)\n        time.sleep(3600)\n"
    with planned(tmp_path, FLOW + text + "    except BaseException: pass\n") as command:
        for _ in range(2):
            assert command.stderr is not None and command.stderr.readline() == "ready\n"
            command.send_signal(signal.SIGINT)
        command.communicate(timeout=120)
    assert command.returncode == 130
