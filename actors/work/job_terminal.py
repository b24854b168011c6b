"""The terminal of a job that was started with one (``run --pty``), and the clients that are attached to it.

What the work writes goes into the file of its standard output as ever, and to whoever is attached. A client that reads
slower than the work writes gets what it lacks from that file; of what is beyond the file's bound only the last
``RECENT_BYTES`` are kept, so it misses the rest, and is told how much. The work never waits for a client. What any of
them writes is typed; the terminal has the size that was said last.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

from actorgrid.actors.files.untrusted_files import open_to_read
from actorgrid.errors import NotARegularFile
from actorgrid.transports.channel_frames import (
    AttachToTerminal,
    ClientFrame,
    InputEnd,
    InputPiece,
    Resize,
    TerminalSize,
)
from actorgrid.transports.frames import encode_frame

from .attempt_dir import AttemptDir
from .job_channels import Channel

RECENT_BYTES = 256 * 1024
SIZE_AT_START = TerminalSize(24, 80)


def open_terminal(size: TerminalSize) -> tuple[int, int]:
    """Our end of a new terminal, which never blocks, and the end for the work. Raises OSError."""
    ours, theirs = os.openpty()
    for fd in (ours, theirs):
        os.set_inheritable(fd, False)
    os.set_blocking(ours, False)
    set_size(ours, size)
    return ours, theirs


def set_size(ours: int, size: TerminalSize) -> None:
    """Give a terminal that size; who runs in it is told by SIGWINCH, if it is another. Raises OSError."""
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def take_signals() -> None:
    """Have every signal do what it does by default, as a login does: what our own starter ignores (after ``nohup``,
    say) no shell could take back."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def be_controlled_by(terminal: int) -> None:
    """Begin a session, with that terminal as the one that controls it. Raises OSError."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


class JobTerminal:
    """The terminal. Raises OSError when there are no more."""

    def __init__(self) -> None:
        self.ours, self._theirs = open_terminal(SIZE_AT_START)
        self._file = -1
        self._kept: Callable[[], int] = lambda: 0
        self.total = 0
        """How much was written in all."""
        self.attached: set[Channel] = set()
        self._recent = bytearray()

    @property
    def theirs(self) -> int:
        """The work's end. Open here until the work has ended: without that, ours reads an end whenever nobody has it
        open just then."""
        return self._theirs

    def work_has_ended(self) -> None:
        """Let the terminal end with what is left of the work."""
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1

    def keep_in(self, directory: AttemptDir, kept: Callable[[], int]) -> None:
        """Read back what is in the attempt's file of standard output; *kept*: how much of the output that is."""
        with suppress(OSError, NotARegularFile), open_to_read(directory.path, directory.stdout.name) as file:
            self._file, self._kept = os.dup(file), kept

    def wrote(self, data: bytes) -> None:
        """Take note of what the work wrote."""
        self.total += len(data)
        self._recent += data
        if len(self._recent) > 2 * RECENT_BYTES:
            del self._recent[:-RECENT_BYTES]

    def read_at(self, offset: int, size: int) -> tuple[int, bytes]:
        """Some of the output from *offset* on, and where that begins: later, where it is not kept any more."""
        recent_from = self.total - len(self._recent)
        if offset < recent_from:
            kept = min(self._kept(), recent_from)
            if offset < kept and self._file >= 0:
                data = os.pread(self._file, min(size, kept - offset), offset)
                if data:
                    return offset, data
            offset = recent_from
        at = offset - recent_from
        return offset, bytes(self._recent[at : at + size])


class AttachedClient:
    """One attached client, as of ChannelEnd."""

    def __init__(self, terminal: JobTerminal, wish: AttachToTerminal, channel: Channel) -> None:
        self._terminal = terminal
        self._at = 0 if wish.history_bytes is None else max(0, terminal.total - wish.history_bytes)
        self._channel = channel
        self._typed = b""
        # Waited for by itself, as the shim waits for what can be read of the other; and good for as long as we are
        # here: the other is closed when the terminal ends, and its number is soon another file's.
        self._typing = os.dup(terminal.ours)
        if wish.size is not None:
            set_size(self._typing, wish.size)
        terminal.attached.add(channel)
        channel.say(["begun", {"at": self._at, "total": terminal.total}])

    def take(self, frame: ClientFrame) -> bool:
        """See ChannelEnd."""
        if self._typed:
            return False
        match frame:
            case InputPiece(data):
                self._typed = data
                self._type()
            case Resize(size):
                set_size(self._typing, size)
            case InputEnd():
                pass  # others may type
        return True

    def fill(self, channel: Channel) -> None:
        """See ChannelEnd."""
        while (room := channel.room) > 0:
            at, data = self._terminal.read_at(self._at, room)
            if at > self._at:
                channel.say(["missed", at - self._at])
            self._at = at + len(data)
            if not data:
                return
            channel.put(encode_frame(["out", data]))

    def wanted(self, channel: Channel) -> dict[int, int]:
        """See ChannelEnd. What the work writes is read by the shim."""
        return {self._typing: select.POLLOUT} if self._typed else {}

    def ready(self, fd: int, channel: Channel) -> None:
        """See ChannelEnd."""
        self._type()

    def leave(self) -> None:
        """See ChannelEnd: the job goes on."""
        self._terminal.attached.discard(self._channel)
        if self._typing >= 0:
            os.close(self._typing)
            self._typing = -1

    def _type(self) -> None:
        try:
            self._typed = self._typed[os.write(self._typing, self._typed) :]
        except BlockingIOError:
            return  # the terminal takes no more now
        except OSError:
            self._typed = b""  # nobody is there to read it any more
