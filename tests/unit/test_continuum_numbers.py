"""Numbers in a continuum: each is accepted, or refused with an error that names its field and line."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.continuum.model import Continuum
from headwater.core.errors import ErrorList

HEAD = "layers: [edge, cloud]\nzones:\n  C1: {layer: cloud}\n"
HUGE = "9" * 250


def zone(text: str) -> str:
    """Return a continuum with a zone on line 4."""
    return f"{HEAD}  E1: {{layer: edge, parent: C1, {text}}}\n"


NUMBERS = (
    [
        ("hosts: {h: {n_cpu: %s}}", n)
        for n in ("-4", "0", "-0.0", "65537", "1e30", "1e400", ".nan", ".inf", HUGE, "true")
    ]
    + [("hosts: {h: {n_cpu: %s}}", n) for n in ("lots", "NaN", "'-4'", "[4]", "9" * 5000)]
    + [
        ("hosts: {h: {memory: %s}}", n)
        for n in ("-1GiB", "0", "0GiB", "1e30GiB", "8192PiB", f"{HUGE}GiB", "-1", "1e30")
    ]
    + [("hosts: {h: {memory: %s}}", n) for n in ("plenty", "true", ".nan", "-.inf")]
    + [("hosts: {h: {disk: %s}}", n) for n in ("-1GiB", "1e30GiB", f"{HUGE}GiB", HUGE, f"-{HUGE}", "1e300", ".inf")]
    + [("link: {latency: %s}", n) for n in ("1" + "0" * 20 + "h", "25h", "-1ms", ".nan", "inf", "5", f"{HUGE}h")]
    + [("link: {bandwidth: %s}", n) for n in ("0bit/s", "0.5bit/s", "-1Mbit/s", f"{HUGE}bit/s", ".nan", "1e30")]
)


@pytest.mark.parametrize(("form", "number"), NUMBERS)
def test_a_number_that_makes_no_sense_is_refused_at_its_line(form: str, number: str) -> None:
    with pytest.raises(ErrorList) as caught:
        Continuum.from_text(zone(form % number), source="c.yaml")
    (error,) = caught.value.errors
    field = form.split(":")[-2].strip(" {")
    assert field in error.what
    assert error.where == "c.yaml:4"
    assert error.hint
    assert len(str(error)) < 300


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
@pytest.mark.parametrize(
    "form",
    [
        "at: 'h:%s'",
        "at: '[::1]:%s'",
        "at: 'grpc+tls://h:%s'",
        "hosts: {h: {at: 'h:%s'}}",
        "spark: 'sc://h:%s'",
        "spark: 'sc://h:%s/;x=1'",
        "spark: 'spark://g:7077,h:%s'",
    ],
)
def test_a_port_that_there_is_not_is_named(form: str, port: str) -> None:
    with pytest.raises(ErrorList, match=f"there is no port {port}") as caught:
        Continuum.from_text(zone(form % port), source="c.yaml")
    assert "ports are 1 to 65535" in str(caught.value.errors[0].hint)
    assert Continuum.from_text(zone(form % "65535"))


JSON_NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**5000), math.nan, math.inf, 2**63, True])
FIELDS = st.sampled_from(["n_cpu", "memory", "disk", "latency", "bandwidth", "at", "replication"])


@given(FIELDS, JSON_NUMBERS)
def test_any_number_in_any_field_is_accepted_or_refused_by_name(field: str, number: float) -> None:
    own: dict[str, object] = {"layer": "edge", "parent": "C1"}
    if field in ("latency", "bandwidth"):
        own["link"] = {field: number}
    elif field == "replication":
        own["broker"] = {"servers": "h:9092", field: number}
    elif field == "at":
        own["at"] = number
    else:
        own["hosts"] = {"h": {field: number}}
    data = {"layers": ["edge", "cloud"], "zones": {"C1": {"layer": "cloud"}, "E1": own}}
    try:
        found = Continuum.from_data(data)
    except ErrorList as caught:
        (error,) = caught.errors
        assert field in error.what and field in str(error.where)
        assert error.hint
    else:
        assert Continuum.from_data(json.loads(json.dumps(found.to_data()))) == found


@given(st.sampled_from(["h: {n_cpu: %s}", "h: {disk: %s}", "h: {memory: %sGiB}"]), st.decimals() | st.integers())
def test_any_number_in_yaml_is_accepted_or_refused(form: str, number: object) -> None:
    text = zone(f"hosts: {{{form % number}}}")
    try:
        found = Continuum.from_text(text)
    except ErrorList as caught:
        assert all(":4" in str(error.where) for error in caught.errors)
    else:
        assert Continuum.from_data(json.loads(json.dumps(found.to_data()))) == found
