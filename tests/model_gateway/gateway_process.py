"""A real gateway process (main and workers), and an agent's end of its socket."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import psutil

from actorgrid.actors.model_gateway.process_spec import GatewaySpec, socket_path, write_spec
from actorgrid.actors.serving import control_frames as words
from actorgrid.actors.serving.table import DemandReport, ServiceTable, decode_report, encode_table
from actorgrid.transports.frames import FrameDecoder, encode_frame

Message = TypeVar("Message")
PATIENCE_S = 60.0


class AgentEnd:
    """What an agent does: connects, says hello, hands tables over, hears reports."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._socket.connect(str(socket_path(folder)))
                break
            except OSError:
                assert time.monotonic() < until, "the gateway does not come up"
                time.sleep(0.01)
        self._decoder = FrameDecoder(words.CONTROL_FRAME_MAX)
        self._frames: list[words.FromGateway] = []
        self.say(words.AgentHello(words.CONTROL_VERSION))
        self.hello = self.hear(words.GatewayHello)

    def say(self, message: words.FromAgent) -> None:
        self._socket.sendall(encode_frame(words.frame_of(message), words.CONTROL_FRAME_MAX))

    def raw(self, frame: list[Any]) -> None:
        self._socket.sendall(encode_frame(frame))

    def use(self, table: ServiceTable) -> None:
        self.say(words.UseTable(encode_table(table)))

    def hear(self, kind: type[Message]) -> Message:
        """The next message of that kind; others are kept."""
        while True:
            for at, message in enumerate(self._frames):
                if isinstance(message, kind):
                    del self._frames[at]
                    return message
            data = self._socket.recv(2**20)
            assert data, "the gateway hung up"
            self._frames += [words.parse_from_gateway(frame) for frame in self._decoder.feed(data)]

    def report(self) -> DemandReport:
        """The next report."""
        return decode_report(self.hear(words.GatewayReport).text)

    def close(self) -> None:
        self._socket.close()


class GatewayProcess:
    """The main process, started as an agent starts it."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        made = GatewaySpec(**{"folder": str(folder), "security": str(folder / "security"), **spec})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "actorgrid.actors.model_gateway.main", write_spec(made)],
            start_new_session=True,
        )

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        for each in [*self.workers, psutil.Process(self.process.pid)]:
            each.kill()
        self.process.wait(PATIENCE_S)
