"""Compare every answer with the OpenAPI document, for valid and invalid generated requests.

The store has a deployment, decisions and a pool that requests can name, so that requests get further than 404.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from headwater.adapt.slo import SLO
from headwater.app import pools
from headwater.control.store import Store
from headwater.control.tables import resolved_url
from headwater.web.server import serving
from tests.unit.changes import ACME, FIRST
from tests.unit.served import ZONES, place, token
from tests.unit.test_memory import SEEN, propose, running

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # schemathesis warns of itself
    import schemathesis
    from schemathesis import Case, GenerationMode
    from schemathesis import checks as common
    from schemathesis.specs.openapi import checks as openapi

CHECKS: list[Any] = [
    common.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
    openapi.negative_data_rejection,
    openapi.missing_required_header,
    openapi.unsupported_method,
    openapi.ignored_auth,
]
FLOW = FIRST.flow().to_data()
KNOWN: dict[str, list[Any]] = {
    "dataflow": ["f", FLOW, {**FLOW, "name": "other"}],
    "continuum": [None, ZONES, ACME.to_data()],
    "strategy": [None, "annotated", "optimal", "aels", "tsoo_exact"],
    "strategies": [["annotated"], ["atsoo_h", "trcs"]],
    "trace": ["time,source,location,rate\n0,read,L1,10\n1,read,,5\n"],
    "profile": [None, {"dataflow": "f", "rates": {"read": {"*": 10}}}],
    "operator": ["FP", "AD", "ML"],
    "unit": ["AD@S1", "AD"],
    "after_operator": ["AD", "FP"],
    "first": ["FP", "AD"],
    "second": ["AD", "out"],
    "to": ["edge", "site", "cloud"],
    "owner": [None, "a"],
}
"""Existing values; they replace some generated values, so that requests get further."""
PLACES: list[dict[str, Any]] = [
    {},
    {"name": "f", "pool": "commons", "number": 1},
    {"name": "one", "pool": "commons", "number": 2},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the URL of a server and an owner's token."""
    with place(tmp_path_factory.mktemp("contract")):
        store = Store(resolved_url(None))
        base = running(store)
        for number in range(30):
            propose(store, base, f"reason {number}")
        for ago in range(20):
            store.report("me", time.time() - ago, samples={"f": SEEN})
        store.set_slo("f", SLO())
        pools.plan_submission(FIRST.flow().__class__.from_data({**FLOW, "name": "one"}), ACME, "a").apply()
        store.close()
        with serving(None, "127.0.0.1", 0, compute_limit=300.0) as url:
            yield url, token("a")


def examine(served: tuple[str, str], examples: int) -> Counter[str]:
    """Send a number of valid and invalid requests to every route; return the count of each answer."""
    url, mine = served
    found: Counter[str] = Counter()
    failed: dict[str, Exception] = {}
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
    for result in schema.get_all_operations():
        operation = result.ok()
        endless = operation.path.endswith("/events")
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            if endless and mode is GenerationMode.NEGATIVE:
                continue  # an invalid request may still open a stream without an end
            try:
                cases = operation.as_strategy(mode)
                asking(cases, found, examples, token=mine, fill=mode is GenerationMode.POSITIVE)
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE  # no request to this route can be invalid
            except (Exception, BaseExceptionGroup) as error:
                failed[f"{operation.label}, {mode.value}"] = error
    assert not failed, "\n\n".join(f"{where}: {''.join(_told(error))}" for where, error in failed.items())
    return found


def _told(error: BaseException) -> Iterator[str]:
    yield f"{error}\n"
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _told(part)


def asking(cases: Any, found: Counter[str], examples: int, *, token: str, fill: bool) -> None:
    """Send a number of requests to one route, and compare every answer with the document."""

    @seed(1)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        case: Case = data.draw(cases)
        if fill:
            _fill(data, case)
        else:
            # A URL cannot carry an empty value: the request would be valid.
            assume(not any(value in (None, [], {}) for value in (case.query or {}).values()))
        if case.path.endswith("/events"):
            case.query = {**(case.query or {}), "seconds": "0.01"}
        response = case.call(headers={"Authorization": f"Bearer {token}"}, timeout=60)
        found[str(response.status_code)] += 1
        case.validate_response(response, checks=CHECKS)

    ask()


def _fill(data: st.DataObject, case: Case) -> None:
    """Put existing names into a request."""
    places = data.draw(st.sampled_from(PLACES))
    case.path_parameters = {k: places.get(k, v) for k, v in (case.path_parameters or {}).items()}
    if isinstance(case.body, dict):
        for name in KNOWN.keys() & case.body.keys():
            if data.draw(st.booleans()):
                case.body[name] = data.draw(st.sampled_from(KNOWN[name]))


def test_the_document_holds(served: tuple[str, str]) -> None:
    found = examine(served, 3)
    print(f"{sum(found.values())} requests: {dict(found)}")
    assert {"200", "202", "404", "409", "422"} <= found.keys() and sum(found.values()) > 150, found


def hold(served: tuple[str, str], path: str, body: dict[str, Any], expected: int, **parts: str) -> None:
    """Send a valid POST request, and compare its answer with the document."""
    url, mine = served
    operation = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")[path]["POST"]
    case = operation.Case(path_parameters=parts, body=body, media_type="application/json")
    response = case.call(headers={"Authorization": f"Bearer {mine}"}, timeout=60)
    assert response.status_code == expected, response.content
    case.validate_response(response, checks=CHECKS)


def test_what_comes_of_a_submission_is_as_documented(served: tuple[str, str]) -> None:
    body = {"dataflow": {**FLOW, "name": "two"}, "continuum": ZONES}
    hold(served, "/api/v1/pools/{pool}/dataflows", body, 202, pool="other")


@pytest.mark.parametrize(("preview", "expected"), [(True, 200), (False, 202)])
def test_what_comes_of_a_change_is_as_documented(served: tuple[str, str], preview: bool, expected: int) -> None:
    body = {"operator": "ML", "to": "site", "preview": preview}
    hold(served, "/api/v1/deployments/{name}/move", body, expected, name="f")


@pytest.mark.long
def test_the_document_holds_for_long(served: tuple[str, str]) -> None:
    found = examine(served, 250)
    print(f"{sum(found.values())} requests: {dict(found)}")
    assert {"200", "202", "404", "409", "422"} <= found.keys(), found
