"""What a supervisor must know of a child to start, restart and stop it: OTP's child specification."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from actorgrid.errors import InvalidChildSpec

Restart = Literal["permanent", "transient", "temporary"]
Shutdown = float | Literal["brutal_kill", "infinity"]

SHUTDOWN_S_MAX = 3600.0
CHILDREN_MAX = 1000

_ID = re.compile(r"[a-z][a-z0-9_]{0,62}")
_KIND = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_RESTARTS = ("permanent", "transient", "temporary")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child.

    ``id`` is the name other servers call it by. ``kind`` says where its Server class is: ``package.module:Class``.
    ``restart``: ``permanent`` is always started again, ``transient`` after an abnormal end only (any exit status
    but 0), ``temporary`` never. ``shutdown``: seconds given to an orderly stop before SIGKILL; ``brutal_kill``:
    SIGKILL at once; ``infinity``: as long as it takes. ``start_timeout_s``: a start that takes longer has failed.

    Raises InvalidChildSpec, which says which field is wrong and how.
    """

    id: str
    kind: str
    restart: Restart = "permanent"
    shutdown: Shutdown = 5.0
    start_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id):
            raise self._wrong("id", self.id, "a name of lower-case letters, digits and _, 63 at most")
        if not isinstance(self.kind, str) or not _KIND.fullmatch(self.kind):
            raise self._wrong("kind", self.kind, "package.module:Class")
        if self.restart not in _RESTARTS:
            raise self._wrong("restart", self.restart, " | ".join(_RESTARTS))
        if not _is_shutdown(self.shutdown):
            raise self._wrong("shutdown", self.shutdown, f"0 to {SHUTDOWN_S_MAX:g} s, 'brutal_kill' or 'infinity'")
        if not _is_number(self.start_timeout_s) or not 0 < self.start_timeout_s <= SHUTDOWN_S_MAX:
            raise self._wrong("start_timeout_s", self.start_timeout_s, f"more than 0, at most {SHUTDOWN_S_MAX:g} s")

    def _wrong(self, field: str, value: object, wanted: str) -> InvalidChildSpec:
        return InvalidChildSpec(
            f"child spec {self.id!r}: {field} is wrong", asked=f"{field} = {value!r}", hint=f"give {wanted}"
        )

    @property
    def module(self) -> str:
        """The module its class is in."""
        return self.kind.partition(":")[0]

    @property
    def class_name(self) -> str:
        """The name of its class."""
        return self.kind.partition(":")[2]

    def wants_restart(self, normal: bool) -> bool:
        """Whether its end, orderly (*normal*) or not, is answered with a new start."""
        return self.restart == "permanent" or (self.restart == "transient" and not normal)

    def shutdown_s(self) -> float | None:
        """Seconds until SIGKILL; ``None`` when there is no limit."""
        if isinstance(self.shutdown, str):
            return 0.0 if self.shutdown == "brutal_kill" else None
        return float(self.shutdown)


def check_children(specs: Iterable[ChildSpec]) -> tuple[ChildSpec, ...]:
    """The specs in order. Raises InvalidChildSpec when two share an id, or when there are too many."""
    ordered = tuple(specs)
    seen: set[str] = set()
    for spec in ordered:
        if spec.id in seen:
            raise InvalidChildSpec(f"two children are called {spec.id!r}", hint="give each its own id")
        seen.add(spec.id)
    if len(ordered) > CHILDREN_MAX:
        raise InvalidChildSpec(
            f"{len(ordered)} children are more than one supervisor takes",
            found=f"the limit is {CHILDREN_MAX}",
            hint="put supervisors between them",
        )
    return ordered


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_shutdown(value: object) -> bool:
    if isinstance(value, str):
        return value in ("brutal_kill", "infinity")
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= SHUTDOWN_S_MAX
