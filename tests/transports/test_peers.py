"""Real actor processes that lose each other, flood each other, and have families."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actorgrid.transports.unix.system import UnixSystem, raise_descriptor_limit, remove_sockets
from actorgrid.transports.unix.thespian import Parcel, PeerLost, address_of
from tests.processes import is_alive
from tests.transports.mesh_actors import Family, Flooder, Hungry, LastWords, Mirror, Parent, Sentry, Writer
from tests.transports.test_thespian_unix import answer, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:Module actorgrid was previously imported")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[UnixSystem]:
    made = UnixSystem(tmp_path / "boot-1")
    yield made
    made.close()


def next_of(system: UnixSystem) -> object:
    """The next message that is not news of our own connections."""
    while True:
        received = system.receive(60)
        assert received is not None, "nothing came"
        if not isinstance(received[1], PeerLost):
            return received[1]


def test_the_end_of_a_watched_peer_is_told_though_nothing_was_sent(system: UnixSystem) -> None:
    sentry, peer = system.create(Sentry), system.create(Mirror)
    pid = answer(system, peer, "pid")
    assert answer(system, sentry, ("watch", peer)) == "watching"
    os.kill(pid, signal.SIGKILL)
    lost = next_of(system)
    assert isinstance(lost, tuple) and lost[0] == peer
    assert answer(system, sentry, ("watch", peer)) == "gone already"


def test_what_a_peer_had_sent_comes_before_the_news_of_its_end(system: UnixSystem) -> None:
    sentry, peer = system.create(Sentry), system.create(LastWords)
    assert answer(system, sentry, ("watch", peer)) == "watching"
    system.tell(peer, (sentry, 2_000))
    lost = next_of(system)
    assert isinstance(lost, tuple) and lost[0] == peer
    assert lost[2] == [str(number) for number in range(2_000)]


def test_two_actors_that_flood_each_other_get_all_of_it_in_order(system: UnixSystem) -> None:
    left, right = system.create(Flooder), system.create(Flooder)
    for one, other in ((left, right), (right, left)):
        system.tell(one, (address_of(other), 100_000, 3_500, address_of(system.name)))
    results = [next_of(system), next_of(system)]
    assert [(word, in_order) for word, in_order, _ in results] == [("done", True)] * 2  # type: ignore[misc]
    assert max(waits for _, _, waits in results) > 0, "the queues were never full"  # type: ignore[misc]


def test_a_child_with_a_subtree_is_reported_when_all_of_it_is_gone(system: UnixSystem) -> None:
    parent = system.create(Parent)
    family = answer(system, parent, "family")
    address = next(name for name in os.listdir(system.folder) if name.startswith(f"{parent}."))
    grandchild = answer(system, address, "child")
    os.kill(grandchild, signal.SIGSTOP)  # SIGKILL ends it all the same, when its parent dies
    os.kill(family, signal.SIGKILL)
    exits = wait_for(lambda: answer(system, parent, "exits"), "the news of the family's end")
    assert exits == [(family, -signal.SIGKILL)]
    # It let go of its descriptors, by which we know; the kernel may still be taking the rest of it down.
    wait_for(lambda: not is_alive(grandchild), "the last of the grandchild")
    assert not [name for name in os.listdir(system.folder) if name.startswith(f"{parent}.")]


def test_a_subtree_that_does_not_end_is_reported_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.transports.unix.system.GONE_S", 0.2)
    system = UnixSystem(tmp_path / "boot-1")
    pid = 0
    try:
        parent = system.create(Parent)
        family = answer(system, parent, "family")
        address = next(name for name in os.listdir(system.folder) if name.startswith(f"{parent}."))
        pid = answer(system, address, "a process of its own")
        os.kill(family, signal.SIGKILL)
        exits = wait_for(lambda: answer(system, parent, "exits"), "the news of the family's end")
        assert exits == [(family, -signal.SIGKILL)] and is_alive(pid)
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
        system.close()


def test_many_children_that_die_at_once_are_each_reported_once(system: UnixSystem) -> None:
    parent = system.create(Parent)
    pids = answer(system, parent, "crowd")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    exits = wait_for(lambda: len(found := answer(system, parent, "exits")) >= len(pids) and found, "their end")
    assert sorted(exits) == sorted((pid, -signal.SIGKILL) for pid in pids)


def test_a_watch_for_writing_tells_when_there_is_room(system: UnixSystem) -> None:
    writer = system.create(Writer)
    assert answer(system, writer, "watch") == "full"
    assert answer(system, writer, "drain") == ("writable", True)


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(system: UnixSystem) -> None:
    raise_descriptor_limit()
    soft, hard = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard
    mirror = answer(system, system.create(Family), "pid")
    assert psutil.Process(mirror).rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)


def test_only_the_sockets_of_the_dead_and_their_descendants_are_removed(tmp_path: Path) -> None:
    for name in ("a.1", "a.1.2", "a.1.2.3", "a.10", "a.2", "b"):
        (tmp_path / name).touch()
    (tmp_path / "a.1.name").symlink_to("b")
    remove_sockets(tmp_path, ["a.1", "b"])
    assert set(os.listdir(tmp_path)) == {"a.10", "a.2", "a.1.name"}


def test_a_death_is_noticed_within_milliseconds(system: UnixSystem) -> None:
    """The figure itself is a benchmark's; here it must come, again and again, from processes that say nothing."""
    sentry = system.create(Sentry)
    for _ in range(5):
        peer = system.create(Mirror)
        pid = answer(system, peer, "pid")
        assert answer(system, sentry, ("watch", peer)) == "watching"
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        lost = next_of(system)
        assert isinstance(lost, tuple) and lost[1] >= killed


def test_an_actor_out_of_descriptors_goes_on_and_recovers(system: UnixSystem) -> None:
    hungry, stranger = system.create(Hungry), system.create(Mirror)
    assert is_alive(answer(system, hungry, "pid"))
    assert answer(system, hungry, "eat") == 24  # EMFILE
    assert answer(system, hungry, ("plain to", address_of(stranger))) == "tried"
    assert "no descriptor" in answer(system, hungry, ("parcel to", address_of(stranger)))
    assert answer(system, hungry, "make") == "Too many open files"
    assert answer(system, hungry, Parcel(b"z" * 20_000_000)).data == b"z" * 20_000_000
    assert answer(system, hungry, "spit") == "spat"
    assert answer(system, hungry, ("parcel to", address_of(stranger))) == "sent"
    assert is_alive(answer(system, hungry, "make"))
