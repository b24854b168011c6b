"""Servers in OTP's manner as light processes: ``gen_server``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from actorgrid.errors import BadRequest
from actorgrid.hotpath.light import ProcessCall

from .base import Process

_Entry = tuple[Callable[..., Any], bool]


class GenServer(Process):
    """A process with handlers; its attributes are its state. Override any of:

    * ``init(self, *args)`` builds the state. What it raises fails the start.
    * ``handle_call(self, request, caller)``: what it returns is the answer; an ActorGridError that it raises, too.
      NO_REPLY puts it off.
    * ``handle_cast(self, message)``, ``handle_info(self, message)``
    * ``terminate(self, reason)``, ``code_change(self, old_version, state)``

    Or mark methods with ``@handles(Type)``: each takes messages of that type, however they come. Any handler may be
    ``async def``: until it has ended, nothing else is handled. What a handler raises ends the process.
    """

    __slots__ = ()
    _by_type: ClassVar[dict[type, _Entry]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        table: dict[type, _Entry] = {}
        for base in reversed(cls.__mro__):
            for name, method in vars(base).items():
                for kind in getattr(method, "handled_types", ()):
                    if hasattr(GenServer, name):
                        raise BadRequest(f"{cls.__name__}.{name} hides a method of processes", hint="rename it")
                    table[kind] = (method, len(inspect.signature(method).parameters) > 2)
        cls._by_type = table

    def init(self, *args: Any) -> Any:
        """Build the state from the arguments of ``spawn``."""
        if args:
            raise BadRequest(f"{type(self).__name__} takes no arguments", found=repr(args)[:200], hint="define init")

    def handle_call(self, request: Any, caller: ProcessCall) -> Any:
        """Answer a call; this one by the method that is marked for its type."""
        entry = self._by_type.get(type(request))
        if entry is None:
            return super().handle_call(request, caller)
        method, wants_caller = entry
        return method(self, request, caller) if wants_caller else method(self, request)

    def handle_cast(self, message: Any) -> Any:
        """Take a cast; this one by the method that is marked for its type."""
        entry = self._by_type.get(type(message))
        return super().handle_cast(message) if entry is None else self._take(entry, message)

    def handle_info(self, message: Any) -> Any:
        """Take any other message; this one by the method that is marked for its type."""
        entry = self._by_type.get(type(message))
        return super().handle_info(message) if entry is None else self._take(entry, message)

    def _take(self, entry: _Entry, message: Any) -> Any:
        method, wants_caller = entry
        return method(self, message, None) if wants_caller else method(self, message)
