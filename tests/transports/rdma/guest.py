"""What runs in a guest: takes orders over the serial port, and has workers, processes of their own, carry them out.

A worker is a host with links over mutual TLS and RDMA for messages, on a real loop. ``machines.Guest`` gives orders.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import ssl
import subprocess
import sys
import traceback
import tty
from pathlib import Path
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.tls import PeerIdentity
from actorgrid.transports.rdma import frames, path, verbs
from actorgrid.transports.rdma.limits import RdmaLimits
from actorgrid.transports.rdma.streams import RdmaStreams
from tests.transports.rdma.messages import RdmaMessages

CLUSTER = "rdma"
PORT = 7401
LINKS = PeerLimits(ping_s=1.0, idle_s=12.0, tick_s=0.2, backoff_first_s=0.1, backoff_max_s=0.5, handshake_s=20.0)
"""Emulated machines are slow: what they do in a second, others do in 50 ms."""
STREAMS = PeerLimits()


def identity(folder: Path, name: str) -> PeerIdentity:
    """A host's material, of the files that were made before the machines were started."""
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(next(folder.glob(f"{name}-*.pem")), next(folder.glob(f"{name}-*.key")))
        context.load_verify_locations(folder / "authority.pem")
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        contexts.append(context)
    return PeerIdentity(CLUSTER, name, *contexts)


def message(number: int, size: int) -> bytes:
    """The message of a number: it says which it is, and is the same on both sides."""
    head = b"%d:" % number
    return head + (b"%08x" % (number * 2654435761 % 2**32)) * (max(0, size - len(head)) // 8)


class Pipe:
    """One end of a stream: sends *data*, or sends back what comes where there is none."""

    def __init__(self, stream: Stream, data: bytes | None = None) -> None:
        self.stream, self.back = stream, data is None
        self.left = bytearray(data or b"")
        self.came = bytearray()
        self.ends: list[ActorGridError | None] = []
        stream.attach(self.take, self.ends.append, self.write)
        self.write()

    def write(self) -> None:
        """Write as much as it takes."""
        while self.left and (taken := self.stream.write(bytes(self.left[:60_000]))):
            del self.left[:taken]

    def take(self, data: bytes) -> None:
        """Keep what came, or send it back."""
        self.stream.consumed(len(data))
        if self.back:
            self.left += data
            self.write()
        else:
            self.came += data


class Worker:
    """One host; *order*s come by name, with words."""

    def __init__(self, name: str, other: str, folder: str, addresses: dict[str, str], **options: Any) -> None:
        self.loop = InlineNode(real_time=True)
        self.name, self.other = name, other
        self.got = 0
        self.wrong: list[str] = []
        self.ended: list[str] = []
        self.takes = True
        self.takes_max = 1 << 60
        self.sizes: list[int] = [0]
        self.watched = False
        if "locked_bytes" in options:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (options["locked_bytes"],) * 2)
        if not options.get("privileged", "locked_bytes" not in options):
            drop_capabilities()  # before the device is opened: the kernel refuses verbs of a process that changed since
        self.links = PeerNet(
            self.loop,
            identity(Path(folder), name),
            (addresses[name], options.get("port", PORT)),
            resolve=lambda host: [(addresses[host], options.get("port", PORT))],
            admit=lambda _host, _fingerprint: None,
            on_call=lambda _call: None,
            on_cast=lambda *_cast: None,
            on_stream=self.stream,
            limits=LINKS,
        )
        limits = RdmaLimits(again_first_s=0.5, again_max_s=2.0, resume_s=20.0, **options.get("limits", {}))
        frames.VERSION = options.get("version", frames.VERSION)  # type: ignore[misc]
        self.rdma = RdmaMessages(self.loop, name, self.links.open_stream, limits=limits)
        self.streams: RdmaStreams | None = None
        if options.get("streams"):
            self.streams = RdmaStreams(
                self.loop,
                name,
                self.links.open_stream,
                on_stream=self.echo,
                peer_limits=STREAMS,
                limits=limits,
            )

    def stream(self, stream: Stream) -> None:
        if self.streams is not None:
            self.streams.take(stream)
            return
        self.rdma.take(stream)
        self.watch()

    def echo(self, stream: Stream) -> None:
        """Send back all that comes."""
        Pipe(stream)

    def watch(self) -> None:
        found = self.rdma.peer(self.other)
        if found is not None and not self.watched:
            self.watched = True
            found.on_message = self.take
            found.on_end = lambda error: self.ended.append(str(error))

    def take(self) -> None:
        found = self.rdma.peer(self.other)
        while self.takes and found is not None and not found.ended and self.got < self.takes_max:
            came = found.take()
            if came is None:
                return
            size = self.sizes[self.got % len(self.sizes)]
            if came != message(self.got, size) and len(self.wrong) < 5:
                self.wrong.append(f"{self.got}: {came[:40]!r} of {len(came)}")
            self.got += 1

    # -- orders

    def through(self, size: int, cut_at: int = -1, timeout_s: float = 60.0) -> dict[str, Any]:
        """Send bytes over a stream of RDMA, and take them back; the pair fails when *cut_at* bytes have come back."""
        assert self.streams is not None
        found: list[Stream] = []

        def opened() -> bool:
            stream = self.streams and self.streams.open_stream(self.other, "echo", b"")
            found.extend([stream] if stream else [])
            return bool(found)

        self.loop.run_until(opened, timeout_s)
        sent = message(7, size)
        pipe = Pipe(found[0], sent)
        if cut_at >= 0:
            self.loop.run_until(lambda: len(pipe.came) > cut_at, timeout_s)
            self.streams.peer(self.other).path.failed("a test")  # type: ignore[union-attr]
        self.loop.run_until(lambda: len(pipe.came) >= len(sent) or bool(pipe.ends), timeout_s)
        path = self.streams.status()[1][0]
        return {"whole": pipe.came == sent, "ends": len(pipe.ends), "failed": path.pairs_failed, "pairs": path.pairs}

    def want(self) -> dict[str, Any]:
        """Begin the path."""
        self.rdma.want(self.other)
        self.watch()
        return self.status()

    def expect(self, sizes: list[int]) -> None:
        """From now on, messages of these sizes in turn come, from number 0 of the path on."""
        self.sizes = sizes

    def send(self, count: int, sizes: list[int], first: int = 0, patience_s: float = 60.0) -> dict[str, Any]:
        """Send messages, as the path takes them."""
        found = self.rdma.peer(self.other)
        assert found is not None
        for number in range(first, first + count):
            data = message(number, sizes[number % len(sizes)])
            while not found.send(data):
                self.loop.run_until(lambda: found.path.has_room or found.ended, patience_s)
            if number % 16 == 0:
                self.loop.step()
        return self.status()

    def until(self, timeout_s: float = 60.0, **wanted: Any) -> dict[str, Any]:
        """Run until the status says what is *wanted*."""
        names = wanted

        def holds() -> bool:
            status = self.status()
            return all(
                status[name] >= value if name in ("got", "pairs", "pairs_failed") else status[name] == value
                for name, value in names.items()
            )

        try:
            self.loop.run_until(holds, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: wanted {wanted}, found {self.status()}") from None
        return self.status()

    def run(self, for_s: float) -> dict[str, Any]:
        """Run for some time."""
        end = self.loop.monotonic() + for_s
        self.loop.run_until(lambda: self.loop.monotonic() >= end, for_s + 5)
        return self.status()

    def status(self) -> dict[str, Any]:
        """Where it stands."""
        why, paths = self.rdma.status()
        found = paths[0] if paths else None
        return {
            "unavailable": why,
            "carrier": found.carrier if found else "none",
            "reason": found.reason if found else "",
            "pairs": found.pairs if found else 0,
            "pairs_failed": found.pairs_failed if found else 0,
            "failure": self.rdma.peer(self.other).path.core.failure if found else "",
            "unconsumed": found.unconsumed if found else 0,
            "got": self.got,
            "wrong": self.wrong,
            "ended": self.ended,
            "rss_kb": int(Path("/proc/self/statm").read_text().split()[1]) * 4,
        }

    def do(self, code: str, **words: Any) -> Any:
        """Carry out a few lines of a test: what cannot be done from outside."""
        names = {"worker": self, "verbs": verbs, "path": path, **words, "answer": None}
        exec(compile(code, "<order>", "exec"), names)
        return names["answer"]


def drop_capabilities() -> None:
    """Lose CAP_IPC_LOCK, with which the limit of locked memory does not count."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for word in (0, 1, 2):
        data[word] &= ~(1 << 14)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def work(orders: int, answers: int) -> None:
    """The life of a worker: orders come as lines, and the loop runs while none does."""
    worker: Worker | None = None
    held = b""
    os.set_blocking(orders, False)

    def came() -> None:
        nonlocal held
        data = os.read(orders, 65536)
        if not data:
            os._exit(0)
        held += data

    loop: InlineNode | None = None
    while True:
        if b"\n" not in held:
            if loop is None:
                select.select([orders], [], [])
                came()
            else:
                loop.watch(orders, came)
                loop.step(0.5)
            continue
        line, _, held = held.partition(b"\n")
        order = json.loads(line)
        name = order.pop("order")
        try:
            if name == "begin":
                worker = Worker(**order)
                loop = worker.loop
                answer = worker.status()
            else:
                answer = getattr(worker, name)(**order)
            said = {"answer": answer}
        except Exception:  # noqa: BLE001 - to whoever gave the order
            said = {"error": traceback.format_exc()}
        os.write(answers, json.dumps(said).encode() + b"\n")


class Workers:
    """The workers of this guest, by name."""

    def __init__(self) -> None:
        self._pipes: dict[str, tuple[int, int, int]] = {}  # pid, orders, answers

    def order(self, order: str, worker: str = "", **words: Any) -> dict[str, Any]:
        """Carry out an order, or pass it to a worker."""
        match order:
            case "shell":
                done = subprocess.run(words["command"], shell=True, capture_output=True, text=True, timeout=60)
                return {"answer": [done.returncode, done.stdout + done.stderr]}
            case "kill":
                self.kill(worker)
                return {"answer": None}
            case "begin":
                self._start(worker)
        _pid, orders, answers = self._pipes[worker]
        os.write(orders, json.dumps({"order": order, **words}).encode() + b"\n")
        said = b""
        while not said.endswith(b"\n"):
            data = os.read(answers, 65536)
            if not data:
                return {"error": f"the worker {worker} is gone"}
            said += data
        return json.loads(said)

    def _start(self, name: str) -> None:
        self.kill(name)
        orders, answers = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(orders[1])
            os.close(answers[0])
            for _pid, theirs, ours in self._pipes.values():
                os.close(theirs)
                os.close(ours)
            try:
                work(orders[0], answers[1])
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(orders[0])
        os.close(answers[1])
        self._pipes[name] = pid, orders[1], answers[0]

    def kill(self, name: str) -> None:
        """SIGKILL a worker, if there is one of that name."""
        found = self._pipes.pop(name, None)
        if found is not None:
            pid, orders, answers = found
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(orders)
            os.close(answers)


def main() -> None:
    """Take orders for ever."""
    port = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
    tty.setraw(port)
    workers = Workers()
    try:
        verbs.load()  # once, and workers are forked from here
        up = "up"
    except ActorGridError as error:
        up = str(error)
    _say(port, {"answer": up})
    held = b""
    while True:
        while b"\n" not in held:
            held += os.read(port, 4096)
        line, _, held = held.partition(b"\n")
        order = json.loads(line)
        number = order.pop("id")
        try:
            answer = workers.order(**order)
        except Exception:  # noqa: BLE001 - to whoever gave the order
            answer = {"error": traceback.format_exc()}
        _say(port, {**answer, "id": number})


def _say(port: int, answer: dict[str, Any]) -> None:
    left = json.dumps(answer).encode() + b"\n"
    while left:
        left = left[os.write(port, left) :]


if __name__ == "__main__":
    sys.exit(main())
