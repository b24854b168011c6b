"""A command that a client runs beside a job's own (``exec``), as one end of its channel.

Its output waits in its pipes, or its terminal, for as long as the client has no room for it. When the client leaves, it
gets SIGHUP, as after a lost login, and ``HANGUP_S`` later SIGKILL; what it has put into the background stays until the
job ends.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from actorgrid.errors import BadRequest, Overloaded
from actorgrid.transports.channel_frames import (
    JOB_ENDED,
    ChannelEnding,
    ClientFrame,
    ExecCommand,
    InputEnd,
    InputPiece,
    Resize,
    SignalCommand,
)
from actorgrid.transports.frames import encode_frame

from .exec_child import ExecChild, ExecFiles
from .job_channels import Channel
from .job_terminal import open_terminal, set_size
from .process_tree import children_of

HANGUP_S = 5.0
TERMINAL_SETTLES_S = 0.2
LATE_BYTES_MAX = 256 * 1024
"""More than pipes and terminals hold."""
SESSIONS_MAX = 64
LOOK_AGAIN_S = 0.02
OUT, ERR = "out", "err"


class ExecSession:
    """One command, as of ChannelEnd. ``pid``: of the process that is reaped, and whose status is the command's."""

    def __init__(self, child: ExecChild, wish: ExecCommand, channel: Channel) -> None:
        """Start it. Raises OSError."""
        self.channel = channel
        self._in_namespace = bool(child.init_pid)
        self._to_write = b""
        self._input = -1
        self._input_ends = False
        self._has_begun = False
        self._terminal = -1
        self._fault = -1
        self._said = b""
        self._sources: dict[int, str] = {}
        self.hung_up_at: float | None = None
        self.status: int | None = None
        self.work_has_ended = False
        """Whether the job's own work ended before, and so ends this."""
        self._ended_at = 0.0
        self._late_bytes = 0
        theirs: list[int] = []
        try:
            if wish.size is not None:
                self._terminal, slave = open_terminal(wish.size)
                theirs = [slave]
                files = ExecFiles(slave, slave, slave, True)
                self._input, self._sources = os.dup(self._terminal), {self._terminal: OUT}
                os.set_blocking(self._input, False)
            else:
                pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
                theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
                files = ExecFiles(theirs[0], theirs[1], theirs[2], False)
                self._input, self._sources = pipes[0][1], {pipes[1][0]: OUT, pipes[2][0]: ERR}
                for fd in (self._input, *self._sources):
                    os.set_blocking(fd, False)
            self.pid, self._fault = child.start(files)
        except OSError:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    # -- as of ChannelEnd

    def take(self, frame: ClientFrame) -> bool:
        """See ChannelEnd."""
        if self._to_write:
            return False
        match frame:
            case InputPiece(data):
                if not self._input_ends:
                    self._to_write = data
                    self._write()
            case InputEnd():
                self._input_ends = True
                self._write()
            case Resize(size) if self._terminal >= 0:
                set_size(self._terminal, size)
            case SignalCommand(number):
                self._signal(number)
        return True

    def fill(self, channel: Channel) -> None:
        """See ChannelEnd."""
        for fd in list(self._sources):
            self._read(fd, channel)
        if self.status is not None:
            self._finish(channel, self.status, time.monotonic())

    def wanted(self, channel: Channel) -> dict[int, int]:
        """See ChannelEnd."""
        wanted = dict.fromkeys(self._sources, select.POLLIN) if channel.room > 0 else {}
        if self._to_write and self._input >= 0:
            wanted[self._input] = select.POLLOUT
        if self._fault >= 0:
            wanted[self._fault] = select.POLLIN
        return wanted

    def ready(self, fd: int, channel: Channel) -> None:
        """See ChannelEnd."""
        if fd == self._fault:
            self._hear_fault()
        elif fd == self._input:
            self._write()

    def leave(self) -> None:
        """See ChannelEnd: the command is hung up on, if it still runs."""
        if self.status is None and self.hung_up_at is None:
            self.hung_up_at = time.monotonic()
            self._signal(signal.SIGHUP)
            self._signal(signal.SIGCONT)
            if self._terminal < 0:
                # Its pipes stay until it has ended, so that what it says of the hang-up does not end it before it has
                # tidied up.
                self._input_ends, self._to_write = True, b""
                self._write()
                return
        self._close()

    # -- its end

    def ended(self, status: int, now: float) -> None:
        """Take note that the process has ended: what it has written is sent, and then how it ended."""
        self.status, self._ended_at = status, now
        if self.hung_up_at is not None or self.channel.is_over:
            self._close()
        else:
            self._hear_fault()

    def look_at_clock(self, now: float) -> None:
        """Kill one that goes on after its client has left; say the end of one whose last output has come."""
        if self.status is not None:
            if not self.channel.is_over:
                self._finish(self.channel, self.status, now)
        elif self.hung_up_at is not None and now - self.hung_up_at >= HANGUP_S:
            self._signal(signal.SIGKILL)

    @property
    def is_done(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status is not None and self.channel.is_over

    def _finish(self, channel: Channel, status: int, now: float) -> None:
        """Say the end, once all that the command has written is sent; what others write there later is not waited for.

        What was written to a terminal may come a moment after its writer has ended.
        """
        if self._said:
            why = self._said.decode("utf-8", "replace")
            channel.fail(BadRequest(why, hint="it is looked for in the job's own PATH and directory"))
            return
        more = True
        while more and self._late_bytes < LATE_BYTES_MAX:
            more = any([self._read(fd, channel) for fd in list(self._sources)])
        if channel.room <= 0:
            return  # asked again when there is
        if self._terminal >= 0 and now - self._ended_at < TERMINAL_SETTLES_S:
            return
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        channel.finish(ChannelEnding(code, number, JOB_ENDED if self.work_has_ended else "").frame())

    def _read(self, fd: int, channel: Channel) -> bool:
        """Send some of what it has written; ``False`` when there is nothing, or no room."""
        room = channel.room
        if room <= 0 or fd not in self._sources:
            return False
        try:
            data = os.read(fd, room)
        except BlockingIOError:
            data = None
        except OSError:  # so a terminal ends
            data = b""
        if data:
            channel.put(encode_frame([self._sources[fd], data]))
            self._late_bytes += len(data) if self.status is not None else 0
            return True
        if data is not None:
            del self._sources[fd]
            if fd == self._terminal:
                self._terminal = -1
            os.close(fd)
        return False

    def _hear_fault(self) -> None:
        if self._fault < 0:
            return
        try:
            piece = os.read(self._fault, 4096)
        except BlockingIOError:
            return
        if piece:
            self._said += piece
            return
        os.close(self._fault)
        self._fault = -1
        if not self._said and not self._has_begun:
            self._has_begun = True
            self.channel.say(["begun", {"pid": self.pid}])

    def _write(self) -> None:
        if self._input < 0:
            self._to_write = b""
            return
        try:
            while self._to_write:
                self._to_write = self._to_write[os.write(self._input, self._to_write) :]
        except BlockingIOError:
            return
        except OSError:
            self._to_write = b""  # it has closed its input
        if self._input_ends and self._terminal < 0:
            os.close(self._input)
            self._input = -1

    def _signal(self, number: int) -> None:
        pids = children_of(self.pid) if self._in_namespace else [self.pid]
        for pid in pids:
            with suppress(OSError):
                os.killpg(pid, number)

    def _close(self) -> None:
        for fd in {self._input, self._fault, *self._sources} - {-1}:
            os.close(fd)
        self._input = self._fault = self._terminal = -1
        self._sources = {}
        self._to_write = b""


class ExecSessions:
    """The commands of one shim that were begun for clients, until they have ended and are reaped."""

    def __init__(self) -> None:
        self._sessions: dict[int, ExecSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, child: ExecChild, wish: ExecCommand, channel: Channel) -> ExecSession:
        """Start one. Raises Overloaded, OSError."""
        if len(self._sessions) >= SESSIONS_MAX:
            raise Overloaded("a job has its maximum of commands beside it", found=f"{SESSIONS_MAX}")
        session = ExecSession(child, wish, channel)
        self._sessions[session.pid] = session
        return session

    def work_has_ended(self) -> None:
        """Take note that the job's own work has ended, or is told to: what ends now ends with it."""
        for session in self._sessions.values():
            session.work_has_ended = True

    def ended(self, pid: int, status: int, now: float) -> Channel | None:
        """Take note of the end of a process; gives the channel that has something to say, if it was one of these."""
        session = self._sessions.get(pid)
        if session is None:
            return None
        session.ended(status, now)
        return session.channel

    def look_at_clock(self, now: float) -> list[Channel]:
        """Do what is due; gives the channels for which something has changed."""
        changed = []
        for pid, session in list(self._sessions.items()):
            if session.hung_up_at is not None or session.status is not None:
                session.look_at_clock(now)
                changed.append(session.channel)
            if session.is_done:
                del self._sessions[pid]
        return changed

    def wait_s(self) -> float:
        """How long the loop may sleep for these."""
        due = any(each.hung_up_at is not None or each.status is not None for each in self._sessions.values())
        return LOOK_AGAIN_S if due else 60.0
