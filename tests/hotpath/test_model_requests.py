"""The readers of usual heads and of members, compiled and plain: the same answers to the same bytes, however wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from actorgrid.hotpath import model_requests
from actorgrid.hotpath.reference import http_head, json_members

HEADS: list[Any] = [http_head]
MEMBERS: list[Any] = [json_members]
if model_requests.REQUESTS_COMPILED:
    import actorgrid.hotpath.http_head as compiled_head
    import actorgrid.hotpath.json_members as compiled_members

    HEADS.append(compiled_head)
    MEMBERS.append(compiled_members)

KINDS = model_requests.KINDS | {b"cookie": model_requests.NOT_PASSED}
OURS = (b"x-ours-",)
ASKED = (
    b"POST /v1/chat?a=b HTTP/1.1\r\nHost: x\r\nCookie: c\r\nX-Ours-A: 1\r\nAccept:  a/b\r\nAccept: c d\r\n"
    b"Connection: Keep-Alive\r\nContent-Length: 12\r\n\r\nrest"
)
ANSWERED = b"HTTP/1.1 200 OK\r\nContent-Type: a\r\nDate: today\r\ncontent-length: 0\r\n\r\n"
PIECES = [
    b"\r\n",
    b"\r",
    b"\n",
    b":",
    b" ",
    b"\t",
    b"\0",
    b"\xff",
    b"?",
    b"#",
    b"1",
    b"Host: y\r\n",
    b"content-length: 1\r\n",
]
PIECES += [
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b" HTTP/1.0",
    b"GET ",
    b"A" * 300,
    b"204",
    b"-",
    b"a:b\r\n",
]


def mutants(text: bytes, count: int) -> list[bytes]:
    """*text* with pieces put in, taken out and written over, the same each time."""
    random = Random(7)
    found = [text[:end] for end in range(len(text) + 1)]
    for _ in range(count):
        changed = text
        for _ in range(random.choice((1, 1, 2, 4))):
            at = random.randrange(len(changed) + 1)
            changed = changed[:at] + random.choice(PIECES) + changed[at + random.choice((0, 0, 1, 3)) :]
        found.append(changed)
    return found


@pytest.mark.parametrize("module", HEADS)
def test_a_usual_request_is_taken_apart(module: Any) -> None:
    found = module.read_usual_head(ASKED, KINDS, OURS)
    assert (found.size, found.method, found.target) == (len(ASKED) - 4, b"POST", b"/v1/chat?a=b")
    assert (found.path, found.query, found.content_length) == ("/v1/chat", b"a=b", 12)
    assert found.passed == b"accept: a/b\r\naccept: c d\r\n"
    assert found.first[b"accept"] == b"a/b" and found.headers[0] == (b"host", b"x") and len(found.headers) == 7


@pytest.mark.parametrize("module", HEADS)
def test_a_usual_answer_is_taken_apart(module: Any) -> None:
    found = module.read_usual_answer(ANSWERED, KINDS, OURS)
    assert (found.size, found.status, found.content_length) == (len(ANSWERED), 200, 0)
    assert found.passed == b"content-type: a\r\ndate: today\r\n"


@pytest.mark.parametrize("module", HEADS)
@pytest.mark.parametrize(
    "old, new",
    [
        (b"POST", b"PUT"), (b" HTTP/1.1", b" HTTP/1.0"), (b"/v1", b"v1"), (b"/v1", b"/v1#"), (b"?a=b", b"?"),
        (b"Host: x\r\n", b""), (b"Cookie", b"Host"), (b"Cookie: c", b"Transfer-Encoding: chunked"), (b"12", b"+12"),
        (b"12", b"1" * 16), (b"Cookie: c", b"Content-Length: 12"), (b"Keep-Alive", b"close"),
        (b"Cookie:", b"Cookie :"), (b"a/b", b"\xe4"), (b"a/b", b"a\0b"), (b"a/b\r\n", b"a/b \r\n"),
        (b"a/b\r\n", b"a\r\n b\r\n"), (b"a/b\r\n", b"a\n"), (b"a/b", b""), (b"Cookie: c", b"Expect: 100-continue"),
        (b"Cookie: c\r\n", b"A: b\r\n" * 251),
    ],
)  # fmt: skip
def test_what_is_not_usual_is_left_to_others(module: Any, old: bytes, new: bytes) -> None:
    assert old in ASKED
    assert module.read_usual_head(ASKED.replace(old, new), KINDS, OURS) is None


@pytest.mark.parametrize("module", HEADS)
@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 204 No", b"HTTP/1.1 304 No", b"HTTP/1.1 100 Go", b"HTTP/1.0 200 OK", b"HTTP/1.1 2000"]
)
def test_answers_without_a_body_of_a_known_length_are_left_to_others(module: Any, line: bytes) -> None:
    assert module.read_usual_answer(ANSWERED.replace(b"HTTP/1.1 200 OK", line), KINDS, OURS) is None
    assert module.read_usual_answer(ANSWERED.replace(b"content-length: 0\r\n", b""), KINDS, OURS) is None


@pytest.mark.skipif(len(HEADS) < 2, reason="the kernels are not compiled")
def test_the_compiled_readers_of_heads_answer_as_the_plain_ones() -> None:
    taken = 0
    for name, text in (("read_usual_head", ASKED), ("read_usual_answer", ANSWERED)):
        plain, compiled = (getattr(module, name) for module in HEADS)
        for data in mutants(text, 4_000):
            expected = plain(data, KINDS, OURS)
            assert compiled(data, KINDS, OURS) == expected, data
            taken += expected is not None
    assert 500 < taken < 4_000, "both ways are tried"


def read(module: Any, text: str) -> object:
    try:
        return module.json_members(text)
    except (ValueError, StopIteration, IndexError, RecursionError):
        return "refused"


@pytest.mark.parametrize("module", MEMBERS)
@pytest.mark.parametrize(
    "text, names",
    [
        ("{}", []), (' {"a" : 1 , "b":[{"a":2}]}\n', ["a", "b"]), ('{"\\u0061":"\\"}{"}', ["a"]), ('{"ä":"ö"}', ["ä"]),
        ('{"a":1e999,"b":NaN}', ["a", "b"]), ("", None), ("{", None), ('{"a"', None), ('{"a":', None), ('{"a":1', None),
        ('{"a":1,', None), ('{"a":1,}', None), ('{"a":1}x', None), ('{"a":1}{}', None), ('{"a":1,"a":1}', None),
        ('{"a":1,"\\u0061":1}', None), ("{a:1}", None), ('{"a" 1}', None), ('{"a":1 "b":2}', None), ("[]", None),
        ('{"a":tru}', None), ('{"a":"\n"}', None), ("\ufeff{}", None), ("{\x0b}", None),
        ('{"a":' + "[" * 100_000, None),
    ],
)  # fmt: skip
def test_members_are_those_of_one_object_or_it_is_refused(module: Any, text: str, names: list[str] | None) -> None:
    found = read(module, text)
    if names is None:
        assert found == "refused"
        return
    assert isinstance(found, dict) and list(found) == names
    for member in found.values():
        repeated = json.dumps(json.loads(text[member.start : member.end]))
        assert repeated == json.dumps(member.value)


@pytest.mark.skipif(len(MEMBERS) < 2, reason="the kernels are not compiled")
def test_the_compiled_reader_of_members_answers_as_the_plain_one() -> None:
    text = (
        '{"model": "m", "messages": [{"role": "user", "content": "h\\u00e4\\n"}], "stream" : true, "n": -1e3, "ö": 0}'
    )
    random = Random(3)
    marks = ['"', "{", "}", "[", "]", ",", ":", " ", "\\", "\n", "\0", "1", "e", "\u20ac", "true"]
    for _ in range(6_000):
        changed = text
        for _ in range(random.choice((1, 1, 2))):
            at = random.randrange(len(changed) + 1)
            changed = changed[:at] + random.choice(marks) + changed[at + random.choice((0, 1, 1, 2)) :]
        expected = read(MEMBERS[0], changed)
        assert repr(read(MEMBERS[1], changed)) == repr(expected), changed


@pytest.mark.skipif(len(MEMBERS) < 2, reason="the kernels are not compiled")
@pytest.mark.parametrize(
    "call", [lambda: compiled_members.json_members(None), lambda: compiled_head.read_usual_head(None, {}, ())]
)
def test_nothing_is_no_text(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()
