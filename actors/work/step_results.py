"""The result file of an attempt that ran steps of a graph: what each of them gave, one after the other, and an index.

What a step gave is kept as that of a function job is (``transports/task_frames.py``: a value, or an error). The index
stands at the end: whoever finds it knows that the worker came to the end of what it did, and where each part lies. The
work itself can write here, so all of it is checked by who reads it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import msgpack

from actorgrid.actors.files.untrusted_files import open_to_read
from actorgrid.actors.ledger.graph_checks import TOGETHER_MAX, is_results
from actorgrid.actors.ledger.graph_records import StepResultRecord
from actorgrid.errors import NotARegularFile

_END = struct.Struct("!I8s")
_MAGIC = b"AGsteps1"
INDEX_BYTES_MAX = 256 * 1024


def with_index(parts: list[bytes], results: list[StepResultRecord]) -> bytes:
    """The file: *parts* with their *results* behind them."""
    index: bytes = msgpack.packb(results, use_bin_type=True)
    return b"".join([*parts, index, _END.pack(len(index), _MAGIC)])


def read_index(folder: Path, name: str, steps: int) -> list[StepResultRecord] | None:
    """How the steps of an attempt ended, of at most so many; ``None`` where the file does not say so."""
    try:
        with open_to_read(folder, name) as fd:
            size = os.fstat(fd).st_size
            end = os.pread(fd, _END.size, max(0, size - _END.size))
            length, magic = _END.unpack(end) if len(end) == _END.size else (0, b"")
            if magic != _MAGIC or length > min(INDEX_BYTES_MAX, size - _END.size):
                return None
            before = size - _END.size - length
            found: Any = msgpack.unpackb(os.pread(fd, length, before), raw=False, strict_map_key=True)
    except (OSError, NotARegularFile, ValueError, msgpack.UnpackException):
        return None
    if not is_results(found) or len(found) > min(steps, TOGETHER_MAX):
        return None
    right = all(each["offset"] + each["size"] <= before for each in found)
    # Behind one that failed nothing is begun.
    return found if right and all(each["ok"] for each in found[:-1]) else None
