"""Names of processes: who has a key, and who joined it, without any process that has to be asked.

A unique key belongs to one process at a time; any number join a duplicate key. Both are symbolic links in the boot's
0700 directory. Nobody follows them: they are used because symlink(2) makes one with all it says in one step, and fails
with EEXIST when it is there. Below ``names/``::

    unique/KEY -> ADDRESS|NAME            who has KEY
    group/KEY/ADDRESS -> ADDRESS|NAME     who joined KEY
    owned/PART/PART/u=KEY, g=KEY          what the process PART.PART has: to be found when it is buried

KEY and NAME are percent-encoded. The index ``owned`` is a tree like that of the processes, whose addresses are their
parent's with a dot and a number: burying one covers its descendants and reads nothing else.

No locks. What makes it right instead, whoever is killed between whichever two system calls:

* The entry in ``owned`` is made before its link and removed after it, so every link is found at the burial.
* Only a process itself removes its links, and its burial, when it is dead: a link cannot change hands between the look
  at it and its removal. For the same reason nobody takes a key from a dead process: it is free once that is buried.

A process is alive while its socket, ``ADDRESS`` in the boot's directory, is there. Elixir's Registry gave the
two kinds of keys their meaning.

Bounds: an encoded key, and an encoded name, has 200 bytes; a process has 1,000 entries; a listing has 10,000. The
host's total is not counted, which would need a lock: it is 1,000 for each process there may be, and the file
system's inodes, whose end is DiskFull. A full table of descriptors refuses what has to read a directory.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote

from actorgrid.errors import ActorGridError, BadRequest, DiskFull, NameTaken, NoSuchActor, Overloaded, StorageError

from .ref import Ref

KEY_BYTES_MAX = 200
ENTRIES_PER_PROCESS_MAX = 1_000
NAMES_LISTED_MAX = 10_000
NAMES = "names"

_JOIN_TRIES = 100
_UNIQUE, _GROUP = "u=", "g="  # no address has "=" in it
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_ADDRESS = re.compile(r"(?=.{1,107}\Z)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")  # sun_path holds 108, see unix(7)


class Registry:
    """The names of one boot, seen from any of its processes. It holds nothing but paths: fork may copy it.

    A process registers and joins for itself, or has its parent do so before it runs; never two at a time for one
    process. Raises DiskFull when there is no room for an entry (nothing is half made then), Overloaded when
    descriptors ran out, StorageError when the directory cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._sockets = str(folder)
        names = f"{folder}/{NAMES}"
        self._unique, self._group, self._owned = f"{names}/unique", f"{names}/group", f"{names}/owned"
        with _NAMING:
            for path in (names, self._unique, self._group, self._owned):
                _make_folder(path)

    # -- unique keys

    def register(self, key: str, ref: Ref) -> None:
        """Give *key* to *ref*; nothing happens when it has it already.

        Raises NameTaken, which says who has it (perhaps a dead process that is not buried yet), NoSuchActor when
        *ref* is dead, Overloaded when it has 1,000 entries, and BadRequest for a key that cannot be one.
        """
        encoded, target = _encode(key), _target(ref)
        _check_alive(ref, self._is_alive(ref.address), key)
        with _NAMING:
            # Noted first: a burial goes by the notes, and a link without one would never be removed.
            entry = self._own(_UNIQUE + encoded, ref, key)
            try:
                os.symlink(target, f"{self._unique}/{encoded}")
            except FileExistsError:
                holder = self._holder(encoded)
                if holder == ref:
                    return
                _remove(entry)
                raise _taken(key, ref, holder, holder is not None and self._is_alive(holder.address)) from None
            except OSError:
                _remove(entry)
                raise

    def unregister(self, key: str, ref: Ref) -> bool:
        """Take *key* from *ref*; ``False`` when it did not have it, and then nothing happens."""
        encoded = _encode(key)
        with _NAMING:
            # The note last, for the same reason.
            removed = self._free(encoded, _address(ref.address))
            _remove(f"{self._owned_by(ref.address)}/{_UNIQUE}{encoded}")
        return removed

    def whereis(self, key: str) -> Ref | None:
        """The living process that has *key*. It may be dead by the time this returns."""
        encoded = _encode(key)
        with _NAMING:
            return self._living(encoded)

    def names(self, after: str = "") -> dict[str, Ref]:
        """The unique keys of living processes, in order: at most 10,000 of those that come after *after*.

        Not a snapshot: what is registered or removed meanwhile may be in it or not. Empty after the last page.
        """
        with _NAMING:
            keys = map(unquote, os.listdir(self._unique))
            return _page(keys, after, lambda key: self._living(_encode(key)))

    # -- duplicate keys

    def join(self, key: str, ref: Ref) -> None:
        """Have *ref* among the members of *key*; nothing happens when it is. Raises as ``register`` does."""
        encoded, target = _encode(key), _target(ref)
        _check_alive(ref, self._is_alive(ref.address), key)
        with _NAMING:
            entry = self._own(_GROUP + encoded, ref, key)
            folder = f"{self._group}/{encoded}"
            try:
                _link_within(folder, ref.address, target)
            except (OSError, Overloaded):
                _remove_empty(folder)
                _remove(entry)
                raise

    def leave(self, key: str, ref: Ref) -> bool:
        """Take *ref* from the members of *key*; ``False`` when it was none, and then nothing happens."""
        encoded = _encode(key)
        with _NAMING:
            removed = self._part(encoded, _address(ref.address))
            _remove(f"{self._owned_by(ref.address)}/{_GROUP}{encoded}")
        return removed

    def members(self, key: str) -> list[Ref]:
        """The living processes that joined *key*, by address: of siblings, the oldest first. Not a snapshot."""
        folder = f"{self._group}/{_encode(key)}"
        with _NAMING:
            try:
                addresses = os.listdir(folder)
            except FileNotFoundError:
                return []
            found = (_read(f"{folder}/{address}") for address in addresses if self._is_alive(address))
            return sorted((ref for ref in found if ref is not None), key=_order)

    # -- the end of a process

    def bury(self, address: str) -> list[str]:
        """Remove all that the dead process *address*, and its descendants, had; gives the keys, in order.

        For its parent, once the process and its descendants ended: what one of them still registered would stay until
        the next of its ancestors is buried. Removes its socket first, if that is left, and those of the descendants
        that had entries. May be repeated, and takes up what a burial that was cut short left.
        """
        keys: set[str] = set()
        with _NAMING:
            _remove(f"{self._sockets}/{_address(address)}")
            self._bury(self._owned_by(address), address, keys)
        return sorted(keys)

    def _bury(self, folder: str, address: str, keys: set[str]) -> None:
        try:
            entries = os.listdir(folder)
        except FileNotFoundError:
            return
        for entry in entries:
            kind, encoded = entry[:2], entry[2:]
            if kind not in (_UNIQUE, _GROUP):
                child = f"{address}.{entry}"
                _remove(f"{self._sockets}/{child}")
                self._bury(f"{folder}/{entry}", child, keys)
                continue
            removed = self._free(encoded, address) if kind == _UNIQUE else self._part(encoded, address)
            if removed:
                keys.add(unquote(encoded))
            _remove(f"{folder}/{entry}")
        _remove_empty(folder)

    # -- files

    def _is_alive(self, address: str) -> bool:
        return os.access(f"{self._sockets}/{address}", os.F_OK)

    def _holder(self, encoded: str) -> Ref | None:
        return _read(f"{self._unique}/{encoded}")

    def _living(self, encoded: str) -> Ref | None:
        holder = self._holder(encoded)
        return holder if holder is not None and self._is_alive(holder.address) else None

    def _owned_by(self, address: str) -> str:
        return f"{self._owned}/{address.replace('.', '/')}"

    def _own(self, entry: str, ref: Ref, key: str) -> str:
        """Note in the index, before it is made, that *ref* has *entry*; gives the note's path."""
        folder = self._owned_by(ref.address)
        try:
            noted = os.listdir(folder)
        except FileNotFoundError:
            path = self._owned
            for part in ref.address.split("."):
                path = f"{path}/{part}"
                _make_folder(path)
            noted = []
        if entry not in noted:
            _check_room(sum(each[:2] in (_UNIQUE, _GROUP) for each in noted), ref, key)
            os.symlink(ref.address, f"{folder}/{entry}")
        return f"{folder}/{entry}"

    def _free(self, encoded: str, address: str) -> bool:
        holder = self._holder(encoded)
        return holder is not None and holder.address == address and _remove(f"{self._unique}/{encoded}")

    def _part(self, encoded: str, address: str) -> bool:
        removed = _remove(f"{self._group}/{encoded}/{address}")
        _remove_empty(f"{self._group}/{encoded}")
        return removed


class MemoryRegistry:
    """The same for processes that are objects of one: ``is_alive`` says whether an address is that of a living one.

    Every method does what Registry's of the same name does, within the same bounds.
    """

    def __init__(self, is_alive: Callable[[str], bool]) -> None:
        self._is_alive = is_alive
        self._unique: dict[str, Ref] = {}
        self._groups: dict[str, dict[str, Ref]] = {}
        self._owned: dict[str, set[str]] = {}

    def register(self, key: str, ref: Ref) -> None:
        """Give *key* to *ref*."""
        entry = _UNIQUE + _encode(key)
        self._check(ref, key)
        holder = self._unique.get(key)
        if holder == ref:
            return
        if holder is not None:
            raise _taken(key, ref, holder, self._is_alive(holder.address))
        self._own(entry, ref, key)
        self._unique[key] = ref

    def unregister(self, key: str, ref: Ref) -> bool:
        """Take *key* from *ref*."""
        entry = _UNIQUE + _encode(key)
        _address(ref.address)
        if self._unique.get(key) != ref:
            return False
        del self._unique[key]
        self._disown(entry, ref.address)
        return True

    def whereis(self, key: str) -> Ref | None:
        """The living process that has *key*."""
        _encode(key)
        holder = self._unique.get(key)
        return holder if holder is not None and self._is_alive(holder.address) else None

    def names(self, after: str = "") -> dict[str, Ref]:
        """The unique keys of living processes, page by page."""
        return _page(self._unique, after, self.whereis)

    def join(self, key: str, ref: Ref) -> None:
        """Have *ref* among the members of *key*."""
        entry = _GROUP + _encode(key)
        self._check(ref, key)
        if ref.address not in self._groups.get(key, {}):
            self._own(entry, ref, key)
            self._groups.setdefault(key, {})[ref.address] = ref

    def leave(self, key: str, ref: Ref) -> bool:
        """Take *ref* from the members of *key*."""
        entry = _GROUP + _encode(key)
        _address(ref.address)
        group = self._groups.get(key, {})
        if ref.address not in group:
            return False
        del group[ref.address]
        if not group:
            del self._groups[key]
        self._disown(entry, ref.address)
        return True

    def members(self, key: str) -> list[Ref]:
        """The living processes that joined *key*, by address."""
        _encode(key)
        return sorted((ref for ref in self._groups.get(key, {}).values() if self._is_alive(ref.address)), key=_order)

    def bury(self, address: str) -> list[str]:
        """Remove all that the dead process *address*, and its descendants, had."""
        below = _address(address) + "."
        keys: set[str] = set()
        for dead in [each for each in self._owned if each == address or each.startswith(below)]:
            for entry in list(self._owned[dead]):
                key = unquote(entry[2:])
                keys.add(key)
                self.unregister(key, Ref(dead)) if entry.startswith(_UNIQUE) else self.leave(key, Ref(dead))
        return sorted(keys)

    def _check(self, ref: Ref, key: str) -> None:
        _target(ref)
        _check_alive(ref, self._is_alive(ref.address), key)

    def _own(self, entry: str, ref: Ref, key: str) -> None:
        _check_room(len(self._owned.get(ref.address, ())), ref, key)
        self._owned.setdefault(ref.address, set()).add(entry)

    def _disown(self, entry: str, address: str) -> None:
        self._owned[address].remove(entry)
        if not self._owned[address]:
            del self._owned[address]


def _encode(text: str, what: str = "key") -> str:
    """Percent-encode *text* as a file's name."""
    if isinstance(text, str):
        if _PLAIN.fullmatch(text):
            return text
        try:
            encoded = quote(text, safe="")
        except UnicodeEncodeError:  # half of a surrogate pair
            encoded = ""
        if encoded.startswith("."):
            encoded = f"%2E{encoded[1:]}"
        if 0 < len(encoded) <= KEY_BYTES_MAX:
            return encoded
    raise BadRequest(
        f"this cannot be a {what}",
        asked=f"{what} = {text!r:.120}",
        hint=f"give text that is not empty and has at most {KEY_BYTES_MAX} bytes, percent-encoded as in an URL",
    )


def _address(address: str) -> str:
    if not _ADDRESS.fullmatch(address):
        raise BadRequest(
            f"{address!r:.120} is no address of a process", hint="give Ref.address of a Ref you were given"
        )
    return address


def _target(ref: Ref) -> str:
    return f"{_address(ref.address)}|{_encode(ref.name, 'name') if ref.name else ''}"


def _read(path: str) -> Ref | None:
    """The process that the link at *path* names; ``None`` when there is no link."""
    try:
        address, _, name = os.readlink(path).partition("|")
    except FileNotFoundError:
        return None
    return Ref(address, unquote(name))


def _order(ref: Ref) -> list[tuple[int, str]]:
    """The sort key of an address: part by part, numbers by size."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in ref.address.split(".")]


def _page(keys: Iterable[str], after: str, whereis: Callable[[str], Ref | None]) -> dict[str, Ref]:
    page: dict[str, Ref] = {}
    for key in sorted(key for key in keys if key > after):
        ref = whereis(key)
        if ref is not None:
            page[key] = ref
            if len(page) == NAMES_LISTED_MAX:
                break
    return page


def _check_alive(ref: Ref, alive: bool, key: str) -> None:
    if not alive:
        raise NoSuchActor(f"{ref} is dead and gets no names", asked=f"key = {key!r}", hint="start it first")


def _check_room(entries: int, ref: Ref, key: str) -> None:
    if entries >= ENTRIES_PER_PROCESS_MAX:
        raise Overloaded(
            f"{ref} has as many names and groups as one process may",
            asked=f"key = {key!r}",
            found=f"the limit is {ENTRIES_PER_PROCESS_MAX:,}",
            hint="unregister or leave some, or let each name's own process register it",
        )


def _taken(key: str, ref: Ref, holder: Ref | None, alive: bool) -> NameTaken:
    if holder is None:
        found, hint = "whoever had it let go of it just now", "register it again"
    elif alive:
        found, hint = f"{holder} has it", "ask whereis for it, or take another name"
    else:
        found, hint = f"{holder} had it and is dead, but not buried yet", "register it again in a moment"
    return NameTaken(
        f"{key!r} is taken", asked=f"for {ref}", found=found, hint=hint, holder=holder.address if holder else ""
    )


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return


def _link_within(folder: str, name: str, target: str) -> None:
    """Make a link in a folder that the first to join makes and the last to leave removes, perhaps just now."""
    for _ in range(_JOIN_TRIES):
        try:
            os.symlink(target, f"{folder}/{name}")
        except FileExistsError:
            return
        except FileNotFoundError:
            _make_folder(folder)
        else:
            return
    raise Overloaded(
        "its members come and go too fast to join it",
        asked=f"the group {folder.rpartition('/')[2]}",
        found=f"the last one left while we joined, {_JOIN_TRIES} times",
        hint="join again",
    )


def _remove(path: str) -> bool:
    """Unlink *path*; whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _remove_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


class _Naming:
    """Context that turns the file system's errors into this module's."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise _named(error) from error


_NAMING = _Naming()


def _named(error: OSError) -> ActorGridError:
    found = f"{error.strerror}: {error.filename}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("no room for another name", found=found, hint="free space or inodes there: df -h, df -i")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Overloaded("no descriptor left to read names with", found=found, hint="raise it: ulimit -n")
    return StorageError("the directory of names cannot be used", found=found, hint="has this boot ended?")
