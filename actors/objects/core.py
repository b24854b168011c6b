"""Decides for the object store: who may read what, how long it stays, where it lies, what goes to the disk.

Events in (``connect``, ``take``, ``moved``, ``tick``, ...), instructions out (``orders``); no socket, file or clock.

*Lifetime.* An object stays while a connection holds it (a reference there) or has pinned it (it is read there), while
it is a gift that nobody has taken, or another object refers to it. A connection's end ends what it held; gifts live on
for ``GIFT_S``, since who is to take them may just have heard of them. All objects of a space end with its owner's
connection, whoever holds them; a space without an owner ends ``OWNERLESS_S`` after it was opened. Of a session of
another host, the owner holds what it has here by a connection as everybody does, and the space ends when it is unused.

*Room.* Objects are made in memory, in order: where there is room; where the objects that were read longest ago make
room by going to the disk; on the disk. Else the request waits for ``ROOM_S`` and fails with ObjectStoreFull. What is
pinned stays where it is.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, MalformedBody, ObjectLost, ObjectStoreFull, Overloaded
from actorgrid.hotpath import Block
from actorgrid.transports.object_frames import (
    DISK,
    MEMORY,
    SMALL_BYTES,
    AbortObject,
    CloseSpace,
    CreateObject,
    DealtWith,
    DropObjects,
    Failed,
    GetObject,
    GetPiece,
    GiveObject,
    HelloStore,
    Here,
    HoldObject,
    LookStore,
    Made,
    ObjectKey,
    OpenSpace,
    Place,
    ProcessFrame,
    PutObject,
    SealObject,
    SyncStore,
    UnpinObjects,
)

from .block_allocator import BlockAllocator, FileOf, Punch, StoreLimits, pages
from .listing import shown
from .records import (
    Answer,
    CloseFiles,
    HangUp,
    ReadPiece,
    ReadSmall,
    Reserve,
    Space,
    SpillCopy,
    State,
    StoredObject,
    StoreUser,
    WriteSmall,
    lost,
)
from .shares import NO_UID, PART_OF_NUMBERS, StoreShares

GIFT_S = 30.0
OWNERLESS_S = 30.0
ROOM_S = 10.0
COPY_S = 110.0
"""So much longer room is waited for while something is being copied to the disk to make it: gigabytes take a while."""
DISK_FULL_S = 10.0
"""A disk that took no more is asked again after so long."""
MAX_MOVES = 64
EARLY_MAX = 1000
MAX_ENDED = 1000
"""Spaces of which it is remembered that, and why, they ended."""

Instruction = Answer | ReadSmall | ReadPiece | WriteSmall | Reserve | SpillCopy | Punch | CloseFiles | HangUp


class _Request(NamedTuple):
    """Room that somebody waits for."""

    connection: int
    question: int
    space: Space
    size: int
    deadline: float
    slot: int
    put: PutObject | None
    """What comes along, of a small object."""
    uid: int
    """Of whoever asks for it."""


class ObjectStoreCore:
    """The store of one host: *store_id* is its own since this start."""

    def __init__(self, store_id: str, host_id: str, limits: StoreLimits) -> None:
        self.store_id = store_id
        self.host_id = host_id
        self.limits = limits
        self.orders: list[Instruction] = []
        self.objects = 0
        self.spilled_bytes_total = 0
        self.spilled_total = 0
        self.made_total = 0
        self.made_bytes_total = 0
        self.full_total = 0
        self._allocator = BlockAllocator(limits, lambda punch: self.orders.append(punch))
        self._spaces: dict[bytes, Space] = {}
        self._ended: OrderedDict[bytes, str] = OrderedDict()
        self._connections: dict[int, StoreUser] = {}
        self._last_number = 0
        self._last_space = 0
        self._last_ticket = 0
        self._shares = StoreShares(limits)
        self._waiting: deque[_Request] = deque()
        self._moves: dict[int, tuple[StoredObject, Block]] = {}
        self._moving_bytes = 0
        self._reserving: dict[int, tuple[_Request, Block]] = {}
        self._disk_full_until = 0.0
        self._late_gifts: deque[tuple[float, StoredObject, int]] = deque()

    # -- connections

    def connect(self, number: int, uid: int = NO_UID) -> None:
        """Note a process that has said hello, and the uid of its work where that has one of its own."""
        self._connections[number] = StoreUser(number, uid)

    def disconnect(self, number: int, now: float) -> None:
        """Note that a process has left: what it held ends, and the spaces that it owned."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        for space in set(connection.spaces.values()):
            space.opened_by.discard(number)
            if space.owner == number:
                self._end(space, "its owner's session has ended")
        for stored in list(connection.objects):
            stored.holds.pop(number, None)
            if stored.pins.pop(number, None) is not None:
                self._unread(stored)
            if stored.maker == number and stored.state is State.WRITING:
                self._free(stored)
            self._settle(stored)
        for stored, token in connection.gifts:
            if stored.state is not State.GONE:
                self._late_gifts.append((now + GIFT_S, stored, token))
        for space in set(connection.spaces.values()):
            self._end_unused(space)
        self._serve_waiting(now)

    def take(self, number: int, frame: ProcessFrame, now: float) -> None:
        """Take what a process says."""
        connection = self._connections[number]
        try:
            self._take(connection, frame, now)
        except ActorGridError as error:
            question = getattr(frame, "question", None)
            if question is None or isinstance(error, MalformedBody):
                self.orders.append(HangUp(number, error))
            else:
                self.orders.append(Answer(number, Failed(question, error)))
        if self._waiting and isinstance(frame, DropObjects | UnpinObjects | CloseSpace | AbortObject):
            self._serve_waiting(now)

    def _take(self, connection: StoreUser, frame: ProcessFrame, now: float) -> None:
        match frame:
            case GetObject():
                self._get(connection, frame)
            case GetPiece():
                self._piece(connection, frame)
            case HoldObject(slot, key, token):
                self._hold(connection, self._space(connection, slot), key, token)
            case DropObjects(slot, counts):
                for key, count in counts:
                    self._drop(connection, self._space(connection, slot), key, count)
            case UnpinObjects(slot, keys):
                for key in keys:
                    self._unpin(connection, self._space(connection, slot), key)
            case CreateObject(question, slot, size):
                space = self._live(connection, slot)
                self._create(
                    _Request(connection.number, question, space, size, now + ROOM_S, slot, None, connection.uid), now
                )
            case SealObject():
                self._seal(connection, frame)
            case PutObject(question, slot, data):
                space, size = self._live(connection, slot), len(data)
                request = _Request(connection.number, question, space, size, now + ROOM_S, slot, frame, connection.uid)
                self._create(request, now)
            case GiveObject(slot, key, token):
                self._give(connection, self._space(connection, slot), key, token)
            case SyncStore(question):
                self._answer(connection, DealtWith(question))
            case AbortObject(slot, number):
                stored = self._space(connection, slot).objects.get((self.store_id, number))
                if stored is not None and stored.maker == connection.number and stored.state is State.WRITING:
                    self._free(stored)
            case OpenSpace():
                self._open(connection, frame, now)
            case CloseSpace(slot):
                self._close(connection, slot)
            case LookStore(question):
                spaces = {space.number: space for space in connection.spaces.values()}
                self._answer(
                    connection, Here(question, {"spaces": [shown(each, self.host_id) for each in spaces.values()]})
                )
            case HelloStore():
                raise MalformedBody("a second hello")

    # -- spaces

    def _open(self, connection: StoreUser, frame: OpenSpace, now: float) -> None:
        secret_hash, uid = hashlib.sha256(frame.secret).digest(), connection.uid
        if frame.slot in connection.spaces:
            raise MalformedBody("a slot is in use", found=str(frame.slot))
        space = self._spaces.get(secret_hash)
        if space is None:
            why = self._ended.get(secret_hash)
            if why is not None and not frame.about.owner:
                raise ObjectLost(f"the objects are gone: {why}")
            self._ended.pop(secret_hash, None)
            if len(self._spaces) >= self.limits.spaces_max:
                raise Overloaded("this host's object store serves its maximum of sessions", hint="try again later")
            if (
                uid
                and sum(each.uid == uid for each in self._spaces.values()) * PART_OF_NUMBERS >= self.limits.spaces_max
            ):
                raise Overloaded("this user has all sessions with objects that it may here", hint="close some")
            self._last_space += 1
            blocks = self._allocator.open(self._last_space)
            space = self._spaces[secret_hash] = Space(self._last_space, secret_hash, frame.about, blocks, uid)
            space.ownerless_at = now
        if frame.about.owner:
            if space.owner not in (None, connection.number):
                raise MalformedBody("a space has one owner")
            space.owner, space.ownerless_at, space.about = connection.number, None, frame.about
        connection.spaces[frame.slot] = space
        space.opened_by.add(connection.number)
        self._answer(connection, DealtWith(frame.question))

    def _close(self, connection: StoreUser, slot: int) -> None:
        space = connection.spaces.pop(slot, None)
        if space is None:
            raise MalformedBody("a slot that was not opened", found=str(slot))
        connection.sent = {each for each in connection.sent if each[0] != slot}
        if space in connection.spaces.values():
            return  # opened twice
        space.opened_by.discard(connection.number)
        for stored in [stored for stored in connection.objects if stored.space is space]:
            stored.holds.pop(connection.number, None)
            if stored.maker == connection.number and stored.state is State.WRITING:
                self._free(stored)
            self._leave(connection, stored)  # what it reads goes on to be read
            self._settle(stored)
        if space.owner == connection.number:
            self._end(space, "its owner's session has ended")
        self._end_unused(space)

    def _end_unused(self, space: Space) -> None:
        """End a space without an owner here that nobody uses. One of another host's session may be opened again."""
        if not (space.opened_by or space.objects or space.ended) and space.owner is None:
            self._end(space, "nobody uses it")
            if self._is_away(space):
                del self._ended[space.secret_hash]

    def _is_away(self, space: Space) -> bool:
        """Whether its owner is on another host."""
        return space.about.home not in ("", self.host_id)

    def _space(self, connection: StoreUser, slot: int) -> Space:
        space = connection.spaces.get(slot)
        if space is None:
            raise MalformedBody("a slot that was not opened", found=str(slot))
        return space

    def _live(self, connection: StoreUser, slot: int) -> Space:
        space = self._space(connection, slot)
        if space.ended:
            raise ObjectLost(f"nothing can be kept: {space.ended}")
        return space

    def _end(self, space: Space, why: str) -> None:
        space.ended = why
        self._spaces.pop(space.secret_hash, None)
        self._ended[space.secret_hash] = why
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        for request in [each for each in self._waiting if each.space is space]:
            self._waiting.remove(request)
            self._refuse(request, ObjectLost(f"nothing can be kept: {why}"))
        for stored in list(space.objects.values()):
            self._free(stored)
        self._allocator.close(space.blocks)
        self.orders.append(CloseFiles(space.number))

    # -- making objects

    def _create(self, request: _Request, now: float) -> None:
        size, shares, uid = request.size, self._shares, request.uid
        if pages(size) > max(shares.most(uid, MEMORY), shares.most(uid, DISK)):
            raise self._full(
                request, "it is larger than the store" + (", or than what one user may have" if uid else "")
            )
        if self.objects + len(self._waiting) >= self.limits.objects_max or not shares.may_make(uid):
            most = self.limits.objects_max // (PART_OF_NUMBERS if uid else 1)
            raise self._full(request, f"it holds its maximum of {most} objects")
        if not self._make(request, now):
            others = [each for each in self._waiting if not uid or each.uid == uid]
            if len(others) >= self.limits.waiting_max // (PART_OF_NUMBERS if uid else 1):
                raise self._full(request, f"{len(others)} others wait for room")
            self._waiting.append(request)

    def _make(self, request: _Request, now: float) -> bool:
        """Make room for an object; ``False`` when there is none now."""
        if self._shares.may_have(request.uid, MEMORY, request.size):
            block = self._allocator.allocate(request.space.blocks, MEMORY, request.size, now)
            if block is not None:
                self._made(request, MEMORY, block)
                return True
        return not self._spill(request, now) and self._make_on_disk(request, now)

    def _make_on_disk(self, request: _Request, now: float) -> bool:
        if now < self._disk_full_until or not self._shares.may_have(request.uid, DISK, request.size):
            return False
        block = self._allocator.allocate(request.space.blocks, DISK, request.size, now)
        if block is None:
            return False
        self._last_ticket += 1
        self._reserving[self._last_ticket] = request, block
        self._shares.coming(request.uid, request.size, 1)
        self.orders.append(Reserve(self._last_ticket, FileOf(request.space.number, DISK), block.offset, block.size))
        return True

    def reserved(self, ticket: int, ok: bool, now: float) -> None:
        """Note whether the disk had the room."""
        request, block = self._reserving.pop(ticket)
        self._shares.coming(request.uid, request.size, -1)
        if request.space.ended:
            self._refuse(request, ObjectLost(f"nothing can be kept: {request.space.ended}"))
        elif ok and request.connection in self._connections:
            self._made(request, DISK, block)
        else:
            self._allocator.free(request.space.blocks, DISK, block)
            if not ok:
                self._disk_full_until = now + DISK_FULL_S
                self._waiting.append(request)

    def _made(self, request: _Request, kind: str, block: Block) -> None:
        connection = self._connections[request.connection]
        stored = self._new(connection, request.space, request.size, kind, block)
        file = FileOf(request.space.number, kind)
        if request.put is not None:
            self.orders.append(WriteSmall(file, block.offset, request.put.data))
            self._ready(connection, stored, request.put.refers)
            self._answer(connection, Made(request.question, stored.key.number))
            return
        comes = self._comes(connection, request.slot, kind, True)
        place = Place(request.question, stored.key.number, kind, block.offset, request.size, comes)
        self.orders.append(Answer(connection.number, place, file if comes else None, True))

    def _comes(self, connection: StoreUser, slot: int, kind: str, writable: bool) -> bool:
        """Whether a descriptor is to go along, as the process does not have it."""
        comes = (slot, kind, writable) not in connection.sent
        connection.sent.add((slot, kind, writable))
        return comes

    def _answer(self, connection: StoreUser, frame: DealtWith | Made | Here) -> None:
        self.orders.append(Answer(connection.number, frame))

    def _new(self, connection: StoreUser, space: Space, size: int, kind: str, block: Block) -> StoredObject:
        self._last_number += 1
        self.made_total += 1
        self.made_bytes_total += size
        self.objects += 1
        key = ObjectKey(self.store_id, self._last_number, self.host_id, size)
        stored = space.objects[self.store_id, self._last_number] = StoredObject(
            space, key, connection.number, connection.uid
        )
        stored.kind, stored.block = kind, block
        self._shares.made(stored)
        connection.objects.add(stored)
        return stored

    def _seal(self, connection: StoreUser, frame: SealObject) -> None:
        space = self._live(connection, frame.slot)
        stored = space.objects.get((self.store_id, frame.number))
        if stored is None or stored.maker != connection.number or stored.state is not State.WRITING:
            raise MalformedBody("an object that is not being made", found=str(frame.number))
        self._ready(connection, stored, frame.refers)
        self._answer(connection, DealtWith(frame.question))

    def _ready(self, connection: StoreUser, stored: StoredObject, refers: tuple[ObjectKey, ...]) -> None:
        stored.state = State.READY
        stored.holds[connection.number] = 1
        found = []
        for key in dict.fromkeys(refers):
            for space in {id(each): each for each in connection.spaces.values()}.values():
                other = space.objects.get((key.store, key.number))
                if other is not None and other.state is not State.WRITING:
                    other.within += 1
                    found.append(other)
                    break
        stored.refers = tuple(found)
        if stored.kind == MEMORY:
            self._shares.idle(stored)

    def _full(self, request: _Request, why: str) -> ObjectStoreFull:
        self.full_total += 1
        return self._shares.no_room(request.uid, request.size, self._allocator.used, why)

    # -- room

    def _spill(self, request: _Request, now: float) -> bool:
        """Have objects go to the disk until this one has room; whether it will have it."""
        size, uid, shares = request.size, request.uid, self._shares
        if shares.most(uid, MEMORY) < pages(size) or now < self._disk_full_until:
            return False
        lacks = max(
            self._allocator.lacks(MEMORY, size), shares.held(uid, MEMORY) + pages(size) - shares.most(uid, MEMORY)
        )
        lacks = lacks if lacks > 0 else size  # enough is free, but in pieces: larger ones come of what goes
        lacks -= self._moving_bytes
        while lacks > 0 and len(self._moves) < MAX_MOVES:
            stored = shares.victim(uid, size)
            if stored is None or not self._move(stored, now):
                return False
            lacks -= stored.block.size if stored.block is not None else 0
        return bool(self._moves)

    def _move(self, stored: StoredObject, now: float) -> bool:
        block, blocks = stored.block, stored.space.blocks
        assert block is not None, "what is idle lies in memory"
        if not self._shares.may_have(stored.uid, DISK, stored.key.size):
            return False
        target = self._allocator.allocate(blocks, DISK, stored.key.size, now)
        if target is None:
            return False
        self._shares.busy(stored)
        self._shares.coming(stored.uid, stored.key.size, 1)
        stored.state = State.MOVING
        self._last_ticket += 1
        self._moves[self._last_ticket] = stored, target
        self._moving_bytes += block.size
        number = stored.space.number
        source, goal = FileOf(number, MEMORY), FileOf(number, DISK)
        self.orders.append(SpillCopy(self._last_ticket, source, block.offset, goal, target.offset, stored.key.size))
        return True

    def moved(self, ticket: int, ok: bool, now: float) -> None:
        """Note whether an object was written to the disk."""
        stored, target = self._moves.pop(ticket)
        self._shares.coming(stored.uid, stored.key.size, -1)
        space = stored.space
        block = stored.block
        self._moving_bytes -= target.size
        if space.ended:
            return
        if stored.state is State.GONE:  # nobody refers to it any more; its memory was kept for the copy
            assert block is not None, "it was being read"
            self._allocator.free(space.blocks, DISK, target)
            self._allocator.free(space.blocks, MEMORY, block)
            stored.block = None
        elif ok and not stored.pins:
            assert block is not None, "it was being read"
            self._allocator.free(space.blocks, MEMORY, block)
            stored.state, stored.kind, stored.block = State.READY, DISK, target
            self._shares.spilled(stored)
            self.spilled_total += 1
            self.spilled_bytes_total += stored.key.size
        else:
            self._allocator.free(space.blocks, DISK, target)
            stored.state = State.READY
            self._unread(stored)
            if not ok:
                self._disk_full_until = now + DISK_FULL_S
        self._serve_waiting(now)

    def _serve_waiting(self, now: float) -> None:
        """Make room for what waits, in order; what finds none stands in nobody's way."""
        for _ in range(len(self._waiting)):
            request = self._waiting.popleft()
            if request.space.ended or request.connection not in self._connections:
                continue
            if not self._make(request, now):
                self._waiting.append(request)

    def _refuse(self, request: _Request, error: ActorGridError) -> None:
        if request.connection in self._connections:
            self.orders.append(Answer(request.connection, Failed(request.question, error)))

    # -- references

    def _hold(self, connection: StoreUser, space: Space, key: ObjectKey, token: int) -> None:
        stored = space.objects.get((key.store, key.number))
        if stored is None or stored.state is State.WRITING:
            return  # it is gone: whoever asks for it hears that
        stored.holds[connection.number] = stored.holds.get(connection.number, 0) + 1
        connection.objects.add(stored)
        if token:
            self._take_gift(stored, token)

    def _drop(self, connection: StoreUser, space: Space, key: ObjectKey, count: int) -> None:
        stored = space.objects.get((key.store, key.number))
        held = 0 if stored is None else stored.holds.get(connection.number, 0)
        if stored is None or not held:
            return
        if held > count:
            stored.holds[connection.number] = held - count
        else:
            del stored.holds[connection.number]
            self._leave(connection, stored)
        self._settle(stored)

    def _give(self, connection: StoreUser, space: Space, key: ObjectKey, token: int) -> None:
        stored = space.objects.get((key.store, key.number))
        if stored is None or stored.state is State.WRITING or not token:
            return
        if token in stored.early:
            stored.early.discard(token)
        else:
            stored.gifts[token] = connection.number
            connection.gifts.add((stored, token))

    def _take_gift(self, stored: StoredObject, token: int) -> None:
        if token not in stored.gifts:
            if len(stored.early) < EARLY_MAX:
                stored.early.add(token)
            return
        giver = self._connections.get(stored.gifts.pop(token, -1))
        if giver is not None:
            giver.gifts.discard((stored, token))

    def _leave(self, connection: StoreUser, stored: StoredObject) -> None:
        """Forget that the connection has to do with an object, unless it has."""
        number = connection.number
        if number not in stored.holds and number not in stored.pins and stored.state is not State.WRITING:
            connection.objects.discard(stored)

    def _settle(self, stored: StoredObject) -> None:
        """Free an object that nobody wants."""
        if stored.state in (State.READY, State.MOVING) and not stored.is_wanted:
            self._free(stored)

    def _free(self, stored: StoredObject) -> None:
        # What it refers to may be wanted by nobody else, and so on: a chain may be longer than Python's stack.
        freed = [stored]
        while freed:
            each = freed.pop()
            if each.state is State.GONE:
                continue
            was, each.state = each.state, State.GONE
            space = each.space
            space.objects.pop((each.key.store, each.key.number), None)
            self.objects -= 1
            self._shares.freed(each)
            for number in {*each.holds, *each.pins, each.maker}:
                connection = self._connections.get(number)
                if connection is not None:
                    connection.objects.discard(each)
            for token, giver in each.gifts.items():
                given = self._connections.get(giver)
                if given is not None:
                    given.gifts.discard((each, token))
            if each.block is not None and was is not State.MOVING and not space.ended:
                self._allocator.free(space.blocks, each.kind, each.block)
                each.block = None
            for other in each.refers:
                other.within -= 1
                if not other.is_wanted:
                    freed.append(other)
            each.refers = ()

    # -- reading

    def _get(self, connection: StoreUser, frame: GetObject) -> None:
        space = self._space(connection, frame.slot)
        key = frame.key
        stored = space.objects.get((key.store, key.number))
        if stored is None or stored.block is None or stored.state is State.WRITING:
            raise self._lost(space, key)
        file, size = FileOf(space.number, stored.kind), stored.key.size
        if size <= SMALL_BYTES:
            self.orders.append(ReadSmall(connection.number, frame.question, file, stored.block.offset, size))
            self._shares.read(stored)
            return
        stored.pins[connection.number] = stored.pins.get(connection.number, 0) + 1
        connection.objects.add(stored)
        self._shares.busy(stored)
        comes = self._comes(connection, frame.slot, stored.kind, False)
        place = Place(frame.question, key.number, stored.kind, stored.block.offset, size, comes)
        self.orders.append(Answer(connection.number, place, file if comes else None))

    def _piece(self, connection: StoreUser, frame: GetPiece) -> None:
        """Have some of an object read, by who is on another host: nothing is pinned in between."""
        space, key = self._space(connection, frame.slot), frame.key
        stored = space.objects.get((key.store, key.number))
        if stored is None or stored.block is None or stored.state is State.WRITING:
            raise self._lost(space, key)
        if frame.offset + frame.size > stored.key.size:
            raise MalformedBody("a piece behind the end of its object", found=f"{frame.offset} + {frame.size}")
        file, offset = FileOf(space.number, stored.kind), stored.block.offset + frame.offset
        self.orders.append(ReadPiece(connection.number, frame.question, file, offset, frame.size))
        self._shares.read(stored)

    def _lost(self, space: Space, key: ObjectKey) -> ObjectLost:
        return lost(space, key, self.store_id, self.host_id)

    def _unpin(self, connection: StoreUser, space: Space, key: ObjectKey) -> None:
        stored = space.objects.get((key.store, key.number))
        pinned = 0 if stored is None else stored.pins.get(connection.number, 0)
        if stored is None or not pinned:
            return
        if pinned > 1:
            stored.pins[connection.number] = pinned - 1
            return
        del stored.pins[connection.number]
        self._leave(connection, stored)
        self._unread(stored)
        self._settle(stored)

    def _unread(self, stored: StoredObject) -> None:
        if not stored.pins and stored.state is State.READY and stored.kind == MEMORY:
            self._shares.idle(stored)

    # -- time

    def tick(self, now: float) -> None:
        """Do what is due: give memory back, refuse what waited for too long, end what nobody owns."""
        while self._late_gifts and self._late_gifts[0][0] <= now:
            _, stored, token = self._late_gifts.popleft()
            if stored.gifts.pop(token, None) is not None:
                self._settle(stored)
        for space in list(self._spaces.values()):
            if space.ownerless_at is not None and now - space.ownerless_at >= OWNERLESS_S:
                if self._is_away(space):
                    self._end_unused(space)
                else:
                    self._end(space, "its owner has not come back")
        for request in [each for each in self._waiting if each.deadline <= now]:
            if self._moves and now < request.deadline + COPY_S:
                if self._make_on_disk(request, now):  # rather than wait for the copies
                    self._waiting.remove(request)
                continue
            self._waiting.remove(request)
            self._refuse(request, self._full(request, f"none came free in {ROOM_S:g} s"))
        self._serve_waiting(now)
        self._allocator.tick(now)

    def take_orders(self) -> list[Instruction]:
        """What is to be done now, in this order."""
        orders, self.orders = self.orders, []
        return orders

    @property
    def is_idle(self) -> bool:
        """Whether no time that passes brings anything."""
        return not (
            self._waiting
            or self._late_gifts
            or self._allocator.warm_bytes
            or any(space.ownerless_at is not None for space in self._spaces.values())
        )

    # -- for people

    def figures(self) -> dict[str, int]:
        """What there is, in numbers."""
        return {
            "objects": self.objects,
            "objects_memory_bytes": self._allocator.used[MEMORY],
            "objects_warm_bytes": self._allocator.warm_bytes,
            "objects_disk_bytes": self._allocator.used[DISK],
            "object_spaces": len(self._spaces),
            "object_processes": len(self._connections),
            "object_requests_waiting": len(self._waiting),
            "objects_made_total": self.made_total,
            "objects_made_bytes_total": self.made_bytes_total,
            "objects_spilled_total": self.spilled_total,
            "objects_spilled_bytes_total": self.spilled_bytes_total,
            "objects_refused_total": self.full_total,
        }

    def spaces(self, objects_max: int) -> list[dict[str, Any]]:
        """The spaces, each with its largest objects, *objects_max* of them in all spaces together."""
        found = [shown(space, self.host_id) for space in self._spaces.values()]
        for each in sorted(found, key=lambda space: -space["bytes"]):
            objects = each["objects"]
            each["objects"] = objects[: max(0, objects_max)]
            objects_max -= len(each["objects"])
        return found
