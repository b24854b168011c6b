"""Requests that two servers would read differently, that never end or are too large: refused, and nobody is hurt."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest

from .running import RunningGateway
from .scripted_replica import ScriptedReplica

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def post(body: bytes = BODY, *lines: bytes, length: bytes | None = None) -> bytes:
    size = str(len(body)).encode() if length is None else length
    head = [b"POST /v1/chat/completions HTTP/1.1", b"host: x", b"content-length: " + size, *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def read_all(sock: socket.socket) -> bytes:
    found = b""
    while data := sock.recv(65536):
        found += data
    return found


def read_answer(sock: socket.socket) -> tuple[int, bytes, bytes]:
    """One answer with a length: its status, head and body."""
    held = b""
    while b"\r\n\r\n" not in held:
        data = sock.recv(65536)
        assert data, held
        held += data
    head, _, body = held.partition(b"\r\n\r\n")
    length = int(
        next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1]
    )
    while len(body) < length:
        data = sock.recv(65536)
        assert data
        body += data
    assert len(body) == length, "more than one answer was read"
    return int(head.split(b" ")[1]), head, body


def head(*lines: bytes, end: bytes = b"\r\n\r\n") -> bytes:
    return b"\r\n".join(lines) + end


POST, HOST, NONE = b"POST /v1/chat/completions HTTP/1.1", b"host: x", b"content-length: 0"
CHUNKED = b"transfer-encoding: chunked"
SMUGGLED = {
    "length and chunked": head(POST, HOST, b"content-length: 4", CHUNKED) + b"0\r\n\r\nGET /x",
    "two lengths": head(POST, HOST, b"content-length: 4", b"content-length: 5") + b"abcde",
    "one length twice": head(POST, HOST, b"content-length: 4", b"content-length: 4") + b"abcd",
    "a list of lengths": head(POST, HOST, b"content-length: 4, 4") + b"abcd",
    "a length with a sign": head(POST, HOST, b"content-length: +4") + b"abcd",
    "a length in hex": head(POST, HOST, b"content-length: 0x4") + b"abcd",
    "a negative length": head(POST, HOST, b"content-length: -1"),
    "a length without end": head(POST, HOST, b"content-length: " + b"9" * 400),
    "chunked is not last": head(POST, HOST, b"transfer-encoding: chunked, gzip") + b"0\r\n\r\n",
    "chunked twice": head(POST, HOST, CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "another coding": head(POST, HOST, b"transfer-encoding: xchunked") + b"0\r\n\r\n",
    "a coding with a quote": head(POST, HOST, b'transfer-encoding: "chunked"') + b"0\r\n\r\n",
    "a space before the colon": head(POST, HOST, b"content-length : 4") + b"abcd",
    "a folded line": head(POST, HOST, b"x: a\r\n b", NONE),
    "a bare line end": b"POST /v1/chat/completions HTTP/1.1\nhost: x\ncontent-length: 0\n\n\r\n\r\n",
    "a NUL in a value": head(POST, HOST, b"x: a\0b", NONE),
    "a CR in a value": head(POST, HOST, b"x: a\rb", NONE),
    "no host": head(POST, NONE),
    "two hosts": head(POST, HOST, b"host: y", NONE),
    "chunked in 1.0": head(b"POST /v1/chat/completions HTTP/1.0", HOST, CHUNKED) + b"0\r\n\r\n",
    "an absolute target": head(b"POST http://y/v1/chat/completions HTTP/1.1", HOST, NONE),
    "an authority": head(b"CONNECT y:80 HTTP/1.1", HOST),
    "a star": head(b"OPTIONS * HTTP/1.1", HOST, NONE),
    "an upgrade": head(b"GET /v1/models HTTP/1.1", HOST, b"connection: upgrade", b"upgrade: h2c"),
    "an older version": head(b"POST /v1/chat/completions HTTP/0.9", HOST, NONE),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    "a chunk with an extension": head(POST, HOST, CHUNKED) + b"5;a=b\r\nabcde\r\n0\r\n\r\n",
    "a trailer": head(POST, HOST, CHUNKED) + b"0\r\nx: y\r\n\r\n",
    "a chunk longer than it says": head(POST, HOST, CHUNKED) + b"2\r\nabcde\r\n0\r\n\r\n",
    "a chunk's size with a space": head(POST, HOST, CHUNKED) + b" 2\r\nab\r\n0\r\n\r\n",
    "a chunk's size with a sign": head(POST, HOST, CHUNKED) + b"+2\r\nab\r\n0\r\n\r\n",
    "a chunk of 16 digits": head(POST, HOST, CHUNKED) + b"ffffffffffffffff\r\nab",
    "a chunk with a bare line end": head(POST, HOST, CHUNKED) + b"2\nab\n0\n\n",
}


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED)
@pytest.mark.parametrize("bytewise", [False, True])
def test_what_servers_read_differently_is_refused_and_the_connection_ends(
    gateway: RunningGateway, replica: ScriptedReplica, data: bytes, bytewise: bool
) -> None:
    before = len(replica.seen)
    with gateway.connect() as sock:
        try:
            if bytewise:
                for at in range(len(data)):
                    sock.sendall(data[at : at + 1])
                sock.sendall(post())
            else:
                sock.sendall(data + post())
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused before all of it was sent
        try:
            answer = read_all(sock)
        except ConnectionResetError:
            answer = b"HTTP/1.1 4xx reset"
    assert len(re.findall(rb"HTTP/1.1 \d|HTTP/1.1 4xx", answer)) == 1, answer
    assert answer[9:10] in (b"4", b"5")
    assert len(replica.seen) == before


@pytest.mark.parametrize("number", [2, 5, 40])
def test_requests_sent_ahead_are_answered_in_turn(
    gateway: RunningGateway, replica: ScriptedReplica, number: int
) -> None:
    models = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    with gateway.connect() as sock:
        sock.sendall(b"".join(post() if at % 2 else models for at in range(number)) + post(BODY, b"connection: close"))
        answers = read_all(sock)
    kinds = [b'"list"' in part for part in answers.split(b"HTTP/1.1 200 OK")[1:]]
    assert kinds == [at % 2 == 0 for at in range(number)] + [False]


def test_a_slow_answer_is_not_passed_by_a_quick_one(gateway: RunningGateway, replica: ScriptedReplica) -> None:
    replica.go_on.clear()
    before = len(replica.seen)
    with gateway.connect() as sock:
        sock.sendall(post(BODY, b"x-test: slow") + post(BODY, b"x-test: status:400:second", b"connection: close"))
        replica.wait_for(before + 1)
        assert len(replica.seen) == before + 1, "one request at a time"
        replica.go_on.set()
        answers = read_all(sock)
    assert [line[:3] for line in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]


def test_what_is_sent_ahead_is_bounded(gateway: RunningGateway, replica: ScriptedReplica) -> None:
    replica.go_on.clear()
    before = len(replica.seen)
    with gateway.connect() as sock:
        sock.sendall(post(BODY, b"x-test: slow"))
        replica.wait_for(before + 1)
        sock.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 * 2**20:
                sent += sock.send(post() * 1000)
        replica.go_on.set()
        gateway.until(lambda each: all(len(client._held) < 1_000_000 for client in each.clients))


@pytest.mark.parametrize("size", [65_000, 70_000, 300_000])
def test_a_head_of_64_kb_is_taken_and_no_longer_one(gateway: RunningGateway, size: int) -> None:
    with gateway.connect() as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"a" * size + b"\r\n\r\n")
        status = read_answer(sock)[0]
    assert status == (200 if size < 65_536 else 431)


def test_many_small_headers_are_refused(gateway: RunningGateway) -> None:
    with gateway.connect() as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 300 + b"\r\n")
        assert read_answer(sock)[0] == 431


def test_a_body_over_32_mib_is_refused_by_what_it_says_and_by_what_comes(gateway: RunningGateway) -> None:
    with gateway.connect() as sock:
        sock.sendall(post(b"", length=b"33554433"))
        assert read_answer(sock)[0] == 413
    with gateway.connect() as sock:
        sock.sendall(head(POST, HOST, CHUNKED))
        chunk = b"1000000\r\n" + b"a" * 0x1000000 + b"\r\n"
        try:
            for _ in range(4):
                sock.sendall(chunk)
            sock.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            return
        assert read_answer(sock)[0] == 413


def test_a_body_in_chunks_is_put_together(gateway: RunningGateway, replica: ScriptedReplica) -> None:
    parts = [BODY[:7], BODY[7:8], BODY[8:]]
    with gateway.connect() as sock:
        data = (
            head(POST, HOST, CHUNKED) + b"".join(b"%X\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        )
        for at in range(len(data)):
            sock.sendall(data[at : at + 1])
        assert read_answer(sock)[0] == 200
        sock.sendall(data)
        assert read_answer(sock)[0] == 200, "where it ends is known"
    assert replica.seen[-1].body == BODY


def test_who_waits_for_a_go_ahead_gets_it(gateway: RunningGateway) -> None:
    with gateway.connect() as sock:
        sock.sendall(post(b"", b"expect: 100-continue", length=str(len(BODY)).encode()))
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        sock.sendall(BODY)
        assert read_answer(sock)[0] == 200


def test_http_1_0_is_answered_and_the_connection_ends(gateway: RunningGateway) -> None:
    stream = BODY[:-1] + b',"stream":true}'
    with gateway.connect() as sock:
        size = str(len(stream)).encode()
        sock.sendall(head(b"POST /v1/chat/completions HTTP/1.0", b"content-length: " + size) + stream)
        answer = read_all(sock)
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b'"x"', b"{", b'{"model"', b'{"model":"m"', b'{"model":"m",}', b'{"model":"m"}x',
        b"\xff\xfe", b'{"model":"m","mod\\u0065l":"n"}',
        b'{"model":1}', b'{"model":""}', b'{"messages":[]}', b'{"model":"m","model":"n"}',
        b"[" * 100_000, b'{"a":' + b"[" * 100_000, b'{"model":"m","x":' + b"9" * 5_000 + b"}",
        b'{"model":"' + b"m" * 300 + b'"}',
        b"{'model':'m'}",
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_request_is_refused_in_openais_shape(
    gateway: RunningGateway, replica: ScriptedReplica, body: bytes
) -> None:
    before = len(replica.seen)
    with gateway.connect() as sock:
        sock.sendall(post(body))
        status, _, answer = read_answer(sock)
        sock.sendall(post())
        assert read_answer(sock)[0] == 200, "the connection goes on"
    assert status == 400
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}
    assert len(replica.seen) == before + 1


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"POST /invocations", 404),
        (b"GET /docs", 404),
        (b"POST /v1/load_lora_adapter", 404),
        (b"POST /v1/chat/completions/../../x", 404),
        (b"POST /v1//chat/completions", 404),
        (b"GET /v1/chat/completions", 405),
        (b"DELETE /v1/models/m", 405),
        (b"GET /health", 200),
        (b"GET /metrics", 200),
    ],
)
def test_only_the_paths_of_models_lead_to_replicas(gateway: RunningGateway, line: bytes, status: int) -> None:
    with gateway.connect() as sock:
        sock.sendall(line + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert read_answer(sock)[0] == status


def test_a_form_needs_one_model(gateway: RunningGateway) -> None:
    part = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
    for body, status in ((part + b"--x--\r\n", 200), (part * 2 + b"--x--\r\n", 400), (b"--x--\r\n", 400)):
        with gateway.connect() as sock:
            lines = head(
                b"POST /v1/audio/transcriptions HTTP/1.1", HOST, b"content-type: multipart/form-data; boundary=x",
                b"content-length: " + str(len(body)).encode(),
            )  # fmt: skip
            sock.sendall(lines + body)
            assert read_answer(sock)[0] == status


def test_nothing_is_left_of_all_that(gateway: RunningGateway) -> None:
    gateway.until(lambda each: each.requests_in_hand == 0 and each._bodies == 0)
    running: Any = gateway.ask(
        lambda each: [
            load for service in each.services.values() for load in service.router.loads.values() if load.requests
        ]
    )
    assert running == []
