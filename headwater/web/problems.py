"""Errors as problem details (RFC 9457): what is wrong, where, and what to do next."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from headwater.core.errors import (
    Busy,
    ContinuumError,
    DataflowError,
    Denied,
    DeploymentError,
    ErrorList,
    HeadwaterError,
    Missing,
    PlacementError,
    Unavailable,
)
from headwater.core.quantity import QuantityError
from headwater.web.access import NotKnown

MEDIA_TYPE = "application/problem+json"
_LOG = logging.getLogger(__name__)

KINDS: tuple[tuple[type[HeadwaterError], int, str, str], ...] = (
    (NotKnown, 401, "not-known", "The caller is unknown"),
    (Denied, 403, "denied", "The caller may not do this"),
    (Missing, 404, "missing", "Not found"),
    (Busy, 409, "busy", "A change is under way"),
    (DeploymentError, 409, "conflict", "The stored state does not allow this"),
    (DataflowError, 422, "dataflow", "The dataflow is wrong"),
    (ContinuumError, 422, "continuum", "The continuum is wrong"),
    (QuantityError, 422, "quantity", "A size, rate or duration is wrong"),
    (PlacementError, 422, "placement", "It cannot be placed"),
    (Unavailable, 503, "unavailable", "A service is unavailable"),
    (HeadwaterError, 500, "failure", "Internal error"),
)
"""Status, name and title of each kind of error; the first match counts."""
_TITLES = {
    400: "The request cannot be read",
    403: "The caller may not do this",
    404: "Unknown address",
    405: "Method not allowed here",
    408: "The request did not arrive in time",
    413: "The request is too large",
    415: "Unsupported type of request",
    421: "Wrong host name",
    422: "The request is wrong",
    429: "Too many connections or requests",
    500: "Internal error",
}
_HINTS = {
    404: "GET /api/v1/openapi.json lists all addresses",
    405: "see the Allow header for the methods",
    408: "send it again, at once",
    413: "send less at a time",
    500: "see the server's log, and report this",
}


class Detail(BaseModel):
    """One of several errors."""

    model_config = ConfigDict(extra="forbid")
    detail: str
    where: str | None = None
    hint: str | None = None


class ProblemDetails(BaseModel):
    """A problem, in the form of RFC 9457."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:headwater:problem:missing",
                    "title": "Not found",
                    "status": 404,
                    "detail": "no deployment 'plan'",
                    "where": ".headwater/headwater.db",
                    "hint": "the deployments are: plant",
                    "errors": [],
                }
            ]
        },
    )
    type: str = Field(description="Stable name of the kind of problem.")
    title: str = Field(description="Title of the kind.")
    status: int
    detail: str = Field(description="What is wrong.")
    where: str | None = Field(default=None, description="The file and line, operator or field.")
    hint: str | None = Field(default=None, description="What to do next.")
    errors: list[Detail] = Field(default=[], description="The errors, where there are several.")


def problem_of(error: HeadwaterError) -> ProblemDetails:
    """Return an error as a problem."""
    several = list(_single(error))
    first = several[0] if several else error
    _, status, name, title = next(kind for kind in KINDS if isinstance(first, kind[0]))
    return ProblemDetails(
        type=_type(name),
        title=title,
        status=status,
        detail="\n".join(e.what for e in several) or error.what,
        where=first.where,
        hint=first.hint,
        errors=[Detail(detail=e.what, where=e.where, hint=e.hint) for e in several]
        if isinstance(error, ErrorList)
        else [],
    )


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe for OpenAPI the problems of a route, besides those of all routes."""
    described: dict[int | str, dict[str, Any]] = {
        status: {
            "description": _TITLES.get(status) or next(t for _, s, _, t in KINDS if s == status),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({400, 401, 403, 404, 408, 422, 429, 500, 503, *statuses})
    }
    return described


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """Add the schema of problems to an OpenAPI document."""
    template = "#/components/schemas/{model}"
    _, found = models_json_schema([(ProblemDetails, "serialization")], ref_template=template)
    document["components"].setdefault("schemas", {}).update(found["$defs"])
    return document


def response(problem: ProblemDetails, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response for a problem."""
    own = dict(headers or {})
    if problem.status == HTTPStatus.UNAUTHORIZED:
        own["WWW-Authenticate"] = 'Bearer realm="headwater"'
    if problem.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE) or problem.type == _type(
        "busy"
    ):
        own["Retry-After"] = "2"
    return JSONResponse(problem.model_dump(), problem.status, headers=own, media_type=MEDIA_TYPE)


def plain(status: int, detail: str | None = None, hint: str | None = None) -> ProblemDetails:
    """Return the problem of a request that failed before any use case."""
    phrase = HTTPStatus(status).phrase
    return ProblemDetails(
        type=_type(phrase.lower().replace(" ", "-")),
        title=_TITLES.get(status, phrase),
        status=status,
        detail=detail or phrase,
        hint=hint or _HINTS.get(status),
    )


def install(app: FastAPI) -> None:
    """Make an app answer all errors with problems."""

    @app.exception_handler(HeadwaterError)
    async def ours(request: Request, error: HeadwaterError) -> JSONResponse:
        problem = problem_of(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            _LOG.error("%s %s", request.method, request.url.path, exc_info=error)
        return response(problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # Omit the values: they may contain secrets.
        details = [Detail(detail=str(e["msg"]), where=".".join(map(str, e["loc"]))) for e in error.errors()[:100]]
        found = plain(HTTPStatus.UNPROCESSABLE_ENTITY, hint="correct it; GET /api/v1/openapi.json tells how")
        whole = "; ".join(f"{d.where}: {d.detail}" for d in details)
        where = details[0].where if details else None
        return response(found.model_copy(update={"detail": whole, "where": where, "errors": details}))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        phrase = HTTPStatus(error.status_code).phrase
        detail = error.detail if error.detail != phrase else f"{request.method} {request.url.path}: {phrase}"
        return response(plain(error.status_code, detail), error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return response(plain(HTTPStatus.INTERNAL_SERVER_ERROR, "something went wrong that should not"))


def _type(name: str) -> str:
    return f"urn:headwater:problem:{name}"


def _single(error: HeadwaterError) -> Iterator[HeadwaterError]:
    if isinstance(error, ErrorList):
        for one in error.errors:
            yield from _single(one)
    else:
        yield error
