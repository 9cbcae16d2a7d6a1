"""Sign in and out: plain pages, since a cookie needs an HTTP response and cannot be set over a page's socket."""

from __future__ import annotations

import contextlib
import html
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from headwater.core.errors import HeadwaterError, Unavailable
from headwater.web.access import MOST, NotKnown
from headwater.web.dashboard.frame import DashboardContext
from headwater.web.dashboard.sessions import COOKIE, LASTS

_LARGEST = 4096
"""Maximum bytes of a sign-in request."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in · Headwater</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
:root {{ color-scheme: light dark; --water: light-dark(#0a6c8a, #5ab7d4);
  --line: light-dark(#dbe2e1, #28353a); }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 0; min-height: 100vh; display: grid;
  place-items: center; background: light-dark(#f5f7f7, #0e1416); color: light-dark(#14211f, #e2eae8); }}
form {{ width: min(360px, calc(100vw - 32px)); display: grid; gap: 12px; }}
h1 {{ font-size: 20px; font-weight: 600; margin: 0; }}
p {{ margin: 0; color: light-dark(#5a6b68, #93a4a1); font-size: 13.5px; }}
label {{ font-size: 13px; font-weight: 500; }}
input, button {{ font: inherit; padding: 9px 12px; border-radius: 6px; border: 1px solid var(--line);
  width: 100%; box-sizing: border-box; background: light-dark(#fff, #151d20); color: inherit; }}
button {{ background: var(--water); border-color: var(--water); color: light-dark(#fff, #0e1416);
  font-weight: 600; cursor: pointer; }}
:focus-visible {{ outline: 2px solid var(--water); outline-offset: 2px; }}
[role=alert] {{ color: light-dark(#b3261e, #f08a7d); }}
</style></head><body><main><form method="post" action="/signin">
<h1><span aria-hidden="true">≈</span> Headwater</h1>
{error}
<label for="token">Your token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{next}">
<button>Sign in</button>
<p>An administrator creates one with <code>headwater owner NAME --token</code>. While nobody has one, open the link
that <code>headwater up</code> printed. You stay signed in for 12 hours, on this browser.</p>
</form></main></body></html>"""


def attach_signin(app: FastAPI, place: DashboardContext) -> None:
    """Add the pages for signing in and out."""

    @app.get("/signin", include_in_schema=False)
    def form(request: Request, next: str = "/", token: str = "") -> Response:
        if token and place.sessions is not None:
            with contextlib.suppress(HeadwaterError):
                # The link of `headwater up`; others do not belong in an address.
                if place.sessions.access.asker(token).on_trial:
                    return _signed_in(request, place.sessions.begin(token), _inside(next))
        return HTMLResponse(_page(_inside(next)))

    @app.post("/signin", include_in_schema=False)
    async def sign_in(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST:
                return HTMLResponse(_page("/", "That is not a token."), status_code=413)
        given = parse_qs(body.decode("utf-8", "replace"))
        token, goes_on = given.get("token", [""])[0].strip(), _inside(given.get("next", ["/"])[0])
        if place.sessions is None:
            return RedirectResponse(goes_on, status_code=303)
        try:
            session = await run_in_threadpool(place.sessions.begin, token[: MOST + 1])
        except NotKnown:
            return HTMLResponse(_page(goes_on, "Unknown token."), status_code=401)
        except HeadwaterError as error:
            return HTMLResponse(_page(goes_on, str(error)), status_code=503)
        return _signed_in(request, session, goes_on)

    def _signed_in(request: Request, session: str, goes_on: str) -> Response:
        answer = RedirectResponse(goes_on, status_code=303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, session, max_age=int(LASTS), httponly=True, samesite="strict", secure=secure)
        return answer

    @app.get("/signout", include_in_schema=False)
    def sign_out(request: Request) -> Response:
        if place.sessions is not None:
            with contextlib.suppress(Unavailable):  # the cookie goes in any case
                place.sessions.end(request.cookies.get(COOKIE))
        answer = RedirectResponse("/signin", status_code=303)
        answer.delete_cookie(COOKIE)
        return answer


def _page(goes_on: str, error: str = "") -> str:
    said = f'<p role="alert">{html.escape(error)}</p>' if error else ""
    return _PAGE.format(error=said, next=html.escape(goes_on, quote=True))


def _inside(address: str) -> str:
    """Return the requested address if it is on this server and no sign-in page, else the start page."""
    plain = address.startswith("/") and not address.startswith(("//", "/\\")) and "\n" not in address
    return address if plain and not address.startswith("/sign") else "/"
