"""Which servers of the host are told of changes, and who missed some."""

from __future__ import annotations

from collections.abc import Callable

from actorgrid.errors import Overloaded

from .messages import ChangeRecord, ChangesLost, StateChanged

MAX_WATCHES = 1024
Cast = Callable[[str, object], bool]


class Watchers:
    """Servers and the prefixes that they watch. A change that finds no room is told as lost, as soon as there is."""

    def __init__(self) -> None:
        self._watches: dict[tuple[str, str], None] = {}
        self._missed: dict[str, None] = {}
        self.notices = 0
        self.notices_dropped = 0

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, name: str, prefix: str) -> None:
        """Watching twice is watching once. Raises Overloaded."""
        watch = (name, prefix)
        if watch not in self._watches and len(self._watches) >= MAX_WATCHES:
            raise Overloaded(
                "too many watches of the shared state", found=str(MAX_WATCHES), hint="watch fewer prefixes"
            )
        self._watches[watch] = None

    def remove(self, name: str, prefix: str) -> None:
        """That server watches that prefix no more."""
        self._watches.pop((name, prefix), None)

    def tell(self, change: ChangeRecord, cast: Cast) -> None:
        """Tell those whom it concerns."""
        if not self._watches:
            return
        notice = StateChanged(**change)
        for name in {name: None for name, prefix in self._watches if change["key"].startswith(prefix)}:
            self.notices += 1
            if name in self._missed and not self.tell_missed(cast):
                continue
            if not cast(name, notice):
                self.notices_dropped += 1
                self._missed[name] = None

    def tell_missed(self, cast: Cast) -> bool:
        """Tell who missed some that it did; gives whether all know."""
        for name in list(self._missed):
            if cast(name, ChangesLost()):
                del self._missed[name]
        return not self._missed
