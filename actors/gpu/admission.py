"""A deadline that cannot be kept, in the words of who asked for it: how long is left, and what would be possible."""

from __future__ import annotations

from actorgrid.amounts import duration
from actorgrid.errors import ActorGridError, AdmissionRefused, QueueFull

HINT = (
    "ask for a later --deadline or a shorter --timeout; without --timeout the deadline is not promised and only says "
    "who goes first"
)


def admission_refused(
    why: ActorGridError | None, text: str, deadline: float | None, limit_s: float | None, now: float
) -> AdmissionRefused:
    """The error for work that the scheduling policy refused with *why*, or gave up with no more than *text*."""
    if deadline is None or limit_s is None:
        return AdmissionRefused(text, found=f"the scheduling policy says so: {why.message}" if why is not None else "")
    left_s = deadline - now
    when = f"in {duration(left_s)}" if left_s > 0 else f"{duration(-left_s)} ago"
    possible_at = why.details.get("possible_at") if why is not None else None
    hint = HINT
    if isinstance(why, QueueFull):
        found, hint = why.found, "submit it again when some of those are done"
    elif possible_at is not None:
        found = f"as things are it would be done in {duration(possible_at - now)}"
    elif left_s < limit_s:
        found = f"it may run for {duration(limit_s)}, and there is less time than that left"
    else:
        found = "nobody knows when there will be room: what holds it has no time limit"
    more = {} if possible_at is None else {"possible_at": possible_at}
    return AdmissionRefused(
        text, asked=f"done {when}, running for up to {duration(limit_s)}", found=found, hint=hint, **more
    )
