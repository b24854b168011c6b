"""agent.log: JSON lines from all processes of the agent into one file.

Each record is one ``write`` on a descriptor opened for appending, so lines of different processes do not mix.
One process rotates (``rotate_if_large``); the others see that the name leads to another file and open that.

Bounds: the file is rotated at ``max_bytes``, three older ones are kept. Where a flood outruns the rotation, records are
dropped at twice that size, and the next one written says how many. A record is cut at 64 KiB.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import TracebackType

KEPT = 3
RECORD_BYTES_MAX = 64 * 1024


class JsonLines(logging.Formatter):
    """Formats records as JSON lines: at (seconds since the epoch), level, logger, pid, message, error with a traceback.

    The report of a crash is in ``crash`` as a structure, and its first line is the message.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, without the line break."""
        line: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": os.getpid(),
            "message": record.getMessage(),
        }
        crash = getattr(record, "crash", None)
        if crash is not None:
            line["message"] = str(line["message"]).partition("\n")[0]
            line["crash"] = crash
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False, default=str)
        if len(text) > RECORD_BYTES_MAX // 4 and len(text.encode("utf-8", "replace")) > RECORD_BYTES_MAX:
            line["message"] = str(line["message"])[: RECORD_BYTES_MAX // 16]
            line.pop("crash", None)
            line["error"] = str(line.get("error", ""))[-RECORD_BYTES_MAX // 16 :]
            text = json.dumps(line, default=str)
        return text


class AgentLog(logging.Handler):
    """The handler every process of the agent has on its root logger."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._path = path
        self._max_bytes = max_bytes
        self._dropped = 0
        self._fd = -1
        self._inode = -1
        self._open()

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._inode = os.fstat(self._fd).st_ino

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line. A full disk must not stop the agent: what cannot be written is counted as dropped."""
        if self._fd < 0:
            return
        try:
            if self._size() >= 2 * self._max_bytes:
                self._dropped += 1
                return
            if self._dropped:
                record.msg = f"{record.getMessage()} ({self._dropped} records before this one were dropped)"
                record.args = None
            os.write(self._fd, self.format(record).encode("utf-8", "replace") + b"\n")
            self._dropped = 0
        except OSError:
            self._dropped += 1

    def _size(self) -> int:
        try:
            found = os.stat(self._path)
            if found.st_ino == self._inode:
                return found.st_size
        except FileNotFoundError:
            pass
        self._open()
        return os.fstat(self._fd).st_size

    def rotate_if_large(self) -> bool:
        """For the one process that owns the rotation: start a new file when this one is full."""
        with self.lock or _NOTHING:
            if self._fd < 0 or self._size() < self._max_bytes:
                return False
            # From the oldest on: the other way round, each would replace the next before that has moved.
            for number in range(KEPT, 0, -1):
                older = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
                if older.exists():
                    older.replace(self._path.with_name(f"{self._path.name}.{number}"))
            self._open()
            return True

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NOTHING = _Nothing()


class logging_to:
    """Send this process's (and its children's) records to agent.log for a while."""

    def __init__(self, path: Path, max_bytes: int, level: str) -> None:
        self._handler = AgentLog(path, max_bytes)
        self._level = level

    def __enter__(self) -> AgentLog:
        root = logging.getLogger()
        self._before = root.level
        root.setLevel(self._level.upper())
        root.addHandler(self._handler)
        # Thespian's own chatter, and aiohttp's line for each request, are not worth the space.
        for name in ("Thespian", "aiohttp.access"):
            logging.getLogger(name).setLevel(logging.WARNING)
        return self._handler

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        root = logging.getLogger()
        root.removeHandler(self._handler)
        root.setLevel(self._before)
        self._handler.close()
