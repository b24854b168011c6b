"""Room for Python's frames, so that no call in a loop makes and frees a piece of memory for them.

CPython (3.11 and later) keeps the frames of a thread in pieces of 16 KiB. One is asked of the kernel when a call does
not fit the last, and given back when that call returns. A loop that calls something just at the end of a piece does
both each time, with a page that the kernel has to clear: 5 to 20 µs where a call takes 0.1. Servers sit in their loops
at a depth that is no one's choice, and most made dozens of such pieces for each job.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

Given = ParamSpec("Given")
Result = TypeVar("Result")
ROOM_SLOTS = 33_000
"""Of 8 bytes: a piece is of the next power of two, here 512 KiB, and what is called has the rest, some 240 KiB. Nobody
writes to these slots, so they take address space and no memory."""


def _call(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return function(*given, **named)


_call_with_room = FunctionType(_call.__code__.replace(co_stacksize=ROOM_SLOTS), globals(), "_call_with_room")


def with_stack_room(function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Call *function*, a thread's loop; what it calls in turn has its frames in one piece of memory, however often."""
    return cast("Result", _call_with_room(function, args, kwargs))
