"""A worker at the object store of its host: with the space of the client that it serves."""

from __future__ import annotations

from typing import Any

from actorgrid.objects import here
from actorgrid.objects.space import ObjectSpace
from actorgrid.transports.object_frames import SpaceAbout
from actorgrid.transports.task_frames import ObjectsOfClient

from .work_records import WorkerSpec


class WorkerObjects:
    """*places*: what the worker's spec says of its host; in one of before there were stores, there is none."""

    def __init__(self, places: WorkerSpec | None) -> None:
        self._path = "" if places is None else places.get("objects", "")
        self._host_id = "" if places is None else places.get("host_id", "")
        self._client: ObjectsOfClient | None = None
        here.use_store(self._path, self._host_id)

    def serve(self, client: ObjectsOfClient | None) -> ObjectSpace | None:
        """The space of a client on this host, where its large values are kept; the client may be on another one."""
        space = None
        if client is not None and self._path:
            space = here.open_space(self._path, client.secret, SpaceAbout(home=client.home))
        self._client = None if space is None else client
        here.serve_session(space)
        return space

    def confirm(self, space: ObjectSpace) -> None:
        """Have the stores know of all that is referred to here; *space*: of the client."""
        here.confirm(space)

    def leave(self) -> None:
        """Serve nobody's space any more; what is still referred to of it here stays."""
        self._client = None
        here.serve_session(None)

    def to_plain(self) -> list[Any] | None:
        """Whose space is served, for another Python in this one's place."""
        return None if self._client is None else list(self._client)

    def take_up(self, plain: list[Any] | None) -> ObjectSpace | None:
        """Serve, in that Python, what the one before served."""
        return self.serve(None if plain is None else ObjectsOfClient(*plain))
