"""Changes of the shared state to one client, without a gap: what it missed by position, then what comes.

Each change has the id of its place in this host's order, and a client that comes back with the
last one (``Last-Event-ID``) gets the latest of each key that changed since. Who sends that header, ``0`` at first, is
told more: ``resync`` before all keys come, as where the id is not known, and ``synced``, with an id, when it has all.
A key that is not among them then is gone.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from actorgrid.actors.replication.changes import read_change_id
from actorgrid.actors.replication.messages import ChangeRecord, ChangesPage

from .codec import encode_json
from .hub import Item, Listener, StateItem
from .stream import EventSink, follow

ReadPage = Callable[[str, str], Awaitable[ChangesPage]]
"""(after, behind): as of ``ReadChanges``."""
FIRST = "0"
"""The ``Last-Event-ID`` of a client that has no position yet."""


class StateStream:
    """One client's stream. *sees*: whether it may see a key. *shown*: a key as the client writes it. *marks*: it
    understands more than entries."""

    def __init__(
        self,
        request: web.Request,
        sink: EventSink,
        read: ReadPage,
        sees: Callable[[str], bool],
        shown: Callable[[str], str],
        marks: bool,
    ) -> None:
        self._request = request
        self._sink = sink
        self._read = read
        self._sees = sees
        self._shown = shown
        self._marks = marks
        self._last = ""

    async def send(self, listener: Listener, after: str) -> web.StreamResponse:
        """Send what came behind *after* (empty: all keys), then what *listener* gets, until it ends."""
        why = "the position is not known here" if after else "initial"
        return await follow(
            self._request,
            self._sink,
            listener,
            lambda: self._catch_up(after, why),
            self._change,
            lambda: self._catch_up(self._last, "the position is not known any more"),
        )

    async def _change(self, item: Item) -> None:
        if not isinstance(item, StateItem):
            return
        come, last = read_change_id(item.change_id), read_change_id(self._last)
        if come is not None and last is not None:
            if come[0] != last[0]:
                await self._catch_up(self._last, "the shared state's server began anew")
                return
            if come[1] <= last[1]:
                return
        self._last = item.change_id or self._last
        if self._sees(item.key):
            as_is = self._shown(item.key) == item.key
            data = item.data if as_is else self._data(json.loads(item.data))
            await self._sink.send(data, event_id=item.change_id)

    async def _catch_up(self, after: str, why: str) -> None:
        """All that changed behind *after*, or everything; after it the position is known."""
        while True:
            page = await self._read(after, "")
            if page["known"]:
                for change in page["changes"]:
                    await self._sink.send(self._data(change), event_id=change["id"])
                if page["more"]:
                    after = page["changes"][-1]["id"]
                    continue
                await self._synced(page["upto"])
                return
            # What changes while these are sent comes once more, by position.
            after = page["upto"]
            if self._marks:
                await self._sink.send(encode_json({"reason": why}), "resync")
            while True:
                for change in page["changes"]:
                    await self._sink.send(self._data(change))
                if not page["more"]:
                    break
                page = await self._read("", page["changes"][-1]["key"])

    def _data(self, change: ChangeRecord) -> bytes:
        return encode_json({**change, "key": self._shown(change["key"])})

    async def _synced(self, position: str) -> None:
        self._last = position
        if self._marks:
            await self._sink.send(encode_json({"id": position}), "synced", position)
