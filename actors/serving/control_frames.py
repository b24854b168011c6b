"""What the agent of a host and its model gateway say to each other, over the gateway's socket in the data directory.

The gateway listens and outlives the agent; an agent that starts connects to it again. Frames are those of
``transports/frames.py``. From the agent::

    ["hello", version]              first; ["hello", version, pid, client_address, peer_address] comes back
    ["table", json]                 the services (table.py); another one replaces it
    ["stop", grace_s]               take no more requests, finish those there are, end

and from the gateway::

    ["report", json]                a DemandReport, once a second
    ["wake", service]               a request came for a service without a ready replica
    ["refused", words]              the last table could not be read; the one before goes on
"""

from __future__ import annotations

from typing import Any, NamedTuple

from actorgrid.errors import MalformedMessage

from .table import TABLE_BYTES_MAX

CONTROL_VERSION = 1
CONTROL_FRAME_MAX = TABLE_BYTES_MAX + 1024
GRACE_MAX_S = 86_400.0


class AgentHello(NamedTuple):
    """The agent is there, and speaks this version."""

    version: int


class UseTable(NamedTuple):
    """Route by this table from now on."""

    text: bytes


class StopGateway(NamedTuple):
    """Drain for so long at most, and end."""

    grace_s: float


class GatewayHello(NamedTuple):
    """The gateway is there; addresses are ``ADDRESS:PORT``, of clients and of other hosts' gateways (empty: none)."""

    version: int
    pid: int
    client_address: str
    peer_address: str


class GatewayReport(NamedTuple):
    """A report (table.py)."""

    text: bytes


class WakeService(NamedTuple):
    """A request came for a service without a ready replica."""

    service: str


class TableRefused(NamedTuple):
    """The last table could not be read."""

    words: str


FromAgent = AgentHello | UseTable | StopGateway
FromGateway = GatewayHello | GatewayReport | WakeService | TableRefused


def parse_from_agent(frame: list[Any]) -> FromAgent:
    """What the agent says. Raises MalformedMessage."""
    match frame:
        case ["hello", int(version)]:
            return AgentHello(version)
        case ["table", bytes(text)]:
            return UseTable(text)
        case ["stop", int() | float() as grace_s] if 0 <= grace_s <= GRACE_MAX_S:
            return StopGateway(float(grace_s))
    raise MalformedMessage("a gateway is not told such things", found=repr(frame[:1])[:100])


def parse_from_gateway(frame: list[Any]) -> FromGateway:
    """What the gateway says. Raises MalformedMessage."""
    match frame:
        case ["hello", int(version), int(pid), str(clients), str(peers)] if pid > 1:
            return GatewayHello(version, pid, clients[:300], peers[:300])
        case ["report", bytes(text)]:
            return GatewayReport(text)
        case ["wake", str(service)] if 0 < len(service) <= 253:
            return WakeService(service)
        case ["refused", str(words)]:
            return TableRefused(words[:1000])
    raise MalformedMessage("a gateway does not say such things", found=repr(frame[:1])[:100])


def frame_of(message: FromAgent | FromGateway) -> list[Any]:
    """The frame in which *message* goes."""
    return [_KINDS[type(message)], *message]


_KINDS: dict[type, str] = {
    AgentHello: "hello",
    UseTable: "table",
    StopGateway: "stop",
    GatewayHello: "hello",
    GatewayReport: "report",
    WakeService: "wake",
    TableRefused: "refused",
}
