"""Changes of the shared state as they are asked for, and several of them as one."""

from __future__ import annotations

from typing import Any, Self

from actorgrid.errors import BadRequest

from .plain_values import check_plain, check_text

Change = dict[str, Any]
"""The body of one change: ``type``, ``operation``, and what the operation takes."""
MAX_CHANGES = 1000


def change_of(operation: str, type: str = "lww_register", value: Any = None, field: str | None = None) -> Change:
    """A change. Raises BadRequest for a value that JSON does not carry."""
    check_plain(value)
    if field is not None:
        check_text(field, "the field")
    return {"type": type, "operation": operation, "value": value, "field": field}


def put_change(
    operation: str, value: Any, type: str = "lww_register", field: str | None = None, ttl_s: float | None = None
) -> Change:
    """A change that puts a value, which ends after *ttl_s*, where that is given."""
    change = change_of(operation, type, value, field)
    if ttl_s is not None:
        check_plain(ttl_s, "ttl_s")
        change["ttl_s"] = ttl_s
    return change


def compare_change(expected: Any, absent: bool, value: Any, ttl_s: float | None) -> Change:
    """A change that puts a value where the key has the expected one, or is absent."""
    change = put_change("compare_and_put", value, ttl_s=ttl_s)
    if absent:
        return change | {"absent": True}
    check_plain(expected, "the expected value")
    return change | {"expected": expected}


class StateBatch:
    """Several changes that a host applies all or none, in their order, in one commit: ``state.apply(batch)``.

    Its verbs are those of the state; each returns the batch. At most 1,000 changes.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __len__(self) -> int:
        return len(self.changes)

    def add(self, key: str, change: Change) -> Self:
        """One more change, as the HTTP API takes it."""
        if len(self.changes) >= MAX_CHANGES:
            raise BadRequest("the batch is full", found=f"{MAX_CHANGES} changes", hint="apply it and begin another")
        check_text(key, "the key")
        self.changes.append({**change, "key": key})
        return self

    def put(self, key: str, value: Any, type: str = "lww_register", *, ttl_s: float | None = None) -> Self:
        """Set a register."""
        return self.add(key, put_change("put", value, type, ttl_s=ttl_s))

    def compare_and_put(self, key: str, expected: Any, value: Any, *, ttl_s: float | None = None) -> Self:
        """Set a register that has the expected value on that host; else the whole batch fails."""
        return self.add(key, compare_change(expected, False, value, ttl_s))

    def put_if_absent(self, key: str, value: Any, *, ttl_s: float | None = None) -> Self:
        """Set a register that is not there on that host; else the whole batch fails."""
        return self.add(key, compare_change(None, True, value, ttl_s))

    def increment(self, key: str, by: int = 1, type: str = "pn_counter") -> Self:
        """Add to a counter."""
        return self.add(key, change_of("increment", type, by))

    def decrement(self, key: str, by: int = 1) -> Self:
        """Take from a counter."""
        return self.add(key, change_of("decrement", "pn_counter", by))

    def add_to_set(self, key: str, item: Any) -> Self:
        """Add to a set."""
        return self.add(key, change_of("add", "or_set", item))

    def remove_from_set(self, key: str, item: Any) -> Self:
        """Remove from a set."""
        return self.add(key, change_of("remove", "or_set", item))

    def put_field(self, key: str, field: str, value: Any, *, ttl_s: float | None = None) -> Self:
        """Set one field of a map."""
        return self.add(key, put_change("put_field", value, "or_map", field, ttl_s))

    def remove_field(self, key: str, field: str) -> Self:
        """Remove one field of a map."""
        return self.add(key, change_of("remove_field", "or_map", field=field))

    def enable(self, key: str) -> Self:
        """Raise a flag."""
        return self.add(key, change_of("enable", "ew_flag"))

    def disable(self, key: str) -> Self:
        """Lower a flag."""
        return self.add(key, change_of("disable", "ew_flag"))

    def delete(self, key: str) -> Self:
        """Remove a key."""
        return self.add(key, change_of("delete"))
