"""Requirements: their language, their canonical form and their evaluation on a host."""

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.core.errors import DataflowError
from headwater.core.requirement import Capabilities, Predicate, Requirement, Value, capability

HOST = Capabilities({"n_cpu": 2, "memory": "8GiB", "gpu": False, "os": "linux", "load": 0.5})


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("gpu = true", "gpu = true"),
        ("gpu==YES", "gpu = true"),
        ("gpu = no", "gpu = false"),
        ("n_cpu>=4 AND gpu=true", "gpu = true and n_cpu >= 4"),
        ("n_cpu>=4, gpu=true && os=linux", "gpu = true and n_cpu >= 4 and os = linux"),
        ("gpu = true and gpu = yes", "gpu = true"),
        ("memory >= 16 GiB", "memory >= 16GiB"),
        ("memory >= 16384MiB", "memory >= 16GiB"),
        ('memory >= "16GB"', "memory >= 16GB"),
        ("n_cpu = 4.0", "n_cpu = 4"),
        ("load < 1e-3", "load < 0.001"),
        ("load > -5", "load > -5"),
        ("os = 'Red Hat, and more'", 'os = "Red Hat, and more"'),
        ('os = "true"', 'os = "true"'),
        ('os = "4"', 'os = "4"'),
        ('os = ""', 'os = ""'),
        ("net = 5G", "net = 5G"),
        ("version = 3.11.2", "version = 3.11.2"),
        ("  ", ""),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    requirement = Requirement.parse(text)
    assert requirement.text == str(requirement) == canonical
    assert Requirement.parse(canonical) == requirement


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpu", "expected one of = != < <= > >= after 'gpu'"),
        ("gpu =", "expected a value at the end"),
        ("gpu = and n = 1", "expected a value instead of 'and'"),
        ("gpu = true and", "expected an attribute at the end"),
        ("a=1,,b=2", "expected an attribute instead of ','"),
        ("a=1 b=2", "expected `and` before 'b'"),
        ("a=1 or b=2", "`or` is not supported"),
        ("4 = n_cpu", "expected an attribute instead of '4'"),
        ("or = 1", "'or' is not an attribute name"),
        ("memory >= 2g", "needs a number or a size"),
        ("gpu > true", "needs a number or a size"),
        ("memory >= 16Mb", "'16Mb' is not a size"),
        ("n < 1e999", "cannot read the value"),
        ("n < " + "9" * 5000, "cannot read the value"),
        ("os = 'linux", "cannot read"),
        ("n ≥ 4", "cannot read"),
        ("n = (4)", "cannot read"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(DataflowError) as caught:
        Requirement.parse(text, where="flow.py:7")
    assert reason in caught.value.what
    assert text[:50] in caught.value.what
    assert caught.value.where == "flow.py:7"
    assert caught.value.hint
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "n_cpu = 2",
        "n_cpu != 3",
        "n_cpu < 3",
        "n_cpu <= 2",
        "n_cpu > 1.5",
        "n_cpu >= 2.0",
        "memory = 8GiB",
        "memory = 8589934592",
        "memory < 8.6GB",
        "gpu = false",
        "gpu != true",
        "os = linux",
        "os != windows",
        "",
    ],
)
def test_holds(text: str) -> None:
    assert Requirement.parse(text).holds(HOST)
    assert Requirement.parse(text).unmet(HOST) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n_cpu >= 4", "n_cpu >= 4: host has 2"),
        ("n_cpu != 2", "n_cpu != 2: host has 2"),
        ("n_cpu < 2", "n_cpu < 2: host has 2"),
        ("n_cpu > 2", "n_cpu > 2: host has 2"),
        ("n_cpu <= 1", "n_cpu <= 1: host has 2"),
        ("memory >= 16GiB", "memory >= 16GiB: host has 8GiB"),
        ("gpu = true", "gpu = true: host has false"),
        ("os = windows", "os = windows: host has linux"),
        ("tpu = true", "tpu = true: host has no attribute tpu"),
        ("tpu != true", "tpu != true: host has no attribute tpu"),
        ("os >= 4", "os >= 4: host has linux, a text, not a number"),
        ("os != 4", "os != 4: host has linux, a text, not a number"),
        ("n_cpu = two", "n_cpu = two: host has 2, a number, not a text"),
        ("gpu = 0", "gpu = 0: host has false, a truth value, not a number"),
        ("n_cpu != true", "n_cpu != true: host has 2, a number, not a truth value"),
    ],
)
def test_unmet(text: str, reason: str) -> None:
    assert Requirement.parse(text).unmet(HOST) == (reason,)
    assert not Requirement.parse(text).holds(HOST)


def test_every_unmet_predicate_has_its_reason() -> None:
    reasons = Requirement.parse("gpu = true, n_cpu >= 4, os = linux").unmet({"os": "linux", "n_cpu": 1})
    assert reasons == ("gpu = true: host has no attribute gpu", "n_cpu >= 4: host has 1")


def test_truth_and_number_are_different() -> None:
    assert Requirement.parse("a = 1") != Requirement.parse("a = true")
    assert len(Requirement.parse("a = 1, a = true").predicates) == 2
    assert Capabilities({"a": 1}) != Capabilities({"a": True})
    assert Capabilities({"a": 1}) == Capabilities({"a": 1.0})


def test_and_is_canonical() -> None:
    a, b = Requirement.parse("n_cpu >= 4"), Requirement.parse("gpu = true and n_cpu >= 4")
    assert a & b == b & a == b
    assert hash(a & b) == hash(b)
    assert Requirement.all_of([a, b, Requirement()]) == b
    assert Requirement() & a == a
    assert not Requirement()
    assert a


def test_frozen_and_picklable() -> None:
    requirement = Requirement.parse("gpu = true and memory >= 16GiB")
    with pytest.raises(AttributeError):
        requirement.predicates = ()  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(requirement)) == requirement
    assert pickle.loads(pickle.dumps(HOST)) == HOST
    assert hash(pickle.loads(pickle.dumps(HOST))) == hash(HOST)
    with pytest.raises(TypeError):
        HOST["gpu"] = True  # type: ignore[index]


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("nan"), float("inf"), b"x"])
def test_impossible_capability(value: object) -> None:
    with pytest.raises(TypeError):
        capability(value)


def test_capability_texts_that_are_sizes() -> None:
    assert capability("16GiB") == 16 * 2**30
    assert capability("16g") == "16g"
    assert capability("16") == "16"


ATTRIBUTES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True).filter(
    lambda name: name.lower() not in ("and", "or")
)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["yes", "and", "or", "4", "1GiB", "a b"])


@st.composite
def predicates(draw: Any) -> Predicate:
    if draw(st.booleans()):
        return Predicate(draw(ATTRIBUTES), draw(st.sampled_from(["=", "!="])), draw(VALUES))
    return Predicate(
        draw(ATTRIBUTES),
        draw(st.sampled_from(["<", "<=", ">", ">="])),
        draw(NUMBERS),
        size=draw(st.booleans()),
    )


REQUIREMENTS = st.lists(predicates(), max_size=4).map(lambda found: Requirement(tuple(found)))


@given(REQUIREMENTS)
@example(Requirement((Predicate("memory", "<", 2**63, size=True),)))
def test_text_is_read_back(requirement: Requirement) -> None:
    again = Requirement.parse(requirement.text)
    assert again == requirement
    assert again.text == requirement.text
    assert [p.value for p in again.predicates] == [p.value for p in requirement.predicates]


@given(REQUIREMENTS, REQUIREMENTS, st.dictionaries(ATTRIBUTES, VALUES, max_size=4))
def test_and_holds_where_both_hold(a: Requirement, b: Requirement, host: Mapping[str, Value]) -> None:
    capabilities = Capabilities(host)
    assert (a & b).holds(capabilities) == (a.holds(capabilities) and b.holds(capabilities))
    assert (a & b).text == (b & a).text


@given(st.text(alphabet="ab=!<>&,'\" 019.e-GiBandor", max_size=25))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        requirement = Requirement.parse(text)
    except DataflowError as error:
        assert error.hint
    else:
        assert Requirement.parse(requirement.text) == requirement
