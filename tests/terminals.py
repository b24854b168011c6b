"""Commands on a terminal, as a person sees them."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable, Mapping, Sequence


def seen_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], heard: Callable[[str], object] = lambda _seen: None
) -> str:
    """All that *command* writes to a terminal that is its standard input, output and error, with plain line ends.

    *heard* gets what was seen so far, each time that there is more.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
            heard(seen.decode(errors="replace"))
    except OSError:
        pass  # the other side has closed: all was read
    finally:
        os.close(ours)
        process.wait(60)
    return seen.decode().replace("\r\n", "\n")
