"""The spaces of the object store that this process uses, by their secrets."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from actorgrid.errors import ObjectLost
from actorgrid.transports.object_frames import SpaceAbout

from .connection import StoreConnection
from .far import FarSpace
from .space import Held, ObjectSpace, gift_of


class Whereabouts(NamedTuple):
    """A host by which a process comes to objects and actors; both are empty where that is not known."""

    store: str = ""
    """Where its store listens."""
    host_id: str = ""


NOWHERE = Whereabouts()
_lock = threading.RLock()  # a space may be dropped, and so removed, while another one is looked for
_connections: weakref.WeakValueDictionary[str, StoreConnection] = weakref.WeakValueDictionary()
_spaces: weakref.WeakValueDictionary[bytes, ObjectSpace] = weakref.WeakValueDictionary()
_of_work = NOWHERE
_sessions_lock = threading.Lock()
_of_sessions: dict[bytes, Whereabouts] = {}
"""Of the open sessions of this process, by the secrets of their spaces; the one that was opened last is the last. Made
anew when it changes, so that whoever reads connections to actors need not wait for whoever opens a space."""
_latest = NOWHERE
_far: weakref.WeakValueDictionary[tuple[bytes, str], FarSpace] = weakref.WeakValueDictionary()
_served: ObjectSpace | None = None
_owned: weakref.ref[ObjectSpace] | None = None


def use_store(path: str, host: str) -> None:
    """Note where the store of the host listens that this process works for, and which host that is, for good."""
    global _of_work, _latest
    _latest = Whereabouts(path, host)
    _of_work = _latest if path else NOWHERE


def is_of_work() -> bool:
    """Whether this process works for a host. Another knows hosts by its sessions."""
    return bool(_of_work.store)


def whereabouts(host: str = "") -> Whereabouts:
    """The host of this process: *host* if it works for that or has a session there. Else the one that it works for, or
    that of its open session that was opened last, or of the last that it had."""
    known = [each for each in (_of_work, *reversed(_of_sessions.values()), _latest) if each.store]
    return next((each for each in known if host and each.host_id == host), known[0] if known else _latest)


def note_session(secret: bytes, path: str, host: str) -> None:
    """Note where a session of this process is, by the secret of its space: on another host than before, if it moved."""
    global _latest, _of_sessions
    with _sessions_lock:
        _latest = Whereabouts(path, host)
        others = {each: place for each, place in _of_sessions.items() if each != secret}
        _of_sessions = {**others, secret: _latest}


def forget_session(secret: bytes) -> None:
    """Note that a session is closed."""
    global _of_sessions
    with _sessions_lock:
        _of_sessions = {each: place for each, place in _of_sessions.items() if each != secret}


def open_space(path: str, secret: bytes, about: SpaceAbout) -> ObjectSpace:
    """The space of that secret at the store at *path*, which a session has here."""
    global _latest
    with _lock:
        if not whereabouts().store:
            _latest = Whereabouts(path, _latest.host_id)
        found = _spaces.get(secret)
        if found is not None and not found.closed and not about.owner:
            return found  # with what this process refers to there from before
        connection = _connections.get(path)
        if connection is None:
            connection = _connections[path] = StoreConnection(path)
        made = _spaces[secret] = ObjectSpace(connection, secret, about)
        return made


def space_of(secret: bytes, home: str, host: str) -> ObjectSpace:
    """The space of that secret on *host*, as whatever refers to it came to this process. Raises ObjectLost."""
    with _lock:
        own = _spaces.get(secret)
        at = _place_of(own) if own is not None and not own.closed else whereabouts(host)
        is_far = bool(host and at.host_id and host != at.host_id)
        found = _far.get((secret, host)) if is_far else own
        if found is not None and not found.closed:
            return found
        if not at.store:
            raise ObjectLost(
                "this process has no object store to read a reference by",
                hint="on a host of the cluster, make a client before; elsewhere, ask for the value",
            )
        if is_far:
            # The store there goes by it: it would wait for an owner of its own host, and then end the space.
            home = home or (own.about.home if own is not None else "") or at.host_id
            far = _far[secret, host] = FarSpace(at.store, host, secret, SpaceAbout(home=home))
            return far
        return open_space(at.store, secret, SpaceAbout(home=home))


def _place_of(space: ObjectSpace) -> Whereabouts:
    """The host whose store a space of this process is at."""
    known = (_of_work, *reversed(_of_sessions.values()))
    return next((each for each in known if each.store == space.path), whereabouts())


def take_gifts(gifts: Iterable[Any], home: str = "") -> tuple[Held, ...]:
    """Take what is kept for this process. Raises MalformedBody, ObjectLost."""
    return tuple(space_of(gift.secret, home, gift.key.host).hold(gift.key, gift.token) for gift in map(gift_of, gifts))


def confirm(space: ObjectSpace | None) -> None:
    """Have the stores know of all that this process refers to, in *space* and on other hosts, before whoever it has
    that from lets go of it."""
    if space is not None:
        space.confirm()
    if _far:
        with _lock:
            others = list(_far.values())
        for other in others:
            other.confirm()


def leave(space: ObjectSpace) -> None:
    """Close a session's space, and what lies on other hosts of it."""
    forget_session(space.secret)
    space.close()
    with _lock:
        others = [other for (secret, _), other in _far.items() if secret == space.secret]
    for other in others:
        other.close()
        other.hang_up()


def serve_session(space: ObjectSpace | None) -> None:
    """Note the space of the session that this process works for, where that has one."""
    global _served
    _served = space


def served_space() -> ObjectSpace | None:
    """The space of the session that this process works for."""
    return None if _served is None or _served.closed else _served


def own_space(path: str, host: str, secret: bytes, about: SpaceAbout) -> ObjectSpace:
    """Open the space of a session of this process, as ``open_space``, and note where it is."""
    global _owned
    note_session(secret, path, host)
    space = open_space(path, secret, about)
    _owned = weakref.ref(space)
    return space


def current_space() -> ObjectSpace | None:
    """Where to keep what belongs to no session in particular: with that which we work for, or else our own latest."""
    space = served_space() or (_owned() if _owned is not None else None)
    return None if space is None or space.closed else space
