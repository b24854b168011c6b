"""Origins that are gone for good, and states without their names. Decides only; the same on every replica.

The ledger says of a host: every member holds all that the openings of its incarnations below a *floor* ever did. Such
origins are *retired*. Then a state need not name them any more, since there is nothing to tell apart by the names:

- a counter's entries of a host's retired origins become one, their sum, under a name of its own: (host, the floor with
  no chance), which is no opening's. An entry of a higher floor has in it what those of lower ones had.
- an event of a retired origin that is not live was removed: all replicas had it, so who has it not has seen it go. Its
  dot need not be in the context. Those of live events stay as they are, until the events are removed.

What readers see never changes by that, except that a counter's sum ends at 2**63 - 1, as each entry does.

So a state at a level (which retirements are carried out in it) is a function of the level and of the deltas it holds,
and replicas at one level that hold the same are equal byte for byte. Deltas need nothing: they name the dots that they
remove. A whole state does: joined to one of another level, or as it is to one of the same, what is absent in it without
a dot would count as never seen (``join_at``).

Bound: a name for each host that ever wrote, instead of one for each of its starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from actorgrid.errors import MalformedBody

from .causal import Replica, check_count, replica_from_plain
from .counters import MAX_COUNT, GCounter, PNCounter
from .crdt import Crdt
from .dotted import Dotted
from .version_vector import EPOCH_BITS, Vector

FLOOR_MAX = 2**32 - 1
"""The floor of a host that is no member any more: all of its openings are retired."""
FLOORS_MAX = 20_000
"""Hosts, as in the ledger."""
_FIRST = 1 << EPOCH_BITS
_CHANCE = _FIRST - 1
_LOOK_AT_EACH_MAX = 64
"""Removed dots of one origin in one delta that are looked at one by one; beyond, the state is gone through once."""


@dataclass(frozen=True, slots=True)
class RetiredOrigins:
    """Which origins are retired at a *level*: by host, the incarnation below which its openings are.

    Replica ids without incarnation, of before there were origins, are never retired.
    """

    level: int = 0
    floors: Mapping[str, int] = field(default_factory=dict)

    def __contains__(self, origin: Replica) -> bool:
        host, epoch = origin
        return _FIRST <= epoch < self.floors.get(host, 0) << EPOCH_BITS

    def without(self, vector: Mapping[Replica, int]) -> Vector:
        """The counts of the origins that are not retired."""
        return {origin: count for origin, count in vector.items() if origin not in self}

    def folded(self, host: str) -> Replica:
        """Under which name the host's retired origins are counted together."""
        return host, self.floors[host] << EPOCH_BITS


NOBODY = RetiredOrigins()


def retired_to_plain(retired: RetiredOrigins) -> list[Any]:
    """Canonical lists, for the disk."""
    return [retired.level, sorted([host, floor] for host, floor in retired.floors.items())]


def retired_from_plain(plain: Any) -> RetiredOrigins:
    """The reverse. Raises MalformedBody, TypeError, ValueError."""
    level, floors = plain
    if len(floors) > FLOORS_MAX:
        raise MalformedBody(f"{len(floors)} hosts with retired openings, at most {FLOORS_MAX}")
    return RetiredOrigins(
        check_count(level, 0), {replica_from_plain([host, floor])[0]: check_count(floor, 1) for host, floor in floors}
    )


def same_as_told(told: RetiredOrigins, here: RetiredOrigins, known: RetiredOrigins) -> RetiredOrigins | None:
    """What is retired at the level that another replica told, if its states can be joined here: it is of our own level,
    or of a later one that the ledger says there is. ``None``: they cannot, or it did not tell what it takes.
    """
    for level in (here, known):
        if told.level == level.level:
            return level
    between = here.level < told.level < known.level and told.floors
    if not between or any(floor > known.floors.get(host, 0) for host, floor in told.floors.items()):
        return None
    return told


def incarnation_of(origin: Replica) -> int:
    """In which start of its host's agent the store was opened."""
    return origin[1] >> EPOCH_BITS


def is_folded(replica: Replica) -> bool:
    """Whether it is a name under which retired origins are counted together."""
    return replica[1] >= _FIRST and not replica[1] & _CHANCE


def retire(state: Crdt, retired: RetiredOrigins) -> bool:
    """Take the names of retired origins out of a state that holds all they did, in place; whether any were in it."""
    match state:
        case GCounter():
            return _fold_totals(state, retired)
        case PNCounter():
            return _fold_pairs(state, retired)
        case Dotted():
            return _forget_removed(state, retired)
    return False


def settle(state: Crdt, delta: Crdt, retired: RetiredOrigins) -> None:
    """After *delta* was joined into *state*, or was made by its mutator: of the dots of retired origins that the delta
    removed, none stay in the context. So it does not matter whether a removal came before the retirement or after.
    """
    if not isinstance(state, Dotted) or not isinstance(delta, Dotted):
        return
    seen, context, live = delta.context, state.context, state._entries
    for origin in seen.replicas():
        if origin not in retired:
            continue
        highest, beyond = seen.vector.get(origin, 0), seen.beyond(origin)
        if highest + len(beyond) > _LOOK_AT_EACH_MAX:
            context.restrict(origin, _live(state, (origin,))[origin])
            continue
        for counter in (*range(1, highest + 1), *beyond):
            if (origin, counter) not in live:
                context.discard((origin, counter))


def join_at(mine: Crdt, theirs: Crdt, retired_here: RetiredOrigins, retired_there: RetiredOrigins) -> None:
    """Join a whole state at another level, or at the same, into *mine*, in place. *theirs* is used up.

    Each of the two levels is complete in its state: of the origins that are retired there it holds all deltas. What it
    has then not live of them, though the other has it, is removed in it. Raises StateTypeConflict.
    """
    match mine, theirs:
        case (GCounter() | PNCounter(), _):
            retire(mine, retired_there)
            retire(theirs, retired_here)
            mine.join(theirs)  # type: ignore[arg-type]  # which refuses another kind
            _drop_what_is_folded(mine)
        case (Dotted(), Dotted()):
            # Onto what was said: the contexts say of each side's absent dots what its level implies.
            for dot in mine._entries:
                if dot[0] in retired_there and dot not in theirs._entries:
                    theirs.context.add(dot)
            for dot in theirs._entries:
                if dot[0] in retired_here and dot not in mine._entries:
                    mine.context.add(dot)
            mine.join(theirs)
            retire(mine, retired_here)
        case _:
            mine.join(theirs)


def _fold_totals(state: GCounter, retired: RetiredOrigins) -> bool:
    _drop_what_is_folded(state)
    entries = state._entries
    gone = [replica for replica in entries if replica in retired]
    sums: dict[Replica, int] = {}
    for replica in gone:
        into = retired.folded(replica[0])
        sums[into] = min(sums.get(into, 0) + entries.pop(replica), MAX_COUNT)
    for into, total in sums.items():
        entries[into] = max(total, entries.get(into, 0))
    return bool(gone)


def _fold_pairs(state: PNCounter, retired: RetiredOrigins) -> bool:
    _drop_what_is_folded(state)
    entries = state._entries
    gone = [replica for replica in entries if replica in retired]
    sums: dict[Replica, tuple[int, int]] = {}
    for replica in gone:
        into = retired.folded(replica[0])
        up, down = entries.pop(replica)
        more_up, more_down = sums.get(into, (0, 0))
        sums[into] = min(up + more_up, MAX_COUNT), min(down + more_down, MAX_COUNT)
    for into, (up, down) in sums.items():
        held = entries.get(into, (0, 0))
        entries[into] = max(up, held[0]), max(down, held[1])
    return bool(gone)


def folds_of(replicas: Iterable[Replica]) -> dict[str, int]:
    """By host, the epoch of its highest name for retired origins: all below it are in it."""
    found: dict[str, int] = {}
    for replica in replicas:
        if is_folded(replica) and replica[1] > found.get(replica[0], 0):
            found[replica[0]] = replica[1]
    return found


def folded_place(replica: Replica, folds: Mapping[str, int]) -> Replica:
    """Under which name a replica's counts are, where those of its host are folded so (``folds_of``)."""
    fold = folds.get(replica[0], 0)
    return (replica[0], fold) if _FIRST <= replica[1] < fold else replica


def _drop_what_is_folded(state: Crdt) -> None:
    """Entries that are in another one of the same host: of two replicas, one had folded them and one had not."""
    assert isinstance(state, (GCounter, PNCounter))
    folds = folds_of(state._entries)
    for replica in list(state._entries) if folds else ():
        if _FIRST <= replica[1] < folds.get(replica[0], 0):
            del state._entries[replica]


def _forget_removed(state: Dotted, retired: RetiredOrigins) -> bool:
    gone = [origin for origin in state.context.replicas() if origin in retired]
    if not gone:
        return False
    live = _live(state, gone)
    return any([state.context.restrict(origin, live[origin]) for origin in gone])


def _live(state: Dotted, origins: Iterable[Replica]) -> dict[Replica, list[int]]:
    """Of these origins, the counters of their live dots."""
    live: dict[Replica, list[int]] = {origin: [] for origin in origins}
    for origin, counter in state._entries:
        if origin in live:
            live[origin].append(counter)
    return live
