"""The event loop: alarms, watches that outlive what they watch, and no spinning."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from time import monotonic

import pytest

from actorgrid.transports.unix.loop import UnixLoop


@pytest.fixture
def loop() -> Iterator[UnixLoop]:
    made = UnixLoop()
    yield made
    made.close()


def test_alarms_come_in_their_order_and_not_early(loop: UnixLoop) -> None:
    came: list[tuple[str, float]] = []
    start = monotonic()
    for name, delay_s in (("third", 0.03), ("first", 0.001), ("second", 0.0105)):
        loop.after(delay_s, lambda name=name, delay_s=delay_s: came.append((name, monotonic() - start - delay_s)))
    while len(came) < 3:
        loop.poll(20)
    assert [name for name, _ in came] == ["first", "second", "third"]
    assert all(late >= 0 for _, late in came)


def test_a_wait_ends_at_its_time_though_a_later_one_was_set_before(loop: UnixLoop) -> None:
    loop.poll(0.02)
    start = monotonic()
    loop.poll(0.0005)
    loop.poll(0.0005)
    assert monotonic() >= start + 0.0005


def test_what_is_asked_for_soon_comes_at_the_end_of_the_turn_and_once(loop: UnixLoop) -> None:
    came: list[str] = []
    loop.soon(lambda: (came.append("one"), loop.soon(lambda: came.append("two"))))  # type: ignore[arg-type]
    loop.poll(20)
    assert came == ["one"]
    loop.poll(20)
    assert came == ["one", "two"]


def test_a_descriptor_opened_again_under_its_number_is_watched_again(loop: UnixLoop) -> None:
    first, other = socket.socketpair()
    number = first.fileno()
    loop.watch_only([number])
    first.close()
    other.close()
    again, peer = socket.socketpair()
    os.dup2(again.fileno(), number)
    loop.watch_only([number])
    peer.send(b"x")
    loop.poll(20)
    assert loop.readable == [number]
    loop.watch_only([])
    if again.fileno() != number:
        os.close(number)
    again.close()
    peer.close()


def test_a_watch_for_both_tells_which(loop: UnixLoop) -> None:
    left, right = socket.socketpair()
    with left, right:
        loop.watch_only([left.fileno()], [left.fileno()])
        loop.poll(20)
        assert (loop.readable, loop.writable) == ([], [left.fileno()])
        right.send(b"x")
        loop.writable = []
        loop.poll(20)
        assert (loop.readable, loop.writable) == ([left.fileno()], [left.fileno()])
        loop.watch_only([left.fileno()])
        loop.readable, loop.writable = [], []
        loop.poll(20)
        assert (loop.readable, loop.writable) == ([left.fileno()], [])
        loop.watch_only([])


def test_a_list_that_an_actor_changed_in_place_is_seen(loop: UnixLoop) -> None:
    left, right = socket.socketpair()
    with left, right:
        wanted: list[int] = []
        loop.watch_only(wanted)
        wanted.append(left.fileno())
        loop.watch_only(wanted)
        right.send(b"x")
        loop.poll(20)
        assert loop.readable == [left.fileno()]
        loop.watch_only([])


def test_a_bad_descriptor_is_warned_of_once(loop: UnixLoop, caplog: pytest.LogCaptureFixture) -> None:
    closed = os.dup(0)
    os.close(closed)
    for _ in range(3):
        loop.watch_only([closed, -1])
    assert len(caplog.records) == 2


def test_a_closed_descriptor_that_a_child_still_holds_does_not_make_it_spin(loop: UnixLoop) -> None:
    left, right = socket.socketpair()
    copy = os.dup(left.fileno())  # as a forked child has one
    loop.watch_only([left.fileno()])
    left.close()
    right.send(b"x")
    loop.watch_only([])
    loop.poll(20)  # epoll goes on about it, once
    start = monotonic()
    loop.poll(0.05)
    assert monotonic() >= start + 0.05 and loop.readable == []
    os.close(copy)
    right.close()


def test_a_forked_child_abandons_every_descriptor_and_the_parents_loop_goes_on() -> None:
    loop = UnixLoop()
    ours, theirs = socket.socketpair()
    removed, other = socket.socketpair()
    seen: list[int] = []
    loop.add(ours.fileno(), select.EPOLLIN, seen.append)
    loop.add(removed.fileno(), select.EPOLLIN, seen.append)
    loop.remove(removed.fileno())
    numbers = [ours.fileno(), loop._epoll.fileno(), loop._wake, loop._timer]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            loop.abandon()
            status = 2 * any(_is_open(fd) for fd in numbers) + 4 * (not _is_open(removed.fileno()))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    theirs.send(b"x")
    loop.poll(None)
    assert seen == [select.EPOLLIN]
    loop.close()
    for each in (ours, theirs, removed, other):
        each.close()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
