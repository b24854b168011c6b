"""The bytes of a ledger snapshot: a header, then each section's items in pieces, so that it need not be made at once.

Format 6 is a stream of msgpack values: the header (a dict with ``format``), then ``[section, items]`` with at most
1,000 items each, and last ``["end", number of pieces]``. Items are in the order of the state, which the log alone
determines: equal states give equal bytes. In format 5 a lock had one holder; format 4 knew nothing of certificates;
format 3 knew no members; format 2 had no quotas, and its allocations did not say whose they are; format 1 was one
JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgpack

from actorgrid.actors.ledger.field_checks import Plain
from actorgrid.errors import LedgerRefused, LedgerTooNew

from .records import UNKNOWN_USER
from .tables.locks import of_one_holder

FORMAT = 6
NO_CLUSTER = {"cluster": {"cluster_id": "", "nodes_total": 0}}
"""Formats 1 to 3 knew one host."""
PIECE_ITEMS = 1_000
END = "end"
# What msgpack's own integers cannot hold, in decimal.
BIG = 1

Sections = Mapping[str, Iterable[Any]]


def encode(header: Plain, sections: Sections) -> Iterator[bytes]:
    """Pieces that make the snapshot when joined. The sections may be read lazily, but must not change meanwhile."""
    yield pack({"format": FORMAT, **header})
    pieces = 0
    for name, items in sections.items():
        piece: list[Any] = []
        for item in items:
            piece.append(item)
            if len(piece) == PIECE_ITEMS:
                pieces += 1
                yield pack([name, piece])
                piece = []
        if piece:
            pieces += 1
            yield pack([name, piece])
    yield pack([END, pieces])


def pack(value: Any) -> bytes:
    """Pack a plain value as bytes; whole numbers may be of any size, and texts may hold half of a surrogate pair."""
    try:
        data: bytes = msgpack.packb(value, default=_of_big)
    except UnicodeEncodeError:
        # Seldom, and twice as slow: the codec's own way is only taken without an error handler.
        data = msgpack.packb(value, default=_of_big, unicode_errors="surrogatepass")
    return data


def unpack(data: bytes) -> Any:
    """The value that ``pack`` made these bytes of."""
    return msgpack.unpackb(data, ext_hook=_big, unicode_errors="surrogatepass", strict_map_key=False)


def decode(data: bytes) -> tuple[Plain, dict[str, list[Any]]]:
    """The header, and the items of each section, of any format up to ours.

    Raises LedgerTooNew for a later one, LedgerRefused for anything else.
    """
    if data[:1] == b"{":
        return _from_json(data)
    try:
        values = list(
            msgpack.Unpacker(
                _Bytes(data), ext_hook=_big, unicode_errors="surrogatepass", strict_map_key=False, max_buffer_size=0
            )
        )
        header, *pieces, end = values
        known = int(header["format"])
        if known > FORMAT:
            raise LedgerTooNew(
                f"the snapshot is of format {known}",
                found=f"this host knows formats up to {FORMAT}",
                hint="upgrade this host: start it with the version that the other hosts have, or that it had before",
            )
        if end != [END, len(pieces)]:
            raise ValueError("it has no end")
        sections: dict[str, list[Any]] = {}
        for name, items in pieces:
            sections.setdefault(name, []).extend(items)
        if known < 3:
            _say_whose(sections)
        if known < 4:
            header = {**header, **NO_CLUSTER}
        if known < 6:
            sections["locks"] = [of_one_holder(lock) for lock in sections.get("locks", ())]
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise LedgerRefused(
            "the snapshot cannot be read", found=f"{len(data)} bytes: {error}", hint="take an earlier one, or a backup"
        ) from None
    return header, sections


def no_state(data: bytes, reason: str) -> LedgerRefused:
    """The refusal of bytes that are no state, for *reason*."""
    return LedgerRefused(
        "the snapshot is no state of a ledger",
        found=f"{len(data)} bytes: {reason[:200]}",
        hint="take an earlier one, or a backup. Of a leader: actorgrid ledger verify there says whether its files are"
        " damaged; if they are not, does somebody else have its key?",
    )


class _Bytes:
    """A reader over bytes in memory that does not copy them whole first."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int) -> bytes:
        piece = bytes(self._data[self._at : self._at + size])
        self._at += len(piece)
        return piece


def _of_big(value: Any) -> msgpack.ExtType:
    if isinstance(value, int):
        return msgpack.ExtType(BIG, str(value).encode("ascii"))
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _big(code: int, data: bytes) -> int:
    if code != BIG:
        raise ValueError(f"extension {code} is not known")
    return int(data)


# -- earlier formats


def _from_json(data: bytes) -> tuple[Plain, dict[str, list[Any]]]:
    try:
        state = json.loads(data)
        return _MIGRATIONS[int(state["format"])](state)
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerRefused(
            "the snapshot cannot be read",
            found=f"{len(data)} bytes: {error!r}",
            hint="take an earlier one, or a backup",
        ) from None


def _from_1(state: Plain) -> tuple[Plain, dict[str, list[Any]]]:
    jobs = state["jobs"]
    _say_whose({"jobs": jobs["records"].values(), "allocations": state["allocations"].values()})
    header = {name: state[name] for name in ("format", "index", "term", "epoch", "events_total")}
    return {**header, **NO_CLUSTER, "job_totals": jobs["totals"]}, {
        # JSON sorted them by id.
        "jobs": sorted(jobs["records"].values(), key=lambda job: job["ordinal"]),
        "ended": jobs["ended"],
        "remembered": jobs["remembered"],
        "allocations": sorted(state["allocations"].values(), key=lambda allocation: allocation["token"]),
        "hosts": list(state["hosts"].values()),
        "settings": list(state["settings"].items()),
        "sessions": state["sessions"],
    }


def _say_whose(sections: Sections) -> None:
    """Give the allocations of formats 1 and 2 an owner: their job's user.

    Whose a session was, those formats did not say.
    """
    users = {job["job_id"]: job["user_id"] for job in sections.get("jobs", ())}
    for allocation in sections.get("allocations", ()):
        allocation["user_id"] = users.get(allocation["owner"].get("job_id"), UNKNOWN_USER)


_MIGRATIONS: dict[int, Callable[[Plain], tuple[Plain, dict[str, list[Any]]]]] = {1: _from_1}
