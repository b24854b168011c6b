"""Names that hold in all shards of a set, on whichever hosts, as decisions: OTP's ``global``, granted by one.

Each name has a *home*, one of the shards, which alone grants it. There is one incarnation of each shard at a time, by
its fencing token, so no name has two winners: not in a partition, where claims at a home that nobody reaches wait, and
not after it. What each home has granted is told to all shards, so that looking a name up asks nobody.

Each grant has a token, greater than that of all grants of the name before: the token of the home's incarnation, which
the ledger gave, and how many grants of this incarnation there were. Who holds a name shows it to what it writes to.

A home that was begun again knows nothing: it grants when it has heard from the present incarnation of each other shard
what that holds, or that the ledger knows of none. A shard that was begun again holds nothing, and so its names are
free with its first word.

Signals: ``name_claim``, ``name_answer``, ``name_free``, ``name_report``, ``name_table``, ``name_delta``, ``name_lost``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from actorgrid.errors import ActorGridError, Overloaded
from actorgrid.fencing import FencingToken
from actorgrid.hotpath.light import Pid

from .names import name_taken
from .shard_links import slot_of

GLOBAL_NAMES_MAX = 1_000_000
"""Of a set."""
PARKED_MAX = 1_000_000
"""Claims that wait for a home to know what is held."""

SIGNALS = frozenset({"name_claim", "name_answer", "name_free", "name_report", "name_table", "name_delta", "name_lost"})


class GlobalNames:
    """One shard's part. *send*: (slot, signal), dropped where no link is up. *settle*: (claim, why not or ``None``).

    *token*: of this incarnation. *lost*: a process of ours turned out to have a name that is another's.
    """

    def __init__(
        self,
        slot: int,
        count: int,
        token: FencingToken,
        send: Callable[[int, tuple[Any, ...]], None],
        settle: Callable[[int, ActorGridError | None], None],
        lost: Callable[[str, Pid], None],
    ) -> None:
        self.slot = slot
        self.count = count
        self._token = token
        self._grants = 0
        self._send = send
        self._settle = settle
        self._lost = lost
        self._linked: set[int] = set()
        # as who claims
        self._held: dict[str, Pid] = {}
        self._name_tokens: dict[str, str] = {}
        self._claims: dict[int, tuple[str, Pid]] = {}
        # as a home
        self._granted: dict[str, Pid] = {}
        self._unreported = set(range(count)) - {slot}
        self._parked: dict[tuple[int, int], tuple[str, Pid]] = {}
        self._changes: dict[str, Pid | None] = {}
        # as anybody
        self._tables: dict[int, dict[str, Pid]] = {}

    def home_of(self, name: str) -> int:
        """The slot that grants this name."""
        return zlib.crc32(name.encode("utf-8", "surrogatepass")) % self.count

    @property
    def is_ready(self) -> bool:
        """Whether this home knows what is held."""
        return not self._unreported

    @property
    def unreported(self) -> frozenset[int]:
        """Of which slots it has yet to hear."""
        return frozenset(self._unreported)

    def whereis(self, name: str) -> Pid | None:
        """Who has the name, as far as has been told."""
        home = self.home_of(name)
        return (self._granted if home == self.slot else self._tables.get(home, {})).get(name)

    def held(self) -> dict[str, Pid]:
        """The names of our own processes."""
        return dict(self._held)

    def holder_here(self, name: str) -> Pid | None:
        """The process of ours that has the name."""
        return self._held.get(name)

    def token_of(self, name: str) -> str | None:
        """The token of the grant by which a process of ours has the name."""
        return self._name_tokens.get(name)

    def __len__(self) -> int:
        return len(self._granted) + sum(len(table) for table in self._tables.values())

    # -- as who claims

    def claim(self, number: int, name: str, pid: Pid) -> None:
        """Ask for a name; *settle* hears the answer, whenever it comes."""
        self._claims[number] = (name, pid)
        home = self.home_of(name)
        if home == self.slot:
            self._take_claim(self.slot, number, name, pid)
        else:
            self._send(home, ("name_claim", number, name, pid))

    def give_up(self, number: int) -> None:
        """Do not wait for the answer any more; if it is yes, the name is given back."""
        self._claims.pop(number, None)

    def free(self, name: str, pid: Pid) -> None:
        """Give a name back."""
        if self._held.get(name) != pid:
            return
        self._let_go(name)
        home = self.home_of(name)
        if home == self.slot:
            self._take_free(name, pid)
        else:
            self._send(home, ("name_free", name, pid))  # without a link: our next report says it

    def _let_go(self, name: str) -> None:
        del self._held[name]
        self._name_tokens.pop(name, None)

    def _take_answer(self, number: int, name: str, pid: Pid, error: ActorGridError | None, token: str) -> None:
        wanted = self._claims.pop(number, None)
        if error is None:
            self._held[name] = pid
            self._name_tokens[name] = token
            if wanted is None:
                self.free(name, pid)
                return
        if wanted is not None:
            self._settle(number, error)

    # -- links

    def link_up(self, slot: int) -> None:
        """A shard can be reached: say what we hold of its names, ask again for what we want, and tell it of ours."""
        self._linked.add(slot)
        self._send(slot, ("name_report", {n: pid for n, pid in self._held.items() if self.home_of(n) == slot}))
        for number, (name, pid) in list(self._claims.items()):
            if self.home_of(name) == slot:
                self._send(slot, ("name_claim", number, name, pid))
        if self.is_ready:
            self.flush()
            self._send(slot, ("name_table", dict(self._granted)))

    def link_down(self, slot: int) -> None:
        """It cannot any more. What it holds it holds; what it asked for, it will ask for again."""
        self._linked.discard(slot)
        for key in [key for key in self._parked if key[0] == slot]:
            del self._parked[key]

    def absent(self, slot: int) -> None:
        """The ledger knows of no incarnation of that shard now: nobody there holds anything."""
        if slot not in self._linked and slot != self.slot:
            self._take_report(slot, {})

    def take(self, slot: int, signal: tuple[Any, ...]) -> None:
        """Take a signal of a shard."""
        match signal:
            case ("name_claim", number, name, pid):
                self._take_claim(slot, number, name, pid)
            case ("name_answer", number, name, pid, error, token):
                self._take_answer(number, name, pid, error, token)
            case ("name_free", name, pid):
                self._take_free(name, pid)
            case ("name_report", held):
                self._take_report(slot, held)
            case ("name_table", table):
                self._tables[slot] = dict(table)
            case ("name_delta", changes):
                table = self._tables.setdefault(slot, {})
                for name, pid in changes.items():
                    if pid is None:
                        table.pop(name, None)
                    else:
                        table[name] = pid
            case ("name_lost", name, pid):
                if self._held.get(name) == pid:
                    self._let_go(name)
                    self._lost(name, pid)

    # -- as a home

    def _take_claim(self, slot: int, number: int, name: str, pid: Pid) -> None:
        if not self.is_ready:
            if len(self._parked) < PARKED_MAX:
                self._parked[slot, number] = (name, pid)
            return
        holder = self._granted.get(name)
        error: ActorGridError | None = None
        token = ""
        if holder is not None and holder != pid:
            error = name_taken(name, holder)
        elif holder is None and len(self) >= GLOBAL_NAMES_MAX:
            error = Overloaded(f"{GLOBAL_NAMES_MAX} names are known in this set already", hint="keep pids in a dict")
        else:
            self._grant(name, pid)
            self._grants += 1  # for one that asks again, too: the answer before is lost
            token = f"{self._token}-{self._grants:015d}"
        if slot == self.slot:
            self._take_answer(number, name, pid, error, token)
        else:
            self._send(slot, ("name_answer", number, name, pid, error, token))

    def _grant(self, name: str, pid: Pid | None) -> None:
        if pid is None:
            self._granted.pop(name, None)
        else:
            self._granted[name] = pid
        self._changes[name] = pid

    def _take_free(self, name: str, pid: Pid) -> None:
        if self._granted.get(name) == pid:
            self._grant(name, None)

    def _take_report(self, slot: int, held: Mapping[str, Pid]) -> None:
        for name, pid in list(self._granted.items()):
            if slot_of(pid) == slot and held.get(name) != pid:
                self._grant(name, None)
        for name, pid in held.items():
            holder = self._granted.get(name)
            if holder is None:
                self._grant(name, pid)
            elif holder != pid:
                self._send(slot, ("name_lost", name, pid))
        if slot in self._unreported:
            self._unreported.discard(slot)
            if self.is_ready:
                self._begin_granting()

    def _begin_granting(self) -> None:
        parked, self._parked = self._parked, {}
        self._changes.clear()
        for (slot, number), (name, pid) in parked.items():
            self._take_claim(slot, number, name, pid)
        self._changes.clear()
        for slot in self._linked:
            self._send(slot, ("name_table", dict(self._granted)))

    def flush(self) -> None:
        """Tell all others what changed here since."""
        if self._changes and self.is_ready:
            changes, self._changes = self._changes, {}
            for slot in self._linked:
                self._send(slot, ("name_delta", changes))
