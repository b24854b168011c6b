"""What lies on this host's disk for others to read, a piece at a time, and how a piece is asked for and told."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import msgpack

from actorgrid.errors import BadRequest, MalformedMessage, ResultGone

from ..files.untrusted_files import open_to_read
from ..work.attempt_dir import RESULT_FILE_BYTES_MAX, AttemptDir

PIECE_BYTES_MAX = 768 * 2**10
"""Of one piece; with what surrounds it, it has to fit into one call's answer."""
DIGEST = re.compile(r"[0-9a-f]{64}")
BODY_BYTES_MAX = 2**20

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a file: bytes from some offset on, and the file's present size."""

    data: bytes
    size: int

    def to_plain(self) -> Fields:
        """The piece as plain values, for the wire."""
        return {"data": self.data, "size": self.size}

    @classmethod
    def of_plain(cls, fields: Any) -> Piece:
        """The piece in plain values from the wire. Raises MalformedMessage."""
        data, size = (fields.get("data"), fields.get("size")) if isinstance(fields, dict) else (None, None)
        if not isinstance(data, bytes) or not is_count(size):
            raise MalformedMessage("a piece of a file has data and a size", found=str(fields)[:100])
        return cls(data, size)


def read_result_piece(folder: AttemptDir, offset: int, size: int) -> Piece | None:
    """Read a piece of an attempt's result; ``None`` when it left none.

    Raises NotARegularFile, or ResultGone for a file that is longer than any result.
    """
    piece = read_piece(folder.result, offset, size)
    if piece is not None and piece.size > RESULT_FILE_BYTES_MAX:
        raise ResultGone(
            f"what lies where the result of {folder.attempt_id} belongs is none",
            asked=f"at most {RESULT_FILE_BYTES_MAX} bytes",
            found=f"a file of {piece.size}",
            hint="the work itself must have written it: only a function's value is a result",
        )
    return piece


def read_piece(path: Path, offset: int, size: int) -> Piece | None:
    """Read at most *size* bytes of a file from *offset* on; ``None`` when there is no such file.

    Raises NotARegularFile: users' work can write where results lie.
    """
    try:
        with open_to_read(path.parent, path.name) as descriptor:
            return piece_of(descriptor, offset, size)
    except FileNotFoundError:
        return None


def piece_of(descriptor: int, offset: int, size: int) -> Piece:
    """At most *size* bytes of an open file from *offset* on. Raises OSError."""
    return Piece(os.pread(descriptor, min(size, PIECE_BYTES_MAX), offset), os.fstat(descriptor).st_size)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether *value* is a whole number that can count bytes."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def check_digest(value: Any) -> str:
    """Check a payload's digest, which names its file: nothing else may become a path. Raises BadRequest."""
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise BadRequest("not the digest of a payload", asked=str(value)[:80])
    return value


def pack(value: Any) -> bytes:
    """Pack a call's body or answer. Raises BadRequest for what is not plain."""
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"only plain values go to other hosts: {error}") from error
    return packed


def unpack(body: bytes) -> Any:
    """Read what another host packed. Raises MalformedMessage."""
    if len(body) > BODY_BYTES_MAX:
        raise MalformedMessage("a body is too large", found=f"{len(body)} bytes")
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError, OverflowError, TypeError) as error:
        raise MalformedMessage(f"a body is not msgpack: {type(error).__name__}") from None


def unpack_fields(body: bytes) -> Fields:
    """Read the fields of a request that another host packed. Raises MalformedMessage."""
    fields = unpack(body)
    if not isinstance(fields, dict):
        raise MalformedMessage("a request is a map", found=type(fields).__name__)
    return fields
