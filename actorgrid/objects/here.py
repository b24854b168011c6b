"""The spaces of the object store that this process uses, by their secrets."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from actorgrid.errors import ObjectLost
from actorgrid.transports.object_frames import SpaceAbout

from .connection import StoreConnection
from .far import FarSpace
from .space import Held, ObjectSpace, gift_of

_lock = threading.RLock()  # a space may be dropped, and so removed, while another one is looked for
_connections: weakref.WeakValueDictionary[str, StoreConnection] = weakref.WeakValueDictionary()
_spaces: weakref.WeakValueDictionary[bytes, ObjectSpace] = weakref.WeakValueDictionary()
_path = ""
_host = ""
_of_work = False
_far: weakref.WeakValueDictionary[tuple[bytes, str], FarSpace] = weakref.WeakValueDictionary()
_served: ObjectSpace | None = None
_owned: weakref.ref[ObjectSpace] | None = None


def use_store(path: str, host: str) -> None:
    """Note where the store of the host listens that this process works for, and which host that is, for good."""
    global _path, _host, _of_work
    _path, _host, _of_work = path, host, bool(path)


def is_of_work() -> bool:
    """Whether this process works for a host. Another knows its host by the session that it opened last."""
    return _of_work


def whereabouts() -> tuple[str, str]:
    """Where the store of this process's host listens, and which host that is; empty where that is not known."""
    return _path, _host


def open_space(path: str, secret: bytes, about: SpaceAbout) -> ObjectSpace:
    """The space of that secret at the store at *path*, which a session has here."""
    global _path
    with _lock:
        _path = _path or path
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
        is_far = bool(host and _host and host != _host)
        own = _spaces.get(secret)
        found = _far.get((secret, host)) if is_far else own
        if found is not None and not found.closed:
            return found
        if not _path:
            raise ObjectLost(
                "this process has no object store to read a reference by",
                hint="on a host of the cluster, make a client before; elsewhere, ask for the value",
            )
        if is_far:
            # The store there goes by it: it would wait for an owner of its own host, and then end the space.
            home = home or (own.about.home if own is not None else "") or _host
            far = _far[secret, host] = FarSpace(_path, host, secret, SpaceAbout(home=home))
            return far
        return open_space(_path, secret, SpaceAbout(home=home))


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
    global _owned, _path, _host
    _path, _host = path, host
    space = open_space(path, secret, about)
    _owned = weakref.ref(space)
    return space


def current_space() -> ObjectSpace | None:
    """Where to keep what belongs to no session in particular: with that which we work for, or else our own latest."""
    space = served_space() or (_owned() if _owned is not None else None)
    return None if space is None or space.closed else space
