"""What a server may ask of the process it lives in, and how it awaits answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from .envelope import Envelope
from .exits import ExitReason
from .ref import Ref


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Cancel the callback; harmless when it was called already."""


class Names(Protocol):
    """The registry, as servers use it (``registry.py``)."""

    def register(self, key: str, ref: Ref) -> None:
        """Give *ref* the unique name *key*; raises NameTaken."""

    def unregister(self, key: str, ref: Ref) -> bool:
        """Take the name *key* from *ref*; ``False`` when *ref* does not have it."""

    def whereis(self, key: str) -> Ref | None:
        """The living process that has the name *key*; ``None`` when none has."""

    def join(self, key: str, ref: Ref) -> None:
        """Make *ref* a member of the group *key*."""

    def leave(self, key: str, ref: Ref) -> bool:
        """Take *ref* out of the group *key*; ``False`` when it is no member."""

    def members(self, key: str) -> list[Ref]:
        """The living members of the group *key*."""


class Runtime(Protocol):
    """What a server may ask of the process it lives in. All callbacks run in the server's thread."""

    @property
    def me(self) -> Ref:
        """The reference to this process."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments that the child spec (and StartChild) gave this server."""

    @property
    def in_place(self) -> bool:
        """Whether all must happen in this thread: the clock is moved by hand, and would not wait for another thread."""

    @property
    def registry(self) -> Names:
        """The registry of names of this host."""

    def send(self, to: str | Ref, envelope: Envelope) -> str:
        """Queue for *to*; gives the address it goes to. Raises NoSuchActor, MailboxFull or FrameTooLarge."""

    def when_capacity(self, to: str | Ref, callback: Callable[[], None]) -> None:
        """Call back when less than half of the queue to *to* is used, or *to* is gone; at once if so already."""

    def watch_peer(self, ref: Ref) -> None:
        """Have the end of that process told to ``Server.peer_ended``, with its reason. Raises NoSuchActor."""

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, no earlier than *delay_s* from now."""

    def watch(
        self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None = None
    ) -> None:
        """Call back while *fd* is ready (level-triggered); replaces an earlier watch of the same fd."""

    def unwatch(self, fd: int) -> None:
        """Forget *fd*; harmless when it was not watched."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back."""

    def boottime(self) -> float:
        """Seconds since the machine's boot, suspended time included: what leases are counted on."""

    def crash(self, error: BaseException) -> None:
        """Let the process die of *error* after the current handler."""

    def die(self, reason: ExitReason) -> None:
        """Let the process die of *reason* after the current handler, without ``stop``."""

    def leave(self, reason: ExitReason) -> None:
        """Run ``stop``, then end in order; links and monitors hear *reason*."""

    def hold(self, for_s: float, release: Callable[[], None]) -> None:
        """Call no timer and no watch; call *release* after *for_s* seconds, unless ``go_on`` comes first."""

    def go_on(self) -> None:
        """End ``hold``."""


class Waiter:
    """One awaited answer: what a handler's ``await self.call(...)`` suspends on."""

    __slots__ = ("_callback", "_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callback: Callable[[], None] | None = None

    def set(self, value: Any) -> None:
        """Give the value; a second answer is ignored."""
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        """Raise *error* where it is awaited; a second answer is ignored."""
        self._settle(None, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        if self._callback is not None:
            self._callback()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back when answered (at once if it was already)."""
        if self.done:
            callback()
        else:
            self._callback = callback

    def result(self) -> Any:
        """The value, or the error raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Waiter, None, Any]:
        if not self.done:
            yield self
        return self.result()
