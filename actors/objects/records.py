"""What the store knows: objects, spaces, and the processes that are connected to it."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, TypedDict

from actorgrid.errors import ObjectLost
from actorgrid.hotpath import Block
from actorgrid.transports.object_frames import ObjectKey, SpaceAbout

from .block_allocator import FileOf, SpaceBlocks


class StoreSpec(TypedDict):
    """What a host's store is told when it starts."""

    socket_path: str
    """Where clients and workers come to it."""
    host_id: str
    folder: str
    """Where it keeps what has no room in memory."""
    memory_bytes: int
    disk_bytes: int


class State(Enum):
    """How far an object is."""

    WRITING = "writing"
    """Its maker writes it."""
    READY = "ready"
    MOVING = "moving"
    """It is being written to the disk, and can be read in memory meanwhile."""
    GONE = "gone"


class StoredObject:
    """One object. It stays while anybody refers to it or reads it."""

    __slots__ = (
        "block", "early", "gifts", "holds", "key", "kind", "maker", "pins", "refers", "space", "state", "uid", "within",
    )  # fmt: skip

    def __init__(self, space: Space, key: ObjectKey, maker: int, uid: int = 0) -> None:
        self.space = space
        self.key = key
        self.uid = uid  # of its maker's work; it counts as its
        self.state = State.WRITING
        self.maker = maker  # the connection that writes it
        self.kind = ""
        self.block: Block | None = None
        self.holds: dict[int, int] = {}  # by connection, how many references it has
        self.pins: dict[int, int] = {}  # by connection, how many readings
        self.gifts: dict[int, int] = {}  # tokens, and the connection that gave
        self.early: set[int] = set()  # tokens of gifts that were taken before they were given, over another connection
        self.within = 0  # objects here whose values have a reference to it
        self.refers: tuple[StoredObject, ...] = ()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody refers to it or reads it."""
        return bool(self.holds or self.pins or self.gifts or self.within)


class Space:
    """The objects of one session, or what there is of them on this host."""

    __slots__ = (
        "about", "blocks", "ended", "number", "objects", "opened_by", "owner", "ownerless_at", "secret_hash", "uid",
    )  # fmt: skip

    def __init__(self, number: int, secret_hash: bytes, about: SpaceAbout, blocks: SpaceBlocks, uid: int = 0) -> None:
        self.number = number
        self.uid = uid  # of who opened it first
        self.secret_hash = secret_hash
        self.about = about
        self.blocks = blocks
        self.objects: dict[tuple[str, int], StoredObject] = {}  # by store and number
        self.opened_by: set[int] = set()  # connections
        self.owner: int | None = None
        self.ownerless_at: float | None = None
        self.ended = ""  # why, once it has


class StoreUser:
    """A process that is connected."""

    __slots__ = ("gifts", "number", "objects", "sent", "spaces", "uid")

    def __init__(self, number: int, uid: int = 0) -> None:
        self.number = number
        self.uid = uid  # its work's own; 0: it has none
        self.spaces: dict[int, Space] = {}  # by slot
        self.objects: set[StoredObject] = set()  # that it holds, reads or makes
        self.gifts: set[tuple[StoredObject, int]] = set()  # that it gave and nobody has taken
        self.sent: set[tuple[int, str, bool]] = set()  # descriptors that it has: slot, kind, whether to write


def lost(space: Space, key: ObjectKey, store_id: str, host_id: str) -> ObjectLost:
    """The error for who asks for an object that is not in *space* of that store."""
    if space.ended:
        why = space.ended
    elif key.store == store_id:
        why = "nobody refers to it any more"
    elif key.host == host_id:
        why = "the object store of its host has been started again since"
    else:
        why = f"it is on host {key.host}"
    return ObjectLost(
        f"the object is gone: {why}",
        asked=f"{key.store[:8]}-{key.number}, {key.size} bytes",
        hint="make it again; results of tasks that are declared pure=True are made again by themselves",
        objects=[list(key)],
    )


# -- what is to be done


class Answer(NamedTuple):
    """Tell a process something; *file* goes along, to be written to if it says so."""

    connection: int
    frame: Any
    file: FileOf | None = None
    writable: bool = False


class ReadSmall(NamedTuple):
    """Read an object and tell it."""

    connection: int
    question: int
    file: FileOf
    offset: int
    size: int


class ReadPiece(NamedTuple):
    """Read some of an object and tell it, with a checksum."""

    connection: int
    question: int
    file: FileOf
    offset: int
    size: int


class WriteSmall(NamedTuple):
    """Write an object that came along."""

    file: FileOf
    offset: int
    data: bytes


class Reserve(NamedTuple):
    """Take room on the disk; then say ``reserved``."""

    ticket: int
    file: FileOf
    offset: int
    size: int


class SpillCopy(NamedTuple):
    """Copy an object from memory to the disk; then say ``moved``."""

    ticket: int
    source: FileOf
    source_offset: int
    target: FileOf
    target_offset: int
    size: int


class CloseFiles(NamedTuple):
    """Close the files of a space."""

    space: int


class HangUp(NamedTuple):
    """Hang up on a process that broke the protocol."""

    connection: int
    error: Exception
