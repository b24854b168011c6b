"""Actors that outlive who made them: each is a job of the ledger, which says where it runs and what became of it.
And those that were made from a machine that is no host, of which the shared state says that (actor_board.py).

Asked is whichever door this process has: of the client that made or found the actor, or its default one. One thread
asks.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from actorgrid.errors import (
    ActorDied,
    ActorGridError,
    ClientClosed,
    NotFound,
    NotSupported,
    WrongState,
    error_from_dict,
)
from actorgrid.job_outcome import FINAL_STATES
from actorgrid.objects import here
from actorgrid.user_actor_context import ActorReference

from .actor_board import ABSENT_S, look_up
from .actor_deaths import refused, without_creator
from .actor_doors import actor_doors
from .forks import renew_in_children
from .http import segment

if TYPE_CHECKING:
    from .client import Client

Tell = Callable[[str, "ActorDied | None"], None]
"""Takes the host that the actor's job runs on (empty: on none just now), or what it died of."""


class ActorJobs:
    """What this process knows of such actors. For any thread."""

    def __init__(self) -> None:
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, weakref.ref[Client]] = {}
        self._asked: queue.SimpleQueue[tuple[ActorReference, Tell]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._absent: dict[str, float] = {}  # by actor of which nothing is said: since when

    def after_fork(self) -> None:
        """Begin anew in a forked child."""
        self._begin()

    def remember(self, job_id: str, client: Client) -> None:
        """Ask that client about the job from now on, while it is there."""
        with self._lock:
            self._clients = {job: each for job, each in self._clients.items() if each() is not None}
            self._clients[job_id] = weakref.ref(client)

    def ask(self, reference: ActorReference, tell: Tell) -> None:
        """Have *tell* called, by a thread, with where the actor is."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="actorgrid-actor-jobs", daemon=True)
                self._thread.start()
        self._asked.put((reference, tell))

    def job(self, reference: ActorReference, wait_s: float = 0.0) -> Mapping[str, Any]:
        """The actor's job; waits so long for its end. Raises UnknownJob, and what asking the door raises."""
        path = f"/api/jobs/{segment(reference.job_id)}"
        found: Mapping[str, Any] = self._client(reference).http.get(path, wait_s=wait_s, timeout_s=wait_s + 10.0)
        return found

    def cancel(self, reference: ActorReference) -> None:
        """Cancel the actor's job. Raises what asking the door raises."""
        self._client(reference).http.post(f"/api/jobs/{segment(reference.job_id)}/cancel", repeat=True)

    def _client(self, reference: ActorReference) -> Client:
        from .task import default_client

        with self._lock:
            known = self._clients.get(reference.job_id)
        client = None if known is None else known()
        return default_client() if client is None or client._closed else client

    def _run(self) -> None:
        while True:
            reference, tell = self._asked.get()
            at, death = "", None
            try:
                if not here.is_of_work():
                    # Then this process knows by which host to go: it may have used another cluster's before.
                    session = self._client(reference)._open_session()
                    session.objects()
                    if actor_doors.open_session_of(reference.actor_id) is None:
                        actor_doors.remember(reference.actor_id, session)
                if reference.made_afar_by:
                    at, death = self._found_afar(reference)
                else:
                    at, death = where_is(reference, self.job(reference))
                store = actor_doors.whereabouts_for(reference, at).store
                if death is None and not store and actor_doors.session_for(reference) is None:
                    death = refused(
                        reference,
                        NotSupported(
                            "this machine is no host of its cluster, or has no object store", hint="call it in a task"
                        ),
                    )
            except NotFound as error:
                death = died_of(reference, error.message)
            except (ClientClosed, WrongState) as error:
                death = died_of(reference, f"this process has no client to ask about it: {error.message}")
            except ActorGridError:
                pass  # no door answers just now: it is asked again
            tell(at, death)

    def _found_afar(self, reference: ActorReference) -> tuple[str, ActorDied | None]:
        """Where an actor is that was made from a machine that is no host."""
        session = actor_doors.session_for(reference)
        found = look_up(self._client(reference).http if session is None else session.http, reference)
        if found is not None:
            self._absent.pop(reference.actor_id, None)
            return found
        now = time.monotonic()
        self._absent = {actor: since for actor, since in self._absent.items() if now - since < 2 * ABSENT_S}
        if now - self._absent.setdefault(reference.actor_id, now) < ABSENT_S:
            return "", None
        return "", without_creator(reference)


def where_is(reference: ActorReference, job: Mapping[str, Any]) -> tuple[str, ActorDied | None]:
    """The host that an actor's job runs on, or what the actor died of."""
    if job["state"] not in FINAL_STATES:
        attempts = job["attempts"]
        return (str(attempts[-1]["host"]) if attempts and job["state"] != "queued" else ""), None
    if job["state"] == "succeeded":
        return "", died_of(reference, "it was stopped")
    if job["state"] == "cancelled":
        return "", died_of(reference, "it was cancelled")
    record = job["error"] or next((each["error"] for each in reversed(job["attempts"]) if each["error"]), None)
    if record is None:
        return "", died_of(reference, f"its job is {job['state']}")
    error = error_from_dict(record)
    death = died_of(reference, f"it died: {error.message}", error)
    death.__cause__ = error
    return "", death


def died_of(reference: ActorReference, why: str, error: ActorGridError | None = None) -> ActorDied:
    """The error of calls to an actor whose job is over."""
    return ActorDied(
        f"the actor {reference.class_name} is no more: {why}",
        asked=f"job {reference.job_id}",
        found="" if error is None else error.found,
        hint=f"actorgrid why {reference.job_id}; actorgrid logs {reference.job_id}",
        **({} if error is None else error.details),
    )


actor_jobs = ActorJobs()
