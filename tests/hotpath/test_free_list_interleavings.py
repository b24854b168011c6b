"""Free lists in every order: a block is nobody else's until it was given back, whoever looks at its bytes.

Two models. Of the object store: its free list is its own, and what other processes have of it are places that came in
a message; the message is the order. Of two threads at one pool: the interpreter's lock is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from actorgrid.hotpath.reference.memory_pool import MemoryPool
from actorgrid.hotpath.reference.message_ring import Step
from tests.hotpath.interleavings import explore

Steps = Generator[Step, Any, Any]
OLD, NEW = b"old.", b"new."
ONE_BLOCK = 64


def store(*, waits: bool = True) -> Callable[[], Steps]:
    """The store: room for one block, which the first writer fills, the reader reads, and the second writer is given
    next. *waits*: until the reader has given it back."""

    def program() -> Steps:
        pool = MemoryPool(ONE_BLOCK, ONE_BLOCK)
        block = pool.allocate(ONE_BLOCK)
        yield "send", "first", block.offset
        yield "receive", "complete"
        yield "send", "reader", block.offset
        if waits:
            yield "receive", "given back"
        pool.free(block)
        again = pool.allocate(ONE_BLOCK)
        yield "send", "second", again.offset
        return again.offset

    return program


def writing(room: str, content: bytes, *, tells: bool = True) -> Callable[[], Steps]:
    """Who makes an object. *tells*: by a message; else by a word in the memory, without any order."""

    def program() -> Steps:
        offset = yield "receive", room
        for at in range(2):  # more than reaches the memory at once
            yield "write", offset + 4 * at, content
        if tells:
            yield "send", "complete", True
        else:
            yield "store", "complete", 1
        return "written"

    return program


def reading() -> Steps:
    """Who reads it, through a mapping that nothing tells of what happens to the block."""
    offset = yield "receive", "reader"
    found = (yield "read", offset, 4) + (yield "read", offset + 4, 4)
    yield "send", "given back", True
    return found


def read(*programs: Callable[[], Steps]) -> set[bytes]:
    found = explore(programs)
    assert found.stuck == []
    return {result[2][0] for result in found.results}


def test_a_block_is_read_whole_before_anybody_else_writes_it() -> None:
    assert read(store(), writing("first", OLD), reading, writing("second", NEW)) == {OLD * 2}


def test_a_block_that_is_given_out_again_too_early_is_read_torn() -> None:
    """The planted fault: the store does not wait for the reader's word."""
    found = read(store(waits=False), writing("first", OLD), reading, writing("second", NEW))
    assert OLD + NEW in found or NEW + OLD in found


def test_what_is_told_by_the_memory_alone_is_read_before_it_is_written() -> None:
    """The planted fault: a word in the memory, which may be there before the bytes are."""

    def reads_at_once() -> Steps:
        if not (yield "load", "complete"):
            return OLD * 2
        return (yield "read", 0, 4) + (yield "read", 4, 4)

    def gives() -> Steps:
        yield "send", "first", 0
        return "given"

    found = read(gives, writing("first", OLD, tells=False), reads_at_once)
    assert found != {OLD * 2}


def taking(count: int, *, locked: bool) -> Callable[[], Steps]:
    """A thread that takes the first of the spare segments, which are linked (``fresh`` of the pool's kernel), and gives
    it back at the end (``recycle``)."""

    def program() -> Steps:
        taken = []
        for _ in range(count):
            if locked:
                yield "lock", "interpreter"
            first = yield "load", "spare"
            following = yield "load", ("after", first)
            yield "store", "spare", following
            if locked:
                yield "unlock", "interpreter"
            taken.append(first)
        return tuple(taken)

    return program


def segments() -> Steps:
    """The list at first: 3, then 2, then 1, then 0, which is none."""
    yield "lock", "interpreter"
    for each in (3, 2, 1):
        yield "store", ("after", each), each - 1
    yield "store", "spare", 3
    yield "unlock", "interpreter"
    yield "send", "begun", True
    yield "send", "begun", True
    return "linked"


def after_it_is_linked(program: Callable[[], Steps]) -> Callable[[], Steps]:
    def begins() -> Steps:
        yield "receive", "begun"
        return (yield from program())

    return begins


def given_twice(*, locked: bool) -> bool:
    threads = [after_it_is_linked(taking(1, locked=locked)) for _ in range(2)]
    found = explore((segments, *threads))
    assert found.stuck == []
    return any(one == other for _, (one,), (other,) in found.results)


def test_two_threads_are_never_given_one_segment() -> None:
    assert not given_twice(locked=True)


def test_without_the_interpreters_lock_they_are() -> None:
    """The planted fault."""
    assert given_twice(locked=False)
