from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.raft import codec
from actorgrid.actors.raft.messages import (
    ConfChange,
    ConfState,
    Entry,
    HardState,
    Message,
    RaftSnapshot,
    SnapshotChunk,
)
from actorgrid.errors import MalformedMessage

numbers = st.integers(0, codec.NUMBER_MAX)
nodes = st.integers(1, codec.NUMBER_MAX)
small = st.integers(1, 6)
entries = st.builds(Entry, numbers, numbers, st.sampled_from(codec.ENTRY_KINDS), st.binary(max_size=40))
hard_states = st.builds(HardState, numbers, numbers, numbers)


@st.composite
def conf_states(draw: st.DrawFn) -> ConfState:
    voters, outgoing = draw(st.sets(small)), draw(st.sets(small))
    learners = draw(st.sets(st.integers(7, 9)))
    leaving = sorted(outgoing - voters)
    learners_next = draw(st.sets(st.sampled_from(leaving))) if leaving else set()
    return ConfState(
        tuple(sorted(voters)),
        tuple(sorted(learners)),
        tuple(sorted(outgoing)),
        tuple(sorted(learners_next)),
        bool(outgoing) and draw(st.booleans()),
    )


@st.composite
def chunks(draw: st.DrawFn) -> SnapshotChunk:
    data, before, after = draw(st.binary(max_size=40)), draw(st.integers(0, 100)), draw(st.integers(0, 100))
    members = draw(conf_states().filter(lambda state: state.voters))
    return SnapshotChunk(
        draw(nodes), draw(st.integers(0, 9)), members, before, before + len(data) + after, draw(numbers), data
    )


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(codec.MESSAGE_KINDS))
    index, term, carried = draw(st.integers(0, 2**62)), draw(st.integers(0, 2**62)), ()
    if kind == "append":
        bodies = draw(st.lists(st.binary(max_size=20), max_size=4))
        carried = tuple(Entry(index + n + 1, term, "command", body) for n, body in enumerate(bodies))
    elif kind == "propose":
        carried = tuple(draw(st.lists(entries, max_size=3)))
    return Message(
        kind,
        draw(nodes),
        draw(nodes),
        term if kind == "append" else draw(st.integers(9, codec.NUMBER_MAX)),
        index,
        term,
        draw(numbers),
        carried,
        draw(st.booleans()),
        draw(numbers),
        draw(numbers),
        draw(numbers),
        draw(st.booleans()),
        draw(st.binary(max_size=20)),
        draw(chunks()) if kind == "snapshot" else None,
    )


snapshots = st.builds(RaftSnapshot, numbers, numbers, conf_states(), st.binary(max_size=60))
changes = st.tuples(
    st.lists(st.builds(ConfChange, st.sampled_from(codec.CHANGE_KINDS), nodes), max_size=5).map(tuple),
    st.sampled_from(codec.TRANSITIONS),
)


def encode_change(change: Any) -> bytes:
    return codec.encode_members(change) if isinstance(change, ConfState) else codec.encode_conf_change(*change)


FEW = settings(max_examples=40)

KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "message": (messages(), codec.encode_message, codec.decode_message),
    "entry": (entries, codec.encode_entry, codec.decode_entry),
    "hard state": (hard_states, codec.encode_hard_state, codec.decode_hard_state),
    "members": (conf_states(), codec.encode_conf_state, codec.decode_conf_state),
    "snapshot": (snapshots, codec.encode_snapshot, codec.decode_snapshot),
    "change": (changes | conf_states(), encode_change, codec.decode_conf_change),
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_comes_back_from_its_bytes_as_it_was(kind: str) -> None:
    values, encode, decode = KINDS[kind]

    @FEW
    @given(values)
    def check(value: Any) -> None:
        assert decode(encode(value)) == value

    check()


@FEW
@given(st.lists(messages(), min_size=1, max_size=5), st.data())
def test_messages_that_share_their_entries_have_the_bytes_they_have_alone(
    found: list[Message], data: st.DataObject
) -> None:
    encoder = codec.MessageEncoder()
    for message in data.draw(st.permutations(found * 2)):
        assert encoder.encode(message) == codec.encode_message(message)


def test_entries_that_many_are_sent_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Entry] = []
    original = codec._entry_tree
    monkeypatch.setattr(codec, "_entry_tree", lambda entry: (encoded.append(entry), original(entry))[1])
    carried = tuple(Entry(number, 1, "command", b"x") for number in range(2, 5))
    encoder = codec.MessageEncoder()
    for node in range(2, 100):
        encoder.encode(Message("append", node, 1, 1, 1, 1, 1, carried))
    assert encoded == list(carried)


@pytest.mark.parametrize("kind", KINDS)
def test_changed_bytes_raise_the_one_error_or_are_another_value_in_its_one_encoding(kind: str) -> None:
    values, encode, decode = KINDS[kind]

    @FEW
    @given(values, st.data())
    def check(value: Any, data: st.DataObject) -> None:
        changed = bytearray(encode(value))
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
        for broken in (bytes(changed), cut, bytes(changed) + b"\x00"):
            try:
                found = decode(broken)
            except MalformedMessage as error:
                assert error.asked and error.found and error.hint
            else:
                assert encode(found) == broken

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_at_all_raise_the_one_error_or_decode(kind: str) -> None:
    _, encode, decode = KINDS[kind]

    @FEW
    @given(st.binary(max_size=200))
    def check(data: bytes) -> None:
        try:
            found = decode(data)
        except MalformedMessage:
            return
        assert encode(found) == data

    check()


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=16) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=40,
)


@pytest.mark.parametrize("kind", KINDS)
def test_any_messagepack_of_another_shape_raises_the_one_error(kind: str) -> None:
    _, encode, decode = KINDS[kind]

    @FEW
    @given(TREES)
    def check(tree: Any) -> None:
        data = msgpack.packb([codec.FORMAT, *tree] if isinstance(tree, list) else tree)
        try:
            found = decode(data)
        except MalformedMessage:
            return
        assert encode(found) == data

    check()


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "MessagePack"),
        (msgpack.packb([2, 1, 1, 1]), "format is 2"),
        (msgpack.packb([True, 1, 1, 1]), "number of its format"),
        (msgpack.packb([1, 1, 1]), "3 fields"),
        (msgpack.packb([1, -1, 1, 1]), "number from 0"),
        (msgpack.packb([1, 1, 1.0, 1]), "number from 0"),
        (b"\x94\x01\xcc\x01\x01\x01", "one encoding"),
        (b"[" * 100_000, "MessagePack"),
        (b"\x91" * 100_000, "MessagePack"),
    ],
)
def test_the_error_says_what_is_wrong(data: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        codec.decode_hard_state(data)


@pytest.mark.parametrize(
    "message",
    [
        Message("append", 1, 2, 3, index=4, log_term=2, entries=(Entry(6, 3, "command", b""),)),
        Message("append", 1, 2, 3, index=4, log_term=3, entries=(Entry(5, 2, "command", b""),)),
        Message("append", 1, 2, 3, index=4, log_term=2, entries=(Entry(5, 4, "command", b""),)),
        Message("heartbeat", 1, 2, 3, entries=(Entry(5, 4, "command", b""),)),
        Message("snapshot", 1, 2, 3),
        Message("vote", 0, 2, 3),
        Message("vote", 1, 0, 3),
        Message("heartbeat", 1, 2, 3, chunk=SnapshotChunk(1, 1, ConfState(), 0, 0, 0, b"")),
        Message("snapshot", 1, 2, 3, chunk=SnapshotChunk(1, 1, ConfState(), 5, 4, 0, b"")),
        Message("snapshot", 1, 2, 3, chunk=SnapshotChunk(1, 1, ConfState(voters=(2, 1)), 0, 0, 0, b"")),
        Message("snapshot", 1, 2, 3, chunk=SnapshotChunk(1, 1, ConfState(voters=(1,), learners=(1,)), 0, 0, 0, b"")),
        Message("snapshot", 1, 2, 3, chunk=SnapshotChunk(1, 1, ConfState(auto_leave=True), 0, 0, 0, b"")),
    ],
)
def test_a_message_that_no_node_would_send_is_refused(message: Message) -> None:
    with pytest.raises(MalformedMessage):
        codec.decode_message(codec.encode_message(message))


def test_the_bytes_of_format_one_stay_what_they_are() -> None:
    """Logs and peers of this format are out there: change the number with the bytes."""
    message = Message("append", 2, 1, 3, 4, 3, 4, (Entry(5, 3, "command", b"x"),), sequence=7)
    assert codec.encode_message(message).hex() == "dc001001040201030403049194050300c40178c20000" + "07c2c400c0"
    assert codec.encode_hard_state(HardState(1, 2, 3)).hex() == "9401010203"
    assert codec.encode_conf_change([ConfChange("remove", 3)], "auto").hex() == "9301919202" + "0300"
