"""Whether a history of overlapping calls could have happened one at a time: linearizability, per key.

Wing and Gong's search ("Testing and Verifying Concurrent Objects", 1993) with Lowe's memory of states already tried
("Testing for Linearizability", 2017), as in Porcupine. Keys are independent objects, so each is checked by itself:
a history of all keys is linearizable exactly when that of each key is (Herlihy and Wing, 1990, theorem 1).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

STEPS_MAX = 200_000
"""Of the search for one key. Histories of one run have tens of calls a key and need hundreds of steps."""

Apply = Callable[[Hashable, Any, Any], tuple[bool, Hashable]]
"""(state, call, answer) -> whether that answer may be given in that state, and the state after."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on one key. ``returned_us`` is None when nobody knows whether it took effect; then it may have, at any
    time after ``called_us``, or never. ``answer`` is what came back."""

    key: str
    call: Any
    answer: Any
    called_us: int
    returned_us: int | None
    who: str = ""


@dataclass(frozen=True, slots=True)
class SearchVerdict:
    """``linearizable`` is None when the search gave up at its bound. ``stuck`` names calls that no order explains:
    those still open where the longest order found ends."""

    linearizable: bool | None
    key: str = ""
    explained: int = 0
    stuck: tuple[Operation, ...] = ()


def check(history: Iterable[Operation], initial: Hashable, apply: Apply, steps_max: int = STEPS_MAX) -> SearchVerdict:
    """The verdict on a history: that of the first key that has no order, or is too hard, else a good one."""
    by_key: dict[str, list[Operation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    undecided: SearchVerdict | None = None
    for key, operations in by_key.items():
        verdict = check_key(key, operations, initial, apply, steps_max)
        if verdict.linearizable is False:
            return verdict
        if verdict.linearizable is None and undecided is None:
            undecided = verdict
    return undecided or SearchVerdict(True)


def check_key(
    key: str, operations: Sequence[Operation], initial: Hashable, apply: Apply, steps_max: int = STEPS_MAX
) -> SearchVerdict:
    """The verdict on the operations of one key.

    Depth first: from each state, any call may be next that began before every remaining one had returned. A set of
    (calls done, state) already seen is not tried again. Needs O(steps_max) time and memory at worst.
    """
    order = sorted(operations, key=lambda operation: operation.called_us)
    count = len(order)
    returns = [_FOREVER if operation.returned_us is None else operation.returned_us for operation in order]
    must = sum(1 << number for number in range(count) if returns[number] != _FOREVER)
    seen: set[tuple[int, Hashable]] = set()
    best_done, best_size = 0, -1
    stack: list[tuple[int, Hashable]] = [(0, initial)]
    steps = 0
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return SearchVerdict(True, key, count)
        if (done, state) in seen:
            continue
        seen.add((done, state))
        steps += 1
        if steps > steps_max:
            return SearchVerdict(None, key, best_size)
        size = done.bit_count()
        if size > best_size:
            best_done, best_size = done, size
        for number in reversed(_next_ones(order, returns, done)):
            fits, after = apply(state, order[number].call, order[number].answer)
            if fits:
                stack.append((done | 1 << number, after))
    stuck = tuple(order[number] for number in _next_ones(order, returns, best_done) if must >> number & 1)
    return SearchVerdict(False, key, best_size, stuck)


_FOREVER = 1 << 62


def _next_ones(order: Sequence[Operation], returns: Sequence[int], done: int) -> list[int]:
    """Calls not done that began before any other call that is not done had returned."""
    found: list[int] = []
    first_return = _FOREVER
    for number, operation in enumerate(order):
        if done >> number & 1:
            continue
        if operation.called_us > first_return:
            break
        found.append(number)
        first_return = min(first_return, returns[number])
    return found


UNKNOWN = object()
"""The answer of a call nobody heard back from: any answer will do."""


def apply_register(state: Hashable, call: Any, answer: Any) -> tuple[bool, Hashable]:
    """A key of the ledger's settings: ("read",) answers its value; ("swap", value) answers the one before."""
    fits = answer is UNKNOWN or answer == state
    return fits, call[1] if call[0] == "swap" else state
