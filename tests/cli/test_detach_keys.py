"""The keys that leave a terminal, among what is typed."""

from __future__ import annotations

import pytest

from actorgrid.cli.detach_keys import DetachKeys
from actorgrid.errors import BadRequest


def typed(keys: DetachKeys, *pieces: bytes) -> tuple[bytes, bool]:
    found = b""
    for piece in pieces:
        more, leaves = keys.feed(piece)
        found += more
        if leaves:
            return found, True
    return found, False


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ((b"ls\r",), (b"ls\r", False)),
        ((b"ls\x1dd",), (b"ls", True)),
        ((b"ls\x1d", b"d"), (b"ls", True)),
        ((b"\x1d", b"x"), (b"\x1dx", False)),
        ((b"\x1d\x1dd",), (b"\x1d", True)),
        ((b"\x1d",), (b"", False)),
        ((bytes(range(256)) * 2,), (bytes(range(256)) * 2, False)),
    ],
)
def test_the_sequence_leaves_and_a_beginning_of_it_is_typed(
    pieces: tuple[bytes, ...], found: tuple[bytes, bool]
) -> None:
    assert typed(DetachKeys(), *pieces) == found


def test_other_keys_may_be_named() -> None:
    assert typed(DetachKeys("ctrl-p,ctrl-q"), b"a\x10\x11") == (b"a", True)
    assert typed(DetachKeys("~,."), b"a~~.") == (b"a~", True)
    assert typed(DetachKeys("ctrl-p,ctrl-p,q"), b"\x10\x10\x10q") == (b"\x10", True)


@pytest.mark.parametrize("text", ["", "ctrl-", "ctrl-1", "ab", "ctrl-],", "ü"])
def test_what_is_no_sequence_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="no sequence of keys"):
        DetachKeys(text)
