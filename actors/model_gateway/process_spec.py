"""What a gateway's processes are told when they are started: one line of JSON each, checked.

The main process (``main.py``) is told where the host's data is and where to listen; it gives each worker
(``worker.py``) the descriptors of its sockets.
"""

from __future__ import annotations

import resource
import socket
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from actorgrid.errors import MalformedMessage

WORKERS_MAX = 64
BACKLOG = 1_024
"""Of each socket that listens: connections that may come before a worker looks."""
DESCRIPTORS_BESIDE = 500
"""Beside those of connections: idle ones to replicas, peers, files, the word with the main process."""
FOLDER = "model_gateway"
"""In the data directory of a host."""
SOCKET_NAME, TABLE_NAME, LOG_NAME = "gateway.sock", "services.json", "requests.log"


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What the main process is told."""

    folder: str
    """The folder that is the gateway's own: its socket, the last table, its log."""
    security: str
    """The folder of the host's key and certificate; nothing is in there on a host that is alone."""
    data: str = ""
    """Where it keeps what is to outlast the machine's restart; empty: in its folder."""
    listen: str = "127.0.0.1"
    """For clients. Beyond loopback they are spoken to by TLS alone."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    peer_listen: str = ""
    """For gateways of other hosts, by mutual TLS; empty: none."""
    peer_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = 1
    logs_requests: bool = True
    agentless_s: Annotated[float, Field(ge=0)] = 86_400.0
    """It ends when no agent has spoken to it for so long."""


@dataclass(frozen=True, slots=True)
class GatewayWorkerSpec:
    """What a worker is told: the numbers of its descriptors, and what it needs of the spec."""

    control: int
    clients: int
    peers: int
    """-1: none."""
    security: str
    has_tls: bool
    """Whether clients are spoken to by TLS."""
    log_path: str
    """Empty: requests are not logged."""


_GATEWAY = TypeAdapter(GatewaySpec)
_WORKER = TypeAdapter(GatewayWorkerSpec)


def write_spec(spec: GatewaySpec | GatewayWorkerSpec) -> str:
    """The spec as the process takes it."""
    text = _GATEWAY.dump_json(spec) if isinstance(spec, GatewaySpec) else _WORKER.dump_json(spec)
    return text.decode()


def read_gateway_spec(text: str) -> GatewaySpec:
    """The spec of a main process. Raises MalformedMessage."""
    try:
        return _GATEWAY.validate_json(text)
    except ValidationError as error:
        raise MalformedMessage("that is no spec of a model gateway", found=str(error)[:500]) from None


def read_worker_spec(text: str) -> GatewayWorkerSpec:
    """The spec of a worker. Raises MalformedMessage."""
    try:
        return _WORKER.validate_json(text)
    except ValidationError as error:
        raise MalformedMessage("that is no spec of a model gateway's worker", found=str(error)[:500]) from None


def socket_path(folder: Path) -> Path:
    """Where the agent comes to the gateway of that folder."""
    return folder / SOCKET_NAME


def descriptors_for(connections: int) -> int:
    """How many descriptors a process takes for so many clients, each with a connection to a replica."""
    return 2 * connections + DESCRIPTORS_BESIDE


def connections_within(descriptors: int) -> int:
    """How many clients a process may have that has so many descriptors; one at least."""
    return max(1, (descriptors - DESCRIPTORS_BESIDE) // 2)


def allow_descriptors(count: int) -> int:
    """Let this process have so many descriptors, if it may; how many it has in the end, which may be more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= count:
        allowed = most
    else:
        allowed = count
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
        except (ValueError, OSError):  # only root may have more than it was started with
            allowed = most
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def listening_socket(address: str, port: int) -> socket.socket:
    """A socket that listens there beside others of this process' user. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((address, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
