"""HTTP to the admin doors of hosts: keep-alive connections, bearer token, named errors, patience, following.

Plain ``http.client``: the command line pays for this import on every call.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from actorgrid.errors import (
    ActorDown,
    ActorGridError,
    BadRequest,
    CallTimeout,
    CertificateRefused,
    HostError,
    HostUnreachable,
    MalformedBody,
    NoQuorum,
    NoSuchActor,
    NotFound,
    NotLeader,
    NotSupported,
    WrongToken,
    error_from_dict,
)

from .addresses import Address, Addresses, nearest_first, read_address, read_addresses
from .current_trace import current_traceparent
from .forks import renew_in_children

if TYPE_CHECKING:
    from .pinned import PinnedAuthority

MAX_IDLE_CONNECTIONS = 8
RETRY_S = 10.0
FIRST_CONTACT_S = 2.0
CONNECT_S = 10.0
CONNECT_ONE_OF_SEVERAL_S = 3.0
LEARN_EVERY_S = 60.0
"""How often a client of a cluster asks which hosts there are."""
LEARN_S = 5.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.02, 0.5
# A host that is gone without a word is noticed after some ten seconds, also by who only listens.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 11_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
MAX_SSE_LINE_BYTES = 16 * 2**20
T = TypeVar("T")
_GONE = (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine, http.client.CannotSendRequest)


class ServerEvent(NamedTuple):
    """One server-sent event; ``data`` is its text."""

    event: str
    data: str
    event_id: str


class _NotSentError(Exception):
    """Raised when there was no connection: nothing was said yet, so anything may be tried elsewhere."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class AdminHttp:
    """Requests to one host, or to whichever of several is there. Safe to use from many threads.

    *url* may name several hosts, separated by commas; with *ca_fingerprint*, hosts of the cluster that are learned of
    join them. The first that answers is kept until it fails or says that it is cut off, then it is the next one's turn.

    An idempotent request is repeated for up to *retry_s* seconds while no door is open or servers restart; before the
    first answer ever, only for 2 s, but once at each address. Others are sent once, on a connection of their own; one
    that could not be sent at all goes elsewhere. At most 8 idle connections are kept.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float = 30.0,
        retry_s: float = RETRY_S,
        insecure: bool = False,
        ca_fingerprint: str | None = None,
    ) -> None:
        given = read_addresses(url)
        secure = any(address.secure for address in given)
        for address in given:
            if not address.secure and not address.loopback and not insecure:
                raise BadRequest(
                    "refusing to send the token in the clear beyond this machine",
                    asked=address.url,
                    hint="use https://, or insecure=True on a network you trust",
                )
        self.token = token
        self.owner: object = None
        """What lives for as long as somebody may ask here: the LocalCluster of one's own."""
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._addresses = Addresses(given)
        self._authority: PinnedAuthority | None = None
        if ca_fingerprint and secure:
            from .pinned import PinnedAuthority

            self._authority = PinnedAuthority(ca_fingerprint)
        self._closed = False
        self._answered = False
        self._learn_at = 0.0
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Address, http.client.HTTPConnection]] = []
        self._open: set[http.client.HTTPConnection] = set()

    def after_fork(self) -> None:
        """Go on in a forked child with connections of its own; the parent's go on there."""
        self._begin()
        if self._authority is not None:
            self._authority.after_fork()

    @property
    def url(self) -> str:
        """The URL of the host in use."""
        with self._lock:
            return self._addresses.current.url

    @property
    def is_afar(self) -> bool:
        """Whether the host in use is on another machine, as its address says."""
        with self._lock:
            return not self._addresses.current.loopback

    # -- requests

    def get(self, path: str, timeout_s: float | None = None, **query: Any) -> Any:
        """The decoded answer of a GET; ``None`` values are left out of the query."""
        return self.request("GET", path, query=query, timeout_s=timeout_s)

    def post(self, path: str, body: Any = None, *, repeat: bool = False, timeout_s: float | None = None) -> Any:
        """The decoded answer of a POST; *repeat* says that sending it twice is as good as once.

        A *body* that can be called makes one anew each time it is sent.
        """
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
        answer = self._persist(repeat, lambda at: self._once(at, method, path, query, body, repeat, timeout_s))
        self._learn()
        return answer

    @contextmanager
    def stream(self, path: str, last_event_id: str = "", /, **query: Any) -> Iterator[http.client.HTTPResponse]:
        """A response to read piece by piece; its connection is closed at the end."""
        more = {"Last-Event-ID": last_event_id} if last_event_id else {}

        def connect(at: Address) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
            connection = self._connection(at, fresh=True, timeout_s=None)
            try:
                response = self._send(at, connection, "GET", path, query, None, more)
                if response.status >= 400:
                    raise _error_of(response.status, _decode(response, response.read()))
            except BaseException:
                self._drop(connection)
                raise
            return connection, response

        connection, response = self._persist(True, connect)
        self._learn()
        try:
            yield response
        finally:
            response.close()
            self._drop(connection)

    def upgrade(self, path: str, protocol: str) -> socket.socket:
        """A connection that speaks *protocol* from here on; whoever gets it closes it.

        Raises NotSupported when the host does not, and as ``request``.
        """

        def connect(at: Address) -> socket.socket:
            connection = self._connection(at, fresh=True, timeout_s=self._timeout_s)
            try:
                more = {"Connection": "Upgrade", "Upgrade": protocol}
                response = self._send(at, connection, "GET", path, None, None, more)
                if response.status != http.client.SWITCHING_PROTOCOLS:
                    raw = response.read()
                    if response.status >= 400:
                        raise _error_of(response.status, _decode(response, raw))
                    raise NotSupported(
                        "the host, or a proxy before it, does not upgrade the connection",
                        asked=f"{path} to {protocol}",
                        found=f"HTTP {response.status}",
                        hint="let the proxy pass the heads Connection and Upgrade on, or speak to the host itself",
                    )
                response.close()
                made: socket.socket = connection.sock
                connection.sock = None
            finally:
                self._drop(connection)
            return made

        made = self._persist(True, connect)
        self._learn()
        return made

    def events(self, path: str, **query: Any) -> Iterator[ServerEvent]:
        """Server-sent events until the host ends the stream. Raises HostUnreachable when it breaks off."""
        with self.event_stream(path, **query) as events:
            yield from events

    @contextmanager
    def event_stream(self, path: str, last_event_id: str = "", /, **query: Any) -> Iterator[Iterator[ServerEvent]]:
        """Server-sent events until the host ends the stream; entered when the host has begun to listen for us.

        Those behind *last_event_id*, where the host knows it. Reading them raises HostUnreachable when the stream
        breaks off.
        """
        with self.stream(path, last_event_id, **query) as response:
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
            self._open.difference_update(connection for _, connection in idle)
            in_use = list(self._open)
        for _, connection in idle:
            connection.close()
        for connection in in_use:
            _shut(connection)  # whoever uses it closes it

    def __del__(self) -> None:
        # Nobody asks here any more, and no lock may be taken.
        for connection in list(getattr(self, "_open", ())):
            connection.close()

    # -- following

    def _persist(self, repeat: bool, attempt: Callable[[Address], T]) -> T:
        started, tries, slow = time.monotonic(), 0, False
        pause_s = PAUSE_FIRST_S
        while True:
            with self._lock:
                at, several = self._addresses.current, len(self._addresses)
            tries += 1
            try:
                answer = attempt(at)
            except _NotSentError as error:
                failure: Exception = error.cause
                again = not isinstance(failure, CertificateRefused) or several > 1
                patience_s = self._retry_s if self._answered else min(self._retry_s, FIRST_CONTACT_S)
            except (*_GONE, OSError, http.client.HTTPException) as error:
                failure, again = error, repeat
                patience_s = self._retry_s if self._answered else min(self._retry_s, FIRST_CONTACT_S)
                if _is_slow(error):
                    # It may be at work on it: once more, and elsewhere, if twice is as good as once.
                    again, patience_s, slow = repeat and several > 1 and not slow, 0.0, True
            except (NoSuchActor, ActorDown, CallTimeout) as error:
                failure, again, patience_s = error, repeat, self._retry_s
            except (NotLeader, NoQuorum, HostUnreachable) as error:  # cut off from the others, or stopping
                failure, again, patience_s = error, repeat and several > 1, self._retry_s
            else:
                with self._lock:
                    self._answered = True
                    self._addresses.answered(at)
                return answer
            with self._lock:
                self._addresses.failed(at, _words(failure))
            round_over = tries % several == 0
            late = time.monotonic() - started + pause_s > patience_s
            if self._closed or not again or (round_over and late):
                self._give_up(at, several, failure)
            if round_over:
                time.sleep(pause_s * random.uniform(0.5, 1.0))  # nosec B311 - spread, not secrecy
                pause_s = min(pause_s * 1.6, PAUSE_MAX_S)

    def _give_up(self, at: Address, several: int, failure: Exception) -> NoReturn:
        """Raise what the last try failed with; when there were several hosts, say what each of them said."""
        if several > 1 and not self._closed and not _is_slow(failure):
            with self._lock:
                asked, said = self._addresses.text, self._addresses.said
            if not isinstance(failure, ActorGridError) or isinstance(failure, HostUnreachable):
                raise HostUnreachable(
                    "none of the hosts answers",
                    asked=asked,
                    found=said,
                    hint="see whether they are up (actorgrid up) and reached from here; name others with --url",
                ) from failure
        if isinstance(failure, ActorGridError):
            raise failure
        if _is_slow(failure):
            raise CallTimeout(f"{at.url} did not answer in time", hint="whether it acted is unknown") from failure
        refused = isinstance(failure, ConnectionRefusedError)
        raise HostUnreachable(
            "no agent answers there" if refused else f"the connection broke: {_words(failure)}",
            asked=at.url,
            found=str(failure),
            hint="start one with `actorgrid up`, or name another with --data-dir or --url",
        ) from failure

    def _learn(self) -> None:
        """Ask which hosts the cluster has, now and then: one of them may have to take over."""
        if self._authority is None:
            return
        with self._lock:
            at, now = self._addresses.current, time.monotonic()
            if now < self._learn_at or not at.secure or self._closed:
                return
            self._learn_at = now + LEARN_EVERY_S
        try:
            found = self._once(at, "GET", "/api/members", None, None, True, LEARN_S)
            members = [read_address(url) for url in nearest_first(found["here"], found["members"])]
        except (ActorGridError, OSError, http.client.HTTPException, _NotSentError, KeyError, TypeError):
            return  # an older host, or one that is going: asked again in a while
        with self._lock:
            self._addresses.learned(members)

    # -- one request

    def _once(
        self,
        at: Address,
        method: str,
        path: str,
        query: dict[str, Any] | None,
        body: Any,
        reuse: bool,
        timeout_s: float | None,
    ) -> Any:
        within_s = self._timeout_s if timeout_s is None else timeout_s
        connection = self._connection(at, fresh=not reuse, timeout_s=within_s)
        try:
            response = self._send(at, connection, method, path, query, body)
            raw = response.read()
        except BaseException:
            self._drop(connection)
            self._drop_idle()  # of the same age: the next try must not meet the next dead one
            raise
        if response.will_close:
            self._drop(connection)
        else:
            self._keep(at, connection)
        decoded = _decode(response, raw)
        if response.status >= 400:
            raise _error_of(response.status, decoded)
        return decoded

    def _send(
        self,
        at: Address,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        query: dict[str, Any] | None,
        body: Any,
        more_headers: dict[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        asked = {name: _plain(value) for name, value in (query or {}).items() if value is not None}
        target = at.prefix + path + (f"?{urlencode(asked)}" if asked else "")
        headers = {"Accept": "application/json", **(more_headers or {})}
        if method == "POST" and (place := current_traceparent()):
            headers["traceparent"] = place
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        payload = None
        if body is not None:
            payload, headers["Content-Type"] = _encode(body() if callable(body) else body)
        connection.request(method, target, payload, headers)
        return connection.getresponse()

    def _connection(self, at: Address, *, fresh: bool, timeout_s: float | None) -> http.client.HTTPConnection:
        """A connection to *at*, one that is idle if there is and it need not be *fresh*. Raises _NotSentError."""
        with self._lock:
            if self._closed:
                raise HostUnreachable("the client is closed", asked=at.url)
            idle = None if fresh else next((entry for entry in self._idle if entry[0] == at), None)
            if idle is not None:
                self._idle.remove(idle)
                connection = idle[1]
                if connection.sock is not None:
                    connection.sock.settimeout(timeout_s)
                return connection
            connect_s = CONNECT_S if len(self._addresses) == 1 else CONNECT_ONE_OF_SEVERAL_S
        if timeout_s is not None:
            connect_s = min(connect_s, timeout_s)
        try:
            connection = self._dial(at, connect_s)
        except ssl.SSLCertVerificationError as error:
            from .pinned import refusal

            raise _NotSentError(refusal(error, at.host, at.port)) from error
        except (OSError, http.client.HTTPException, CertificateRefused) as error:
            raise _NotSentError(error) from error
        assert connection.sock is not None, "a connection that was made has a socket"
        connection.sock.settimeout(timeout_s)
        return connection

    def _dial(self, at: Address, connect_s: float) -> http.client.HTTPConnection:
        if at.secure:
            context = (
                ssl.create_default_context()
                if self._authority is None
                else self._authority.context(at.host, at.port, connect_s)
            )
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                at.host, at.port, timeout=connect_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(at.host, at.port, timeout=connect_s)
        with self._lock:
            self._open.add(connection)
        try:
            connection.connect()
        except BaseException:
            self._drop(connection)
            raise
        for level, option, value in _KEEP_ALIVE:
            connection.sock.setsockopt(level, option, value)
        return connection

    def _keep(self, at: Address, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append((at, connection))
                return
        self._drop(connection)

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
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
    """Quote *text* as a part of a path."""
    return quote(text, safe="/" if slashes else "")


def _shut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        try:
            sock.shutdown(2)  # wakes a thread that reads from it; close() alone does not
        except OSError:
            return  # already gone


def _is_slow(failure: Exception) -> bool:
    """Whether there was no answer in time, on a connection that holds: one that the kernel gave up has an errno."""
    return isinstance(failure, TimeoutError) and failure.errno is None


def _words(failure: Exception) -> str:
    """A short text of how a try failed."""
    if isinstance(failure, ActorGridError):
        return f"{failure.code}: {failure.message}"
    if isinstance(failure, TimeoutError):
        return "no answer in time"
    if isinstance(failure, ssl.SSLError):
        return f"no TLS there: {failure.reason or failure}"
    return str(failure) or type(failure).__name__


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
