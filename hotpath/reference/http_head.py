"""The heads of usual requests and answers of HTTP/1.1, in plain Python: their parts, and what of them goes on.

Usual is what clients of a service send, by the letter: GET or POST, a path of plain characters, ``HTTP/1.1``, one Host,
no length or one, ``Connection`` absent or ``keep-alive``, values of printable ASCII. Of an answer, that it has one
length. Nothing of it can be read in two ways. All else is for a parser that knows the whole standard and has the word
on it: this one gives ``None`` and decides nothing. So a mistake here can only be to take what that parser refuses, or
to read it differently, which is what the test over both of them looks for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEADERS_MAX = 256
PLAIN, NOT_PASSED, HOST, LENGTH, CONNECTION, UNUSUAL = range(6)
KINDS: dict[bytes, int] = {
    b"host": HOST,
    b"content-length": LENGTH,
    b"connection": CONNECTION,
    b"transfer-encoding": UNUSUAL,
    b"upgrade": UNUSUAL,
    b"expect": UNUSUAL,
    b"te": UNUSUAL,
    b"trailer": UNUSUAL,
    b"keep-alive": UNUSUAL,
    b"proxy-connection": UNUSUAL,
    b"proxy-authenticate": UNUSUAL,
    b"proxy-authorization": UNUSUAL,
}
"""What is special about a header. Who wants others kept back adds their names as ``NOT_PASSED``."""
_PLAIN = rb"A-Za-z0-9\-._~/%!$&'()*+,;=:@"
_ASKED = re.compile(rb"(GET|POST) ((/[%b]*)(?:\?([%b?]+))?) HTTP/1\.1\r\n" % (_PLAIN, _PLAIN))
_ANSWERED = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\x20-\x7e]*)?\r\n")
_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): *([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)\r\n")
_LENGTH = re.compile(rb"[0-9]{1,15}")


class UsualHead(NamedTuple):
    """The parts of a request's head. Names of headers are in lower case."""

    size: int
    """Bytes, with the empty line at its end."""
    method: bytes
    target: bytes
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    first: dict[bytes, bytes]
    """The first value of each header."""
    content_length: int | None
    passed: bytes
    """The lines that go on to another server."""


class UsualAnswer(NamedTuple):
    """The parts of an answer's head. Names of headers are in lower case."""

    size: int
    status: int
    headers: list[tuple[bytes, bytes]]
    first: dict[bytes, bytes]
    content_length: int
    passed: bytes
    """The lines that go on to the client."""


class _Lines(NamedTuple):
    """What stands between the first line of a head and its end."""

    size: int
    headers: list[tuple[bytes, bytes]]
    first: dict[bytes, bytes]
    content_length: int | None
    hosts: int
    passed: bytes


def read_usual_head(data: bytes, kinds: dict[bytes, int], ours: tuple[bytes, ...]) -> UsualHead | None:
    """The head that *data* begins with; ``None`` where it is not whole, or is not a usual one.

    *kinds*: of headers, by their names in lower case; those that begin with one of *ours* are not passed on.
    """
    asked = _ASKED.match(data)
    lines = _lines(data, asked.end(), kinds, ours) if asked is not None else None
    if asked is None or lines is None or lines.hosts != 1:
        return None
    method, target, path, query = asked.groups()
    return UsualHead(
        lines.size, method, target, path.decode(), query or b"", lines.headers, lines.first, lines.content_length,
        lines.passed,
    )  # fmt: skip


def read_usual_answer(data: bytes, kinds: dict[bytes, int], ours: tuple[bytes, ...]) -> UsualAnswer | None:
    """The head of the answer that *data* begins with; ``None`` where it is not whole, or is not a usual one."""
    answered = _ANSWERED.match(data)
    lines = _lines(data, answered.end(), kinds, ours) if answered is not None else None
    if answered is None or lines is None or lines.content_length is None or answered[1] in (b"204", b"304"):
        return None
    return UsualAnswer(lines.size, int(answered[1]), lines.headers, lines.first, lines.content_length, lines.passed)


def _lines(data: bytes, at: int, kinds: dict[bytes, int], ours: tuple[bytes, ...]) -> _Lines | None:
    headers: list[tuple[bytes, bytes]] = []
    first: dict[bytes, bytes] = {}
    passed: list[bytes] = []
    length: int | None = None
    hosts = 0
    while data[at : at + 2] != b"\r\n":
        found = _LINE.match(data, at)
        if found is None or len(headers) >= HEADERS_MAX:
            return None
        at = found.end()
        name, value = found[1].lower(), found[2]
        kind = kinds.get(name, PLAIN)
        if kind == PLAIN:
            if not name.startswith(ours):
                passed.append(b"%s: %s\r\n" % (name, value))
        elif kind == HOST:
            hosts += 1
        elif kind == LENGTH:
            if length is not None or not _LENGTH.fullmatch(value):
                return None
            length = int(value)
        elif kind == UNUSUAL or (kind == CONNECTION and value.lower() != b"keep-alive"):
            return None
        headers.append((name, value))
        first.setdefault(name, value)
    return _Lines(at + 2, headers, first, length, hosts, b"".join(passed))
