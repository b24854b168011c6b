"""The frames of channels: what is written is read, and what is none is refused, whoever sends it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import ActorGridError, FrameTooLarge, MalformedBody
from actorgrid.transports.channel_frames import (
    COMMAND_WORDS_MAX,
    VARIABLES_MAX,
    AskPorts,
    AttachToTerminal,
    ChannelEnding,
    ConnectToPort,
    ExecCommand,
    InputEnd,
    InputPiece,
    Resize,
    SignalCommand,
    TerminalSize,
    encode_end,
    encode_input,
    encode_resize,
    encode_signal,
    parse_client_frame,
    parse_ending,
    parse_purpose,
)
from actorgrid.transports.frames import FrameDecoder


def read(data: bytes) -> list[Any]:
    (frame,) = FrameDecoder().feed(data)
    return frame


@pytest.mark.parametrize(
    "purpose",
    [
        AttachToTerminal(),
        AttachToTerminal(TerminalSize(24, 80), 0),
        AttachToTerminal(history_bytes=4096),
        ExecCommand(("sh",)),
        ExecCommand(("sh", "-c", "größe"), (("TERM", "xterm"), ("A", "")), TerminalSize(1, 10_000)),
        ConnectToPort(65_535),
        AskPorts(),
    ],
)
def test_a_purpose_is_read_as_it_was_written(purpose: Any) -> None:
    assert parse_purpose(read(purpose.frame())) == purpose


def test_what_a_client_says_later_is_read_as_it_was_written() -> None:
    assert parse_client_frame(read(encode_input(b"\x00\xff"))) == InputPiece(b"\x00\xff")
    assert parse_client_frame(read(encode_end())) == InputEnd()
    assert parse_client_frame(read(encode_resize(TerminalSize(5, 6)))) == Resize(TerminalSize(5, 6))
    assert parse_client_frame(read(encode_signal(2))) == SignalCommand(2)
    ending = ChannelEnding(None, 9, "job_ended")
    assert parse_ending(read(ending.frame())[1]) == ending


@pytest.mark.parametrize(
    "frame",
    [
        ["exec", {"command": [], "env": {}, "size": None}],
        ["exec", {"command": [""], "env": {}, "size": None}],
        ["exec", {"command": ["a\0b"], "env": {}, "size": None}],
        ["exec", {"command": [1], "env": {}, "size": None}],
        ["exec", {"command": ["a"] * (COMMAND_WORDS_MAX + 1), "env": {}, "size": None}],
        ["exec", {"command": ["a"], "env": {"a=b": "c"}, "size": None}],
        ["exec", {"command": ["a"], "env": {"": "c"}, "size": None}],
        ["exec", {"command": ["a"], "env": {"a": 1}, "size": None}],
        ["exec", {"command": ["a"], "env": {str(n): "" for n in range(VARIABLES_MAX + 1)}, "size": None}],
        ["exec", {"command": ["a"], "env": {}, "size": [0, 80]}],
        ["exec", {"command": ["a"], "env": {}, "size": [24, 10_001]}],
        ["exec", {"command": ["a"], "env": {}}],
        ["attach", {"size": None, "history_bytes": -1}],
        ["attach", {"size": "24x80", "history_bytes": None}],
        ["connect", {"port": 0}],
        ["connect", {"port": 65_536}],
        ["connect", {"port": "22"}],
        ["ports", 1],
        ["unheard of"],
    ],
)
def test_what_is_no_purpose_is_refused(frame: list[Any]) -> None:
    with pytest.raises(MalformedBody):
        parse_purpose(frame)


def test_a_command_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with pytest.raises(FrameTooLarge):
        ExecCommand(("sh", "x" * 300_000)).frame()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(["attach", "exec", "connect", "ports", "in", "end", "size", "signal", "x"])


@given(KINDS, st.lists(PLAIN, max_size=3))
def test_no_frame_does_more_than_be_refused(kind: str, rest: list[Any]) -> None:
    for parse in (parse_purpose, parse_client_frame):
        try:
            parse([kind, *rest])
        except ActorGridError:
            continue
