"""Where actors are that were made from a machine that is no host, for all who hold their handles.

An actor of a client on a host has a folder there, which says that (owned_actors.py). One that was made from elsewhere
is said in the shared state, in the namespace of its creator's user: a key for each, which ends by itself when its
creator does not renew it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorDied, ActorGridError, error_from_dict
from actorgrid.user_actor_context import ActorReference

from .state import SharedState

if TYPE_CHECKING:
    from .http import AdminHttp

TTL_S, RENEW_S = 60.0, 20.0
DEATH_TTL_S = 3600.0
"""So long it is known what such an actor died of."""
DEATH_CHARS_MAX = 16_000
ABSENT_S = 20.0
"""So long an actor of which nothing is said may yet be: what is said takes a while to be on all hosts."""
AGAIN_S = 1.0
CLOSE_S = 5.0


class ActorBoard:
    """What one session says of the actors that it has made. For any thread; another one tells the host."""

    def __init__(self, http: AdminHttp, namespace: str) -> None:
        self._state = SharedState(http).in_namespace(namespace)
        self._lock = threading.Lock()
        self._places: dict[str, str] = {}  # by key
        self._changed: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._unsaid: dict[str, dict[str, Any] | None] = {}  # ``None``: is to be taken away
        self._thread = threading.Thread(target=self._run, name="actorgrid-actor-board", daemon=True)
        self._thread.start()

    def place(self, reference: ActorReference, host_id: str) -> None:
        """Say on which host an actor is; empty: on none just now."""
        key = key_of(reference)
        with self._lock:
            self._places[key] = host_id
            self._unsaid[key] = {"at": host_id}
        self._changed.put(True)

    def over(self, reference: ActorReference, death: ActorDied) -> None:
        """Say what an actor died of."""
        key = key_of(reference)
        plain = {name: value for name, value in death.details.items() if isinstance(value, (str, int, float))}
        record: dict[str, Any] = {**death.to_dict(), "details": plain}
        if len(str(record)) > DEATH_CHARS_MAX:
            record = {**ActorDied(death.message[:1000], asked=death.asked[:200]).to_dict()}
        with self._lock:
            self._places.pop(key, None)
            self._unsaid[key] = {"death": record}
        self._changed.put(True)

    def close(self) -> None:
        """Say that none of them is there any more, and end."""
        with self._lock:
            self._unsaid.update(dict.fromkeys(self._places))
            self._places.clear()
        self._changed.put(False)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        renew_at, goes_on = time.monotonic() + RENEW_S, True
        while goes_on:
            with suppress(queue.Empty):
                goes_on = self._changed.get(timeout=max(0.0, renew_at - time.monotonic()))
                while not self._changed.empty():
                    goes_on = self._changed.get() and goes_on
            now = time.monotonic()
            with self._lock:
                if now >= renew_at:
                    renew_at = now + RENEW_S
                    self._unsaid = {**{key: {"at": at} for key, at in self._places.items()}, **self._unsaid}
                said, self._unsaid = self._unsaid, {}
            if said and not self._say(said) and goes_on:
                with self._lock:
                    self._unsaid = {**said, **self._unsaid}
                renew_at = min(renew_at, now + AGAIN_S)

    def _say(self, said: Mapping[str, dict[str, Any] | None]) -> bool:
        keys = list(said)
        try:
            for begin in range(0, len(keys), 500):
                batch = self._state.batch()
                for key in keys[begin : begin + 500]:
                    record = said[key]
                    if record is None:
                        batch.delete(key)
                    else:
                        batch.put(key, record, ttl_s=DEATH_TTL_S if "death" in record else TTL_S)
                self._state.apply(batch)
        except ActorGridError:
            return False
        return True


def key_of(reference: ActorReference) -> str:
    """The key of an actor, in the namespace of its creator's user."""
    return f"actors/at/{reference.actor_id}"


def look_up(http: AdminHttp, reference: ActorReference) -> tuple[str, ActorDied | None] | None:
    """The host that an actor is on (empty: on none just now), or what it died of; ``None`` where nothing is said.

    Raises what asking the door raises.
    """
    said = SharedState(http).in_namespace(reference.made_afar_by).get(key_of(reference), None)
    match said:
        case {"at": str(host_id)}:
            return host_id, None
        case {"death": dict(record)}:
            try:
                error = error_from_dict(record)
            except (KeyError, TypeError, ValueError, AttributeError):
                return "", ActorDied("the actor is dead, and what is said of it cannot be read")
            return "", error if isinstance(error, ActorDied) else ActorDied(str(error))
    return None
