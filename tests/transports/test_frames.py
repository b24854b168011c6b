from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import FrameTooLarge, MalformedBody, TaskFailed, WrongToken
from actorgrid.transports import task_frames
from actorgrid.transports.frames import FrameDecoder, encode_frame

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.text(max_size=10), plain), max_size=6), st.lists(st.integers(1, 40), max_size=60))
def test_frames_survive_any_cutting_of_the_stream(messages: list[tuple[str, Any]], cuts: list[int]) -> None:
    sent = [[kind, value] for kind, value in messages]
    stream = b"".join(encode_frame(fields) for fields in sent)
    decoder, received, at = FrameDecoder(), [], 0
    for size in cuts:
        received += decoder.feed(stream[at : at + size])
        at += size
    received += decoder.feed(stream[at:])
    assert received == sent
    assert decoder.pending_bytes == 0


def test_too_large_a_frame_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameTooLarge):
        FrameDecoder(max_bytes=100).feed(struct.pack(">I", 101))


def test_too_large_a_frame_is_not_sent() -> None:
    with pytest.raises(FrameTooLarge):
        encode_frame(["x", b"0" * 200], max_bytes=100)
    assert FrameDecoder().feed(encode_frame(["x", b""])) == [["x", b""]]


@given(st.binary(max_size=200))
def test_garbage_gives_a_named_error_or_frames(data: bytes) -> None:
    try:
        frames = FrameDecoder(max_bytes=64).feed(struct.pack(">I", min(len(data), 64)) + data)
    except (MalformedBody, FrameTooLarge):
        return
    assert all(isinstance(frame, list) and isinstance(frame[0], str) for frame in frames)


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x90", b"\x91\x01", b"\xc1", b"\x92\xa1x", b"\x91" * 5000 + b"\xa1x"])
def test_a_body_that_is_no_frame_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        FrameDecoder().feed(struct.pack(">I", len(body)) + body)


def decoded(data: bytes) -> list[Any]:
    (frame,) = FrameDecoder().feed(data)
    return frame


def test_every_client_frame_comes_back_as_it_was_sent() -> None:
    fn_id = task_frames.fn_id_of(b"code")
    assert len(fn_id) == task_frames.FN_ID_BYTES
    for data, expected in [
        (task_frames.encode_hello("s", "3.11", "me"), task_frames.ClientHello(1, "s", "3.11", "me")),
        (task_frames.encode_function(fn_id, b"code"), task_frames.TaughtFunction(fn_id, b"code")),
        (task_frames.encode_task(7, fn_id, b"args", 1.5), task_frames.TaskFrame(7, fn_id, b"args", 1.5)),
        (task_frames.encode_task(8, fn_id, b""), task_frames.TaskFrame(8, fn_id, b"", None)),
        (task_frames.encode_task(9, fn_id, b"", None, 3), task_frames.TaskFrame(9, fn_id, b"", None, 3)),
        (
            task_frames.encode_task(9, fn_id, b"", None, 1, (3, 7)),
            task_frames.TaskFrame(9, fn_id, b"", None, 1, (3, 7)),
        ),
        (task_frames.encode_value(3, b"v"), task_frames.InputValue(3, b"v")),
        (
            task_frames.encode_task(9, fn_id, b"", None, 1, (), task_frames.TaskAbout("nightly", 2, "s.4")),
            task_frames.TaskFrame(9, fn_id, b"", None, 1, (), task_frames.TaskAbout("nightly", 2, "s.4")),
        ),
        (task_frames.encode_more(7, 3), task_frames.MoreItems(7, 3)),
        (task_frames.encode_cancel(7), task_frames.CancelTask(7)),
        (task_frames.encode_recall(), task_frames.Recall()),
    ]:
        assert task_frames.parse_client_frame(decoded(data)) == expected


def test_every_worker_frame_comes_back_as_it_was_sent() -> None:
    for data, expected in [
        (
            task_frames.encode_welcome("w", "3.11", 4, ["GPU-1"]),
            task_frames.ClientWelcome("w", "3.11", 4, ["GPU-1"], True, True, True, True),
        ),
        (
            task_frames.encode_recalled([3, 1]),
            task_frames.Recalled([3, 1]),
        ),
        (task_frames.encode_success(1, b"v"), task_frames.Result(1, task_frames.OK, b"v")),
        (task_frames.encode_item(1, b"v"), task_frames.StreamItem(1, b"v")),
        (task_frames.encode_output(1, "stderr", b"oh\n"), task_frames.Output(1, "stderr", b"oh\n")),
    ]:
        assert task_frames.parse_worker_frame(decoded(data)) == expected
    refused = task_frames.parse_worker_frame(decoded(task_frames.encode_refused(WrongToken("no"))))
    assert isinstance(refused, task_frames.ClientRefused)
    assert isinstance(refused.error, WrongToken)


def test_a_failure_carries_error_and_exception() -> None:
    frame = decoded(task_frames.encode_failure(3, TaskFailed("boom", traceback="Traceback ..."), b"pickled"))
    result = task_frames.parse_worker_frame(frame)
    assert isinstance(result, task_frames.Result)
    assert result.status == task_frames.FAILED
    error, exception = task_frames.decode_failure_body(result.body)
    assert isinstance(error, TaskFailed)
    assert error.remote_traceback == "Traceback ..."
    assert exception == b"pickled"


@given(plain)
def test_frames_outside_the_protocol_are_malformed(value: Any) -> None:
    for kind in ("task", "hello", "function", "cancel", "result", "welcome", "what"):
        if kind == "cancel" and isinstance(value, int):
            continue
        with pytest.raises(MalformedBody):
            task_frames.parse_client_frame([kind, value])
        with pytest.raises(MalformedBody):
            task_frames.parse_worker_frame([kind, value])


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf"), True])
def test_a_senseless_timeout_is_malformed(timeout_s: Any) -> None:
    with pytest.raises(MalformedBody):
        task_frames.parse_client_frame(["task", 1, b"0" * 16, b"", timeout_s if timeout_s is not True else "x"])


def test_a_result_file_holds_value_or_error() -> None:
    assert task_frames.decode_result(task_frames.encode_result(b"v")) == task_frames.JobResult(True, b"v", None, None)
    failed = task_frames.decode_result(task_frames.encode_result(error=TaskFailed("no"), exception=b"e"))
    assert not failed.ok
    assert isinstance(failed.error, TaskFailed)
    assert failed.exception == b"e"
    for junk in (b"", b"\x80", msgpack.packb([1]), msgpack.packb({"ok": True, "value": None})):
        with pytest.raises(MalformedBody):
            task_frames.decode_result(junk)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"name": "x" * 201, "retries_left": 1, "parent": "", "window": 0},
        {"name": "", "retries_left": -1, "parent": "", "window": 0},
        {"name": "", "retries_left": 10**9, "parent": "", "window": 0},
        {"name": "", "retries_left": 1, "parent": b"s.1", "window": 0},
        {"name": "", "retries_left": 1, "parent": "", "window": 10**6},
        {"name": "", "retries_left": 1, "parent": ""},
    ],
)
def test_what_is_said_about_a_task_is_bounded(about: Any) -> None:
    with pytest.raises(MalformedBody):
        task_frames.parse_client_frame(["task", 1, b"0" * 16, b"", None, 1, [], about])


@pytest.mark.parametrize("count", [0, -1, 10**6, "3"])
def test_a_senseless_grant_is_malformed(count: Any) -> None:
    with pytest.raises(MalformedBody):
        task_frames.parse_client_frame(["more", 1, count])
