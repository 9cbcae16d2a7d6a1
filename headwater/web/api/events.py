"""The stream of events, as server-sent events.

Each event's id is its number in the store, so that a client resumes with ``Last-Event-ID``. Comments keep the
connection alive; while the store cannot be read, ``problem`` events say so.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, HTTPException, Query
from fastapi.responses import StreamingResponse

from headwater.app import objectives
from headwater.app.observe import look
from headwater.control.records import Event
from headwater.core.errors import HeadwaterError
from headwater.core.jsonform import dump_json
from headwater.web.access import Asker
from headwater.web.api.dependencies import Here, Served, Viewer
from headwater.web.api.requests import MOST, NAME
from headwater.web.problems import problem_of, responses

EVERY = 0.5
"""Seconds between two reads of the store."""
LOOKS = 1.0
"""Seconds between two views."""
BEAT = 15.0
"""Seconds after which something is sent in any case."""
KNOWN = 2.0
"""Seconds after which the token is checked again: a revoked one ends its streams."""
STREAMS = 64
"""Maximum number of concurrent streams."""
VIEWERS = 48
"""Maximum number of them that viewers have."""

_ITEM: dict[str, Any] = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"type": "string", "enum": ["told", "view", "problem"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
"""OpenAPI description of each event of the stream."""

T = TypeVar("T")
router = APIRouter(tags=["events"])
_streams = threading.BoundedSemaphore(STREAMS)
_viewers = threading.BoundedSemaphore(VIEWERS)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        **responses(),
        200: {
            "description": "Events `told` (id, deployment, at in seconds since 1970, text) and `view`; "
            "`problem` while the store cannot be read.",
            "content": {
                "text/event-stream": {
                    "itemSchema": _ITEM,
                    "example": 'id: 7\nevent: told\ndata: {"deployment": "plant", "at": 1, "text": ""}\n\n',
                }
            },
        },
    },
)
async def events(
    served: Here,
    asker: Viewer,
    deployment: Annotated[str | None, Query(pattern=NAME, description="Only of this deployment.")] = None,
    after: Annotated[int | None, Query(ge=0, le=MOST, description="Number of the last known event.")] = None,
    seconds: Annotated[
        float | None, Query(gt=0, le=86400, description="End the stream after so many seconds; null: never.")
    ] = None,
    views: Annotated[bool, Query(description="Send `view` events as well, in the form of /view.")] = False,
    last_event_id: Annotated[int | None, Header(ge=0, le=MOST, description="As `after`, and takes precedence.")] = None,
) -> StreamingResponse:
    """Follow events, from now on or after a known number."""
    taken = ExitStack()
    for limit, most in ((_viewers, VIEWERS),) if asker.role == "viewer" else ():
        _take(limit, most, taken)
    _take(_streams, STREAMS, taken)
    since = after if last_event_id is None else last_event_id
    until = None if seconds is None else time.monotonic() + seconds
    stream = _stream(served, asker, deployment, since, taken, until=until, views=views)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _stream(
    served: Served,
    asker: Asker,
    name: str | None,
    after: int | None,
    taken: ExitStack,
    *,
    until: float | None,
    views: bool,
) -> AsyncIterator[str]:
    try:
        yield ": here it begins\n\n"
        known = beat = time.monotonic()
        looked, failed, last = -math.inf, "", b""
        while not served.ends.is_set() and (until is None or time.monotonic() < until):
            if time.monotonic() - known >= KNOWN:
                known = time.monotonic()
                if not await _read(served, _is_known, served, asker):
                    return
            try:
                after, found = await _read(served, objectives.told, after, name, served.store_url)
                if views and time.monotonic() - looked >= LOOKS:
                    looked = time.monotonic()
                    before, last = last, await _read(served, _view, served)
                    if last != before:
                        yield f"event: view\ndata: {last.decode()}\n\n"
                failed = ""
            except HeadwaterError as error:
                found = ()
                if failed != str(error):
                    failed = str(error)
                    yield _written("problem", problem_of(error).model_dump())
            for event in found:
                yield _told(event)
            if time.monotonic() - beat >= BEAT:
                beat = time.monotonic()
                yield ": still here\n\n"
            if not found:
                await anyio.sleep(EVERY)
    finally:
        taken.close()


def _take(limit: threading.BoundedSemaphore, most: int, taken: ExitStack) -> None:
    if not limit.acquire(blocking=False):
        taken.close()
        raise HTTPException(503, f"{most} streams are open already")
    taken.callback(limit.release)


async def _read(served: Served, act: Callable[..., T], *given: Any) -> T:
    """Read the store in one of the streams' threads."""
    return await anyio.to_thread.run_sync(partial(act, *given), limiter=served.lanes.streams)


def _is_known(served: Served, asker: Asker) -> bool:
    """Return whether the caller may still read: tokens are renewed, and the first one ends trial mode."""
    try:
        served.access.asker(asker.token or None).check("viewer")
    except HeadwaterError as error:
        return error.retryable
    return True


def _view(served: Served) -> bytes:
    """Return a snapshot with the time 0, so that equal snapshots are not sent again."""
    return dump_json(replace(look(served.store_url), at=0.0))


def _told(event: Event) -> str:
    data = {"deployment": event.deployment, "at": event.at, "text": event.text}
    return f"id: {event.id}\n{_written('told', data)}"


def _written(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
