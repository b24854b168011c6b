"""Shared state: CRDT values by key, the same on all hosts of a cluster in the end.

A key has the type of its first write; another type is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from actorgrid.errors import UnknownKey

from .http import AdminHttp, segment
from .plain_values import check_text
from .state_batch import Change, StateBatch, change_of, compare_change, put_change
from .state_watch import StateWatch

MAX_LISTED = 10_000
PAGE = 1000
WITHIN_S = 5.0
ANSWER_S = 20.0
Durability = Literal["host", "majority"]


class SharedState:
    """``client.state``. Writes are on the host's disk when they return, and on their way to the other hosts; each
    returns the key's value after it, as that host sees it. Values are what JSON carries; others raise BadRequest.

    With ``durability="majority"`` a write returns when more than half of the cluster's members have it on their disks.
    Raises NotReplicated when that takes longer than *within_s* (at most 60): the write stays, and goes on to others.
    Raises StateTypeConflict when the key holds another type, DiskFull when there is no room, NamespaceFull when its
    namespace has none, NotAllowed for a key of another user's namespace. *ttl_s*: what is put ends so many seconds
    after, on all hosts, as their clocks say.
    """

    def __init__(self, http: AdminHttp, namespace: str = "") -> None:
        self._http = http
        self._space = f"@{namespace}/" if namespace else ""

    def in_namespace(self, name: str) -> SharedState:
        """The state of a namespace: its keys are ``@name/...`` to everybody else."""
        return SharedState(self._http, name)

    def put(
        self,
        key: str,
        value: Any,
        type: str = "lww_register",
        *,
        ttl_s: float | None = None,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> Any:
        """Set a register (``lww_register`` or ``mv_register``)."""
        return self._change(key, put_change("put", value, type, ttl_s=ttl_s), durability, within_s)

    def compare_and_put(
        self,
        key: str,
        expected: Any,
        value: Any,
        *,
        ttl_s: float | None = None,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> Any:
        """Set a register if it has the expected value on the host that is asked. Raises StateCompareFailed.

        Nobody else's write on that host comes between. Another host may take another write at the same time: what may
        happen only once in a cluster needs a lock.
        """
        return self._change(key, compare_change(expected, False, value, ttl_s), durability, within_s)

    def put_if_absent(
        self,
        key: str,
        value: Any,
        *,
        ttl_s: float | None = None,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> Any:
        """Set a register that is not there on the host that is asked. Raises StateCompareFailed; as compare_and_put."""
        return self._change(key, compare_change(None, True, value, ttl_s), durability, within_s)

    def get(self, key: str, default: Any = ...) -> Any:
        """The value; of a key that does not exist, *default*, or UnknownKey is raised when none is given."""
        try:
            return self.entry(key)["value"]
        except UnknownKey:
            if default is ...:
                raise
            return default

    def entry(self, key: str) -> dict[str, Any]:
        """``{"key", "type", "value"}``, and ``expires_at`` of one that ends. Raises UnknownKey."""
        return self._own(self._http.get(self._path(key)))

    def increment(
        self,
        key: str,
        by: int = 1,
        type: str = "pn_counter",
        *,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> Any:
        """Add to a counter (``pn_counter``, or ``g_counter``, which only grows)."""
        return self._change(key, change_of("increment", type, by), durability, within_s)

    def decrement(self, key: str, by: int = 1, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Take from a ``pn_counter``."""
        return self._change(key, change_of("decrement", "pn_counter", by), durability, within_s)

    def add_to_set(self, key: str, item: Any, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Add to an ``or_set``: an addition wins over a removal at the same time elsewhere."""
        return self._change(key, change_of("add", "or_set", item), durability, within_s)

    def remove_from_set(
        self, key: str, item: Any, *, durability: Durability = "host", within_s: float = WITHIN_S
    ) -> Any:
        """Remove from an ``or_set`` what is seen of *item* here."""
        return self._change(key, change_of("remove", "or_set", item), durability, within_s)

    def put_field(
        self,
        key: str,
        field: str,
        value: Any,
        *,
        ttl_s: float | None = None,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> Any:
        """Set one field of an ``or_map``."""
        return self._change(key, put_change("put_field", value, "or_map", field, ttl_s), durability, within_s)

    def remove_field(self, key: str, field: str, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Remove one field of an ``or_map``."""
        return self._change(key, change_of("remove_field", "or_map", field=field), durability, within_s)

    def enable(self, key: str, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Raise an ``ew_flag``: enabling wins over disabling at the same time elsewhere."""
        return self._change(key, change_of("enable", "ew_flag"), durability, within_s)

    def disable(self, key: str, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Lower an ``ew_flag``."""
        return self._change(key, change_of("disable", "ew_flag"), durability, within_s)

    def delete(self, key: str, *, durability: Durability = "host", within_s: float = WITHIN_S) -> None:
        """Remove a key, of whatever type: all that this host has seen of it. Raises UnknownKey.

        What others wrote at the same time stays; of a register, the later write counts.
        """
        self._change(key, change_of("delete"), durability, within_s)

    def batch(self) -> StateBatch:
        """An empty batch, to be filled and applied."""
        return StateBatch()

    def apply(
        self,
        batch: StateBatch | Iterable[Change],
        *,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> list[Any]:
        """Apply the changes of a batch, all or none, in one commit of the host; gives the values after each.

        They reach another host one by one or together. Raises what one of them raises alone, with its number.
        """
        changes = batch.changes if isinstance(batch, StateBatch) else list(batch)
        body = {
            "mutations": [{**change, "key": self._space + change["key"]} for change in changes],
            "durability": durability,
            "within_s": within_s,
        }
        answer = self._http.post("/api/state-batch", body, timeout_s=within_s + ANSWER_S)
        return [entry["value"] for entry in answer["entries"]]

    def list(self, prefix: str = "", limit: int = 1000) -> list[dict[str, Any]]:
        """Entries under *prefix* by key, at most *limit* (10,000)."""
        found = self._http.get("/api/state", prefix=self._space + prefix, limit=limit)["entries"]
        return [self._own(entry) for entry in found]

    def entries(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """All entries under *prefix* by key, read in pages: each is as it was when its page was read."""
        behind = None
        while True:
            # Told only where it is needed: a door of the version before refuses what it does not know.
            page = self._http.get("/api/state", prefix=self._space + prefix, limit=PAGE, behind=behind)["entries"]
            for entry in page:
                yield self._own(entry)
            if not page:
                return
            behind = page[-1]["key"]

    def usage(self, prefix: str = "", *, depth: int = 1, rows: int = 20) -> dict[str, Any]:
        """Sizes by namespace and by prefix of so many parts, and traffic by host: as ``actorgrid state top`` shows."""
        found: dict[str, Any] = self._http.get("/api/state-usage", prefix=self._space + prefix, depth=depth, rows=rows)
        return found

    def watch(
        self,
        prefix: str = "",
        *,
        initial: bool = False,
        after: str | None = None,
        on_resync: Callable[[str], None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Entries under *prefix* as they change, from now on (*initial*: first those that are there), until closed.

        Told is the latest value of each key that changed; of one that was deleted, or ended, ``deleted`` is true. After
        a break the watch goes on by itself where it was, without a gap, on another host of the cluster if need be;
        where the host does not know the place, it goes through all keys and tells what differs, and *on_resync* is
        called with the reason. *after*: the ``id`` of an entry that was told before, to go on behind it. Raises
        HostUnreachable when no host is there for 60 s. Listening begins before the first ``next`` returns; to write
        only after that, use ``initial=True`` and wait for its entries.
        """
        for entry in StateWatch(self._http, self._space + prefix, initial, after, on_resync).entries():
            yield self._own(entry)

    def _change(self, key: str, change: Change, durability: Durability, within_s: float) -> Any:
        if durability == "host":
            return self._http.post(self._path(key), change)["value"]
        # Told only where it is asked for: a door of the version before refuses fields that it does not know.
        body = change | {"durability": durability, "within_s": within_s}
        return self._http.post(self._path(key), body, timeout_s=within_s + ANSWER_S)["value"]

    def _path(self, key: str) -> str:
        check_text(key, "the key")
        return f"/api/state/{segment(self._space + key, slashes=True)}"

    def _own(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "key": entry["key"].removeprefix(self._space)} if self._space else entry
