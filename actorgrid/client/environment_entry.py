"""How a leased worker comes to the Python environment of its lane: by a digest, and the spec where that is new."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from actorgrid.errors import ClientClosed, PeerGone, PeerRefused, PythonMismatch
from actorgrid.python_environment import PythonEnvironment
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.task_frames import (
    ENVIRONMENT_BUILDING,
    ENVIRONMENT_HERE,
    ENVIRONMENT_MISSING,
    ClientRefused,
    EnvironmentState,
    encode_environment_wanted,
    parse_worker_frame,
)

from .pickling import PYTHON

LOOK_S = 0.5


class EnvironmentEntry:
    """One worker's way into an environment. It takes as long as the host lets a build take."""

    def __init__(self, spec: PythonEnvironment) -> None:
        self._spec = spec
        self._frames: deque[list[object]] = deque()  # what came together with others

    def enter(
        self, sock: socket.socket, decoder: FrameDecoder, show: Callable[[str], None], is_closed: Callable[[], bool]
    ) -> None:
        """Return once the worker runs that Python. *show*: called with each line of a build.

        Raises what the worker refuses with (EnvironmentFailed, DiskFull, ...), PythonMismatch, PeerGone, OSError;
        ClientClosed once the client is closed (*is_closed*).
        """
        before_s = sock.gettimeout()
        sock.settimeout(LOOK_S)
        sock.sendall(encode_environment_wanted(self._spec.digest))
        sent = False
        while True:
            state = self._next(sock, decoder, is_closed)
            if state.state == ENVIRONMENT_BUILDING:
                show(state.text)
            elif state.state == ENVIRONMENT_MISSING and not sent:
                sent = True
                sock.settimeout(before_s)
                sock.sendall(encode_environment_wanted(self._spec.digest, self._spec.to_bytes()))
                sock.settimeout(LOOK_S)
            elif state.state == ENVIRONMENT_HERE:
                break
            else:
                raise PeerRefused("the leased worker asks for the environment again and again", asked=self._spec.digest)
        sock.settimeout(before_s)
        if state.text != PYTHON:
            raise PythonMismatch(
                "functions can only be exchanged between equal Python versions",
                asked=f"client Python {PYTHON}",
                found=f"the environment is of Python {state.text}",
                hint=f"ask for python={PYTHON!r}, or run the client with Python {state.text}; commands may have any",
            )

    def _next(self, sock: socket.socket, decoder: FrameDecoder, is_closed: Callable[[], bool]) -> EnvironmentState:
        while not self._frames:
            if is_closed():
                raise ClientClosed("the client was closed while an environment was built", asked=self._spec.digest)
            try:
                data = sock.recv(65536)
            except TimeoutError:
                continue
            if not data:
                raise PeerGone("the leased worker closed the connection", asked=f"environment {self._spec.digest}")
            self._frames.extend(decoder.feed(data))
        answer = parse_worker_frame(self._frames.popleft())
        if isinstance(answer, ClientRefused):
            raise answer.error
        if not isinstance(answer, EnvironmentState):
            raise PeerRefused("the leased worker said something else than about the environment")
        return answer
