"""What calls of an actor fail with when it is gone, or cannot be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actorgrid.errors import ActorDied, ActorGridError, ActorRestarted, TransportError, error_from_dict
from actorgrid.user_actor_context import ActorReference

if TYPE_CHECKING:
    from .actor_link import ActorCall, ActorLink


def refused(reference: ActorReference, found: ActorGridError | TransportError) -> ActorDied:
    """The error of calls to an actor that does not take this process."""
    died = ActorDied(
        f"the actor {reference.class_name} does not take this process's calls: {found.message}",
        found=found.found,
        hint=found.hint,
    )
    died.__cause__ = found
    return died


def cut_off(link: ActorLink, call: ActorCall) -> ActorDied:
    """The error of a call that its actor may go on with, and cannot answer any more."""
    return ActorDied(
        f"the connection to the actor {link.reference.class_name} broke while it ran {call.method}",
        asked=call.method,
        hint="whether the call had an effect is unknown; the actor lives",
    )


def interrupted(link: ActorLink, call: ActorCall) -> ActorDied:
    """The error of a call under which its actor died, where another incarnation was begun."""
    cause = link.cause
    error = ActorRestarted(
        f"the actor {link.reference.class_name} died while it ran {call.method}, and was begun again"
        + (f": {cause.message}" if cause else ""),
        asked=call.method,
        found=cause.found if cause else "",
        hint="whether the call had an effect is unknown, and the actor's state is that of a new one; calls that may be"
        " repeated: handle.method.options(retries=1)(...)",
        **(cause.details if cause else {}),
    )
    error.__cause__ = cause
    return error


def dead_for(death: ActorDied) -> ActorDied:
    """The error of one more call: a traceback belongs to one raise."""
    made = error_from_dict(death.to_dict())
    made.__cause__ = death.__cause__
    return made  # type: ignore[return-value]


def without_creator(reference: ActorReference) -> ActorDied:
    """The error of calls to an actor whose creator is gone."""
    return ActorDied(
        f"the actor {reference.class_name} is no more: the client that made it has closed, or is gone",
        asked=reference.actor_id,
        hint="an actor ends with the client that made it: make it in the process that lives longest",
    )
