from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import MalformedBody
from actorgrid.objects.layout import ALIGN_BYTES, OWN_COPY, find_parts, lay_out


def written(laid: Any) -> bytearray:
    return bytearray(b"".join(laid.parts))


@given(
    st.lists(st.binary(max_size=50), max_size=3),
    st.lists(st.tuples(st.binary(max_size=200), st.booleans()), max_size=5),
)
def test_what_is_laid_out_is_found_again_and_lies_aligned(
    pickled: list[bytes], buffers: list[tuple[bytes, bool]]
) -> None:
    laid = lay_out(pickled, [(memoryview(data), OWN_COPY if own else 0) for data, own in buffers])
    data = written(laid)
    assert len(data) == laid.size
    found, places = find_parts(memoryview(data))
    assert bytes(found) == b"".join(pickled)
    assert [(bytes(data[at.offset : at.offset + at.size]), bool(at.flags)) for at in places] == buffers
    assert all(at.offset % ALIGN_BYTES == 0 for at in places)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_harmless(data: bytes) -> None:
    try:
        find_parts(memoryview(data))
    except MalformedBody:
        return
    assert data.startswith(b"AGO1")


def test_a_cut_object_is_refused() -> None:
    data = written(lay_out([pickle.dumps(1)], [(memoryview(b"x" * 100), 0)]))
    for cut in range(len(data)):
        with pytest.raises(MalformedBody):
            find_parts(memoryview(data)[:cut])
