"""The items of a step are the same however their bytes come."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.dag.step_items import MAGIC, ItemReader, is_items, item, items_of
from actorgrid.errors import MalformedBody


@given(st.lists(st.binary(max_size=40), max_size=10), st.lists(st.integers(0, 500), max_size=8))
def test_items_are_the_same_however_their_bytes_are_cut(contents: list[bytes], cuts: list[int]) -> None:
    data = MAGIC + b"".join(map(item, contents))
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader, found = ItemReader(), []
    for first, last in itertools.pairwise(places):
        found += reader.feed(data[first:last])
    assert found == contents == list(items_of(data))
    assert reader.is_whole and reader.position == len(data) and is_items(data)


@pytest.mark.parametrize("data", [b"", b"AGfiles1", MAGIC[:3], MAGIC + b"\0", MAGIC + b"\0\0\0\5abc", b"\x80"])
def test_what_are_no_items_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBody):
        list(items_of(data))
