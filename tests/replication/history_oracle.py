"""Whether what clients were told, and what the hosts hold in the end, can be: an oracle for each type.

Clients on several hosts write down each operation: when it began and ended, by one clock, and whether it was
acknowledged. One without an answer may have happened, at any time after it began, or not. From that alone follows what
a final value may be, and what a host may show to who asks it in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

OK, UNKNOWN, REFUSED = "ok", "unknown", "refused"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client. ``value``: what was written, or, of a ``read``, what was shown."""

    host: int
    key: str
    name: str
    value: Any
    began: float
    ended: float
    outcome: str = OK

    @property
    def over(self) -> float:
        """From when on it happened or never will: for one without an answer there is no such time."""
        return math.inf if self.outcome == UNKNOWN else self.ended


def of(history: Iterable[Operation], *names: str) -> list[Operation]:
    """Those operations that may have happened."""
    return [operation for operation in history if operation.name in names and operation.outcome != REFUSED]


# -- counters


def check_counter(history: Sequence[Operation], final: int) -> list[str]:
    """All acknowledged steps count once each, those without an answer once or not at all."""
    steps = of(history, "add")
    least = sum(step.value for step in steps if step.outcome == OK)
    possible = {least}
    for step in steps:
        if step.outcome == UNKNOWN:
            possible |= {value + step.value for value in possible}
    problems = [] if final in possible else [f"the counter ends at {final}, possible are {sorted(possible)[:20]}"]
    for read in of(history, "read"):
        own = sum(step.value for step in steps if step.host == read.host and step.over <= read.began)
        most = sum(step.value for step in steps if step.began <= read.ended)
        if not own <= read.value <= most:
            problems.append(f"host {read.host} showed {read.value}, it had counted {own}, and all {most} at most")
    for earlier in of(history, "read"):
        for later in of(history, "read"):
            if earlier.host == later.host and earlier.ended <= later.began and later.value < earlier.value:
                problems.append(f"host {earlier.host} showed {earlier.value}, and then {later.value}")
    return problems


# -- sets


def check_set(history: Sequence[Operation], final: Iterable[Any]) -> list[str]:
    """An addition goes by a removal that has seen it, and by nothing else."""
    there, problems = set(final), []
    adds, removes = of(history, "add"), of(history, "remove")
    for element in {operation.value for operation in (*adds, *removes)} | there:
        came = [add for add in adds if add.value == element]
        went = [remove for remove in removes if remove.value == element]
        if element in there and _must_be_gone(came, went):
            problems.append(
                f"{element!r} is in the set, though each addition was removed on its host, or there was none"
            )
        if element not in there and _must_be_there(came, went, math.inf):
            problems.append(f"{element!r} is not in the set, though nothing can have removed it")
    for read in of(history, "read"):
        for element in {add.value for add in adds if add.host == read.host}:
            came = [add for add in adds if add.value == element and add.host == read.host and add.over <= read.began]
            went = [remove for remove in removes if remove.value == element and remove.began <= read.ended]
            if element not in read.value and _must_be_there(came, went, read.ended):
                problems.append(f"host {read.host} had {element!r} added and did not show it")
        for element in read.value:
            came = [add for add in adds if add.value == element and add.began <= read.ended]
            if not came:
                problems.append(f"host {read.host} showed {element!r} before anybody added it")
    return problems


def _must_be_there(came: Sequence[Operation], went: Sequence[Operation], until: float) -> bool:
    """An acknowledged addition began when every removal was over: none can have seen it."""
    return any(
        add.outcome == OK and add.ended <= until and all(remove.over <= add.began for remove in went) for add in came
    )


def _must_be_gone(came: Sequence[Operation], went: Sequence[Operation]) -> bool:
    """For every addition there is an acknowledged removal that began on the same host when it was there."""
    return all(
        any(remove.outcome == OK and remove.host == add.host and add.over <= remove.began for remove in went)
        for add in came
    )


# -- registers


def check_register(history: Sequence[Operation], final: Any) -> list[str]:
    """A write that a later writer had seen, on its own host or by reading, is not the last. Values are written once."""
    puts = of(history, "put")
    overwritten = {put.value for put in puts if _is_overwritten(put, history, math.inf)}
    problems = []
    if final is None and any(put.outcome == OK for put in puts):
        problems.append("the register is empty, though a write was acknowledged")
    if final is not None and final not in {put.value for put in puts}:
        problems.append(f"the register ends with {final!r}, which nobody wrote")
    if final in overwritten:
        problems.append(f"the register ends with {final!r}, which was overwritten by who had seen it")
    for read in of(history, "read"):
        wrote = [put for put in puts if put.value == read.value]
        if read.value is None:
            if any(put.outcome == OK and put.host == read.host and put.ended <= read.began for put in puts):
                problems.append(f"host {read.host} showed nothing, though it had acknowledged a write")
        elif not wrote or wrote[0].began > read.ended:
            problems.append(f"host {read.host} showed {read.value!r} before anybody wrote it")
        elif _is_overwritten(wrote[0], [one for one in history if one.host == read.host], read.began):
            problems.append(f"host {read.host} showed {read.value!r} after it had acknowledged a later write")
    return problems


def _is_overwritten(put: Operation, history: Sequence[Operation], before: float) -> bool:
    """Whether an acknowledged put, over by then, came from a host that had shown or taken this one."""
    seen = [
        one for one in history if (one is put and one.outcome == OK) or (one.name == "read" and one.value == put.value)
    ]
    return any(
        later.outcome == OK and later.ended <= before and later.host == one.host and one.ended <= later.began
        for one in seen
        for later in of(history, "put")
        if later is not put
    )
