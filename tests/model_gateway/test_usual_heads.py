"""Heads that are read the short way are read the same by the parser that knows the whole standard, or not taken."""

from __future__ import annotations

from random import Random

import httptools
import pytest

from actorgrid.actors.model_gateway.refusals import RequestRefused
from actorgrid.actors.model_gateway.replica_connections import ReplicaConnection, ReplicaPool
from actorgrid.actors.model_gateway.request_head import AnswerHead, parse_head, usual_answer, usual_head

ASKED = (
    b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nAuthorization: Bearer k\r\n"
    b"X-Stainless-OS: Linux\r\nX-Forwarded-For: y\r\nX-Request-Id: 1\r\nContent-Length: 3\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
ANSWERED = (
    b"HTTP/1.1 200 OK\r\nDate: today\r\nServer: s\r\nContent-Type: Application/JSON\r\nX-Actorgrid-A: b\r\n"
    b"Content-Length: 3\r\nConnection: keep-alive\r\n\r\n"
)
PIECES = [
    b"\r\n", b"\r", b"\n", b":", b" ", b"\t", b"\0", b"\x7f", b"\xff", b"?", b"#", b"+", b"Host: y\r\n", b"GET ",
    b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"connection: x\r\n", b"upgrade: h2c\r\n", b"HTTP/1.0",
    b"0", b"http://y", b"expect: 100-continue\r\n", b"(", b"\"", b"te: x\r\n", b"a: b\r\n", b";", b",", b"204",
]  # fmt: skip


def mutants(text: bytes, count: int) -> list[bytes]:
    random = Random(11)
    found = [text]
    for _ in range(count):
        changed = text
        for _ in range(random.choice((1, 1, 2, 3))):
            at = random.randrange(len(changed) + 1)
            changed = changed[:at] + random.choice(PIECES) + changed[at + random.choice((0, 0, 1, 4)) :]
        found.append(changed)
    return found


def test_what_is_taken_the_short_way_the_long_way_reads_the_same() -> None:
    taken = 0
    for data in mutants(ASKED, 6_000):
        found = usual_head(data)
        if found is None:
            continue
        taken += 1
        head, size = found
        assert data[:size].endswith(b"\r\n\r\n") and data.index(b"\r\n\r\n") + 4 == size
        assert parse_head(data[:size]) == head, data
    assert taken > 500


class Taker:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.head: AnswerHead | None = None
        self.body = b""
        self.end: object = None

    def answer_began(self, head: AnswerHead) -> None:
        self.head = head

    def answer_body(self, data: bytes) -> None:
        self.body += data

    def flush(self) -> None:
        pass

    def answer_ended(self, can_be_used_again: bool) -> None:
        self.end = can_be_used_again

    def answer_broke(self, why: str, heard_anything: bool) -> None:
        self.end = why


def answered(*pieces: bytes) -> tuple[AnswerHead | None, bytes, object]:
    """What comes of an answer that a replica gives in *pieces*."""
    connection = ReplicaConnection(ReplicaPool(lambda: "h", lambda: None), "r.1")
    connection.taker = taker = Taker()
    for piece in pieces:
        if piece:
            connection.data_received(piece)
    head = taker.head
    return head and head._replace(passed=head.lines()), taker.body, taker.end


def test_an_answer_that_comes_at_once_is_the_same_as_one_that_comes_in_two_pieces() -> None:
    taken = 0
    for data in mutants(ANSWERED + b"abc", 3_000):
        found = usual_answer(data)
        if found is None or found[1] + (found[0].content_length or 0) != len(data):
            continue
        taken += 1
        assert answered(data) == answered(data[:9], data[9:]), data
        assert answered(data)[2] is True
    assert taken > 300


def test_a_parser_that_changes_its_mind_is_noticed() -> None:
    """What the short way relies on: these are refused, or read so, by httptools too."""
    for line in (b"content-length: 3\r\n", b"host: y\r\n", b"transfer-encoding: chunked\r\n"):
        with pytest.raises((RequestRefused, httptools.HttpParserError)):
            parse_head(ASKED.replace(b"Accept", line + b"Accept"))
