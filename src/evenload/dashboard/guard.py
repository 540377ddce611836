"""Who may see the page: checked before anything else of a request is looked at.

On loopback the Host header must name this machine, or a page elsewhere could read ours through a name that
it points here (DNS rebinding). Where other people may connect, or the page can act, a token is asked for.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Page = Callable[[str], tuple[bytes, bytes]]

COOKIE = "evenload_token"
# A name or an address, and perhaps a port: no user, no path, no blanks.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
_AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,253})(:[0-9]{1,5})?")
MAX_URL = 4_000
MAX_UNREAD_BYTES = 65_536  # of a refused request, read before the answer
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can only be reached from this machine."""
    host = host.strip("[]").lower()
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdecimal())


class Guard:
    """A gate before ``app``: requests that may be answered pass, others get 4xx and a sentence.

    host    what the server is bound to
    token   asked for as ``?token=`` once, then as a cookie; None asks for none
    page    (media type, content) of the sentence of a refusal
    """

    def __init__(self, app: App, host: str, token: str | None, page: Page | None = None):
        self._app = app
        self._page = page or _as_text
        self._host = host
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # a websocket: there is none, and returning refuses it
        headers = dict(scope["headers"])
        query = scope.get("query_string", b"")
        if len(scope["path"]) + len(query) > MAX_URL:
            return await self._refuse(receive, send, 414, "the address is too long")
        if not self._is_named(headers.get(b"host", b"")):
            return await self._refuse(
                receive, send, 421, "this page has another name; open the printed address"
            )
        origins = [_authority_of(value) for name, value in scope["headers"] if name == b"origin"]
        if None in origins:
            return await self._refuse(receive, send, 400, "the Origin header is no address")
        if not self._is_own(headers, origins, scope["method"]):
            return await self._refuse(receive, send, 403, "requests from other pages are not answered")
        if self._token is not None and not self._has_cookie(headers):
            given = dict(parse_qsl(query.decode("latin-1")))
            if scope["method"] == "GET" and _equal(given.pop("token", ""), self._token):
                return await self._welcome(scope["path"], given, send)
            return await self._refuse(receive, send, 401, "open the address that was printed, with its token")
        await self._app(scope, receive, _with_headers(send))

    async def _refuse(self, receive: Receive, send: Send, status: int, why: str) -> None:
        await _hear_out(receive)
        kind, content = self._page(why)
        headers = [(b"content-type", kind), *HEADERS]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _is_named(self, value: bytes) -> bool:
        found = _AUTHORITY.fullmatch(value.decode("latin-1"))
        if found is None:
            return False
        name = found["name"].lower().strip("[]")
        if is_loopback(self._host):
            return is_loopback(name)
        # Bound to every address, any name may lead here: then it is the token that protects.
        return name == self._host.lower() or self._host in ("0.0.0.0", "::") or is_loopback(name)

    def _is_own(self, headers: dict[bytes, bytes], origins: list[str | None], method: str) -> bool:
        host = headers.get(b"host", b"").decode("latin-1")
        is_foreign = any(origin != host for origin in origins)
        # Following a link to the page is fine, reading it from another page is not.
        is_visit = headers.get(b"sec-fetch-mode") == b"navigate" and method == "GET"
        is_near = headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        return not is_foreign and (is_near or is_visit)

    def _has_cookie(self, headers: dict[bytes, bytes]) -> bool:
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        return COOKIE in cookies and _equal(cookies[COOKIE].value, self._token or "")

    async def _welcome(self, path: str, query: dict[str, str], send: Send) -> None:
        """The token becomes a cookie, and leaves the address."""
        where = (quote(path) if path.startswith("/") and not path.startswith("//") else "/") + (
            f"?{urlencode(query)}" if query else ""
        )
        cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", where.encode("latin-1", "replace")), (b"set-cookie", cookie.encode())]
        await send({"type": "http.response.start", "status": 303, "headers": [*headers, *HEADERS]})
        await send({"type": "http.response.body", "body": b""})


def _authority_of(origin: bytes) -> str | None:
    """``host:port`` of an Origin header, "" of a hidden one ("null"); None if it is none at all."""
    text = origin.decode("latin-1")
    scheme, _, authority = text.partition("://")
    is_whole = _SCHEME.fullmatch(scheme) and _AUTHORITY.fullmatch(authority)
    return "" if text == "null" else authority if is_whole else None


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", []))
            names = {name.lower() for name, _ in given}
            message["headers"] = [*given, *(one for one in HEADERS if one[0] not in names)]
        await send(message)

    return sent


def _as_text(why: str) -> tuple[bytes, bytes]:
    return b"text/plain; charset=utf-8", f"{why}\n".encode()


async def _hear_out(receive: Receive) -> None:
    """Read what is still being sent: closing before would reset the connection, and the answer with it."""
    n_bytes = 0
    while n_bytes < MAX_UNREAD_BYTES:
        message = await receive()
        if not message.get("more_body", False):
            return
        n_bytes += len(message.get("body", b""))
