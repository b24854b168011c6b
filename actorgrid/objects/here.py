"""The spaces of the object store that this process uses, by their secrets."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from actorgrid.errors import ObjectLost
from actorgrid.transports.object_frames import SpaceAbout

from .connection import StoreConnection
from .space import Held, ObjectSpace, gift_of

_lock = threading.RLock()  # a space may be dropped, and so removed, while another one is looked for
_connections: weakref.WeakValueDictionary[str, StoreConnection] = weakref.WeakValueDictionary()
_spaces: weakref.WeakValueDictionary[bytes, ObjectSpace] = weakref.WeakValueDictionary()
_path = ""
_home = ""
_served: ObjectSpace | None = None
_owned: weakref.ref[ObjectSpace] | None = None


def use_store(path: str) -> None:
    """Note where the store of this process's host listens, for references that come from elsewhere."""
    global _path
    _path = path


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


def space_of(secret: bytes, home: str = "") -> ObjectSpace:
    """The space of that secret, as whatever refers to it came to this process. Raises ObjectLost."""
    with _lock:
        found = _spaces.get(secret)
        if found is not None and not found.closed:
            return found
        if not _path:
            raise ObjectLost(
                "this process has no object store to read a reference by",
                hint="on a host of the cluster, make a client before; elsewhere, ask for the value",
            )
        return open_space(_path, secret, SpaceAbout(home=home))


def take_gifts(gifts: Iterable[Any], home: str = "") -> tuple[Held, ...]:
    """Take what is kept for this process. Raises MalformedBody, ObjectLost."""
    return tuple(space_of(gift.secret, home).hold(gift.key, gift.token) for gift in map(gift_of, gifts))


def serve_session(space: ObjectSpace | None) -> None:
    """Note the space of the session that this process works for, where that has one."""
    global _served
    _served = space


def served_space() -> ObjectSpace | None:
    """The space of the session that this process works for."""
    return None if _served is None or _served.closed else _served


def owns(space: ObjectSpace) -> None:
    """Note the space of a session of this process."""
    global _owned
    _owned = weakref.ref(space)


def current_space() -> ObjectSpace | None:
    """Where to keep what belongs to no session in particular: with that which we work for, or else our own latest."""
    space = served_space() or (_owned() if _owned is not None else None)
    return None if space is None or space.closed else space
