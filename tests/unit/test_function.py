"""Python functions as values: changes that alter the fingerprint, changes that do not, and serialization."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import DataflowError
from headwater.dataflow.function import PythonFunction, accepts, fingerprint

TEXT = '''
import functools
import math

K = 3


def called(x):
    """Add one."""
    return x + 1


class Base:
    FACTOR = 2

    def scaled(self, x):
        return x * self.FACTOR


class Model(Base):
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return called(x) * self.weight + self.scaled(x)

    @staticmethod
    def still():
        return 11


def outer(n):
    def inner(x, extra=1, *, other=5):
        """Inside."""
        # a comment
        return x * n + K + called(x) + extra + math.floor(2.5)

    return inner


f = outer(2)
model = Model(4)
bound = model.scaled
part = functools.partial(called, 1)


def uses_model(x):
    return model(x)


def nested(x):
    def within(y):
        "Text."
        return y

    return [within(i) + K for i in x]


def fact(n):
    return 1 if n < 2 else n * fact(n - 1)


ring = []
ring.append(ring)


def uses_ring(x):
    return ring
'''
NAMES = ["bound", "called", "f", "fact", "model", "nested", "part", "uses_model", "uses_ring"]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports a text as a user's module, each time from a new file."""
    counts = iter(range(100))

    def load(text: str) -> Any:
        path = tmp_path / str(next(counts)) / "users_code.py"
        path.parent.mkdir()
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("users_code", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "users_code", module)
        spec.loader.exec_module(module)
        return module

    return load


def fingerprints(module: Any) -> dict[str, str]:
    return {name: fingerprint(getattr(module, name)) for name in NAMES}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("K = 3", "K = 3  # three", []),
        ('    """Add one."""\n', "", []),
        ("Add one.", "Add 1.", []),
        ("Inside.", "Within.", []),
        ("Text.", "Other text.", []),
        ("# a comment\n", "\n\n\n        # another\n", []),
        ("return x + 1", "return (x   +\n        1)", []),
        ("import math", "import os\nimport math", []),
        ("x + 1", "x + 2", ["bound", "called", "f", "model", "part", "uses_model"]),
        ("K = 3", "K = 4", ["f", "nested"]),
        ("outer(2)", "outer(3)", ["f"]),
        ("extra=1", "extra=2", ["f"]),
        ("other=5", "other=6", ["f"]),
        ("math.floor", "math.ceil", ["f"]),
        ("Model(4)", "Model(5)", ["bound", "model", "uses_model"]),
        ("* self.weight", "- self.weight", ["bound", "model", "uses_model"]),
        ("x * self.FACTOR", "x / self.FACTOR", ["bound", "model", "uses_model"]),
        ("FACTOR = 2", "FACTOR = 3", ["bound", "model", "uses_model"]),
        ("return 11", "return 12", ["bound", "model", "uses_model"]),
        ("partial(called, 1)", "partial(called, 2)", ["part"]),
        ("n < 2", "n < 3", ["fact"]),
        ("ring.append(ring)", "ring.append(1)", ["uses_ring"]),
    ],
)
def test_what_changes_a_fingerprint(load: Callable[[str], Any], old: str, new: str, changed: list[str]) -> None:
    assert TEXT.count(old) == 1
    before = fingerprints(load(TEXT))
    after = fingerprints(load(TEXT.replace(old, new)))
    assert [name for name in NAMES if before[name] != after[name]] == changed


CASES = """
import functools
import json
from pathlib import Path

from parts import *
import parts

READ = json.loads((Path(__file__).parent / "rates.json").read_text())


def one(x):
    return x + 1


def two(x):
    return x * 2


first, second, third = one, two, one


def by_names(x):
    return first(x) + second(x) + third(x)


@functools.lru_cache
def cached(x):
    return one(x)


def with_attribute(x):
    return x * with_attribute.factor


with_attribute.factor = 3


class Rule:
    KINDS = {1, 2}
    NESTED = None

    class Inner:
        LEVEL = 5

    @functools.cached_property
    def level(self):
        return 7

    def __call__(self, x):
        return x in self.KINDS or x > self.Inner.LEVEL + self.level


class Slotted:
    __slots__ = ("limit",)

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, x):
        return x > self.limit


class Weights(list):
    def __call__(self, x):
        return x * self[0]


rule, slotted, weights = Rule(), Slotted(6), Weights([8])


def star(x):
    return x > STAR


def by_module(x):
    return parts.TABLE[x]


def by_file(x):
    return READ[x]


def imports_inside(x):
    from parts import late

    return late.TIMES * x
"""
CASE_FILES = {
    "cases.py": CASES,
    "parts/__init__.py": "import json\nfrom pathlib import Path\nfrom . import late\nSTAR = 9\n"
    "TABLE = json.loads((Path(__file__).parent / 'table.json').read_text())\n",
    "parts/late.py": "TIMES = 10\n",
    "parts/table.json": "[11]",
    "rates.json": "[12]",
}
CASE_NAMES = [
    "by_names", "cached", "with_attribute", "rule", "slotted", "weights", "star", "by_module", "by_file",
    "imports_inside",
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("cases.py", "one, two, one", "one, two, two", "by_names"),
        ("cases.py", "return x + 1", "return x + 2", "by_names cached"),
        ("cases.py", "factor = 3", "factor = 4", "with_attribute"),
        ("cases.py", "{1, 2}", "{1, 3}", "rule"),
        ("cases.py", "LEVEL = 5", "LEVEL = 6", "rule"),
        ("cases.py", "return 7", "return 8", "rule"),
        ("cases.py", "Slotted(6)", "Slotted(7)", "slotted"),
        ("cases.py", "Weights([8])", "Weights([9])", "weights"),
        ("parts/__init__.py", "STAR = 9", "STAR = 8", "star by_module imports_inside"),
        ("parts/late.py", "10", "11", "by_module imports_inside"),
        ("parts/table.json", "11", "12", "by_module imports_inside"),
        ("rates.json", "12", "13", "by_file"),
        ("cases.py", "def by_file", "# a comment\ndef by_file", ""),
    ],
)
def test_what_changes_a_result_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, changed: str
) -> None:
    def load(number: int, texts: dict[str, str]) -> dict[str, str]:
        place = tmp_path / str(number)
        for name, text in texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        with monkeypatch.context() as patch:
            for name in ("cases", "parts", "parts.late"):
                patch.delitem(sys.modules, name, raising=False)
            patch.syspath_prepend(str(place))
            module = importlib.import_module("cases")
            found = {name: fingerprint(getattr(module, name)) for name in CASE_NAMES}
            for name in ("cases", "parts", "parts.late"):
                sys.modules.pop(name, None)
            return found

    assert CASE_FILES[file].count(old) == 1
    before, same = load(0, CASE_FILES), load(1, CASE_FILES)
    after = load(2, {**CASE_FILES, file: CASE_FILES[file].replace(old, new)})
    assert before == same
    assert {name for name in CASE_NAMES if before[name] != after[name]} == set(changed.split())


PROJECT = {
    "flow_file": "import rules\nfrom rules import near\n\n\ndef far(x):\n    return rules.check(x)\n",
    "rules": "import limits.small\nfrom limits import K\n\n\ndef check(x):\n    return x > K\n\n\n"
    "def near(x):\n    return x > limits.small.LEAST\n",
    "limits/__init__": "from .large import K\n",
    "limits/large": "K = 1\n",
    "limits/small": "LEAST = 1\n",
}


@pytest.mark.parametrize(("file", "changes"), [("limits/large", {"far"}), ("limits/small", {"far", "near"})])
def test_what_an_imported_module_imports_changes_a_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, changes: set[str]
) -> None:
    def load(number: int, edit: Callable[[str], str]) -> dict[str, str]:
        place = tmp_path / str(number)
        for name, text in PROJECT.items():
            path = place / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(edit(text) if name == file else text)
        for name in ("flow_file", "rules", "limits", "limits.large", "limits.small"):
            sys.modules.pop(name, None)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(place))
            module = importlib.import_module("flow_file")
            return {name: fingerprint(getattr(module, name)) for name in ("far", "near")}

    try:
        before, same = load(0, lambda text: text), load(1, lambda text: text)
        after = load(2, lambda text: text.replace("1", "99"))
    finally:
        for name in ("flow_file", "rules", "limits", "limits.large", "limits.small"):
            sys.modules.pop(name, None)
    assert before == same
    assert {name for name in before if before[name] != after[name]} >= changes


def test_functions_on_one_line_differ(load: Callable[[str], Any]) -> None:
    module = load(
        "a, b = lambda x: x + 1, lambda x: x + 2\n"
        "c, d = (lambda: 1), (lambda: 2)\n"
        "e, f = (lambda a, b=(lambda: 1): a), (lambda a: (lambda z: a))\n"
    )
    found = [fingerprint(getattr(module, name)) for name in "abcdef"]
    assert len(set(found)) == 6


def test_the_same_lambda_elsewhere_is_the_same(load: Callable[[str], Any]) -> None:
    first = load("a = lambda x: x + 1\n").a
    again = load("\n\nb, a = None, (lambda x: x  + 1)\n").a
    assert fingerprint(first) == fingerprint(again)


def run(text: str) -> Callable[..., Any]:
    """Define ``f`` as a REPL does: without a source file."""
    names: dict[str, Any] = {}
    exec(text, names)
    found: Callable[..., Any] = names["f"]
    return found


def test_functions_of_a_repl() -> None:
    plain = run("def f(x, y=1):\n    return x + y")
    assert PythonFunction.of(plain, where="here").load()(2) == 3
    same = [
        "\n\ndef f(x, y=1):\n    # comment\n    return x  + y",
        "def f(x, y=1):\n    'Text.'\n    return x + y",
    ]
    assert {fingerprint(run(text)) for text in same} == {fingerprint(plain)}
    others = [
        "def f(x, y=2):\n    return x + y",
        "def f(x, y=1):\n    return x - y",
        "def f(x, y=1):\n    return [x + y for _ in x]",
        "K = 1\ndef f(x, y=1):\n    return x + K",
        "K = 2\ndef f(x, y=1):\n    return x + K",
        "f = lambda x: x",
        "f = lambda x: -x",
    ]
    found = {fingerprint(run(text)) for text in others}
    assert len(found) == len(others) and fingerprint(plain) not in found


@pytest.mark.parametrize("seed", ["1", "2"])
def test_fingerprint_is_the_same_in_every_process(seed: str) -> None:
    text = "def f(x):\n    return x in {'a', 'b', 'c', 'd'}, S\nS = frozenset({'p', 'q', 'r'})"
    code = f"from headwater.dataflow.function import fingerprint\nn = {{}}\nexec({text!r}, n)\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print(fingerprint(n['f']))"],
        env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == fingerprint(run(text))


def test_users_modules_travel_by_value(load: Callable[[str], Any], tmp_path: Path) -> None:
    transferred = PythonFunction.of(load(TEXT).f, where="here")
    code = f"import pickle, base64; print(pickle.loads(base64.b64decode({transferred.pickled!r}))(10))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "37"  # 20 + K + 11 + 1 + 2
    assert transferred.name == "outer.<locals>.inner"


INSTALLED = """
import functools

def mean(xs):
    return sum(xs) / len(xs)

def made(n):
    return lambda xs: n + len(xs)
"""
USING = """
import tools
from tools import made, mean

def by_module(xs):
    return tools.mean(xs)

def by_name(xs):
    return mean(xs)

made_there = made(2)
"""


def test_another_version_of_an_installed_package_is_the_same_function(
    load: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zone runs functions with its own packages; what a package's function returns travels by value, and counts."""
    found = []
    for version, text in enumerate([INSTALLED, INSTALLED.replace("/ len", "// len").replace("n +", "n -")]):
        place = tmp_path / f"version{version}" / "site-packages"
        place.mkdir(parents=True)
        (place / "tools.py").write_text(text)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(place)
            patched.delitem(sys.modules, "tools", raising=False)
            module = load(USING)
            captured = [PythonFunction.of(f, where="x").fingerprint for f in (module.by_module, module.by_name)]
            found.append((captured, fingerprint(module.made_there)))
            del sys.modules["tools"]
    (old, old_made), (new, new_made) = found
    assert old == new and old_made != new_made


def test_builtins_and_partials() -> None:
    assert PythonFunction.of(len, where="x").load() is len
    assert fingerprint(len) != fingerprint(max)
    assert fingerprint(functools.partial(max, 1)) == fingerprint(functools.partial(max, 1))
    assert fingerprint(functools.partial(max, 1)) != fingerprint(functools.partial(min, 1))


def test_what_cannot_travel() -> None:
    lock = threading.Lock()
    with pytest.raises(DataflowError, match="cannot be sent to another host") as caught:
        PythonFunction.of(lambda: lock, where="map after 'x'")
    assert caught.value.where == "map after 'x'" and "inside the function" in str(caught.value.hint)
    with pytest.raises(DataflowError, match="not a function"):
        PythonFunction.of(3, where="x")  # type: ignore[arg-type]


def test_what_is_no_function_when_loaded() -> None:
    import base64
    import pickle

    transferred = PythonFunction("f", "x", base64.b64encode(pickle.dumps(3)).decode())
    with pytest.raises(DataflowError, match="'f' is not a function"):
        transferred.load()


def test_accepts() -> None:
    assert accepts(lambda a, b=1: a, 1) and accepts(lambda *a: a, 5) and accepts(len, 1)
    assert not accepts(lambda a: a, 2) and not accepts(lambda *, a: a, 0)
