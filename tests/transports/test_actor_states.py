"""States of actors in pieces: all that was saved comes whole, in its order, and nothing else is taken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import MalformedBody
from actorgrid.transports import actor_states
from actorgrid.transports.actor_states import STATE_BYTES_MAX, SavedState, StateJoiner, state_pieces


@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(1, 9))
def test_states_come_as_they_were(states: list[bytes], piece_bytes: int) -> None:
    whole = actor_states.PIECE_BYTES
    actor_states.PIECE_BYTES = piece_bytes
    try:
        joiner = StateJoiner()
        for number, data in enumerate(states, 1):
            *before, last = [joiner.feed(piece) for piece in state_pieces(number, data)]
            assert before == [None] * len(before)
            assert last == SavedState(number, data)
    finally:
        actor_states.PIECE_BYTES = whole


@pytest.mark.parametrize(
    "piece",
    [
        b"short",
        struct.pack("<II", 2, 1) + b"a",  # not the next one
        struct.pack("<II", 1, 1) + b"ab",  # more than it says
        struct.pack("<II", 1, STATE_BYTES_MAX + 1),
    ],
)
def test_what_is_no_piece_is_refused(piece: bytes) -> None:
    with pytest.raises(MalformedBody):
        StateJoiner().feed(piece)
