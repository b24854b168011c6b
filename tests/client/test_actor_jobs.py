"""Where a detached actor is, as a process learns that has used another cluster before."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.client.actor_jobs import ActorJobs
from actorgrid.objects import here
from actorgrid.user_actor_context import JOB_PREFIX, ActorReference


class Door:
    """Stands for a client whose session is not open yet. Opening it says which host this is."""

    _closed = False

    def __init__(self) -> None:
        self.http = SimpleNamespace(get=lambda _path, **_terms: {"state": "running", "attempts": [{"host": "h2"}]})

    def _open_session(self) -> Any:
        return SimpleNamespace(objects=lambda: (setattr(here, "_path", "/new/store"), setattr(here, "_host", "h1")))


@pytest.mark.parametrize(("of_work", "found"), [(False, ("/new/store", "h1")), (True, ("/old/store", "h9"))])
def test_a_process_that_has_used_another_cluster_asks_this_one_where_it_is(
    monkeypatch: pytest.MonkeyPatch, of_work: bool, found: tuple[str, str]
) -> None:
    """What it knew is of hosts that may be gone: it would look for actors at their store for ever."""
    for name, value in (("_path", "/old/store"), ("_host", "h9"), ("_of_work", of_work)):
        monkeypatch.setattr(here, name, value)
    jobs, door, told, heard = ActorJobs(), Door(), threading.Event(), []
    reference = ActorReference("a" * 16, "/f/a", "s", "Tally", frozenset(), 8, JOB_PREFIX + "j1")
    jobs.remember("j1", door)  # type: ignore[arg-type]
    jobs.ask(reference, lambda *where: (heard.append(where), told.set())[1])
    assert told.wait(60) and heard == [("h2", None)]
    assert here.whereabouts() == found
