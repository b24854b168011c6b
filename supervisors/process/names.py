"""Names and groups of light processes: a name has one holder, a group (OTP's ``pg``) any number of members.

Bounds: a name is 1 to 200 characters; a process has 1,000 names and memberships, a shard 1,000,000 of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorgrid.errors import BadRequest, NameTaken, Overloaded
from actorgrid.hotpath.light import LightProcess, Pid

from .ties import ties_of

NAME_CHARACTERS_MAX = 200
NAMES_PER_PROCESS_MAX = 1_000
NAMES_MAX = 1_000_000


def checked_name(name: Any) -> str:
    """The name, if it can be one. Raises BadRequest."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise BadRequest(
            "this is no name of a process, and no Pid",
            asked=repr(name)[:200],
            hint=f"a name is a text of 1 to {NAME_CHARACTERS_MAX} characters",
        )
    return name


def name_taken(name: str, holder: Pid) -> NameTaken:
    """The error for a name that another has."""
    return NameTaken(f"{name!r} is taken", found=str(holder), hint="unregister it there, or choose another name")


class ProcessNames:
    """Who has which name, and who is in which group."""

    def __init__(self) -> None:
        self.on_freed: Callable[[str], None] = _nothing
        """Called with a name that nobody has any more."""
        self.on_membership: Callable[[str, Pid, bool], None] = _nothing
        """Called with a group and who joined it (``True``) or left."""
        self.names: dict[str, Pid] = {}
        self.groups: dict[str, dict[Pid, None]] = {}

    def register(self, name: str, process: LightProcess) -> None:
        """Give the name to *process* until its end. Raises NameTaken, BadRequest, Overloaded."""
        holder = self.names.get(checked_name(name))
        if holder == process.pid:
            return
        if holder is not None:
            raise name_taken(name, holder)
        ties = ties_of(process)
        if ties.names is None:
            ties.names = {}
        self._check_room(ties.names, self.names, process)
        ties.names[name] = None
        self.names[name] = process.pid

    def unregister(self, name: str, process: LightProcess) -> bool:
        """Take the name from *process*; ``False`` when it does not have it."""
        if self.names.get(name) != process.pid:
            return False
        del self.names[name]
        del ties_of(process).names[name]  # type: ignore[union-attr]
        self.on_freed(name)
        return True

    def join(self, group: str, process: LightProcess) -> None:
        """Make *process* a member until its end or ``leave``; harmless when it is one.

        Raises BadRequest, Overloaded.
        """
        members = self.groups.get(checked_name(group), {})
        if process.pid in members:
            return
        ties = ties_of(process)
        if ties.groups is None:
            ties.groups = {}
        self._check_room(ties.groups, self.groups, process)
        ties.groups[group] = None
        self.groups.setdefault(group, members)[process.pid] = None
        self.on_membership(group, process.pid, True)

    def leave(self, group: str, process: LightProcess) -> bool:
        """End the membership; ``False`` when there was none."""
        members = self.groups.get(group, {})
        if process.pid not in members:
            return False
        del members[process.pid]
        if not members:
            del self.groups[group]
        del ties_of(process).groups[group]  # type: ignore[union-attr]
        self.on_membership(group, process.pid, False)
        return True

    def members(self, group: str) -> list[Pid]:
        """The members, the oldest membership first."""
        return list(self.groups.get(checked_name(group), ()))

    def forget(self, process: LightProcess) -> None:
        """Take all names and memberships from a process that ends."""
        ties = process.attachments
        for name in list(ties.names or ()):
            self.unregister(name, process)
        for group in list(ties.groups or ()):
            self.leave(group, process)

    @staticmethod
    def _check_room(held: dict[str, None], known: dict[str, Any], process: LightProcess) -> None:
        if len(held) >= NAMES_PER_PROCESS_MAX:
            raise Overloaded(f"{process.pid} has {NAMES_PER_PROCESS_MAX} names already", hint="one process, one name")
        if len(known) >= NAMES_MAX:
            raise Overloaded(f"{NAMES_MAX} names are known here already", hint="keep pids in a dict of your own")


def _nothing(*_what: Any) -> None:
    """Nobody wants to know."""
