"""Commands on a terminal, as a person sees them."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def seen_on_terminal(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """All that *command* writes to a terminal that is its standard input, output and error, with plain line ends."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except OSError:
        pass  # the other side has closed: all was read
    finally:
        os.close(ours)
        process.wait(60)
    return seen.decode().replace("\r\n", "\n")
