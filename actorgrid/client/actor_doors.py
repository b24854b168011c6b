"""By which of its clients a process comes to actors: through the door, where it is on no host of the cluster.

A process of a host needs no door: its host's agent leads it to all actors of the cluster. One with clients of several
hosts, or clusters, goes by the host of the client that made or found the actor: another one may be lost.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

from actorgrid.objects import here
from actorgrid.objects.here import Whereabouts
from actorgrid.user_actor_context import ActorReference

from .forks import renew_in_children

if TYPE_CHECKING:
    from .session import Session

REMEMBERED_MAX = 10_000
"""So many actors are known to be of a certain client; of others, the latest is asked."""


class ActorDoors:
    """Which session leads to which actor. For any thread."""

    def __init__(self) -> None:
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._of_actors: OrderedDict[str, weakref.ref[Session]] = OrderedDict()
        self._latest: weakref.ref[Session] | None = None

    def after_fork(self) -> None:
        """Begin anew in a forked child, where sessions are the parent's."""
        self._begin()

    def opened(self, session: Session) -> None:
        """Note a session that is open from a machine that is no host."""
        with self._lock:
            self._latest = weakref.ref(session)

    def remember(self, actor_id: str, session: Session) -> None:
        """Note whose client made or found an actor."""
        with self._lock:
            self._of_actors[actor_id] = weakref.ref(session)
            self._of_actors.move_to_end(actor_id)
            if len(self._of_actors) > REMEMBERED_MAX:
                self._of_actors.popitem(last=False)

    def open_session_of(self, actor_id: str) -> Session | None:
        """The open session whose client made or found an actor."""
        with self._lock:
            known = self._of_actors.get(actor_id)
        session = None if known is None else known()
        return None if session is None or session.is_closed else session

    def whereabouts_for(self, reference: ActorReference, at: str = "") -> Whereabouts:
        """The host of this process by which it comes to an actor, which is on host *at* if that is known.

        That very host if one of our sessions is there, then the host of the client that made or found the actor.
        """
        wanted = at or reference.host_id
        found = here.whereabouts(wanted)
        if wanted and found.host_id == wanted:
            return found
        session = self.open_session_of(reference.actor_id)
        return found if session is None or session.is_afar else session.whereabouts

    def session_for(self, reference: ActorReference) -> Session | None:
        """The session by whose door an actor is called from here; ``None`` where this host's agent leads to it."""
        with self._lock:
            latest = self._latest
        session = self.open_session_of(reference.actor_id)
        if session is not None:
            return session if session.is_afar else None
        if here.whereabouts().store or latest is None:
            return None
        session = latest()
        return None if session is None or session.is_closed else session


actor_doors = ActorDoors()
