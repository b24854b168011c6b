"""DeviceProbe: a vendor's library in a child process of its own, which can be killed.

A driver call may hang for ever or take its process with it; here that process is this child and no other.
``python -m actorgrid.actors.gpu.probe VENDOR FD PARENT_PID`` is the child: it says first what it found, then answers
each request with readings, or with how a setting went, as JSON lines on the socket FD, and dies with its parent. What
the driver tells by itself (an XID, a reset) it passes on at once. :class:`DeviceProbe` is the parent's side: it kills a
child that does not answer in time and starts another, ever more slowly.
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
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import actorgrid

from .probe_patience import ProbePatience, processor_times
from .probe_report import LINKS_MAX, TEXT_MAX, CuttingVendor, DeviceEvent, ProbeReport, SettingRefused, Vendor
from .readings import Readings
from .vendors.pci import why_no_numa_node

MAX_LINE = 4 * 2**20
BACKOFF_S = 1.0
BACKOFF_MAX_S = 60.0
PUT_BACK_S = 2.0
"""How long a child that is told to end may take to put back the limits that it set."""
REQUESTS_MAX = 64
"""Settings that wait for a child; more are refused."""
EVENTS_WAIT_S = 5.0
"""How long a child's listener waits for the driver at a time."""
EVENTS_PER_LINE_MAX = 64
_REAP_INTERVAL_S = 0.05
PUT_BACK_ALARM_S = 10
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
    UUID after each ``ask``; *on_events* what the driver told; *on_lost* gets the reason whenever a child was killed or
    died. Nothing here ever blocks. At most one child exists: the next one starts when the last is reaped, 1 s later at
    first, then twice that each time, at most 60 s. *timeout_s* is how long a child may take for an answer, beside what
    it waits for a processor (``probe_patience.py``).
    """

    def __init__(
        self,
        vendor: str,
        surroundings: Surroundings,
        timeout_s: float,
        on_report: Callable[[ProbeReport], None],
        on_readings: Callable[[dict[str, Readings]], None],
        on_lost: Callable[[str], None],
        on_events: Callable[[list[DeviceEvent]], None] = lambda events: None,
    ) -> None:
        self.vendor = vendor
        self.timeout_s = timeout_s
        self.restarts = 0
        self._surroundings = surroundings
        self._on_report = on_report
        self._on_readings = on_readings
        self._on_lost = on_lost
        self._on_events = on_events
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._deadline: ProbeTimer | None = None
        self._backoff_s = BACKOFF_S
        self._reported = False
        self._stopped = False
        self._settings: deque[tuple[dict[str, Any], Callable[[str, str], None]]] = deque()
        self._setting: Callable[[str, str], None] | None = None
        self._has_to_put_back = False

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

    @property
    def answers(self) -> bool:
        """Whether a child has told what it found, and is not lost since."""
        return self._reported and self._socket is not None

    @property
    def is_setting(self) -> bool:
        """Whether a setting is being answered: a report that comes then is of a library that is not loaded anew."""
        return self._setting is not None

    def ask(self) -> bool:
        """Ask for readings; ``False`` when there is no child to ask or it still owes an answer."""
        return self._request({"do": "read"}, "read")

    def set_power_limit(self, uuid: str, watts: float, before: float | None, answered: Callable[[str], None]) -> None:
        """Have the device draw at most that many watts; *answered* gets "" when it is done, else why it is not.

        *before*: what the child sets when it ends, also when its parent was killed; ``None``: nothing.
        """
        self._has_to_put_back |= before is not None
        request = {"do": "power_limit", "uuid": uuid, "watts": watts, "before": before}
        self._set(request, lambda why, _made: answered(why))

    def set_partitions(self, uuid: str, change: str, what: str, answered: Callable[[str, str], None]) -> None:
        """Have a device be cut otherwise (``Vendor.set_partitions``); *answered* gets why it is not, and what was made.

        Before that, *on_report* gets what there is then.
        """
        self._set({"do": "partitions", "uuid": uuid, "change": change, "what": what}, answered)

    def _set(self, request: dict[str, Any], answered: Callable[[str, str], None]) -> None:
        if not self.answers or len(self._settings) >= REQUESTS_MAX:
            answered("its probe does not answer just now" if not self.answers else "too many settings wait already", "")
            return
        self._settings.append((request, answered))
        self._next_setting()

    def look_again(self, why: str) -> None:
        """Have another child list the devices anew, soon: those of a library are known from when it was loaded."""
        if self.answers:
            self._backoff_s = BACKOFF_S
            self._lose(why)

    def _request(self, message: dict[str, Any], what: str) -> bool:
        if self._socket is None or not self._reported or self._deadline is not None:
            return False
        try:
            self._socket.send(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._lose(f"is gone: {error}")
            return False
        self._expect(what)
        return True

    def _next_setting(self) -> None:
        if self._settings and self._request(self._settings[0][0], "a setting"):
            self._setting = self._settings.popleft()[1]

    def stop(self) -> None:
        """End the child for good; one that set limits has a moment to put them back."""
        self._stopped = True
        self._disconnect()
        process, self._process = self._process, None
        if process is None:
            return
        if self._has_to_put_back:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=PUT_BACK_S)
        process.kill()
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            # Stuck inside the driver; it is gone as soon as the kernel lets go of it.
            process.returncode = -signal.SIGKILL

    def _expect(self, what: str) -> None:
        assert self._process is not None, "an answer is expected of a child"
        patience = ProbePatience(self.timeout_s, processor_times(self._process.pid))
        self._deadline = self._surroundings.after(self.timeout_s, lambda: self._overdue(what, patience))

    def _overdue(self, what: str, patience: ProbePatience) -> None:
        deadline = self._deadline
        self._readable()  # it may have answered while we had no processor ourselves
        if self._process is None or deadline is None or self._deadline is not deadline:
            return
        if more_s := patience.more(processor_times(self._process.pid)):
            self._deadline = self._surroundings.after(more_s, lambda: self._overdue(what, patience))
            return
        beside = f", and {patience.given_s:.1f} s more for want of a processor" if patience.given_s else ""
        self._lose(f"did not answer {what} in {self.timeout_s:g} s{beside}")

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
            if "events" in message:
                events = [DeviceEvent.from_record(one) for one in message["events"][:EVENTS_PER_LINE_MAX]]
                self._on_events(events)
                return
            report = ProbeReport.from_record(message["report"]) if "report" in message else None
            readings = {str(uuid): Readings.from_record(said) for uuid, said in message.get("readings", {}).items()}
            done, made = message.get("done"), str(message.get("made", ""))[:TEXT_MAX]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._lose(f"said something that makes no sense: {error}")
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if report is not None:
            self._reported = True
            self._on_report(report)
        if done is not None:
            answered, self._setting = self._setting, None
            if answered is not None:
                answered(str(done), made)
        elif report is None:
            self._backoff_s = BACKOFF_S  # it works: the next trouble is a new one
            self._on_readings(readings)
        self._next_setting()

    def _disconnect(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._socket is not None:
            self._surroundings.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
        waiting = [answered for _, answered in self._settings]
        if self._setting is not None:
            waiting.insert(0, self._setting)
        self._settings.clear()
        self._setting = None
        for answered in waiting:
            answered("its probe ended before it said whether it was done", "")

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
        try:
            return ProbeReport.from_record(json.loads(_first_line(ours, child.pid, timeout_s))["report"])
        except TimeoutError:
            return ProbeReport(vendor, "no_driver", f"the library did not answer within {timeout_s:g} s")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ProbeReport(vendor, "no_driver", f"the library's process ended: {_status_text(child.wait())}")
        finally:
            child.kill()
            # Stuck inside the driver, it is gone only when the kernel lets go of it; it is not waited for then.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1.0)


def _first_line(connection: socket.socket, pid: int, timeout_s: float) -> bytes:
    """What the child *pid* says first, as far as it says it. Raises TimeoutError, OSError."""
    said = bytearray()
    patience = ProbePatience(timeout_s, processor_times(pid))
    connection.settimeout(timeout_s)
    while b"\n" not in said and len(said) <= MAX_LINE:
        try:
            data = connection.recv(65536)
        except TimeoutError:
            if not (more_s := patience.more(processor_times(pid))):
                raise
            connection.settimeout(more_s)
            continue
        if not data:
            break
        said += data
    return bytes(said)


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


# -- the child


def _die_with(parent: int) -> None:
    """Have the kernel kill us when our parent goes; leave now if it already has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)


def _outlive_parent() -> None:
    """Have the kernel let us live when our parent goes: its end of the socket closes then, and there is work left."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def vendor_of(name: str) -> Vendor:
    """The vendor of that name, whose library is not loaded yet. For a child: any of its calls may hang or crash."""
    if name == "nvidia":
        from .vendors.nvidia import Nvidia

        return Nvidia()
    if name == "amd":
        from .vendors.amd import Amd

        return Amd()
    if name == "intel":
        from .vendors.intel import Intel

        return Intel()
    raise SystemExit(f"no vendor is called {name!r}")


class _Child:
    """Serves one parent: reports, then answers until it hangs up; a thread beside it tells what the driver tells."""

    def __init__(self, vendor: Vendor, connection: socket.socket) -> None:
        self._vendor = vendor
        self._connection = connection
        self._sending = threading.Lock()
        self._before: dict[str, float] = {}

    def serve(self) -> None:
        """Serve until the parent hangs up; then put back the limits that were set."""
        try:
            self._serve()
        except ConnectionError:
            pass  # it was killed while we answered
        finally:
            self._put_back()

    def _serve(self) -> None:
        self._send({"report": self._report(self._vendor.probe())})
        threading.Thread(target=self._tell_events, name="events", daemon=True).start()
        asked = b""
        while data := self._connection.recv(4096):
            *lines, asked = (asked + data).split(b"\n")
            for line in lines:
                self._send(self._answer(json.loads(line)))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "power_limit":
            return {"done": self._set_power_limit(str(request["uuid"]), float(request["watts"]), request["before"])}
        if request["do"] == "partitions":
            return self._set_partitions(*(str(request[name]) for name in ("uuid", "change", "what")))
        return {"readings": {uuid: asdict(said) for uuid, said in self._vendor.read().items()}}

    def _set_power_limit(self, uuid: str, watts: float, before: float | None) -> str:
        """Why it could not be set; ``""``: it is."""
        if before is not None:
            # Noted first: a driver that sets it and fails afterwards has set it.
            self._before[uuid] = before
            _outlive_parent()
        try:
            self._vendor.set_power_limit(uuid, watts)
        except SettingRefused as error:
            return str(error) or "refused"
        return ""

    def _set_partitions(self, uuid: str, change: str, what: str) -> dict[str, Any]:
        if not isinstance(self._vendor, CuttingVendor):
            return {"done": f"the library that answers for {self._vendor.name} cuts no devices", "made": ""}
        why = made = ""
        try:
            made = self._vendor.set_partitions(uuid, change, what)
        except SettingRefused as error:
            why = str(error) or "refused"
        # Also after a refusal: what was done before it came may be there.
        return {"done": why, "made": made, "report": self._report(self._vendor.list_again())}

    @staticmethod
    def _report(report: ProbeReport) -> dict[str, Any]:
        places = {device.uuid: device.pcie_bus_id for device in report.devices if device.numa_node is None}
        for facts in report.facts:
            if facts.uuid in places:
                facts.unsupported.setdefault("numa_node", why_no_numa_node(places[facts.uuid]))
        return asdict(replace(report, links=report.links[:LINKS_MAX]))

    def _put_back(self) -> None:
        if not self._before:
            return
        signal.alarm(PUT_BACK_ALARM_S)  # nobody is left to kill us, should the driver hang now
        for uuid, watts in self._before.items():
            with contextlib.suppress(SettingRefused):
                self._vendor.set_power_limit(uuid, watts)

    def _tell_events(self) -> None:
        while (events := self._vendor.next_events(EVENTS_WAIT_S)) is not None:
            if events:
                self._send({"events": [asdict(event) for event in events[:EVENTS_PER_LINE_MAX]]})

    def _send(self, message: dict[str, Any]) -> None:
        # With NaN, where a driver says so: the parent takes it for no reading.
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            self._connection.sendall(data)


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
        _Child(vendor_of(name), connection).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
