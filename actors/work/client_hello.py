"""Whether a client that says hello is the one that a worker was leased to."""

from __future__ import annotations

import hmac

from actorgrid.errors import PeerRefused, PythonMismatch, WrongToken
from actorgrid.transports.task_frames import PROTOCOL_VERSION, ClientHello

from .environment import PYTHON


def check_hello(hello: ClientHello, secret: bytes) -> None:
    """Raise PeerRefused, WrongToken or PythonMismatch unless the worker was leased to this client by that *secret*."""
    if hello.version != PROTOCOL_VERSION:
        raise PeerRefused("another protocol version", asked=str(hello.version), found=str(PROTOCOL_VERSION))
    if not secret or not hmac.compare_digest(hello.secret.encode("utf-8", "replace"), secret):
        raise WrongToken("the worker was not leased to this client", hint="ask for a lease and use its secret")
    if hello.python and hello.python != PYTHON:
        raise PythonMismatch(
            "client and worker cannot exchange functions",
            asked=f"Python {hello.python}",
            found=f"Python {PYTHON}",
            hint="run client and host on the same minor version of Python",
        )
