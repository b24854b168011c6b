"""Further steps of a graph, as one of its steps gives them: what it returns, and the bytes that its worker leaves.

Behind what the step gave lie the description of the steps (msgpack: the body of a request) and the file with what they
run, both under one digest. Hosts read the description with all checks of a request, and never unpickle anything.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import msgpack

from actorgrid.errors import InvalidGraph

MAGIC = b"AGextend"
_HEAD = struct.Struct("!8sII32s")
HEAD_BYTES = _HEAD.size
SPEC_BYTES_MAX = 16 * 2**20
BUNDLE_BYTES_MAX = 64 * 2**20


class GraphExtension:
    """What a step returns that has more steps follow. *value* is what the step itself gave."""

    def __init__(self, value: Any, request: dict[str, Any], bundle: bytes) -> None:
        self.value = value
        self.request = request
        self.bundle = bundle

    def __reduce__(self) -> Any:
        raise InvalidGraph("further steps are returned by a step, by themselves", hint="return actorgrid.extend(dag)")


def write_extension(extension: GraphExtension) -> bytes:
    """The bytes of it. Raises InvalidGraph for more than fits."""
    spec: bytes = msgpack.packb(extension.request, use_bin_type=True)
    if len(spec) > SPEC_BYTES_MAX or len(extension.bundle) > BUNDLE_BYTES_MAX:
        raise InvalidGraph(
            "a step gives too much to run",
            found=f"{len(spec)} bytes that describe steps, {len(extension.bundle)} bytes that they run",
            hint=f"at most {SPEC_BYTES_MAX} and {BUNDLE_BYTES_MAX}; pass paths of large files",
        )
    digest = hashlib.sha256(spec + extension.bundle).digest()
    return _HEAD.pack(MAGIC, len(spec), len(extension.bundle), digest) + spec + extension.bundle


def read_extension(read: Callable[[int, int], bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The description and the file in what ``read(offset, size)`` gives; ``None`` where there is none. Raises
    InvalidGraph for bytes that are damaged."""
    head = read(0, HEAD_BYTES)
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    _, spec_size, bundle_size, digest = _HEAD.unpack(head)
    if spec_size > SPEC_BYTES_MAX or bundle_size > BUNDLE_BYTES_MAX:
        raise _damaged(f"{spec_size} and {bundle_size} bytes")
    body = read(HEAD_BYTES, spec_size + bundle_size)
    if len(body) != spec_size + bundle_size or hashlib.sha256(body).digest() != digest:
        raise _damaged(f"{len(body)} bytes")
    try:
        request = msgpack.unpackb(body[:spec_size], raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise _damaged(str(error)[:200]) from None
    if not isinstance(request, dict):
        raise _damaged(type(request).__name__)
    return request, body[spec_size:]


def _damaged(found: str) -> InvalidGraph:
    return InvalidGraph("the further steps that a step gave cannot be read", found=found, hint="run it again")
