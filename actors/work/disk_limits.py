"""Which work is ended for what it holds of its host's disk. No I/O and no clock.

There are two limits. Each piece of work may hold so much, where the host sets that. And some room of the file system
that the data directory is on is kept for the host: when less is free, the user whose work holds most there has that of
it ended that holds most, then the next. Work is not ended for what others fill the disk with: a user that holds less
than a quarter of the room that is kept is nobody's trouble.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PART_KEPT = 20
"""Of a small disk no more than a twentieth is kept free, whatever is set."""
PART_OF_FILES_KEPT = 100
PART_TO_BE_ENDED = 4


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The room on a file system."""

    free_bytes: int
    total_bytes: int
    free_files: int = 0
    total_files: int = 0
    """0: it has no fixed number of them."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a piece of work holds."""

    bytes: int
    files: int
    is_whole: bool = True
    """Whether all was counted; else it holds at least that."""


@dataclass(frozen=True, slots=True)
class WorkOnDisk:
    """A piece of work, whose it is, and what it holds."""

    work_id: str
    user_id: str
    use: DiskUse


@dataclass(frozen=True, slots=True)
class OverDisk:
    """Work that is to be ended, with the figures that say why."""

    work_id: str
    held_bytes: int
    held_files: int
    limit_bytes: int
    """What it may hold; 0: it is ended because the disk is short of room."""
    free_bytes: int
    kept_bytes: int


def kept_bytes(room: DiskRoom, free_min_bytes: int) -> int:
    """How much is kept free."""
    return min(free_min_bytes, room.total_bytes // PART_KEPT)


def short_of_bytes(room: DiskRoom, free_min_bytes: int) -> bool:
    """Whether fewer bytes are free than are kept."""
    return room.free_bytes < kept_bytes(room, free_min_bytes)


def short_of_files(room: DiskRoom, free_min_bytes: int) -> bool:
    """Whether a file system with a fixed number of files has hardly any left; never where nothing is kept."""
    return bool(free_min_bytes) and room.free_files < room.total_files // PART_OF_FILES_KEPT


def is_short(room: DiskRoom, free_min_bytes: int) -> bool:
    """Whether there is less room than is kept for the host."""
    return short_of_bytes(room, free_min_bytes) or short_of_files(room, free_min_bytes)


def over_limit(works: Iterable[WorkOnDisk], limit_bytes: int, room: DiskRoom, free_min_bytes: int) -> list[OverDisk]:
    """All that hold more than each may."""
    return [
        _over(each, limit_bytes, room, free_min_bytes) for each in works if limit_bytes and each.use.bytes > limit_bytes
    ]


def greatest(works: Iterable[WorkOnDisk], room: DiskRoom, free_min_bytes: int) -> OverDisk | None:
    """The one that is to make room, where there is less than is kept; ``None``: work does not hold it."""
    in_files = not short_of_bytes(room, free_min_bytes)
    least = room.total_files // PART_OF_FILES_KEPT if in_files else kept_bytes(room, free_min_bytes)
    of_user: dict[str, list[WorkOnDisk]] = {}
    for each in works:
        of_user.setdefault(each.user_id, []).append(each)

    def held(work: WorkOnDisk) -> int:
        return work.use.files if in_files else work.use.bytes

    users = sorted(of_user.values(), key=lambda found: sum(map(held, found)))
    if users and sum(map(held, users[-1])) * PART_TO_BE_ENDED > least:
        return _over(max(users[-1], key=held), 0, room, free_min_bytes)
    # Nobody was seen with much: whoever could not be looked at to the end hides something, or writes too fast for us.
    hidden = [each for found in users for each in found if not each.use.is_whole]
    return _over(max(hidden, key=held), 0, room, free_min_bytes) if hidden else None


def _over(work: WorkOnDisk, limit_bytes: int, room: DiskRoom, free_min_bytes: int) -> OverDisk:
    return OverDisk(
        work.work_id, work.use.bytes, work.use.files, limit_bytes, room.free_bytes, kept_bytes(room, free_min_bytes)
    )


def next_look_s(free_bytes: int, free_before: int, passed_s: float, kept: int, least_s: float, most_s: float) -> float:
    """How long until the next look, by how fast room goes: in half the time in which all would be gone that is not
    kept, or half of what is."""
    rate = (free_before - free_bytes) / passed_s if passed_s > 0 else 0.0
    if rate <= 0:
        return most_s
    left = free_bytes - kept if free_bytes > kept else free_bytes / 2
    return max(least_s, min(most_s, left / rate / 2))
