"""The frames of a channel: what a person and a running job say to each other, whatever carries the bytes.

A channel is a kept stream (kept_stream.py, with a window of ``WINDOW_BYTES``) between a client and the shim of an
attempt, of these frames (frames.py). The client's first says what it is for, as a channel of SSH does (RFC 4254)::

    ["attach", {"size": [rows, columns] | nil, "history_bytes": n | nil}]     the job's own terminal
    ["exec", {"command": [...], "env": {...}, "size": [rows, columns] | nil}] another command beside the job's, in a
                                                                              terminal of its own where a size is given
    ["connect", {"port": n}]                                                  a TCP port on which the job listens
    ["ports"]                                                                 on which it does

and then, either way round::

    ["in", bytes]  ["end"]  ["size", rows, columns]  ["signal", number]                              from the client
    ["begun", {...}]  ["out", bytes]  ["err", bytes]  ["missed", n]  ["end"]                         to it
    ["over", {"exit_code", "signal", "why"}]  ["failed", error]            the last one: the client ends the stream

Bytes in, values out; no socket here. Whoever sends may be hostile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from actorgrid.errors import MalformedBody

from .frames import encode_frame

WINDOW_BYTES = 512 * 1024
"""Of each channel, so much is under way at most, each way."""
PIECE_BYTES = 32 * 1024
"""A frame carries no more of a terminal, a pipe or a connection."""
FRAME_BYTES_MAX = 256 * 1024
"""The longest is a command with its variables."""
COMMAND_WORDS_MAX = 4096
VARIABLES_MAX = 64
SIDE_MAX = 10_000
PORT_MAX = 65_535
SIGNAL_MAX = 64
HISTORY_BYTES_MAX = 2**40


class TerminalSize(NamedTuple):
    """The size of a terminal, in characters."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class AttachToTerminal:
    """A client is to see the job's terminal, and to write to it. *size*: what it is made now; ``None``: it stays."""

    size: TerminalSize | None = None
    history_bytes: int | None = None
    """Of what was written before, no more than that comes first; ``None``: all that is kept."""

    def frame(self) -> bytes:
        """The frame."""
        return encode_frame(["attach", {"size": _plain(self.size), "history_bytes": self.history_bytes}])


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """A command is to run beside the job's. *size*: of a terminal of its own; ``None``: it gets pipes."""

    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    """What is added to the job's variables."""
    size: TerminalSize | None = None

    def frame(self) -> bytes:
        """The frame. Raises FrameTooLarge."""
        fields = {"command": list(self.command), "env": dict(self.env), "size": _plain(self.size)}
        return encode_frame(["exec", fields], FRAME_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class ConnectToPort:
    """A connection to a port on which the job listens."""

    port: int

    def frame(self) -> bytes:
        """The frame."""
        return encode_frame(["connect", {"port": self.port}])


@dataclass(frozen=True, slots=True)
class AskPorts:
    """Which ports the job listens on: ``begun`` says them."""

    def frame(self) -> bytes:
        """The frame."""
        return encode_frame(["ports"])


ChannelPurpose = AttachToTerminal | ExecCommand | ConnectToPort | AskPorts


def parse_purpose(frame: list[Any]) -> ChannelPurpose:
    """What a channel is for, by its client's first frame. Raises MalformedBody."""
    match frame:
        case ["attach", {"size": size, "history_bytes": None}]:
            return AttachToTerminal(_size(size))
        case ["attach", {"size": size, "history_bytes": int(count)}] if 0 <= count <= HISTORY_BYTES_MAX:
            return AttachToTerminal(_size(size), count)
        case ["exec", {"command": list(command), "env": dict(env), "size": size}]:
            words = _texts(command, COMMAND_WORDS_MAX, "command")
            names = _texts(list(env), VARIABLES_MAX, "env")
            values = _texts(list(env.values()), VARIABLES_MAX, "env")
            if not words or not words[0] or any(not name or "=" in name for name in names):
                raise MalformedBody("a command has a program, and variables have names", asked=str(words)[:80])
            return ExecCommand(tuple(words), tuple(zip(names, values, strict=True)), _size(size))
        case ["connect", {"port": int(port)}] if 0 < port <= PORT_MAX:
            return ConnectToPort(port)
        case ["ports"]:
            return AskPorts()
    raise MalformedBody("not the first frame of a channel", asked=str(frame[0])[:40])


# -- from the client, once it has begun


class InputPiece(NamedTuple):
    """Bytes for the terminal, the command or the connection."""

    data: bytes


class InputEnd(NamedTuple):
    """No more of them comes."""


class Resize(NamedTuple):
    """The client's terminal has another size now."""

    size: TerminalSize


class SignalCommand(NamedTuple):
    """A signal for the command's process group."""

    number: int


ClientFrame = InputPiece | InputEnd | Resize | SignalCommand


def parse_client_frame(frame: list[Any]) -> ClientFrame:
    """A later frame of a client. Raises MalformedBody."""
    match frame:
        case ["in", bytes(data)]:
            return InputPiece(data)
        case ["end"]:
            return InputEnd()
        case ["size", rows, columns]:
            size = _size([rows, columns])
            if size is not None:
                return Resize(size)
        case ["signal", int(number)] if 0 < number <= SIGNAL_MAX:
            return SignalCommand(number)
    raise MalformedBody("not a frame of a channel", asked=str(frame[0])[:40])


def encode_input(data: bytes) -> bytes:
    """The frame of an InputPiece."""
    return encode_frame(["in", data])


def encode_end() -> bytes:
    """The frame that says that no more bytes come from this side."""
    return encode_frame(["end"])


def encode_resize(size: TerminalSize) -> bytes:
    """The frame of a Resize."""
    return encode_frame(["size", size.rows, size.columns])


def encode_signal(number: int) -> bytes:
    """The frame of a SignalCommand."""
    return encode_frame(["signal", number])


# -- to the client


class ChannelEnding(NamedTuple):
    """How a command, or the job with its terminal, has ended: as the wait status of a process says."""

    exit_code: int | None = None
    signal: int | None = None
    why: str = ""
    """Where neither is known: ``job_ended``, ``too_slow`` (the client did not read), ``closed`` (a connection)."""

    def frame(self) -> bytes:
        """The frame."""
        return encode_frame(["over", {"exit_code": self.exit_code, "signal": self.signal, "why": self.why}])


JOB_ENDED, TOO_SLOW, CLOSED = "job_ended", "too_slow", "closed"


def parse_ending(fields: dict[str, Any]) -> ChannelEnding:
    """The fields of an ``over``. Raises MalformedBody."""
    match fields:
        case {"exit_code": int() | None as code, "signal": int() | None as number, "why": str(why)}:
            return ChannelEnding(code, number, why)
    raise MalformedBody("not the end of a channel", found=str(sorted(fields))[:80])


def _plain(size: TerminalSize | None) -> list[int] | None:
    return None if size is None else list(size)


def _size(value: object) -> TerminalSize | None:
    match value:
        case None:
            return None
        case [int(rows), int(columns)] if 0 < rows <= SIDE_MAX and 0 < columns <= SIDE_MAX:
            return TerminalSize(rows, columns)
    raise MalformedBody("a terminal's size is its rows and columns", found=str(value)[:80])


def _texts(values: list[Any], count_max: int, what: str) -> list[str]:
    if len(values) > count_max or not all(isinstance(value, str) and "\0" not in value for value in values):
        raise MalformedBody(f"{what} is texts without NUL, {count_max} at most", found=f"{len(values)}")
    return [str(value) for value in values]
