"""What the work of each uid may take of a host's object store, so that one user does not fill it against all others.

Memory is lent: who is alone may have three quarters of it, and what he has beyond an equal share goes to the disk first
as others ask for room. What is being read or written cannot go, and what lies on the disk has nowhere to go: so a
quarter of the memory and half of the disk are there for others whatever one user does, and so are half of the objects,
of the spaces, and of the places of who waits. All that has no uid of its own (sessions of the default tenant, what
agents carry for other hosts) counts as one, which may have everything: it is the agent's own user.
"""

from __future__ import annotations

from collections import OrderedDict

from actorgrid.errors import ObjectStoreFull
from actorgrid.transports.object_frames import DISK, MEMORY

from .block_allocator import StoreLimits, pages
from .records import StoredObject

NO_UID = 0
"""Of who has no uid of his own."""
PART_OF = {MEMORY: (3, 4), DISK: (1, 2)}
PART_OF_NUMBERS = 2


class StoreShares:
    """What the work of each uid has of the store, and its idle objects: in memory and unread, the longest first."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._held: dict[int, dict[str, int]] = {}
        self._objects: dict[int, int] = {}
        self._coming: dict[int, int] = {}
        self._idle: dict[int, OrderedDict[StoredObject, None]] = {}

    # -- what is held

    def most(self, uid: int, kind: str) -> int:
        """The most bytes of a kind that work of *uid* may have."""
        limit = self._limits.memory_bytes if kind == MEMORY else self._limits.disk_bytes
        part, whole = (1, 1) if uid == NO_UID else PART_OF[kind]
        return limit * part // whole

    def may_have(self, uid: int, kind: str, size: int) -> bool:
        """Whether so many more are in its bounds; what is on its way to the disk counts there, too."""
        coming = self._coming.get(uid, 0) if kind == DISK else 0
        return self.held(uid, kind) + coming + pages(size) <= self.most(uid, kind)

    def held(self, uid: int, kind: str) -> int:
        """The bytes of a kind that it has."""
        return self._held.get(uid, {}).get(kind, 0)

    def may_make(self, uid: int) -> bool:
        """Whether it may have one object more."""
        return uid == NO_UID or self._objects.get(uid, 0) < self._limits.objects_max // PART_OF_NUMBERS

    def made(self, stored: StoredObject) -> None:
        """Count a new object, which has its block."""
        self._count(stored, 1)
        self._objects[stored.uid] = self._objects.get(stored.uid, 0) + 1

    def freed(self, stored: StoredObject) -> None:
        """Count it no more."""
        self._count(stored, -1)
        self.busy(stored)
        self._objects[stored.uid] -= 1
        if not self._objects[stored.uid]:
            del self._objects[stored.uid], self._held[stored.uid]

    def coming(self, uid: int, size: int, sign: int) -> None:
        """Note that so much is about to lie on the disk (1), or is not any more, as it does or never will (-1)."""
        left = self._coming.pop(uid, 0) + sign * pages(size)
        if left:
            self._coming[uid] = left

    def spilled(self, stored: StoredObject) -> None:
        """Count it on the disk, as whose it is in memory no more."""
        held, size = self._held[stored.uid], pages(stored.key.size)
        held[MEMORY] -= size
        held[DISK] += size

    def _count(self, stored: StoredObject, sign: int) -> None:
        held = self._held.setdefault(stored.uid, {MEMORY: 0, DISK: 0})
        held[stored.kind] += sign * pages(stored.key.size)

    # -- whose objects go to the disk

    def idle(self, stored: StoredObject) -> None:
        """Note that it was read just now, and is not read any more."""
        found = self._idle.setdefault(stored.uid, OrderedDict())
        found[stored] = None
        found.move_to_end(stored)

    def read(self, stored: StoredObject) -> None:
        """Note that it was read in passing; nothing, unless it is idle."""
        found = self._idle.get(stored.uid)
        if found is not None and stored in found:
            found.move_to_end(stored)

    def busy(self, stored: StoredObject) -> None:
        """Note that it is read, moved or gone."""
        found = self._idle.get(stored.uid)
        if found is not None and found.pop(stored, stored) is None and not found:
            del self._idle[stored.uid]

    def victim(self, uid: int, size: int) -> StoredObject | None:
        """What is to go to the disk for an object of *uid*: of who has most beyond an equal share, which may be *uid*;
        where nobody has, of its own. ``None``: nothing may."""
        whose = uid
        if self.may_have(uid, MEMORY, size):
            sharing = {each for each, held in self._held.items() if held[MEMORY]} | {uid}
            share = self._limits.memory_bytes // len(sharing)
            beyond = {each: self.held(each, MEMORY) + (size if each == uid else 0) - share for each in self._idle}
            whose = max(beyond, key=lambda each: (beyond[each], each == uid), default=uid)
            if beyond.get(whose, 0) <= 0:
                whose = uid
        return next(iter(self._idle.get(whose, ())), None)

    def no_room(self, uid: int, size: int, used: dict[str, int], why: str) -> ObjectStoreFull:
        """The error for who is refused room, for that reason."""
        limits = self._limits
        found = (
            f"{used[MEMORY]} of {limits.memory_bytes} bytes of memory and {used[DISK]} of {limits.disk_bytes} bytes of "
            "the disk in use"
        )
        if uid != NO_UID:
            own = " and ".join(
                f"{self.held(uid, kind)} of at most {self.most(uid, kind)} {where}"
                for kind, where in ((MEMORY, "in memory"), (DISK, "on the disk"))
            )
            found += f", of which this user has {own}"
        return ObjectStoreFull(
            "the object store of this host has no room for an object",
            asked=f"{size} bytes",
            found=f"{found}; {why}",
            hint="drop references, futures and arrays that are not needed any more, or raise objects.memory or"
            " objects.disk on the host",
        )
