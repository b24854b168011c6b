"""DeviceProbe: a vendor's library in a child process of its own, which can be killed.

A driver call may hang for ever or take its process with it; here that process is this child and no other.
``python -m actorgrid.actors.gpu.probe VENDOR FD PARENT_PID`` is the child: it says first what it found, then answers
each ``read`` with readings, as JSON lines on the socket FD, and dies with its parent. :class:`DeviceProbe`
is the parent's side: it kills a child that does not answer in time and starts another, ever more slowly.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess  # nosec B404 - starts our own interpreter with a fixed argument list
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import actorgrid

from .device import Device, ProbeReport, Readings, Vendor

MAX_LINE = 4 * 2**20
BACKOFF_S = 1.0
BACKOFF_MAX_S = 60.0
_REAP_INTERVAL_S = 0.05
_PR_SET_PDEATHSIG = 1


class ProbeTimer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Never call it."""


class Surroundings(Protocol):
    """The part of a server's runtime that a probe needs."""

    def after(self, delay_s: float, callback: Callable[[], None]) -> ProbeTimer:
        """Call back once."""

    def watch(
        self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None = None
    ) -> None:
        """Call back while *fd* is ready."""

    def unwatch(self, fd: int) -> None:
        """Forget *fd*."""


class DeviceProbe:
    """Keeps one probe child for *vendor* and tells what it says.

    *on_report* gets a ProbeReport each time a child has started and looked; *on_readings* gets readings by
    UUID after each ``ask``; *on_lost* gets the reason whenever a child was killed or died. Nothing here
    ever blocks. At most one child exists: the next one starts when the last is reaped, 1 s later at first,
    then twice that each time, at most 60 s.
    """

    def __init__(
        self,
        vendor: str,
        surroundings: Surroundings,
        timeout_s: float,
        on_report: Callable[[ProbeReport], None],
        on_readings: Callable[[dict[str, Readings]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.vendor = vendor
        self.timeout_s = timeout_s
        self.restarts = 0
        self._surroundings = surroundings
        self._on_report = on_report
        self._on_readings = on_readings
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._deadline: ProbeTimer | None = None
        self._backoff_s = BACKOFF_S
        self._reported = False
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start a child; its report comes to *on_report*, or the reason why not to *on_lost*."""
        if self._stopped or self._process is not None:
            return
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            self._process = _start(self.vendor, theirs)
        except OSError as error:
            ours.close()
            self._on_lost(f"cannot start: {error}")
            self._start_later()
            return
        finally:
            theirs.close()
        self._socket = ours
        self._buffer.clear()
        self._reported = False
        self._surroundings.watch(ours.fileno(), self._readable)
        self._expect("start")

    def ask(self) -> bool:
        """Ask for readings; ``False`` when there is no child to ask or it still owes an answer."""
        if self._socket is None or not self._reported or self._deadline is not None:
            return False
        try:
            self._socket.send(b"read\n")
        except OSError as error:
            self._lose(f"is gone: {error}")
            return False
        self._expect("read")
        return True

    def stop(self) -> None:
        """End the child for good."""
        self._stopped = True
        self._disconnect()
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            # Stuck inside the driver; it is gone as soon as the kernel lets go of it.
            process.returncode = -signal.SIGKILL

    def _expect(self, what: str) -> None:
        self._deadline = self._surroundings.after(
            self.timeout_s, lambda: self._lose(f"did not answer {what} in {self.timeout_s:g} s")
        )

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose("ended by itself")
            return
        self._buffer += data
        if len(self._buffer) > MAX_LINE:
            self._lose(f"said more than {MAX_LINE} bytes at once")
            return
        while (end := self._buffer.find(b"\n")) >= 0 and self._socket is not None:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            report = _report_from(message["report"]) if "report" in message else None
            readings = {uuid: Readings.from_record(said) for uuid, said in message.get("readings", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._lose(f"said something that makes no sense: {error}")
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if report is not None:
            self._reported = True
            self._on_report(report)
        else:
            self._backoff_s = BACKOFF_S  # it works: the next trouble is a new one
            self._on_readings(readings)

    def _disconnect(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._socket is not None:
            self._surroundings.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _lose(self, why: str) -> None:
        """Kill the child, tell why, and start another when it is reaped."""
        self._disconnect()
        if self._process is not None:
            self._process.kill()
            self._reap(why)

    def _reap(self, why: str) -> None:
        process = self._process
        if process is None:
            return
        # Asked, not waited for: one that is stuck in the driver does not die of its SIGKILL at once.
        status = process.poll()
        if status is None:
            self._surroundings.after(_REAP_INTERVAL_S, lambda: self._reap(why))
            return
        self._process = None
        if status not in (0, -signal.SIGKILL):
            why = f"{why} ({_status_text(status)})"
        self._on_lost(why)
        self._start_later()

    def _start_later(self) -> None:
        if self._stopped:
            return
        delay_s, self._backoff_s = self._backoff_s, min(BACKOFF_MAX_S, 2 * self._backoff_s)
        self.restarts += 1
        self._surroundings.after(delay_s, self.start)


def look_once(vendor: str, timeout_s: float) -> ProbeReport:
    """The report of what a child of *vendor*'s library finds now, which it waits for and ends.

    Never raises: trouble is an outcome.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            try:
                child = _start(vendor, theirs)
            except OSError as error:
                return ProbeReport(vendor, "no_library", f"cannot look: {error}")
        ours.settimeout(timeout_s)
        try:
            with ours.makefile("rb") as lines:
                return _report_from(json.loads(lines.readline(MAX_LINE))["report"])
        except TimeoutError:
            return ProbeReport(vendor, "no_driver", f"the library did not answer within {timeout_s:g} s")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ProbeReport(vendor, "no_driver", f"the library's process ended: {_status_text(child.wait())}")
        finally:
            child.kill()
            # Stuck inside the driver, it is gone only when the kernel lets go of it; it is not waited for then.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1.0)


def _start(vendor: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """The child for *vendor*'s library, which talks on *theirs*. Raises OSError."""
    # Its own session: a Ctrl-C at our terminal is for us to handle, not for the driver.
    return subprocess.Popen(  # nosec B603
        [sys.executable, "-P", "-m", __name__, vendor, str(theirs.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        env=_environment(),
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """Ours, with the package findable however we found it: ``-P`` keeps the working directory out."""
    root = str(Path(actorgrid.__file__).resolve().parent.parent)
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{before}" if before else root}


def _status_text(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def _report_from(record: dict[str, Any]) -> ProbeReport:
    fields = dict(record)
    fields["devices"] = tuple(Device.from_record(device) for device in record["devices"])
    fields["problems"] = tuple(record["problems"])
    return ProbeReport(**fields)


# -- the child


def _die_with(parent: int) -> None:
    """Have the kernel kill us when our parent goes; leave now if it already has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)


def _vendor(name: str) -> Vendor:
    if name == "nvidia":
        from .vendors.nvidia import Nvidia

        return Nvidia()
    raise SystemExit(f"no vendor is called {name!r}")


def _serve(vendor: Vendor, connection: socket.socket) -> None:
    """Report, then answer until the parent hangs up."""
    connection.sendall(json.dumps({"report": asdict(vendor.probe())}).encode() + b"\n")
    asked = b""
    while data := connection.recv(4096):
        *lines, asked = (asked + data).split(b"\n")
        for _ in lines:
            readings = {uuid: asdict(said) for uuid, said in vendor.read().items()}
            connection.sendall(json.dumps({"readings": readings}).encode() + b"\n")


def main(argv: list[str]) -> None:
    """Be the child, for the whole of its life."""
    name, fd, parent = argv
    _die_with(int(parent))
    try:
        from setproctitle import setproctitle

        setproctitle(f"actorgrid: device probe {name}")
    except ImportError:  # only a nicer name in process lists
        pass
    with socket.socket(fileno=int(fd)) as connection:
        _serve(_vendor(name), connection)


if __name__ == "__main__":
    main(sys.argv[1:])
