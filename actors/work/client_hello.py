"""Whom a worker takes for its client: the first frame of a connection, before anything else of it is looked at."""

from __future__ import annotations

import hmac

from actorgrid.errors import PeerRefused, PythonMismatch, WrongToken
from actorgrid.transports.kept_stream import Keep
from actorgrid.transports.task_frames import PROTOCOL_VERSION, ClientHello

from .environment import PYTHON


def is_secret(said: str, secret: bytes) -> bool:
    """Whether that is the secret; in constant time. Nothing is the empty one."""
    return bool(secret) and hmac.compare_digest(said.encode("utf-8", "replace"), secret)


def check_secret(said: Keep | ClientHello, secret: bytes) -> None:
    """Raises WrongToken."""
    if not is_secret(said.secret, secret):
        raise WrongToken("the worker was not leased to this client", hint="ask for a lease and use its secret")


def check_hello(hello: ClientHello, secret: bytes) -> None:
    """Raises PeerRefused, WrongToken, PythonMismatch."""
    if hello.version != PROTOCOL_VERSION:
        raise PeerRefused("another protocol version", asked=str(hello.version), found=str(PROTOCOL_VERSION))
    check_secret(hello, secret)
    if hello.python and hello.python != PYTHON:
        raise PythonMismatch(
            "client and worker cannot exchange functions",
            asked=f"Python {hello.python}",
            found=f"Python {PYTHON}",
            hint="run client and host on the same minor version of Python",
        )
