"""Commands on a terminal, as a person sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence

from tests.patience import Patience

LOOK_S = 0.1


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


class Typist:
    """Somebody at a terminal in which *command* runs: reads until something is there, types, looks how it was left."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (30, 100)
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(size)
        self._before = termios.tcgetattr(self._theirs)
        self.seen = b""
        self._process = subprocess.Popen(
            command,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment,
            preexec_fn=self._be_controlled,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._process.pid

    @staticmethod
    def _be_controlled() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, size: tuple[int, int]) -> None:
        """Give the terminal so many rows and columns."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def type(self, text: str) -> None:
        """Type, as it is."""
        os.write(self._ours, text.encode())

    def until(self, text: str, timeout_s: float = 60.0) -> str:
        """Read until *text* has come, which counts as read then; gives all before it and itself."""
        patience = Patience(timeout_s)
        while text.encode() not in self.seen:
            if select.select([self._ours], [], [], LOOK_S)[0]:
                self._read()
            elif patience.is_over:
                raise AssertionError(f"{text!r} did not come: {self.seen!r}")
        at = self.seen.index(text.encode()) + len(text.encode())
        found, self.seen = self.seen[:at], self.seen[at:]
        return found.decode(errors="replace")

    def end(self, timeout_s: float = 60.0) -> int:
        """The exit status, when the command has ended; all that it still said is in ``seen``."""
        patience = Patience(timeout_s)
        while self._process.poll() is None:
            if patience.is_over:
                raise AssertionError(f"it has not ended: {self.seen!r}")
            if select.select([self._ours], [], [], 0.05)[0]:
                self._read()
        while select.select([self._ours], [], [], 0)[0]:
            self._read()
        return int(self._process.returncode)

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal is in the modes that it had at first."""
        return termios.tcgetattr(self._theirs) == self._before

    def close(self) -> None:
        """Take the terminal away."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(60)
        os.close(self._ours)
        os.close(self._theirs)

    def _read(self) -> None:
        self.seen += os.read(self._ours, 65536)
