"""The shared state as a file of JSON lines: written by ``state dump``, taken in by ``state load``.

The first line says what it is, each other one is a key with its type and the value that it had. Loading changes a
state until it has these values: what is there already stays as it is, so that loading twice is loading once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from actorgrid.errors import BadRequest, MalformedBody

from .state import SharedState
from .state_batch import MAX_CHANGES, StateBatch

FORMAT, VERSION = "actorgrid-state", 1
BATCH = 200
"""Changes sent at once."""
MAX_LINE = 32 * 2**20
Report = Callable[[int], None]


@dataclass(slots=True)
class Loaded:
    """What a load did: keys that were made, those whose value was another (by key), and those that were so already."""

    added: int = 0
    same: int = 0
    overwritten: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Keys that were not taken, and why."""


def dump(entries: Iterable[dict[str, Any]], file: IO[str], now_s: float, report: Report) -> int:
    """Write entries; gives how many."""
    file.write(json.dumps({"format": FORMAT, "version": VERSION, "at": now_s}) + "\n")
    count = 0
    for count, entry in enumerate(entries, 1):
        kept = {name: entry[name] for name in ("key", "type", "value", "expires_at") if name in entry}
        file.write(json.dumps(kept) + "\n")
        report(count)
    return count


def read(file: IO[str]) -> Iterator[dict[str, Any]]:
    """The entries of a file. Raises MalformedBody, naming the line."""
    first = True
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        try:
            row = json.loads(line)
        except ValueError as error:
            raise MalformedBody(f"line {number} is not JSON", found=line[:80]) from error
        if first:
            if not isinstance(row, dict) or row.get("format") != FORMAT or row.get("version") != VERSION:
                raise MalformedBody(
                    "the file is no dump of the shared state, or of another version",
                    asked=f"format {FORMAT}, version {VERSION}",
                    found=line[:80].strip(),
                )
            first = False
            continue
        if not isinstance(row, dict) or not {"key", "type", "value"} <= row.keys() or not isinstance(row["key"], str):
            raise MalformedBody(f"line {number} is no entry of the shared state", found=line[:80])
        yield row
    if first:
        raise MalformedBody("the file is empty", hint="a dump begins with a line that says what it is")


def load(state: SharedState, entries: Iterable[dict[str, Any]], now_s: float, report: Report) -> Loaded:
    """Make the state have these values. Keys that are not among them stay."""
    done = Loaded()
    held = {found["key"]: found for found in state.entries()}
    batch = StateBatch()
    for count, entry in enumerate(entries, 1):
        part = StateBatch()
        there = held.get(entry["key"])
        why = changes_to(part, entry, there, now_s)
        if why:
            done.skipped[entry["key"]] = why
        elif not part.changes:
            done.same += 1
        elif there is None:
            done.added += 1
        else:
            done.overwritten.append(entry["key"])
        for change in part.changes:
            if len(batch) >= min(BATCH, MAX_CHANGES):
                state.apply(batch)
                batch = StateBatch()
            batch.changes.append(change)
        report(count)
    if len(batch):
        state.apply(batch)
    return done


def changes_to(batch: StateBatch, entry: dict[str, Any], there: dict[str, Any] | None, now_s: float) -> str:
    """What makes a key have an entry's value, where *there* is what it has; gives why it cannot, if it cannot."""
    key, kind, value = entry["key"], entry["type"], entry["value"]
    if key.startswith("_cluster/"):
        return "the cluster's own"
    if there is not None and there["type"] != kind:
        return f"it is {there['type']} here, not {kind}"
    ttl_s = None
    if "expires_at" in entry:
        ttl_s = entry["expires_at"] - now_s
        if ttl_s <= 0:
            return "its time is over"
    held = None if there is None else there["value"]
    match kind:
        case "lww_register":
            if there is None or _text(held) != _text(value):
                batch.put(key, value, ttl_s=ttl_s)
        case "mv_register":
            for one in value if _text(held) != _text(value) else ():
                batch.put(key, one, kind)
        case "g_counter" | "pn_counter":
            more = value - (held or 0)
            if more > 0:
                batch.increment(key, more, kind)
            elif more < 0 and kind == "pn_counter":
                batch.decrement(key, -more)
            elif more < 0:
                return f"a g_counter only grows, and is {held} here"
        case "or_set":
            mine, wanted = _by_text(held or []), _by_text(value)
            for text in wanted.keys() - mine.keys():
                batch.add_to_set(key, wanted[text])
            for text in mine.keys() - wanted.keys():
                batch.remove_from_set(key, mine[text])
        case "or_map":
            fields = held or {}
            for name, one in value.items():
                if name not in fields or _text(fields[name]) != _text(one):
                    batch.put_field(key, name, one)
            for name in fields.keys() - value.keys():
                batch.remove_field(key, name)
        case "ew_flag":
            if bool(held) != value and value:
                batch.enable(key)
            elif bool(held) != value:
                batch.disable(key)
        case _:
            raise BadRequest(f"there is no type {kind!r}", asked=str(kind))
    return ""


def _text(value: Any) -> str:
    """A value so that 1, 1.0 and true are three."""
    return json.dumps(value, sort_keys=True)


def _by_text(values: list[Any]) -> dict[str, Any]:
    return {_text(value): value for value in values}
