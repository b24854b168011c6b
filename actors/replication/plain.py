"""Plain values and their one canonical encoding: equal values, equal bytes, on every host.

A plain value is None, a bool, an int of 64 bits, a finite float, text, bytes, or a list or dict (text keys) of
plain values. Dict keys are sorted before encoding, so that the bytes do not depend on who inserted what first.
"""

from __future__ import annotations

import math
from typing import Any

import msgpack

from actorgrid.errors import BadRequest, MalformedBody
from actorgrid.sizes import STATE_KEY_MAX

MAX_VALUE_BYTES = 2**20
"""One register's value, one map field's value or one set element, encoded."""
MAX_KEY_BYTES = STATE_KEY_MAX
"""The name of a key or of a map's field, in UTF-8."""
MAX_ELEMENTS = 100_000
"""Elements of one set, fields of one map. Checked by mutators only: a join must always succeed."""
MAX_DEPTH = 32
"""Lists and dicts within each other."""


def encode_value(value: Any) -> bytes:
    """The canonical bytes of a plain value. Raises BadRequest for anything else, or for more than 1 MiB."""
    kind = type(value)
    if kind is not str and kind is not bytes and kind is not bool and value is not None:
        value = _checked(value, 0)
    try:
        data: bytes = msgpack.packb(value, use_bin_type=True)
    except UnicodeEncodeError as error:
        raise BadRequest("the text holds half a surrogate pair", hint="send valid Unicode") from error
    if len(data) > MAX_VALUE_BYTES:
        raise BadRequest(
            "the value is too large for the shared state",
            asked=f"{len(data)} bytes",
            found=f"at most {MAX_VALUE_BYTES} bytes",
            hint="keep it as a file or a job's result and share its name",
        )
    return data


def decode_value(data: bytes) -> Any:
    """The value of canonical bytes. Raises MalformedBody."""
    return unpack(data)


def check_key(key: Any, what: str = "key") -> str:
    """Check a key and give it back. Raises BadRequest unless it is text of 1 to 1,024 bytes."""
    if not isinstance(key, str):
        raise BadRequest(f"the {what} must be text", asked=f"a {type(key).__name__}", hint="use a str")
    if key.isascii():
        size = len(key)
    else:
        try:
            size = len(key.encode())
        except UnicodeEncodeError as error:
            raise BadRequest(f"the {what} holds half a surrogate pair", hint="send valid Unicode") from error
    if not 1 <= size <= MAX_KEY_BYTES:
        raise BadRequest(
            f"the {what} must have 1 to {MAX_KEY_BYTES} bytes",
            asked=f"{size} bytes",
            hint="put long text into the value",
        )
    return key


def pack(structure: Any) -> bytes:
    """msgpack of our own lists; dicts in them must be sorted by who calls."""
    data: bytes = msgpack.packb(structure, use_bin_type=True)
    return data


def unpack(data: bytes) -> Any:
    """The structure of msgpack bytes. Raises MalformedBody."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MalformedBody(f"not the msgpack it should be: {error}") from error


def _checked(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return int(value)
        raise BadRequest("the integer does not fit 64 bits", asked=f"{value.bit_length()} bits", hint="send it as text")
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise BadRequest(f"{value} is not a number JSON can carry", hint="use None for a missing reading")
    if depth >= MAX_DEPTH:
        raise BadRequest(f"lists and dicts are nested deeper than {MAX_DEPTH}", hint="flatten the value")
    if isinstance(value, (list, tuple)):
        return [_checked(item, depth + 1) for item in value]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise BadRequest(
                    f"a dict key is {type(name).__name__}, not text", asked=repr(name), hint="use str keys"
                )
        return {name: _checked(value[name], depth + 1) for name in sorted(value)}
    raise BadRequest(
        f"a {type(value).__name__} is not a plain value",
        hint="use None, bool, int, float, str, bytes, lists and dicts of these",
    )
