"""What stands for a task of a traced workflow: it takes as long, reads what the others wrote, and gives as many bytes.

Only workers run it, by name.
"""

from __future__ import annotations

import time

BYTES_MAX = 32 * 2**20
"""A step gives no more than that, whatever was traced."""


def perform(runtime_s: float, output_bytes: int, busy: bool, *inputs: bytes) -> bytes:
    """Take *runtime_s* seconds, computing if *busy* and sleeping else, and give *output_bytes* bytes."""
    end = time.monotonic() + runtime_s
    given = bytes(min(output_bytes, BYTES_MAX))
    sums = 0
    if busy:
        while time.monotonic() < end:
            sums += sum(range(1000))
    else:
        time.sleep(max(0.0, end - time.monotonic()))
    return given
