"""Bytes of what the core keeps and sends, in one format with a number.

MessagePack arrays: the format's number, then the fields in the order of the class; kinds are small numbers. Each
value has exactly one encoding, and nothing but that is taken: bytes with anything wrong raise MalformedMessage and
give nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast, get_args

import msgpack

from actorgrid.errors import MalformedMessage

from .configuration import CHANGES_MAX
from .messages import (
    ChangeKind,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    RaftSnapshot,
    SnapshotChunk,
    Transition,
)

FORMAT = 1
MEMBERS_MAX = 4096
"""Nodes in one ConfState, of each sort."""
NUMBER_MAX = 2**63 - 1
"""What counts up from here (a term, an index) still fits the log's records."""
CONTEXT_BYTES_MAX = 1024
ENTRIES_MAX = 65_536
"""Bytes of a context and entries of a message that are taken from another node, whatever its own bounds are."""

# The position in these is what is written: append to them, never reorder.
ENTRY_KINDS: tuple[EntryKind, ...] = ("command", "conf_change")
MESSAGE_KINDS: tuple[MessageKind, ...] = get_args(MessageKind)
CHANGE_KINDS: tuple[ChangeKind, ...] = ("add_voter", "add_learner", "remove")
TRANSITIONS: tuple[Transition, ...] = ("auto", "implicit", "explicit")

_ENTRY_KIND = {kind: number for number, kind in enumerate(ENTRY_KINDS)}
_MESSAGE_KIND = {kind: number for number, kind in enumerate(MESSAGE_KINDS)}
_CHANGE_KIND = {kind: number for number, kind in enumerate(CHANGE_KINDS)}
_TRANSITION = {kind: number for number, kind in enumerate(TRANSITIONS)}

_HEAD_OF_16 = b"\xdc\x00\x10"

Value = TypeVar("Value")
Tree = tuple[Any, ...]
ChangeRequest = tuple[tuple[ConfChange, ...], Transition]


class _Wrong(Exception):
    """A field is not what it must be; the message names it."""


def encode_entry(entry: Entry) -> bytes:
    """The bytes of *entry*."""
    return _pack((FORMAT, *_entry_tree(entry)))


def decode_entry(data: bytes) -> Entry:
    """The entry in *data*. Raises MalformedMessage."""
    return _decoded("entry", data, _entry)


def encode_hard_state(state: HardState) -> bytes:
    """The bytes of *state*."""
    return _pack((FORMAT, state.term, state.vote, state.commit))


def decode_hard_state(data: bytes) -> HardState:
    """The hard state in *data*. Raises MalformedMessage."""
    return _decoded("hard state", data, lambda tree: HardState(*map(_number, _fields(tree, 3))))


def encode_conf_state(state: ConfState) -> bytes:
    """The bytes of *state*."""
    return _pack((FORMAT, *_conf_state_tree(state)))


def decode_conf_state(data: bytes) -> ConfState:
    """The members in *data*. Raises MalformedMessage."""
    return _decoded("members", data, _conf_state)


def encode_snapshot(snapshot: RaftSnapshot) -> bytes:
    """The bytes of *snapshot*."""
    members = _conf_state_tree(snapshot.conf_state)
    return _pack((FORMAT, snapshot.index, snapshot.term, members, snapshot.data))


def decode_snapshot(data: bytes) -> RaftSnapshot:
    """The snapshot in *data*. Raises MalformedMessage."""
    return _decoded("snapshot", data, _snapshot)


class MessageEncoder:
    """Gives the bytes of messages. A leader tells many the same: entries that messages share are encoded once.

    The last ones are kept: at most one message of them.
    """

    __slots__ = ("_entries", "_packed")

    def __init__(self) -> None:
        self._entries: tuple[Entry, ...] = ()
        self._packed = _pack(())

    def encode(self, message: Message) -> bytes:
        """The bytes of *message*."""
        if message.entries is not self._entries:
            self._entries = message.entries
            self._packed = _pack(tuple(_entry_tree(entry) for entry in message.entries))
        chunk = message.chunk
        before = (
            FORMAT,
            _MESSAGE_KIND[message.kind],
            message.to,
            message.sender,
            message.term,
            message.index,
            message.log_term,
            message.commit,
        )
        after = (
            message.reject,
            message.hint,
            message.last_index,
            message.sequence,
            message.force,
            message.context,
            None if chunk is None else _chunk_tree(chunk),
        )
        # One array of 16: the heads of the two parts, a byte each, go.
        return b"".join((_HEAD_OF_16, _pack(before)[1:], self._packed, _pack(after)[1:]))


def encode_message(message: Message) -> bytes:
    """The bytes of *message*."""
    return MessageEncoder().encode(message)


def decode_message(data: bytes) -> Message:
    """The message in *data*. Raises MalformedMessage."""
    return _decoded("message", data, _message)


def encode_conf_change(changes: Sequence[ConfChange], transition: Transition) -> bytes:
    """The data of an entry that changes the members."""
    pairs = [(_CHANGE_KIND[change.kind], change.node) for change in changes]
    return _pack((FORMAT, pairs, _TRANSITION[transition]))


def encode_members(state: ConfState) -> bytes:
    """The data of an entry that says who the members are, whatever they were: the first one of a log."""
    return _pack((FORMAT, _conf_state_tree(state)))


def decode_conf_change(data: bytes) -> ConfState | ChangeRequest:
    """What an entry of kind conf_change says. Raises MalformedMessage."""
    return _decoded("change of the members", data, _conf_change)


def _pack(tree: Tree) -> bytes:
    return cast(bytes, msgpack.packb(tree, use_bin_type=True))


def _decoded(what: str, data: bytes, read: Callable[[Tree], Value]) -> Value:
    try:
        tree = msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=True)
        if type(tree) is not tuple or not tree or type(tree[0]) is not int:
            raise _Wrong("it does not begin with the number of its format")
        if tree[0] != FORMAT:
            raise _Wrong(f"its format is {tree[0]}, this is for {FORMAT}")
        value = read(tree[1:])
        if _pack(tree) != data:
            raise _Wrong("it is not in its one encoding")
    except _Wrong as wrong:
        raise _malformed(what, str(wrong)) from None
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise _malformed(what, "it is no MessagePack of this shape") from error
    return value


def _malformed(what: str, why: str) -> MalformedMessage:
    return MalformedMessage(
        f"these bytes are no Raft {what}: {why}; nothing of them was applied",
        asked=f"a {what} of format {FORMAT}",
        found=why,
        hint="do all hosts run versions that work together, and is the disk sound?",
    )


def _entry_tree(entry: Entry) -> Tree:
    return (entry.index, entry.term, _ENTRY_KIND[entry.kind], entry.data)


def _conf_state_tree(state: ConfState) -> Tree:
    return (state.voters, state.learners, state.voters_outgoing, state.learners_next, state.auto_leave)


def _chunk_tree(chunk: SnapshotChunk) -> Tree:
    members = _conf_state_tree(chunk.conf_state)
    return (chunk.index, chunk.term, members, chunk.offset, chunk.total_bytes, chunk.checksum, chunk.data)


def _fields(tree: object, count: int) -> Tree:
    if type(tree) is not tuple or len(tree) != count:
        raise _Wrong(f"{count} fields are expected where {_shown(tree)} is")
    return tree


def _shown(value: object) -> str:
    return f"an array of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise _Wrong(f"a number from 0 to {NUMBER_MAX} is expected where {_shown(value)} is")
    return value


def _bytes(value: object) -> bytes:
    if type(value) is not bytes:
        raise _Wrong(f"bytes are expected where {_shown(value)} is")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise _Wrong(f"true or false is expected where {_shown(value)} is")
    return value


def _one_of(kinds: Sequence[Value], value: object) -> Value:
    number = _number(value)
    if number >= len(kinds):
        raise _Wrong(f"{number} is no kind known here")
    return kinds[number]


def _node(value: object) -> int:
    node = _number(value)
    if not node:
        raise _Wrong("0 is no node")
    return node


def _nodes(value: object) -> tuple[int, ...]:
    if type(value) is not tuple or len(value) > MEMBERS_MAX:
        raise _Wrong(f"at most {MEMBERS_MAX} nodes are expected where {_shown(value)} is")
    nodes = tuple(map(_node, value))
    if any(left >= right for left, right in pairwise(nodes)):
        raise _Wrong("nodes are not in order")
    return nodes


def _entry(tree: object) -> Entry:
    index, term, kind, data = _fields(tree, 4)
    return Entry(_number(index), _number(term), _one_of(ENTRY_KINDS, kind), _bytes(data))


def _conf_state(tree: object) -> ConfState:
    voters, learners, outgoing, learners_next, auto_leave = _fields(tree, 5)
    state = ConfState(_nodes(voters), _nodes(learners), _nodes(outgoing), _nodes(learners_next), _flag(auto_leave))
    halves = {*state.voters, *state.voters_outgoing}
    if halves & {*state.learners}:
        raise _Wrong("a node is both a voter and a learner")
    if not {*state.learners_next} <= {*state.voters_outgoing} - {*state.voters}:
        raise _Wrong("who becomes a learner is no leaving voter")
    if state.auto_leave and not state.voters_outgoing:
        raise _Wrong("a configuration is to be left that is not joint")
    return state


def _snapshot(tree: Tree) -> RaftSnapshot:
    index, term, members, data = _fields(tree, 4)
    return RaftSnapshot(_number(index), _number(term), _conf_state(members), _bytes(data))


def _chunk(tree: object) -> SnapshotChunk:
    index, term, members, offset, total_bytes, checksum, data = _fields(tree, 7)
    chunk = SnapshotChunk(
        _number(index),
        _number(term),
        _conf_state(members),
        _number(offset),
        _number(total_bytes),
        _number(checksum),
        _bytes(data),
    )
    if not chunk.index or not chunk.conf_state.voters:
        raise _Wrong("a snapshot of nothing, or of members none of whom votes")
    if chunk.offset + len(chunk.data) > chunk.total_bytes:
        raise _Wrong("a chunk reaches past the end of its snapshot")
    return chunk


def _message(tree: Tree) -> Message:
    (
        kind,
        to,
        sender,
        term,
        index,
        log_term,
        commit,
        entries,
        reject,
        hint,
        last_index,
        sequence,
        force,
        context,
        chunk,
    ) = _fields(tree, 15)
    if type(entries) is not tuple or len(entries) > ENTRIES_MAX:
        raise _Wrong(f"entries are expected where {_shown(entries)} is")
    message = Message(
        _one_of(MESSAGE_KINDS, kind),
        _node(to),
        _node(sender),
        _number(term),
        _number(index),
        _number(log_term),
        _number(commit),
        tuple(map(_entry, entries)),
        _flag(reject),
        _number(hint),
        _number(last_index),
        _number(sequence),
        _flag(force),
        _bytes(context),
        None if chunk is None else _chunk(chunk),
    )
    if len(message.context) > CONTEXT_BYTES_MAX:
        raise _Wrong(f"a context of {len(message.context)} bytes")
    if message.chunk is not None and message.chunk.term > message.term:
        raise _Wrong("a snapshot of a later term than its message")
    if message.kind == "append":
        _follow(message)
    elif message.entries and message.kind != "propose":
        raise _Wrong(f"entries in a message of kind {message.kind}")
    if (message.kind == "snapshot") is (message.chunk is None):
        raise _Wrong("a chunk belongs to a message of kind snapshot, and only there")
    return message


def _follow(message: Message) -> None:
    index, term = message.index, message.log_term
    for entry in message.entries:
        index += 1
        if entry.index != index or not term <= entry.term <= message.term:
            raise _Wrong("entries do not follow one another")
        term = entry.term


def _conf_change(tree: Tree) -> ConfState | ChangeRequest:
    if len(tree) == 1:
        return _conf_state(tree[0])
    pairs, transition = _fields(tree, 2)
    if type(pairs) is not tuple or len(pairs) > CHANGES_MAX:
        raise _Wrong(f"at most {CHANGES_MAX} changes are expected where {_shown(pairs)} is")
    changes = []
    for pair in pairs:
        kind, node = _fields(pair, 2)
        changes.append(ConfChange(_one_of(CHANGE_KINDS, kind), _node(node)))
    return tuple(changes), _one_of(TRANSITIONS, transition)
