"""Looking into a living server, and holding it still: OTP's ``sys`` module.

Any server answers these by ``call``, also while it is suspended. What is shown is made for people and logs: values are
cut at 200 characters, and attributes whose name says that they are secret are hidden.

Bounds: a trace keeps the last 1,000 events at most, a suspended server is resumed after 600 s at most and holds 10,000
messages; calls beyond that are answered MailboxFull, casts are dropped and counted.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from actorgrid.errors import BadRequest, MailboxFull

from .code_change import ChangeCode, change_code
from .envelope import CALL, Envelope

if TYPE_CHECKING:
    from .server import Server

TRACE_MAX = 1_000
SUSPEND_S_MAX = 600.0
HELD_MAX = 10_000
VALUE_CHARACTERS_MAX = 200
ATTRIBUTES_MAX = 200

_SECRET = re.compile(r"secret|token|password|passwd|credential|private|_key$|^key$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GetState:
    """``sys:get_state``. Answer: {attribute: text}, as ``Server.format_state`` gives it."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """``sys:get_status``.

    Answer: {"name", "kind", "pid", "address", "state": "running" | "suspended", "handled", "held", "dropped",
    "open_calls", "monitors", "monitored_by", "links", "traced", "status"}.
    """


@dataclass(frozen=True, slots=True)
class Suspend:
    """``sys:suspend``: handle nothing but these requests until Resume, or until *for_s* (at most 600) have passed."""

    for_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.for_s <= SUSPEND_S_MAX:
            raise BadRequest(
                f"a server is suspended for more than 0 s and at most {SUSPEND_S_MAX:g} s", asked=str(self.for_s)
            )


@dataclass(frozen=True, slots=True)
class Resume:
    """``sys:resume``; harmless when not suspended."""


@dataclass(frozen=True, slots=True)
class SetTrace:
    """``sys:log``: keep the last *events* messages in and out; 0 ends it and forgets them."""

    events: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.events <= TRACE_MAX:
            raise BadRequest(f"a trace keeps 0 to {TRACE_MAX} events", asked=str(self.events))


@dataclass(frozen=True, slots=True)
class GetTrace:
    """Answer: list of {"at": seconds on the server's clock, "way": "in" | "out", "kind", "peer", "message"}."""


SystemRequest = GetState | Inspect | Suspend | Resume | SetTrace | GetTrace | ChangeCode
SYSTEM_REQUESTS = (GetState, Inspect, Suspend, Resume, SetTrace, GetTrace, ChangeCode)


class Inspector:
    """What one server keeps to be looked at and held still: its trace and its held messages."""

    def __init__(self, server: Server) -> None:
        self.held: deque[Envelope] | None = None  # not None while suspended
        self._server = server
        self._trace: deque[dict[str, Any]] | None = None
        self._dropped = 0

    def answer(self, request: SystemRequest) -> Any:
        """Carry out *request* and give its answer. Raises what ChangeCode does."""
        if isinstance(request, GetState):
            return self._server.format_state()
        if isinstance(request, Inspect):
            return self._inspect()
        if isinstance(request, GetTrace):
            return list(self._trace or ())
        if isinstance(request, ChangeCode):
            changed = change_code(self._server, request)
            self._server.log.warning(
                "%s has the code of %s now, version %r in place of %r",
                *(self._server.title, changed.module, changed.new_version, changed.old_version),
            )
            return changed
        if isinstance(request, Suspend):
            self._suspend(request.for_s)
        elif isinstance(request, Resume):
            self._resume()
        else:
            self._trace = deque(self._trace or (), maxlen=request.events) if request.events else None
        return None

    def saw(self, way: str, peer: str, envelope: Envelope) -> None:
        """Note a message in or out in the trace."""
        if self._trace is not None:
            at_s = self._server.runtime.monotonic()
            self._trace.append(
                {"at": at_s, "way": way, "kind": envelope.kind, "peer": peer, "message": shown_message(envelope.body)}
            )

    def _inspect(self) -> dict[str, Any]:
        server = self._server
        return {
            "name": server.title,
            "kind": f"{type(server).__module__}:{type(server).__qualname__}",
            "pid": os.getpid(),
            "address": server.me.address,
            "state": "running" if self.held is None else "suspended",
            "handled": server.handled,
            "held": len(self.held or ()),
            "dropped": self._dropped,
            **server.signal_counts(),
            "traced": self._trace is not None,
            "status": self._status(),
        }

    def _status(self) -> Mapping[str, Any]:
        try:
            return self._server.status()
        except Exception as error:  # noqa: BLE001 - looking into a server must not end it
            return {"error": short(error)}

    def _suspend(self, for_s: float) -> None:
        if self.held is None:
            self.held = deque()
            self._server.log.warning("%s is suspended for at most %g s", self._server.title, for_s)
        self._server.runtime.hold(for_s, self._resume)

    def _resume(self) -> None:
        if self.held is None:
            return
        held, self.held = self.held, None
        self._server.log.warning("%s is resumed; %d messages were held", self._server.title, len(held))
        self._server.runtime.go_on()
        for envelope in held:
            self._server.deliver_now(envelope)

    def hold(self, envelope: Envelope) -> None:
        """Keep a message until the server is resumed."""
        held = self.held
        if held is not None and len(held) < HELD_MAX:
            held.append(envelope)
            return
        self._dropped += 1
        if envelope.kind == CALL:
            full = MailboxFull(f"{self._server.title} is suspended and holds {HELD_MAX} messages")
            self._server.answer_call(envelope, None, full)


def short(value: Any) -> str:
    """*value* as text of at most 200 characters. A ``repr`` that fails is told as such: looking must not kill."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - somebody else's __repr__, called only to be looked at
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"


def shown_message(message: Any) -> str:
    """A message as text: the fields of a dataclass, those that are secret by their name hidden."""
    if not is_dataclass(message) or isinstance(message, type):
        return short(message)
    shown = (
        f"{field.name}={'(hidden)' if _SECRET.search(field.name) else short(getattr(message, field.name))}"
        for field in fields(message)
    )
    text = f"{type(message).__name__}({', '.join(shown)})"
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"


def shown_attributes(owner: Any, besides: Iterable[str]) -> dict[str, str]:
    """The attributes of *owner* as text, at most 200 of them, without those of its base class."""
    hidden = set(besides)
    shown: dict[str, str] = {}
    for name, value in list(vars(owner).items()):
        if name in hidden:
            continue
        if len(shown) >= ATTRIBUTES_MAX:
            shown["…"] = "more attributes than are shown"
            break
        shown[name] = "(hidden)" if _SECRET.search(name) else short(value)
    return shown
