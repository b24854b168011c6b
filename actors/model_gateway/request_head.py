"""The head of a client's request: which are taken, and what of it goes on to a replica. No I/O.

What clients usually send is read by a kernel that takes nothing else (``hotpath/http_head``). The rest is for
httptools, which refuses most of what makes two servers disagree about where a request ends (two lengths, a length and
``chunked``, other encodings than ``chunked``, spaces before colons, folded lines). What it lets through is refused
here: no Host or several, ``chunked`` in HTTP/1.0, targets that are no path, upgrades.
"""

from __future__ import annotations

from typing import NamedTuple

import httptools

from actorgrid.hotpath.model_requests import KINDS, NOT_PASSED, read_usual_answer, read_usual_head

from .refusals import RequestRefused

HEAD_MAX = 64 * 1024
HEADERS_MAX = 256
BODY_MAX = 32 * 2**20
_HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
# Said anew for the replica, of no business of its, or what a stranger says of others.
_NOT_PASSED = _HOP_BY_HOP | frozenset(
    (
        b"host", b"content-length", b"accept-encoding", b"authorization", b"x-api-key", b"api-key", b"cookie",
        b"expect", b"forwarded", b"via", b"x-real-ip", b"x-request-id", b"origin", b"referer",
    )
)  # fmt: skip
_OURS = (b"x-forwarded-", b"x-actorgrid-")
_NOT_PASSED_BACK = _HOP_BY_HOP | frozenset(
    (b"content-length", b"date", b"server", b"x-request-id", b"set-cookie", b"content-encoding", b"alt-svc")
)
_KINDS = dict.fromkeys(_NOT_PASSED, NOT_PASSED) | KINDS
_KINDS_BACK = dict.fromkeys(_NOT_PASSED_BACK, NOT_PASSED) | KINDS
_KINDS_BACK.pop(b"host")
_KINDS_BACK.pop(b"expect")


class RequestHead(NamedTuple):
    """A request's head. Names of headers are in lower case."""

    method: bytes
    target: bytes
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    first: dict[bytes, bytes]
    """The first value of each header."""
    passed: bytes
    """The lines that a replica gets of them."""
    content_length: int | None
    is_chunked: bool = False
    keeps_alive: bool = True
    is_http_1_0: bool = False
    expects_continue: bool = False

    def header(self, name: bytes) -> bytes | None:
        """The first value of that header."""
        return self.first.get(name)


class _HeadParser:
    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.keeps_alive = False
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.is_complete = True
        self.keeps_alive = self.parser.should_keep_alive()


class AnswerHead(NamedTuple):
    """The head of a replica's answer. Names of headers are in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content_length: int | None
    """Of the body, where it says so."""
    kind: bytes
    """Of the content, in lower case."""
    passed: bytes | None
    """The lines that the client gets of it, where they were read with it."""

    def lines(self) -> bytes:
        """The lines that the client gets of it."""
        return passed_back(self.headers) if self.passed is None else self.passed


def usual_head(data: bytes) -> tuple[RequestHead, int] | None:
    """The head that *data* begins with, and its size; ``None`` where it is not whole, or not a usual one."""
    found = read_usual_head(data, _KINDS, _OURS)
    if found is None:
        return None
    size, method, target, path, query, headers, first, length, passed = found
    return RequestHead(method, target, path, query, headers, first, passed, length), size


def parse_head(data: bytes) -> RequestHead:
    """The head in *data*, which ends with its empty line. Raises RequestRefused: then the connection is closed."""
    taken = _HeadParser()
    parser = taken.parser
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        raise _malformed("connections are not upgraded here") from None
    except httptools.HttpParserError as error:
        raise _malformed(f"the request is not HTTP/1.1: {error}"[:300]) from None
    if not taken.is_complete:
        raise _malformed("the request is not HTTP/1.1")
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise RequestRefused(505, "HTTP/1.1 is spoken here", "http_version", closes=True)
    headers = taken.headers
    if len(headers) > HEADERS_MAX:
        raise RequestRefused(431, f"more than {HEADERS_MAX} headers", "too_many_headers", closes=True)
    hosts = 0
    length: int | None = None
    is_chunked = expects = False
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None or not value.isdigit() or len(value) > 15:
                raise _malformed("there is not one whole Content-Length")
            length = int(value)
        elif name == b"transfer-encoding":
            if is_chunked or value.lower() != b"chunked":
                raise _malformed("the only Transfer-Encoding that is taken is chunked, once")
            is_chunked = True
        elif name == b"expect":
            expects = value.lower() == b"100-continue"
        elif name == b"upgrade":
            raise _malformed("connections are not upgraded here")
    is_http_1_0 = version == "1.0"
    if hosts > 1 or (hosts == 0 and not is_http_1_0):
        raise _malformed("a request has one Host header")
    if is_chunked and (is_http_1_0 or length is not None):
        raise _malformed("chunked has no place here")
    if not taken.url.startswith(b"/") or b"#" in taken.url or not taken.url.isascii():
        raise _malformed("the target of a request is a path that begins with /")
    path, _, query = taken.url.partition(b"?")
    keeps = taken.keeps_alive and not is_http_1_0
    return RequestHead(
        parser.get_method(),
        path + b"?" + query if query else path,
        path.decode(),
        query,
        headers,
        dict(reversed(headers)),
        _passed_on(headers),
        length,
        is_chunked,
        keeps,
        is_http_1_0,
        expects,
    )


def _passed_on(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The lines that a replica gets of the client's headers."""
    named = named_by_connection(headers)
    return b"".join(
        b"%s: %s\r\n" % (name, value)
        for name, value in headers
        if name not in _NOT_PASSED and name not in named and not name.startswith(_OURS)
    )


def usual_answer(data: bytes) -> tuple[AnswerHead, int] | None:
    """The head of the answer that *data* begins with, and its size; ``None`` where it is not whole, or not a usual
    one with a length."""
    found = read_usual_answer(data, _KINDS_BACK, _OURS)
    if found is None:
        return None
    size, status, headers, first, length, passed = found
    return AnswerHead(status, headers, length, first.get(b"content-type", b"").lower(), passed), size


def answer_head(status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> AnswerHead:
    """The head of an answer that was parsed elsewhere. Names are in lower case."""
    kind = next((value.lower() for name, value in headers if name == b"content-type"), b"")
    return AnswerHead(status, headers, length, kind, None)


def passed_back(headers: list[tuple[bytes, bytes]], *more: bytes) -> bytes:
    """The lines of a replica's answer that the client gets, but for the headers *more*."""
    named = named_by_connection(headers)
    return b"".join(
        b"%s: %s\r\n" % (name, value)
        for name, value in headers
        if name not in _NOT_PASSED_BACK and name not in named and name not in more and not name.startswith(_OURS)
    )


def named_by_connection(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
    """The names that ``Connection`` says are for the next one alone."""
    return {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}


def _malformed(message: str) -> RequestRefused:
    return RequestRefused(400, message, "malformed_request", closes=True)
