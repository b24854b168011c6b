"""Names of actors of the user's: one actor of a user has a name at a time, and every client of that user finds it.

Who has a name is said by a lock of the cluster, so that two never have it; how to call it, by the shared state, in
the user's own namespace. What is there counts only together with the token of who holds the lock now: what others
left is passed over.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorGridError, BadRequest, LockHeld, NameTaken, NoSuchActor, NotSupported
from actorgrid.user_actor_context import ActorReference

from .actor_doors import actor_doors
from .actor_handles import ActorHandle
from .actor_jobs import actor_jobs
from .actor_places import relay_to
from .detached_actors import named_job
from .own_user import own_user

if TYPE_CHECKING:
    from .client import Client
    from .lock_hold import LockHold

NAME_MAX = 100
TTL_S = 15.0
"""How long a name stays taken whose creator was killed."""
FIND_S = 3.0
"""How long a name may be held before it is said how its actor is called."""
LOOK_S = 0.05
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class ActorName:
    """A name that this process gives to an actor it makes, for as long as that lives."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._over = threading.Event()
        self._said = False
        terms = client.lock_terms(_lock_name(client, name), TTL_S, 1, 0.0, None)
        self._hold: LockHold = terms.new_hold(lambda: not self._over.is_set(), None)
        try:
            self._hold.acquire(0.0)
        except LockHeld as error:
            raise NameTaken(
                f"an actor of {own_user(client.http)} has the name {name!r}",
                asked=name,
                found=error.found or error.message,
                hint="client.actor(name) finds it, get_or_create() makes it if there is none; the name of one whose"
                f" creator was killed comes free after {TTL_S:g} s",
            ) from error

    def say(self, reference: ActorReference) -> None:
        """Tell how the actor is called."""
        assert self._hold.token is not None, "a name that was taken has its token"
        record = {
            "token": list(self._hold.token),
            "boot_id": _boot_id(),
            "job_id": reference.job_id,
            "reference": {**reference._asdict(), "methods": sorted(reference.methods)},
        }
        self._said = True
        self._client.state.in_namespace(own_user(self._client.http)).put(_key(self._name), record)

    def hand_over(self) -> None:
        """Let go of the lock: the name is with the actor's job now."""
        self._over.set()
        self._hold.drop()

    def release(self) -> None:
        """Give the name back; in the background, as it asks the host."""
        self._over.set()
        threading.Thread(target=self._release, name="actorgrid-actor-name", daemon=True).start()

    def _release(self) -> None:
        if self._said:
            with contextlib.suppress(ActorGridError):  # who reads it without our lock passes over it
                self._client.state.in_namespace(own_user(self._client.http)).delete(_key(self._name))
        self._hold.drop()


def find(client: Client, name: str) -> ActorHandle[Any]:
    """The handle of the actor of that name. Raises NoSuchActor, NotSupported for one on another machine."""
    until = time.monotonic() + FIND_S
    while True:
        token = _holder(client, name)
        record = client.state.in_namespace(own_user(client.http)).get(_key(name), None)
        if token is not None and isinstance(record, dict) and record.get("token") == token:
            job_id = None
            break
        # The lock may also be held by one who wants the name, and is about to find that a job has it.
        job_id = named_job(client, name)
        if token is None and job_id is None:
            raise NoSuchActor(
                f"no actor of {own_user(client.http)} has the name {name!r}",
                asked=name,
                hint="Class.options(name=...).create() makes one, get_or_create() if there is none",
            )
        if job_id is not None and isinstance(record, dict) and record.get("job_id") == job_id:
            break
        if time.monotonic() > until:
            raise NoSuchActor(f"the name {name!r} is taken, but not by an actor that can be called yet", asked=name)
        time.sleep(LOOK_S)
    fields = record["reference"]
    session = client._open_session()
    session.objects()  # then this process knows which host this is
    actor_doors.remember(str(fields["actor_id"]), session)
    if job_id is not None:
        actor_jobs.remember(job_id, client)
    elif session.is_afar:
        if not fields.get("host_id"):
            raise NotSupported(
                f"the actor {name!r} can be called on the host of its creator alone, where no object store is enabled",
                asked=name,
                hint="set objects.enabled on that host, or call it in a task there",
            )
    elif record.get("boot_id") != _boot_id() and not relay_to(str(fields.get("host_id") or ""), session.whereabouts):
        raise NotSupported(
            f"the actor {name!r} is on another machine, and cannot be called from here",
            asked=name,
            hint="it can be from hosts of its cluster, where object stores are enabled; elsewhere, call it in a task",
        )
    return ActorHandle(ActorReference(**{**fields, "methods": frozenset(fields["methods"])}))


def _holder(client: Client, name: str) -> list[int] | None:
    wanted = _lock_name(client, name)
    for lock in client.http.get("/api/locks", prefix=wanted)["locks"]:
        if lock["name"] == wanted and lock["holders"]:
            return list(lock["holders"][0]["token"])
    return None


def _lock_name(client: Client, name: str) -> str:
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise BadRequest("not the name of an actor", asked=repr(name)[:120], hint="1 to 100 printable characters")
    return f"actors/{own_user(client.http)}/{name}"


def _key(name: str) -> str:
    return f"actors/{name}"


def _boot_id() -> str:
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
