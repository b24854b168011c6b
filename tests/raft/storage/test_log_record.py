"""Records and segment headers as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.raft.messages import Entry, HardState
from actorgrid.actors.raft.storage.log_record import (
    COMMANDS,
    CUT,
    ENTRIES,
    HARD_STATE,
    RECORD_DATA_MAX,
    RECORD_ENTRIES_MAX,
    SEGMENT_HEADER_BYTES,
    Damage,
    LogRecord,
    chain_before,
    decode_record,
    decode_segment_header,
    encode_entries,
    encode_hard_state,
    encode_record,
    encode_segment_header,
    entries_of,
    hard_state_of,
    last_index_after,
    record_length,
)


def numbered(rows: Sequence[tuple[int, str, bytes]]) -> list[Entry]:
    terms = sorted(term for term, _, _ in rows)
    return [Entry(i, t, k, d) for i, (t, (_, k, d)) in enumerate(zip(terms, rows, strict=True), 7)]  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.sampled_from(["command", "conf_change"]), st.binary(max_size=700)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 2**32 - 1),
)
def test_entries_come_back_as_they_went_in(rows: list[tuple[int, str, bytes]], chain: int) -> None:
    entries = numbered(rows)
    ((whole, data, after),) = encode_entries(entries, chain)
    assert whole == entries
    record, end, end_chain = decode_record(data, 0, chain)
    assert (end, end_chain) == (len(data), after)
    assert entries_of(record) == entries
    assert len(data) % 8 == 0
    assert record_length(data[:32], 2) == len(data)
    assert chain_before(data[-8:], False) == after
    assert last_index_after(record, 6) == entries[-1].index


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_hard_state_comes_back_as_it_went_in(term: int, vote: int, commit: int) -> None:
    data, after = encode_hard_state(HardState(term, vote, commit), 5)
    record, _, chain = decode_record(data, 0, 5)
    assert hard_state_of(record) == HardState(term, vote, commit)
    assert chain == after
    assert last_index_after(record, 6) == 6


@given(st.binary(max_size=300))
def test_bytes_that_are_no_record_are_damage_and_nothing_else(data: bytes) -> None:
    for decode in (lambda: decode_record(data, 0, 0), lambda: decode_segment_header(data)):
        with pytest.raises(Damage):
            decode()


@given(st.sampled_from([COMMANDS, ENTRIES]), st.binary(max_size=100))
def test_a_wrong_payload_is_damage_and_nothing_else(kind: int, payload: bytes) -> None:
    record = LogRecord(kind, 1, 1, payload)
    try:
        found = entries_of(record)
    except Damage:
        return
    assert [entry.index for entry in found] == list(range(1, len(found) + 1))
    assert sum(len(entry.data) for entry in found) <= len(payload)


def test_a_hard_state_of_another_shape_is_damage() -> None:
    with pytest.raises(Damage):
        hard_state_of(LogRecord(HARD_STATE, 1, 1, b"vote"))


def test_a_record_of_an_unknown_kind_is_damage() -> None:
    data, _ = encode_record(CUT, 5, 2, b"", 0)
    assert decode_record(data, 0, 0)[0].kind == CUT
    data, _ = encode_record(9, 5, 2, b"", 0)
    with pytest.raises(Damage) as caught:
        decode_record(data, 0, 0)
    assert not caught.value.torn


def test_many_entries_or_much_data_take_several_records() -> None:
    def parts(entries: list[Entry]) -> list[int]:
        found, chain = encode_entries(entries, 7), 7
        for each, data, after in found:
            record, _, chain = decode_record(data, 0, chain)
            assert chain == after
            assert entries_of(record) == each
        assert [entry for each, _, _ in found for entry in each] == entries
        return [len(each) for each, _, _ in found]

    small = [Entry(number, 1, "command", b"x") for number in range(1, 2 * RECORD_ENTRIES_MAX + 2)]
    assert parts(small) == [RECORD_ENTRIES_MAX, RECORD_ENTRIES_MAX, 1]
    assert parts(small[:RECORD_ENTRIES_MAX]) == [RECORD_ENTRIES_MAX]
    large = [replace(entry, data=bytes(RECORD_DATA_MAX * 2 // 3)) for entry in small[:3]]
    assert parts(large) == [1, 1, 1]
    huge = [replace(small[0], data=bytes(3 * RECORD_DATA_MAX)), small[1]]
    assert parts(huge) == [1, 1]
    assert parts([small[0], replace(huge[0], index=2)]) == [1, 1]


def test_commands_of_one_term_take_the_shorter_form() -> None:
    entries = [Entry(number, 3, "command", b"abc") for number in range(1, 10)]
    assert decode_record(encode_entries(entries, 0)[0][1], 0, 0)[0].kind == COMMANDS
    mixed = [*entries, Entry(10, 3, "conf_change", b"")]
    assert decode_record(encode_entries(mixed, 0)[0][1], 0, 0)[0].kind == ENTRIES


def test_a_segment_header_knows_its_place() -> None:
    header = decode_segment_header(encode_segment_header(77, 60, 4, 12345))
    assert (header.number, header.base_index, header.base_term, header.chain) == (77, 60, 4, 12345)
    assert header.size_bytes == SEGMENT_HEADER_BYTES
    with pytest.raises(Damage) as caught:
        decode_segment_header(b"\1" * SEGMENT_HEADER_BYTES)
    assert not caught.value.torn
