"""By which host a process comes to an actor that has used another host, or cluster, before."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.client.actor_doors import ActorDoors, actor_doors
from actorgrid.client.actor_jobs import ActorJobs
from actorgrid.objects import here
from actorgrid.objects.here import NOWHERE, Whereabouts
from actorgrid.user_actor_context import JOB_PREFIX, ActorReference

OLD, NEW = Whereabouts("/old/store", "h9"), Whereabouts("/new/store", "h1")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has had no session before."""
    for name, value in (("_of_work", NOWHERE), ("_of_sessions", {}), ("_latest", NOWHERE)):
        monkeypatch.setattr(here, name, value)


class OpenSession:
    """Stands for a session on a host of this machine."""

    is_closed = is_afar = False

    def __init__(self, secret: bytes, whereabouts: Whereabouts) -> None:
        self.secret, self.whereabouts = secret, whereabouts

    def objects(self) -> None:
        here.note_session(self.secret, *self.whereabouts)

    def close(self) -> None:
        self.is_closed = True
        here.forget_session(self.secret)


class Door:
    """Stands for a client whose session is not open yet. Opening it says which host this is."""

    _closed = False

    def __init__(self) -> None:
        self._session = OpenSession(b"new", NEW)
        self.http = SimpleNamespace(get=lambda _path, **_terms: {"state": "running", "attempts": [{"host": "h2"}]})

    def _open_session(self) -> Any:
        return self._session


@pytest.mark.parametrize(("of_work", "found"), [(False, NEW), (True, OLD)])
def test_a_process_that_has_used_another_cluster_asks_this_one_where_it_is(of_work: bool, found: Whereabouts) -> None:
    """What it knew is of hosts that may be gone: it would look for actors at their store for ever."""
    here.use_store(*OLD) if of_work else here.note_session(b"old", *OLD)
    jobs, door, told, heard = ActorJobs(), Door(), threading.Event(), []
    reference = reference_to(str(int(of_work)), JOB_PREFIX + "j1")
    jobs.remember("j1", door)  # type: ignore[arg-type]
    jobs.ask(reference, lambda *where: (heard.append(where), told.set())[1])
    assert told.wait(60) and heard == [("h2", None)]
    assert actor_doors.whereabouts_for(reference, "h2") == found


def reference_to(actor_id: str, host_id: str = "") -> ActorReference:
    return ActorReference(actor_id * 16, "/f/a", "s", "Tally", frozenset(), 8, host_id)


def test_an_actor_is_come_to_by_the_host_of_the_client_that_found_it_whichever_was_opened_last() -> None:
    doors, first, last = ActorDoors(), OpenSession(b"1", NEW), OpenSession(b"2", OLD)
    for session in (first, last):
        session.objects()
    doors.remember("a" * 16, first)  # type: ignore[arg-type]
    assert doors.whereabouts_for(reference_to("a", "h5")) == NEW
    assert doors.whereabouts_for(reference_to("b", "h5")) == OLD, "of others nothing better is known"
    assert doors.whereabouts_for(reference_to("b", "h1")) == NEW, "a host of ours leads to its own actors"
    assert doors.whereabouts_for(reference_to("a", "h5"), "h9") == OLD
    first.close()
    assert doors.whereabouts_for(reference_to("a", "h5")) == OLD
    last.close()
    assert doors.whereabouts_for(reference_to("a")) == OLD, "handles may still be used"


def test_a_closed_session_leaves_its_host_to_those_that_are_open() -> None:
    assert here.whereabouts() == here.whereabouts("h1") == NOWHERE
    here.note_session(b"1", *NEW)
    here.note_session(b"2", *OLD)
    assert (here.whereabouts(), here.whereabouts("h1"), here.whereabouts("h5")) == (OLD, NEW, OLD)
    here.forget_session(b"2")
    assert here.whereabouts() == NEW
    here.note_session(b"1", "/store", "h2")  # it went to another host
    assert here.whereabouts("h1") == Whereabouts("/store", "h2")
