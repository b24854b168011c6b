"""Who chats in the demo: the official client and our small one see the same of good, failing and broken servers."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actorgrid.demo.chat_clients import ChatClient, ChatUsage, OfficialClient, SmallClient, SpokenTurn, chat_client
from actorgrid.errors import AnswerBroken, HostUnreachable

from .served import Parrot, Served, serving


@pytest.fixture(scope="module")
def parrot() -> Iterator[Served]:
    with serving(Parrot) as served:
        yield served


@pytest.fixture(params=[OfficialClient, SmallClient])
def chat(request: pytest.FixtureRequest) -> ChatClient:
    made: ChatClient = request.param()
    return made


def said(text: str) -> list[SpokenTurn]:
    return [SpokenTurn("user", text)]


def test_an_answer_comes_in_pieces_with_its_usage(chat: ChatClient, parrot: Served) -> None:
    found = list(chat.stream(f"{parrot.url}/v1", "parrot", said("a b c"), 10, 1))
    assert found == ["a", " b", " c", ChatUsage(5, 2, 3)]


def test_what_was_not_begun_is_told_apart_from_what_broke(chat: ChatClient, parrot: Served) -> None:
    with pytest.raises(HostUnreachable, match="as it was told"):
        list(chat.stream(f"{parrot.url}/v1", "parrot", said("fail at once"), 10, 1))
    with pytest.raises(HostUnreachable, match="does not exist"):
        list(chat.stream(f"{parrot.url}/v1", "other", said("x"), 10, 1))
    pieces = []
    with pytest.raises(AnswerBroken, match="as it was told"):
        for piece in chat.stream(f"{parrot.url}/v1", "parrot", said("so far FAIL"), 10, 1):
            pieces.append(piece)
    assert pieces == ["so", " far"]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = (
    b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@contextmanager
def says(answer: bytes) -> Iterator[str]:
    """A server that gives each of its clients *answer*, whatever they ask, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(30)


@pytest.mark.parametrize(
    "answer, error",
    [
        (b"", HostUnreachable),
        (b"nonsense\r\n\r\n", HostUnreachable),
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", HostUnreachable),
        (HEAD, HostUnreachable),
        (HEAD + chunk(PIECE), AnswerBroken),
        (HEAD + chunk(PIECE) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n", AnswerBroken),
        (HEAD + chunk(PIECE) + chunk(b'data: {"error":{"message":"cut"}}\n\n') + b"0\r\n\r\n", AnswerBroken),
    ],
)
def test_servers_that_break_off_are_named_errors(chat: ChatClient, answer: bytes, error: type[Exception]) -> None:
    with says(answer) as url, pytest.raises(error):
        list(chat.stream(url, "m", said("x"), 10, 1))


@pytest.mark.parametrize(
    "data", [b"data: {\n\n", b"data: []\n\n", b'data: {"choices": 5}\n\n', b'data: {"choices": [], "usage": {}}\n\n']
)
def test_the_small_client_survives_what_is_no_chunk(data: bytes) -> None:
    with says(HEAD + chunk(data) + b"0\r\n\r\n") as url, pytest.raises((HostUnreachable, AnswerBroken)):
        list(SmallClient().stream(url, "m", said("x"), 10, 1))


def test_the_official_client_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(chat_client(), OfficialClient)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert isinstance(chat_client(), SmallClient)
