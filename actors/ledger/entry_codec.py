"""The bytes of a log entry that holds a command: a session, a sequence number, and the command as JSON."""

from __future__ import annotations

import json
from typing import Any

from actorgrid.errors import BodyTooLarge
from actorgrid.sizes import ENTRY_BYTES_MAX

from .command import Command
from .field_checks import Plain, refused

MAX_COMMAND_BYTES = ENTRY_BYTES_MAX
READABLE_BYTES_MAX = 16 * 2**20
"""What an entry may hold to be read as a command. Not to follow ``MAX_COMMAND_BYTES``: a log that was written when
another bound held has to give the same state again, on every voter."""
NESTING_MAX = 500
"""Of an entry's values. Below what any interpreter's parser gives up at, so that all of them read the same entries."""

_TO_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode_entry(command: Command | Plain, session: str, seq: int) -> bytes:
    """The payload of a log entry with *command*, or with a plain map that is to be judged as one.

    Raises BadRequest for what is not JSON, BodyTooLarge over 16 MiB.
    """
    plain = command.to_plain() if isinstance(command, Command) else command
    try:
        data = _TO_JSON.encode([session, seq, plain]).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(f"the command is not plain JSON: {error}") from None
    if len(data) > MAX_COMMAND_BYTES:
        raise BodyTooLarge(
            "the command is too large for the ledger",
            asked=f"{len(data)} bytes",
            found=f"at most {MAX_COMMAND_BYTES}",
            hint="submit fewer jobs at once, or keep large inputs out of env and command",
        )
    return data


def decode_entry(payload: bytes) -> tuple[str, int, Plain]:
    """The session, sequence number and command of a log entry; the command may still be anything that is a map.

    Raises BadRequest for bytes that are none, whatever they are: every voter has to say the same of them.
    """
    if len(payload) > READABLE_BYTES_MAX:
        raise refused("an entry is no command: it is too large", found=f"{len(payload)} bytes")
    try:
        parts = json.loads(payload)
    except (ValueError, RecursionError):
        # Not the parser's own words: those are another version's tomorrow, and refusals are part of the state.
        raise refused("an entry is no command: it is not JSON") from None
    if not isinstance(parts, list) or len(parts) != 3:
        raise refused("an entry is no command: it is not a session, a number and a command")
    session, seq, command = parts
    if not isinstance(session, str) or isinstance(seq, bool) or not isinstance(seq, int) or abs(seq) >= 2**63:
        raise refused("an entry is no command: its session is no text, or its number no whole one")
    if not isinstance(command, dict):
        raise refused("an entry is no command: what it holds is no map")
    if payload.count(b"[") + payload.count(b"{") > NESTING_MAX and _nested_deeper(parts, NESTING_MAX):
        raise refused("an entry is no command: its values are nested too deep")
    return session, seq, command


def _nested_deeper(value: Any, depth: int) -> bool:
    """Whether *value* is nested deeper; level by level, as recursion would meet the interpreter's limit."""
    level = [value]
    while level and depth:
        inner = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
        level = [part for part in inner if isinstance(part, (dict, list))]
        depth -= 1
    return bool(level)
