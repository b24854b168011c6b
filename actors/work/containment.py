"""What users' work is kept in, so that whatever it forks can be ended: which kind this host offers, and how to end it.

A tree of processes that is walked can be outrun: a chain in which each process forks and lets its parent exit is
never where one looks. So work runs where the kernel keeps count (docs/decisions/0014): in a cgroup of its own, or in
a pid namespace of its own. Where neither can be had, it is stopped before it is killed, and every grant says that it
may escape.
"""

from __future__ import annotations

import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgpack

from actorgrid.actors.files.untrusted_files import open_to_write, read_whole
from actorgrid.errors import NotARegularFile

from .groups import FreezerGroup, KillGroup, freezer_folder, kill_folder
from .linux import MARK_ATTEMPT, MARK_HOST
from .process_tree import (
    children_of,
    descendants,
    find_marked,
    kill_descendants,
    living,
    send,
    start_ticks,
    stop_until_still,
)

Kind = Literal["cgroup", "freezer", "pid_namespace", "none"]
KINDS: tuple[Kind, ...] = ("cgroup", "freezer", "pid_namespace", "none")
RECORD = "contained"
MAX_RECORD_BYTES = 16 * 1024

_SAID: dict[Kind, str] = {
    "cgroup": "each attempt and worker in a cgroup of its own: whatever it forks is ended with it",
    "freezer": "each attempt and worker in a freezer cgroup of its own: whatever it forks is stopped and ended with it",
    "pid_namespace": "each attempt and worker in a pid namespace of its own: the kernel ends whatever it forks with it",
    "none": "no cgroup and no pid namespace can be had: work that keeps forking and leaving may escape its end",
}


@dataclass(frozen=True, slots=True)
class Containment:
    """What this host keeps work in. ``folder``: where its cgroups are made; ``why``: why it is nothing stronger."""

    kind: Kind
    folder: str = ""
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether work cannot leave it."""
        return self.kind != "none"

    @property
    def text(self) -> str:
        """A sentence that says how work is kept in."""
        return _SAID[self.kind]

    def limit(self, uid: int) -> str:
        """What work that runs as *uid*, the agent's own, may still do to get away; empty when nothing is known of.

        Who may make a group may also move a process of theirs into another one; root may into any (decision 0014).
        """
        match self.kind:
            case "none":
                return self.text
            case "pid_namespace":
                return ""
        if uid == 0:
            return f"work runs as root, so it can move itself out of its {self.kind} on purpose"
        return f"work runs as the agent's user, so it can move itself into another {self.kind} of the agent on purpose"

    def to_plain(self) -> dict[str, str]:
        """The fields, as they are sent between processes."""
        return asdict(self)


def containment_from(fields: Any) -> Containment:
    """The containment that :meth:`Containment.to_plain` gave; of kind ``none`` where *fields* are not understood."""
    match fields:
        case {"kind": str(kind), "folder": str(folder), "why": str(why)} if kind in KINDS:
            return Containment(next(each for each in KINDS if each == kind), folder, why)
    return Containment("none")


def choose(wanted: str = "auto") -> Containment:
    """Try what there is, strongest first, on a process of our own; *wanted* names one kind to try only that.

    A kind that was named and is not to be had is none at all: it was chosen for what the stronger ones do to work.
    """
    from . import pid_namespace

    failed: list[str] = []
    for kind in [each for each in KINDS if each != "none" and wanted in ("auto", each)]:
        try:
            match kind:
                case "cgroup":
                    return Containment(kind, str(kill_folder()))
                case "freezer":
                    return Containment(kind, str(freezer_folder()))
                case _:
                    pid_namespace.try_out()
                    return Containment("pid_namespace", why="; ".join(failed))
        except OSError as error:
            failed.append(f"{kind}: {error.strerror or error}")
    return Containment("none", why="; ".join(failed) or "work.containment is none")


class Enclosure(Protocol):
    """The enclosure of one attempt or worker, as its shim sees it."""

    def members(self) -> list[int]:
        """The processes that live inside, for signals; of a crowd that keeps forking, most."""
        ...

    def populated(self) -> bool:
        """Whether anything lives inside."""
        ...

    def kill(self) -> None:
        """Kill everything inside with SIGKILL; to be called again for as long as it is populated."""
        ...

    def remove(self) -> None:
        """Remove the empty enclosure."""
        ...

    def record(self) -> dict[str, Any]:
        """The record by which others find and end it."""
        ...


class GroupEnclosure:
    """A cgroup, of either kind."""

    def __init__(self, group: KillGroup | FreezerGroup) -> None:
        self.group = group

    def members(self) -> list[int]:
        """See Enclosure."""
        return self.group.members()

    def populated(self) -> bool:
        """See Enclosure."""
        return self.group.populated()

    def kill(self) -> None:
        """See Enclosure."""
        self.group.kill()

    def remove(self) -> None:
        """See Enclosure."""
        self.group.remove()

    def record(self) -> dict[str, Any]:
        """See Enclosure."""
        return {"kind": "cgroup" if isinstance(self.group, KillGroup) else "freezer", "path": str(self.group.path)}


class InitEnclosure:
    """A pid namespace: whoever kills its init kills everything in it, in the kernel."""

    def __init__(self, init: int, ticks: int) -> None:
        self.init = init
        self._ticks = ticks

    def members(self) -> list[int]:
        """See Enclosure. Orphans become children of the init, so that nothing is missing."""
        return living(descendants(self.init))

    def populated(self) -> bool:
        """See Enclosure. The init leaves when it has no children, and is not gone before they are."""
        # By its start time: the number of a process that is gone is given to another one.
        return start_ticks(self.init) == self._ticks

    def kill(self) -> None:
        """See Enclosure."""
        if self.populated():
            send(self.init, signal.SIGKILL)

    def remove(self) -> None:
        """See Enclosure."""

    def record(self) -> dict[str, Any]:
        """See Enclosure."""
        return {"kind": "pid_namespace", "init": self.init, "ticks": self._ticks}


class TreeEnclosure:
    """No enclosure: the tree of processes below the shim, a subreaper, as far as it can be seen."""

    def __init__(self, shim: int) -> None:
        self._shim = shim

    def members(self) -> list[int]:
        """See Enclosure."""
        return living(descendants(self._shim))

    def populated(self) -> bool:
        """See Enclosure."""
        return bool(children_of(self._shim)) and bool(self.members())

    def kill(self) -> None:
        """See Enclosure."""
        kill_descendants(self._shim)

    def remove(self) -> None:
        """See Enclosure."""

    def record(self) -> dict[str, Any]:
        """See Enclosure."""
        return {"kind": "none"}


class MarkedProcesses:
    """The processes that carry the marks of one attempt in their environment: all that is found without its shim."""

    def __init__(self, host_tag: str, work_id: str) -> None:
        self._host_tag = host_tag
        self._work_id = work_id

    def members(self) -> list[int]:
        """The process ids of those that live."""
        return living([pid for pid, marked in find_marked(self._host_tag).items() if marked == self._work_id])

    def kill(self) -> None:
        """Stop them until no new one is found, then kill them: what is stopped does not fork."""
        for pid in stop_until_still(self.members):
            send(pid, signal.SIGKILL)


# -- for whoever comes after a shim: its guard, or the next start of the agent


def write_record(folder: Path, host_tag: str, enclosure: Enclosure) -> None:
    """Write into an attempt's folder how to end it. Not synced: it is of use only as long as the machine runs."""
    fd = open_to_write(folder, f"{RECORD}.tmp", os.O_TRUNC)
    try:
        os.write(fd, msgpack.packb(unrecorded(host_tag, folder.name) | enclosure.record()))
    finally:
        os.close(fd)
    # Under another name until it is whole: half a record would name nothing, and what it was to end would live on.
    os.rename(folder / f"{RECORD}.tmp", folder / RECORD)


def unrecorded(host_tag: str, work_id: str) -> dict[str, Any]:
    """The record of an attempt that left none: its marks are all there is."""
    return {"kind": "none", MARK_HOST: host_tag, MARK_ATTEMPT: work_id}


def remove_record(folder: Path) -> None:
    """Remove the record of an attempt that its shim saw to its end."""
    (folder / RECORD).unlink(missing_ok=True)


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record that :func:`write_record` left, or None."""
    try:
        record = msgpack.unpackb(read_whole(folder, RECORD, MAX_RECORD_BYTES) or b"")
    except (OSError, NotARegularFile, ValueError, msgpack.UnpackException):
        return None
    if not isinstance(record, dict):
        return None
    # That of a call is its worker's, by another name: what carries the call's own marks is to be ended.
    return record | {MARK_ATTEMPT: folder.name}


def enclosure_of(record: dict[str, Any]) -> Enclosure | None:
    """The enclosure that a record names; None for an attempt with no more than its marks."""
    match record:
        case {"kind": "cgroup", "path": str(path)}:
            return GroupEnclosure(KillGroup(Path(path)))
        case {"kind": "freezer", "path": str(path)}:
            return GroupEnclosure(FreezerGroup(Path(path)))
        case {"kind": "pid_namespace", "init": int(init), "ticks": int(ticks)}:
            return InitEnclosure(init, ticks)
    return None


def end_left(record: dict[str, Any], looks: int = 1) -> list[int]:
    """Kill what is left of an attempt whose shim is gone, and give what was still alive; empty: nothing is.

    Its cgroup or namespace goes first; then whatever carries its marks elsewhere, moved there by somebody with the
    right to. That nobody carries them is believed after so many *looks* in a row.
    """
    # First what the kernel counts: in there something may fork faster than marks can be looked for.
    enclosure = enclosure_of(record)
    if enclosure is not None:
        if enclosure.populated():
            found = enclosure.members()
            enclosure.kill()
            return found or [0]
        enclosure.remove()
    match record:
        case {"ACTORGRID_HOST": str(tag), "ACTORGRID_ATTEMPT": str(work_id)}:
            marked = MarkedProcesses(tag, work_id)
            found = next(filter(None, (marked.members() for _ in range(looks))), [])
            if found:
                marked.kill()
            return found
    return []
