"""What every CRDT type here offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from actorgrid.errors import BadRequest, MalformedBody, StateTypeConflict

from .causal import Replica
from .plain import pack, unpack

FORMAT = 1
"""Version of the encoding, the first thing in it."""
MAX_DRIFT_US = 60 * 1_000_000
"""How far ahead of our clock a stamp from elsewhere may be; a clock further off must not win for years."""


class Crdt(ABC):
    """A replicated value: replicas that joined the same deltas, in any order, are equal, byte for byte.

    A mutator ``x.add(replica, ...)`` changes *x* and returns a **delta**, itself a (small) value of the same type:
    joining it elsewhere has the same effect there. It changes *x* at once so that no dot is ever used twice. *replica*
    must be the caller's own (see ``causal``). Mutators raise BadRequest for what is not plain or over a limit, and
    then change nothing.

    ``x.join(delta)`` takes a delta or a whole state into *x*, in place, and returns *x*; the argument is left alone
    and shares nothing with *x* that could change. In place, because a copy per delta would make every delta cost as
    much as the state.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @property
    @abstractmethod
    def value(self) -> Any:
        """The value as Python sees it."""

    @property
    def plain(self) -> Any:
        """The value in msgpack and JSON terms; differs from ``value`` for sets (a sorted list)."""
        return self.value

    @abstractmethod
    def join(self, other: Self) -> Self:
        """Take *other* in; returns self. Raises StateTypeConflict for another type."""

    @abstractmethod
    def copy(self) -> Self:
        """An independent copy."""

    @property
    def latest_us(self) -> int:
        """The latest time, in microseconds since 1970, that a write in it claims; 0: most types know no time."""
        return 0

    def check_drift(self, now_us: int) -> None:
        """Raises BadRequest when a write in it claims to be more than a minute in the future. What is refused may be
        offered again later.
        """
        ahead_us = self.latest_us - now_us
        if ahead_us > MAX_DRIFT_US:
            raise BadRequest(
                "a write comes from too far in the future",
                asked=f"{ahead_us / 1e6:.1f} s ahead of this host's clock",
                found=f"at most {MAX_DRIFT_US / 1e6:.0f} s",
                hint="set the clocks of both hosts (NTP)",
            )

    def highest(self, replica: Replica) -> int:
        """How far *replica* itself has counted in it; only its own mutators may move that."""
        return 0

    def values_bytes(self) -> Iterator[bytes]:
        """The encoded values in it, for who has to look at what a stranger sent."""
        yield from ()

    @abstractmethod
    def _body(self) -> list[Any]:
        """The parts that identify the state, in canonical order."""

    @classmethod
    @abstractmethod
    def _from_body(cls, body: list[Any]) -> Self:
        """The state of a decoded body; raises MalformedBody, or TypeError, ValueError, IndexError for it."""

    def to_bytes(self) -> bytes:
        """The canonical bytes of the state: equal states give equal bytes."""
        return pack([FORMAT, self.kind, self._body()])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The state of :meth:`to_bytes`. Raises MalformedBody, or StateTypeConflict for another type's bytes."""
        kind, body = split(data)
        if kind != cls.kind:
            raise StateTypeConflict(f"the bytes hold a {kind}", asked=cls.kind, found=kind)
        return cls._of(body)

    @classmethod
    def _of(cls, body: list[Any]) -> Self:
        try:
            return cls._from_body(body)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            if isinstance(error, MalformedBody):
                raise
            raise MalformedBody(f"not the bytes of a {cls.kind}: {error}") from error

    def _same_kind(self, other: Any) -> None:
        if type(other) is not type(self):
            found = getattr(other, "kind", type(other).__name__)
            raise StateTypeConflict(f"a {self.kind} cannot join a {found}", asked=self.kind, found=found)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._body() == other._body()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


def split(data: bytes) -> tuple[str, list[Any]]:
    """Type name and body of encoded bytes. Raises MalformedBody."""
    whole = unpack(data)
    if not isinstance(whole, list) or len(whole) != 3 or not isinstance(whole[1], str):
        raise MalformedBody("not the bytes of a CRDT")
    if whole[0] != FORMAT:
        raise MalformedBody("the bytes are of another format", asked=f"format {FORMAT}", found=f"format {whole[0]!r}")
    if not isinstance(whole[2], list):
        raise MalformedBody("not the bytes of a CRDT: no body")
    return whole[1], whole[2]
