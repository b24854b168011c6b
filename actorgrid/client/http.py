"""HTTP to a host's admin door: keep-alive connections, bearer token, named errors, patience while it restarts.

Plain ``http.client``: the command line pays for this import on every call.
"""

from __future__ import annotations

import http.client
import itertools
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from actorgrid.errors import (
    ActorDown,
    ActorGridError,
    BadRequest,
    CallTimeout,
    HostError,
    HostUnreachable,
    MalformedBody,
    NoSuchActor,
    NotFound,
    WrongToken,
    error_from_dict,
)

MAX_IDLE_CONNECTIONS = 8
RETRY_S = 10.0
FIRST_CONTACT_S = 2.0
MAX_SSE_LINE_BYTES = 16 * 2**20
_LOOPBACK = ("localhost", "::1")
_GONE = (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine, http.client.CannotSendRequest)


class ServerEvent(NamedTuple):
    """One server-sent event; ``data`` is its text."""

    event: str
    data: str
    event_id: str


class AdminHttp:
    """Requests to one host. Safe to use from many threads; at most 8 idle connections are kept.

    An idempotent request is repeated for up to *retry_s* seconds while the door is closed or its servers
    restart; before the first answer ever, only for 2 s. Others are sent once, on a connection of their own.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float = 30.0,
        retry_s: float = RETRY_S,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadRequest(
                "not the URL of a host", asked=url, hint="write it like http://127.0.0.1:7400 or https://host:7400"
            )
        loopback = parts.hostname in _LOOPBACK or parts.hostname.startswith("127.")
        if parts.scheme == "http" and not loopback and not insecure:
            raise BadRequest(
                "refusing to send the token in the clear beyond this machine",
                asked=url,
                hint="use https://, or insecure=True on a network you trust",
            )
        self.url = url.rstrip("/")
        self.token = token
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._host, self._prefix = parts.hostname, parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._open: set[http.client.HTTPConnection] = set()
        self._closed = False
        self._answered = False

    # -- requests

    def get(self, path: str, timeout_s: float | None = None, **query: Any) -> Any:
        """The decoded answer of a GET; ``None`` values are left out of the query."""
        return self.request("GET", path, query=query, timeout_s=timeout_s)

    def post(self, path: str, body: Any = None, *, repeat: bool = False, timeout_s: float | None = None) -> Any:
        """The decoded answer of a POST; *repeat* says that sending it twice is as good as once."""
        return self.request("POST", path, body=body, repeat=repeat, timeout_s=timeout_s)

    def put(self, path: str, body: Any) -> Any:
        """The decoded answer of a PUT."""
        return self.request("PUT", path, body=body)

    def delete(self, path: str, *, patient: bool = True) -> Any:
        """The decoded answer of a DELETE; *patient*: wait for a door that is closed just now."""
        return self.request("DELETE", path, repeat=patient)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: Any = None,
        repeat: bool | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send and decode; ``bytes`` for a body that is neither JSON nor msgpack, ``None`` for an empty one.

        Raises the error the host named, HostUnreachable, or CallTimeout (no answer in *timeout_s*).
        """
        repeat = method in ("GET", "PUT") if repeat is None else repeat
        return self._persist(repeat, lambda: self._once(method, path, query, body, repeat, timeout_s))

    @contextmanager
    def stream(self, path: str, **query: Any) -> Iterator[http.client.HTTPResponse]:
        """A response to read piece by piece; its connection is closed at the end."""

        def connect() -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
            connection = self._connection(fresh=True, timeout_s=None)
            try:
                response = self._send(connection, "GET", path, query, None)
                if response.status >= 400:
                    raise _error_of(response.status, _decode(response, response.read()))
            except BaseException:
                self._drop(connection)
                raise
            return connection, response

        connection, response = self._persist(True, connect)
        try:
            yield response
        finally:
            response.close()
            self._drop(connection)

    def events(self, path: str, **query: Any) -> Iterator[ServerEvent]:
        """Server-sent events until the host ends the stream. Raises HostUnreachable when it breaks off."""
        with self.event_stream(path, **query) as events:
            yield from events

    @contextmanager
    def event_stream(self, path: str, **query: Any) -> Iterator[Iterator[ServerEvent]]:
        """Server-sent events until the host ends the stream; entered when the host has begun to listen for us.

        Reading them raises HostUnreachable when the stream breaks off.
        """
        with self.stream(path, **query) as response:
            lines = _lines(response, self.url + path)
            first = next(lines, "")  # a comment: the listener is in place
            yield _events(lines, first)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Close every connection, those in use too: their calls raise HostUnreachable."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open.difference_update(idle)
            in_use = list(self._open)
        for connection in idle:
            connection.close()
        for connection in in_use:
            _shut(connection)  # whoever uses it closes it

    # -- inside

    def _persist(self, repeat: bool, attempt: Callable[[], Any]) -> Any:
        started = time.monotonic()
        pause_s = 0.02
        while True:
            try:
                answer = attempt()
                self._answered = True
                return answer
            except TimeoutError as error:
                raise CallTimeout(f"{self.url} did not answer in time", hint="whether it acted is unknown") from error
            except (*_GONE, OSError, http.client.HTTPException) as error:
                refused = isinstance(error, ConnectionRefusedError)
                patience_s = self._retry_s if self._answered else min(self._retry_s, FIRST_CONTACT_S)
                if self._closed or not (repeat or refused) or time.monotonic() - started + pause_s > patience_s:
                    raise HostUnreachable(
                        "no agent answers there"
                        if refused
                        else f"the connection broke: {error or type(error).__name__}",
                        asked=self.url,
                        found=str(error),
                        hint="start one with `actorgrid up`, or name another with --data-dir or --url",
                    ) from error
            except (NoSuchActor, ActorDown, CallTimeout):
                if not repeat or time.monotonic() - started + pause_s > self._retry_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.6, 0.5)

    def _once(
        self, method: str, path: str, query: dict[str, Any] | None, body: Any, reuse: bool, timeout_s: float | None
    ) -> Any:
        connection = self._connection(fresh=not reuse, timeout_s=self._timeout_s if timeout_s is None else timeout_s)
        try:
            response = self._send(connection, method, path, query, body)
            raw = response.read()
        except BaseException:
            self._drop(connection)
            self._drop_idle()  # of the same age: the next try must not meet the next dead one
            raise
        if response.will_close:
            self._drop(connection)
        else:
            self._keep(connection)
        decoded = _decode(response, raw)
        if response.status >= 400:
            raise _error_of(response.status, decoded)
        return decoded

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, query: dict[str, Any] | None, body: Any
    ) -> http.client.HTTPResponse:
        asked = {name: _plain(value) for name, value in (query or {}).items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(asked)}" if asked else "")
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        payload = None
        if body is not None:
            payload, headers["Content-Type"] = _encode(body)
        connection.request(method, target, payload, headers)
        return connection.getresponse()

    def _connection(self, *, fresh: bool, timeout_s: float | None) -> http.client.HTTPConnection:
        with self._lock:
            if self._closed:
                raise HostUnreachable("the client is closed", asked=self.url)
            if self._idle and not fresh:
                connection = self._idle.pop()
                connection.timeout = timeout_s
                if connection.sock is not None:
                    connection.sock.settimeout(timeout_s)
                return connection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        with self._lock:
            self._open.add(connection)
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        self._drop(connection)

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._drop(connection)

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()


def _lines(response: http.client.HTTPResponse, asked: str) -> Iterator[str]:
    while True:
        try:
            line = response.readline(MAX_SSE_LINE_BYTES + 1)
        except (http.client.HTTPException, ValueError, AttributeError, OSError) as error:
            raise HostUnreachable("the stream of events broke off", asked=asked) from error
        if not line:
            return
        if len(line) > MAX_SSE_LINE_BYTES:
            raise MalformedBody("an event is over 16 MiB", asked=asked)
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def _events(lines: Iterator[str], first: str) -> Iterator[ServerEvent]:
    event, event_id, data = "message", "", list[str]()
    for text in itertools.chain((first,), lines):
        if not text:
            if data:
                yield ServerEvent(event, "\n".join(data), event_id)
            event, data = "message", []
            continue
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id":
            event_id = value


def segment(text: str, *, slashes: bool = False) -> str:
    """*text* as part of a path."""
    return quote(text, safe="/" if slashes else "")


def _shut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        try:
            sock.shutdown(2)  # wakes a thread that reads from it; close() alone does not
        except OSError:
            return  # already gone


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _encode(body: Any) -> tuple[bytes, str]:
    """JSON, or msgpack where there are bytes inside."""
    try:
        return json.dumps(body).encode(), "application/json"
    except TypeError:
        import msgpack

        try:
            packed: bytes = msgpack.packb(body, use_bin_type=True)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadRequest(f"the request cannot be written down: {error}") from error
        return packed, "application/msgpack"


def _decode(response: http.client.HTTPResponse, raw: bytes) -> Any:
    kind = (response.getheader("Content-Type") or "").partition(";")[0].strip()
    if not raw and kind != "application/octet-stream":
        return None
    try:
        if kind == "application/json":
            return json.loads(raw)
        if kind == "application/msgpack":
            import msgpack

            return msgpack.unpackb(raw, raw=False, strict_map_key=False)
    except ValueError as error:
        raise MalformedBody("the answer is not what it claims to be", asked=kind, found=repr(raw[:80])) from error
    return raw


def _error_of(status: int, body: Any) -> ActorGridError:
    fields = body.get("error") if isinstance(body, dict) else None
    if isinstance(fields, dict):
        return error_from_dict(fields)
    text = body.decode("utf-8", "replace")[:200] if isinstance(body, bytes) else str(body)
    kind: type[ActorGridError] = {401: WrongToken, 403: WrongToken, 404: NotFound, 503: HostError}.get(
        status, BadRequest if status < 500 else ActorGridError
    )
    return kind(f"HTTP {status}", found=text, hint="is that an actorgrid host?")
