"""A person's session with a job: what is typed here goes there, what comes from there is shown here, until it ends."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from actorgrid.client.job_channel import (
    UNSENT_BYTES_MAX,
    ChannelBegun,
    ChannelOutput,
    JobChannel,
    OutputMissed,
)
from actorgrid.transports.channel_frames import PIECE_BYTES, ChannelEnding

from .own_terminal import own_size, raw_terminal, signals_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from .detach_keys import DetachKeys


class SessionLeft(Exception):
    """The person leaves: by the detach keys, or a signal ended us (``code``)."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ChannelSession:
    """One session. *raw*: our terminal is the job's, each key goes there; else our standard input, as it comes.

    *input_fd*: where input comes from; ``None``: from nowhere.
    """

    def __init__(self, channel: JobChannel, *, raw: bool, input_fd: int | None, keys: DetachKeys | None = None) -> None:
        self._channel = channel
        self._raw = raw
        self._input_fd = input_fd
        self._keys = keys
        # Noted by signal handlers, which may come in the middle of sending, and dealt with between two turns.
        self._interrupts = 0
        self._interrupted = False
        self._resized = False
        self._left: int | None = None
        self.has_begun = False
        self.begun: ChannelBegun | None = None
        self.at = 0
        """Of a job's terminal: up to where its output was shown, or is known to be gone."""

    def run(self) -> ChannelEnding:
        """Go on until it ends. Raises SessionLeft, KeyboardInterrupt (for the second Ctrl-C where keys are not raw),
        and as ``JobChannel.events``."""
        with ExitStack() as stack:
            handlers: dict[int, Callable[[], None]] = {
                signal.SIGTERM: lambda: self._leave(signal.SIGTERM),
                signal.SIGHUP: lambda: self._leave(signal.SIGHUP),
            }
            if self._raw:
                handlers[signal.SIGWINCH] = self._resize
            else:
                handlers[signal.SIGINT] = self._interrupt
            woken = stack.enter_context(signals_to(handlers))
            if self._raw:
                stack.enter_context(raw_terminal())
            while self._channel.ending is None:
                self._turn(woken)
            return self._channel.ending

    def _turn(self, woken: int) -> None:
        reads: list[int | JobChannel] = [self._channel, woken]
        if self._input_fd is not None and self._channel.unsent < UNSENT_BYTES_MAX:
            reads.append(self._input_fd)
        writes = [self._channel] if self._channel.unsent else []
        ready, writable, _ = select.select(reads, writes, [])
        if woken in ready:
            os.read(woken, 512)
        if self._left is not None:
            raise SessionLeft(128 + self._left)
        if self._interrupts and not self._interrupted:
            self._interrupted = True
            self._channel.signal(signal.SIGINT)
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if self._resized:
            self._resized = False
            self._channel.resize(own_size())
        if writable:
            self._channel.flush()
        if self._channel in ready:
            self._show()
        if self._input_fd in ready and self._channel.ending is None:
            self._read_input()

    def _show(self) -> None:
        for event in self._channel.events():
            match event:
                case ChannelBegun():
                    self.begun = event
                    self.at = int(event.fields.get("at", 0))
                case ChannelOutput(stream, data):
                    target = sys.stderr.buffer if stream == "err" else sys.stdout.buffer
                    target.write(data)
                    target.flush()
                    self.at += len(data)
                case OutputMissed(count):
                    self.at += count
                    self.tell(f"{count} bytes of output are not kept any more, and are not shown")

    def tell(self, text: str) -> None:
        """Tell the person something, on a line of its own."""
        end = "\r\n" if self._raw else "\n"
        sys.stderr.write(f"{end if self._raw else ''}[actorgrid: {text}]{end}")
        sys.stderr.flush()

    def _read_input(self) -> None:
        assert self._input_fd is not None, "it is only waited for while it is there"
        try:
            data = os.read(self._input_fd, PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that is gone
            data = b""
        if not data:
            self._input_fd = None
            self._channel.end_input()
            return
        if self._keys is not None:
            data, detach = self._keys.feed(data)
            if data:
                self._channel.write(data)
            if detach:
                raise SessionLeft(0)
        else:
            self._channel.write(data)

    def _interrupt(self) -> None:
        self._interrupts += 1

    def _resize(self) -> None:
        self._resized = True

    def _leave(self, number: int) -> None:
        self._left = number
